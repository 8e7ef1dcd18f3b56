"""What importing the package does, and what it must not do, each in a process of its own."""

import os
import subprocess
import sys

import pytest

from kerasrl_gpu import DeviceMemory, DQNAgent, callbacks, policy, processors, random

# What has to be the same before and after; a function `look()` for the code below.
LOOK = """
import logging, os, random, signal, sys, warnings
import numpy as np

def look():
    root = logging.getLogger()
    signals = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    return {
        "numpy": np.random.get_state()[1].tolist(),
        "random": random.getstate(),
        "signals": [signal.getsignal(number) for number in signals],
        "logging": (root.level, list(root.handlers), logging.root.manager.disable),
        "environment": dict(os.environ),
        "warnings": list(warnings.filters),
        "hook": sys.excepthook,
        "print options": np.get_printoptions(),
    }

def assert_same(before, after):
    changed = [key for key in before if before[key] != after[key]]
    assert not changed, changed
"""

TRAIN = """
import gymnasium

def network():
    return keras.Sequential([
        keras.Input((1, 4)), keras.layers.Flatten(), keras.layers.Dense(8, activation="relu"),
        keras.layers.Dense(2),
    ])

def train(model, **options):
    agent = DQNAgent(
        model, nb_actions=2, memory=DeviceMemory(1000), nb_steps_warmup=32,
        target_model_update=0.01, seed=1, **options,
    )
    agent.compile(keras.optimizers.Adam(1e-3), metrics=["mae"])
    env = gymnasium.make("CartPole-v1")
    agent.fit(env, nb_steps=200, verbose=0)
    agent.test(env, nb_episodes=1, visualize=False, verbose=0)
    return agent
"""


def run(code, backend, folder):
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr[-4000:]


def test_the_package_alone_loads_no_backend_and_changes_nothing(backend, tmp_path):
    code = """
before = look()
import kerasrl_gpu
import kerasrl_gpu.callbacks
assert_same(before, look())
assert {"DQNAgent", "DDPGAgent", "DeviceMemory"} <= set(dir(kerasrl_gpu))
assert kerasrl_gpu.__version__
loaded = {"keras", "jax", "tensorflow", "torch", "rl"} & set(sys.modules)
assert not loaded, loaded
"""
    run(LOOK + code, backend, tmp_path)


def test_what_lies_below_keras_rls_objects_loads_none_of_them(backend, tmp_path):
    code = """
import sys
import kerasrl_gpu.learner, kerasrl_gpu.planning, kerasrl_gpu.tuning.agents
assert "rl" not in sys.modules
"""
    run(code, backend, tmp_path)


def test_under_jax_tensorflow_is_never_loaded(backend, tmp_path):
    if backend != "jax":
        pytest.skip("TensorFlow is the backend of this process")
    code = """
import keras
before = look()
from kerasrl_gpu import DDPGAgent, DQNAgent, DeviceMemory
import kerasrl_gpu.callbacks, kerasrl_gpu.policy, kerasrl_gpu.processors, kerasrl_gpu.random
import rl.callbacks, rl.core, rl.memory, rl.policy, rl.random
assert_same(before, look())
agent = train(network(), enable_dueling_network=True)
agent.save_weights("dqn.h5f")
agent.load_weights("dqn.h5f")
agent.get_config()
actor = keras.Sequential([keras.Input((1, 4)), keras.layers.Flatten(), keras.layers.Dense(1)])
action, seen = keras.Input((1,)), keras.Input((1, 4))
both = keras.layers.Concatenate()([action, keras.layers.Flatten()(seen)])
critic = keras.Model([action, seen], keras.layers.Dense(1)(both))
ddpg = DDPGAgent(1, actor, critic, action, DeviceMemory(100))
ddpg.compile("adam")
ddpg.save_weights("ddpg.h5f")
loaded = [name for name in sys.modules if name.partition(".")[0] == "tensorflow"]
assert not loaded, loaded
"""
    run(LOOK + TRAIN + code, backend, tmp_path)


def test_under_tensorflow_eager_mode_and_floatx_stay(backend, tmp_path):
    # keras-rl2 switches eager mode off when its agents are imported, and models that were built
    # before belong to another world from then on
    if backend != "tensorflow":
        pytest.skip("JAX is the backend of this process")
    code = """
import keras
import tensorflow as tf
keras.config.set_floatx("float32")
built_before = tf.keras.Sequential([
    tf.keras.Input((1, 4)), tf.keras.layers.Flatten(), tf.keras.layers.Dense(2),
])

def framework():
    return {
        "eager": tf.executing_eagerly(),
        "floatx": keras.config.floatx(),
        "functions run eagerly": tf.config.functions_run_eagerly(),
        "soft placement": tf.config.get_soft_device_placement(),
        "devices": tf.config.get_visible_devices(),
        "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        "jit": tf.config.optimizer.get_jit(),
        "policy": keras.config.dtype_policy().name,
        "logger": tf.get_logger().level,
    }

before, settings = look(), framework()
from kerasrl_gpu import DDPGAgent, DQNAgent, DeviceMemory
import kerasrl_gpu.callbacks, kerasrl_gpu.policy, kerasrl_gpu.processors, kerasrl_gpu.random
import rl.callbacks, rl.core, rl.memory, rl.policy, rl.random
assert_same(before, look())
assert_same(settings, framework())
agent = train(built_before)
assert_same(settings, framework())
assert agent.model is built_before
assert built_before(np.zeros((3, 1, 4), "float32")).numpy().shape == (3, 2)
built_after = network()
agent = DQNAgent(built_after, nb_actions=2, memory=DeviceMemory(50))
agent.compile("adam")
assert agent.forward(np.zeros(4, "float32")) in (0, 1)
assert tf.executing_eagerly()
"""
    run(LOOK + TRAIN + code, backend, tmp_path)


def test_what_keras_rl_scripts_ask_isinstance_of():
    import keras
    import rl.callbacks
    import rl.core
    import rl.memory
    import rl.policy
    import rl.processors
    import rl.random

    model = keras.Sequential([keras.Input((1, 4)), keras.layers.Flatten(), keras.layers.Dense(2)])
    agent = DQNAgent(model, nb_actions=2, memory=DeviceMemory(50))
    assert isinstance(agent, rl.core.Agent)
    assert isinstance(agent.memory, rl.memory.Memory)
    assert isinstance(agent.policy, rl.policy.EpsGreedyQPolicy)
    assert isinstance(agent.test_policy, rl.policy.GreedyQPolicy)
    assert issubclass(callbacks.Callback, rl.callbacks.Callback)
    assert issubclass(callbacks.Callback, keras.callbacks.Callback)
    assert issubclass(callbacks.History, keras.callbacks.History)
    for ours, theirs in ((policy, rl.policy), (processors, rl.processors), (random, rl.random)):
        classes = [
            name
            for name, value in vars(theirs).items()
            if isinstance(value, type) and value.__module__ == theirs.__name__
        ]
        assert classes
        for name in classes:
            assert issubclass(getattr(ours, name), getattr(theirs, name)), name
    assert issubclass(processors.Processor, rl.core.Processor)
    assert "rl.agents" not in sys.modules
