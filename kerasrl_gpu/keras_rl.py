"""keras-rl's own classes, imported on Keras 3: the only module that imports `rl`.

keras-rl2 names TensorFlow modules that are private, have moved, or lack a name by now. While it is
imported, Keras itself stands in for them. Afterwards `sys.modules` holds what it held before, so
that TensorFlow is not loaded on its behalf and a later `import tensorflow` finds the real one.
`rl.agents` is never imported: it switches eager mode off for the whole process.

Raises:
    ImportError: keras-rl2 is not installed, or does not import on this Keras.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator

import keras

_NEEDED = ("callbacks", "core", "memory", "policy", "processors", "random")
_ABSENT = object()


def _module(name: str, **names) -> types.ModuleType:
    """A module without a path: importing a submodule that is not listed fails, loading nothing."""
    module = types.ModuleType(name)
    module.__dict__.update(names)
    return module


def _model_from_config(config: dict, custom_objects: dict | None = None):
    """Keras 2's `model_from_config`, which `rl.util.clone_model` calls."""
    kind = keras.Sequential if config["class_name"] == "Sequential" else keras.Model
    return kind.from_config(config["config"], custom_objects=custom_objects)


def _stand_ins() -> dict[str, types.ModuleType]:
    """Every TensorFlow module that keras-rl2 names, by that name."""
    models = _module(
        "tensorflow.keras.models",
        Model=keras.Model,
        Sequential=keras.Sequential,
        model_from_config=_model_from_config,
    )
    public = {
        "backend": keras.backend,
        "callbacks": keras.callbacks,
        "layers": keras.layers,
        "models": models,
        "optimizers": keras.optimizers,
    }
    tf_keras = _module("tensorflow.keras", __version__=keras.__version__, **public)
    private = "tensorflow.python.keras"
    return {
        "tensorflow": _module("tensorflow", keras=tf_keras),
        "tensorflow.keras": tf_keras,
        **{f"tensorflow.keras.{name}": module for name, module in public.items()},
        "tensorflow.python": _module("tensorflow.python"),
        private: _module(private),
        f"{private}.callbacks": keras.callbacks,
        f"{private}.utils": _module(f"{private}.utils"),
        f"{private}.utils.generic_utils": _module(
            f"{private}.utils.generic_utils", Progbar=keras.utils.Progbar
        ),
    }


@contextlib.contextmanager
def keras_as_tensorflow() -> Iterator[None]:
    """Inside, Keras stands in for TensorFlow; afterwards `sys.modules` is as it was.

    Nothing is set on a real TensorFlow package: every name is found in `sys.modules`, and Python
    binds a submodule to its parent only when it loads one. When the body raises, modules of `rl`
    that it loaded are dropped too, so that the next try starts afresh.
    """
    stand_ins = _stand_ins()
    before = {name: sys.modules.get(name, _ABSENT) for name in stand_ins}
    rl_before = {name for name in sys.modules if name.partition(".")[0] == "rl"}
    sys.modules.update(stand_ins)
    try:
        yield
    except BaseException:
        for name in [name for name in sys.modules if name.partition(".")[0] == "rl"]:
            if name not in rl_before:
                _forget(name)
        raise
    finally:
        for name, module in before.items():
            if module is _ABSENT:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def _forget(name: str) -> None:
    """Drop a loaded module, and the attribute that its package got with it."""
    module = sys.modules.pop(name)
    parent, _, child = name.rpartition(".")
    package = sys.modules.get(parent)
    if package is not None and getattr(package, child, None) is module:
        delattr(package, child)


def _import_rl() -> list[types.ModuleType]:
    """The modules of `_NEEDED`, in that order, or ImportError with what to do."""
    try:
        with keras_as_tensorflow():
            return [importlib.import_module(f"rl.{name}") for name in _NEEDED]
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rl":
            raise _does_not_import(error) from error
        raise ImportError(
            f"kerasrl-gpu builds on keras-rl2, and Python finds no module {error.name!r}. "
            "Run `pip install keras-rl2==1.0.5`; if it is installed, another package or file "
            "named `rl` hides it."
        ) from error
    except ImportError as error:
        raise _does_not_import(error) from error


def _does_not_import(error: ImportError) -> ImportError:
    return ImportError(
        f"keras-rl2 does not import on Keras {keras.__version__}: {error}. "
        "kerasrl-gpu is tested with keras-rl2 1.0.5; run `pip install keras-rl2==1.0.5`."
    )


def _join_families(callbacks: types.ModuleType) -> None:
    """Make keras-rl's callbacks Keras' own when `rl` was imported before this module.

    They then derive from TensorFlow's private copy of Keras. The classes stay the same objects, so
    a user's subclasses follow and `isinstance` holds in every order of imports.
    """
    for name in ("Callback", "CallbackList"):
        ours = getattr(keras.callbacks, name)
        theirs = getattr(callbacks, name)
        if not issubclass(theirs, ours):
            theirs.__bases__ = (ours,)


rl_callbacks, rl_core, rl_memory, rl_policy, rl_processors, rl_random = _import_rl()
_join_families(rl_callbacks)

Agent = rl_core.Agent
Callback = rl_callbacks.Callback
Env = rl_core.Env
EpisodeParameterMemory = rl_memory.EpisodeParameterMemory
Experience = rl_memory.Experience
Memory = rl_memory.Memory
Policy = rl_policy.Policy
Processor = rl_core.Processor
SequentialMemory = rl_memory.SequentialMemory
Space = rl_core.Space


def config_of(thing) -> dict | None:
    """{"class_name", "config"} of a policy, memory or process; None of None."""
    if thing is None:
        return None
    get_config = getattr(thing, "get_config", dict)
    return {"class_name": type(thing).__name__, "config": get_config()}
