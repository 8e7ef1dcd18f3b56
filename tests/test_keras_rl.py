"""The import of keras-rl leaves the process as it found it, in every order of imports."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import keras
import pytest

from kerasrl_gpu import keras_rl


def run(backend, script):
    """What `script` prints in a fresh process on `backend`; it must exit with 0."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_has_no_side_effects(backend):
    printed = run(
        backend,
        """
        import logging, signal, sys
        import keras
        import numpy as np

        def reading():
            state = np.random.get_state()
            levels = {n: logging.getLogger(n).level for n in ["", "tensorflow", "jax", "absl"]}
            handlers = {s: signal.getsignal(s) for s in signal.valid_signals()}
            tf = sys.modules.get("tensorflow")
            eager = tf.executing_eagerly() if tf else None
            theirs = {n: m for n, m in sys.modules.items() if n.split(".")[0] == "tensorflow"}
            names = {n: set(vars(m)) for n, m in [*theirs.items(), ("keras", keras)]}
            return (state[1].tolist(), state[2:], levels, logging.root.handlers[:], handlers,
                    eager, keras.config.floatx(), keras.backend.backend(), theirs, names)

        before = reading()
        import kerasrl_gpu.keras_rl
        after = reading()
        print([b == a for b, a in zip(before, after)].count(False))
        print("tensorflow" in sys.modules, "rl.agents" in sys.modules)
        """,
    )
    assert printed == ["0", str(backend == "tensorflow"), "False"]


def test_a_later_import_finds_the_real_tensorflow(backend):
    # A stand-in left behind would have no `function`, and no `keras.layers.Dense`.
    printed = run(
        backend,
        """
        import kerasrl_gpu.keras_rl
        import tensorflow as tf
        import tensorflow.keras.backend
        from tensorflow.python.keras import callbacks
        from rl.util import huber_loss
        print(float(tf.function(lambda x: 2 * x)(tf.constant(3.0))))
        print(tf.keras.layers.Dense.__name__, callbacks.__name__, tf.executing_eagerly())
        """,
    )
    assert printed == ["6.0", "Dense", "tensorflow.python.keras.callbacks", "True"]


def test_one_callback_family_even_when_rl_was_imported_first(backend):
    # Alone, rl.callbacks derives from TensorFlow's private copy of Keras.
    printed = run(
        backend,
        """
        from rl.callbacks import Callback, CallbackList
        from rl.core import Processor
        class Mine(Callback):
            def on_step_end(self, step, logs=None):
                print(self.model, step)
        import keras
        print(issubclass(Mine, keras.callbacks.Callback))
        from kerasrl_gpu import keras_rl
        print(issubclass(Mine, keras.callbacks.Callback), issubclass(Mine, keras_rl.Callback))
        print(issubclass(CallbackList, keras.callbacks.CallbackList))
        print(keras_rl.Processor is Processor)
        together = CallbackList([Mine()])
        together.set_model("agent")
        together.on_step_end(7)
        """,
    )
    assert printed == ["False", "True", "True", "True", "True", "agent", "7"]


def test_one_callback_family():
    assert issubclass(keras_rl.Callback, keras.callbacks.Callback)
    assert issubclass(keras_rl.rl_callbacks.CallbackList, keras.callbacks.CallbackList)
    assert issubclass(keras_rl.rl_callbacks.FileLogger, keras_rl.Callback)


def test_exports_are_keras_rls_own_objects():
    import rl.core
    import rl.memory
    import rl.policy

    assert keras_rl.Agent is rl.core.Agent
    assert keras_rl.Processor is rl.core.Processor
    assert keras_rl.Env is rl.core.Env
    assert keras_rl.Space is rl.core.Space
    assert keras_rl.Memory is rl.memory.Memory
    assert keras_rl.SequentialMemory is rl.memory.SequentialMemory
    assert keras_rl.EpisodeParameterMemory is rl.memory.EpisodeParameterMemory
    assert keras_rl.Experience is rl.memory.Experience
    assert keras_rl.Policy is rl.policy.Policy
    assert keras_rl.rl_policy is rl.policy


def test_a_failing_import_leaves_no_stand_in():
    before = dict(sys.modules)
    stand_in = keras_rl.keras_as_tensorflow()
    stand_in.__enter__()
    assert sys.modules["tensorflow"].keras.backend is keras.backend
    sys.modules["rl.half_loaded"] = keras_rl.rl_core
    error = ImportError("no name")
    assert not stand_in.__exit__(ImportError, error, None)  # the error goes on to the caller
    assert sys.modules == before


def test_clone_model_of_keras_rl_works_on_keras_3(backend):
    if backend == "jax":
        pytest.skip("Keras loads TensorFlow to read a model's config: 5 s, and the same code")
    from rl.util import clone_model

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    functional = keras.Model(model.inputs, model.outputs)
    for original in (model, functional):
        clone = clone_model(original)
        assert type(clone) is type(original)
        for ours, theirs in zip(clone.get_weights(), original.get_weights()):
            assert (ours == theirs).all()


def test_a_missing_or_foreign_rl_gets_one_clear_sentence(tmp_path):
    # Found instead of keras-rl2: a file of that name, and versions that ask for what is not there.
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "rl.py").write_text("")
    for name, module in [("keras", "keras.no_such"), ("tensorflow", "tensorflow.gone")]:
        (tmp_path / name / "rl").mkdir(parents=True)
        (tmp_path / name / "rl" / "__init__.py").write_text("")
        (tmp_path / name / "rl" / "callbacks.py").write_text(f"import {module}")
    printed = run(
        "jax",
        f"""
        import os, sys
        for case in ["file", "keras", "tensorflow"]:
            sys.path.insert(0, os.path.join({str(tmp_path)!r}, case))
            try:
                import kerasrl_gpu.keras_rl
            except ImportError as error:
                print(case, ":", error)
            print([n for n in sys.modules if n.split(".")[0] in ("tensorflow", "rl")])
        """,
    )
    said = " ".join(printed)
    assert "file : kerasrl-gpu builds on keras-rl2, and Python finds no module 'rl." in said
    assert "keras : keras-rl2 does not import on Keras" in said
    assert "tensorflow : keras-rl2 does not import on Keras" in said
    assert said.count("pip install keras-rl2==1.0.5") == 3
    assert said.count("[]") == 3
