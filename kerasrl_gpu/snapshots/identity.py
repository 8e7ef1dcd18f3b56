"""How the layers of an environment were made, and the first difference between two of them."""

from __future__ import annotations

import inspect
import operator
import warnings

from gymnasium.envs.registration import EnvSpec

from kerasrl_gpu import attributes
from kerasrl_gpu.attributes import kinds
from kerasrl_gpu.errors import SnapshotError
from kerasrl_gpu.names import class_name, same_class
from kerasrl_gpu.snapshots.layers import is_recorder

# A run goes on without its window, too.
_LOOKS = ("env", "render_mode")


def of(layer) -> dict:
    """{"class": its name, "arguments": what its constructor recorded, "id": of its spec}."""
    made = {} if is_recorder(layer) else _arguments(layer)
    spec = vars(layer).get("spec") if hasattr(layer, "__dict__") else None
    is_spec = isinstance(spec, EnvSpec)
    if is_spec:
        made.update(spec.kwargs)
    arguments = {name: attributes.told(value) for name, value in made.items() if name not in _LOOKS}
    name = spec.id if is_spec else None
    return {"class": class_name(layer), "arguments": arguments, "id": name}


def check(layers: list, saved: list[dict]) -> None:
    """Raise SnapshotError at the first layer that was not made as the saved one was."""
    for depth, (layer, then) in enumerate(zip(layers, saved)):
        now = of(layer)
        for what in ("class", "id"):
            same = same_class if what == "class" else operator.eq
            if not same(now[what], then[what]):
                raise _differs(f"layer {depth} from outside is {now[what]}", f"{then[what]}")
        for name in {**then["arguments"], **now["arguments"]}:
            here, there = (side["arguments"].get(name) for side in (now, then))
            if not attributes.same(here, there):
                made = f"{type(layer).__name__} was made with {name}="
                raise _differs(f"{made}{here!r}", f"{there!r}")
    if len(layers) != len(saved):
        raise _differs(f"{len(layers)} layers", f"{len(saved)}, wrappers included")


def warn_of_changes(layer, state: dict) -> None:
    """Say which attributes that are named as arguments of its constructor `state` will change."""
    here = kinds.attributes_of(layer)
    for argument in inspect.signature(type(layer).__init__).parameters:
        for name in (argument, f"_{argument}"):
            if name not in state or name not in here or isinstance(state[name], dict):
                continue
            unchanged = attributes.same(state[name], here[name])
            if not unchanged and not kinds.is_constant(here[name]):
                warnings.warn(
                    f"{type(layer).__name__}.{name} is {here[name]!r} here and was {state[name]!r} "
                    "when the snapshot was taken. It is set to what it was; change it afterwards "
                    "if the change was meant.",
                    stacklevel=4,
                )


def _arguments(layer) -> dict:
    """What Gymnasium's RecordConstructorArgs or EzPickle recorded."""
    made = dict(getattr(layer, "_saved_kwargs", {}))
    made.update(getattr(layer, "_ezpickle_kwargs", {}))
    names = list(inspect.signature(type(layer).__init__).parameters)[1:]  # without self
    made.update(zip(names, getattr(layer, "_ezpickle_args", ())))
    return made


def _differs(here: str, there: str) -> SnapshotError:
    return SnapshotError(
        f"the snapshot is of another environment: {here}, and was {there} when it was taken. Make "
        "the environment as it was then; to go on in another one, start a new episode."
    )
