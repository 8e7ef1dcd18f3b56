"""Weight files: their names, what is in them, and what a failure leaves behind."""

import os
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

from kerasrl_gpu import DDPGAgent, DQNAgent, engine, files
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.keras_rl import Memory


def model(seed=None):
    """Two dense layers around statistics; every weight a different number if there is a seed."""
    built = keras.Sequential(
        [
            keras.Input((1, 2)),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(2),
        ]
    )
    if seed is not None:
        random = np.random.default_rng(seed)
        built.set_weights([random.normal(size=w.shape) for w in built.get_weights()])
    return built


def dqn(seed=None):
    agent = DQNAgent(model(seed), nb_actions=2, memory=Memory(window_length=1))
    agent.compile("sgd")
    return agent


def ddpg(seed=None):
    action = keras.Input((2,), name="action")
    seen = keras.Input((1, 2))
    both = keras.layers.Concatenate()([action, keras.layers.Flatten()(seen)])
    critic = keras.Model([action, seen], keras.layers.Dense(1)(both))
    if seed is not None:
        critic.set_weights([np.full(w.shape, seed, np.float32) for w in critic.get_weights()])
    agent = DDPGAgent(2, model(seed), critic, action, Memory(window_length=1))
    agent.compile("sgd")
    return agent


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


NAMES = [
    "w.h5f",
    "w.h5",
    "w",
    "w.weights.h5",
    "w.v1.2.h5f",
    ".hidden",
    "w.keras",
    "my own.h5f",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_has_the_name_that_it_was_given(tmp_path, name, kind):
    path = kind(tmp_path / name)
    trained, fresh = model(seed=1), model(seed=2)
    files.save_weights(trained, path)
    assert names_in(tmp_path) == [name]
    files.load_weights(fresh, path)
    assert_same(fresh.get_weights(), trained.get_weights())
    assert names_in(tmp_path) == [name]


def test_a_bare_name_lies_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained, fresh = model(seed=1), model(seed=2)
    files.save_weights(trained, "w.h5f")
    assert names_in(tmp_path) == ["w.h5f"]
    files.load_weights(fresh, "w.h5f")
    assert_same(fresh.get_weights(), trained.get_weights())


def test_keras_reads_what_we_write_and_we_read_what_keras_writes(tmp_path):
    trained, fresh = model(seed=1), model(seed=2)
    files.save_weights(trained, tmp_path / "ours.weights.h5")
    fresh.load_weights(tmp_path / "ours.weights.h5")
    assert_same(fresh.get_weights(), trained.get_weights())
    trained, fresh = model(seed=3), model(seed=4)
    trained.save_weights(tmp_path / "theirs.weights.h5")
    os.rename(tmp_path / "theirs.weights.h5", tmp_path / "theirs.h5f")
    files.load_weights(fresh, tmp_path / "theirs.h5f")
    assert_same(fresh.get_weights(), trained.get_weights())


def test_a_file_is_as_readable_as_any_other(tmp_path):
    files.save_weights(model(), tmp_path / "w.h5f")
    (tmp_path / "other").touch()
    assert (tmp_path / "w.h5f").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_what_is_there_is_replaced_only_when_asked(tmp_path):
    path, fresh = tmp_path / "w.h5f", model(seed=9)
    old, new = model(seed=1), model(seed=2)
    files.save_weights(old, path)
    with pytest.raises(FileExistsError, match=r"w.h5f exists; pass overwrite=True"):
        files.save_weights(new, path)
    files.load_weights(fresh, path)
    assert_same(fresh.get_weights(), old.get_weights())
    files.save_weights(new, path, overwrite=True)
    files.load_weights(fresh, path)
    assert_same(fresh.get_weights(), new.get_weights())
    assert names_in(tmp_path) == ["w.h5f"]


class Breaks:
    """Stands for a model whose saving fails half-way: the disk is full, or Ctrl-C."""

    def __init__(self, error):
        self.error = error

    def save_weights(self, path, overwrite):
        Path(path).write_bytes(b"half a file")
        raise self.error


@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "w.h5f"
    files.save_weights(model(seed=1), path)
    before = path.read_bytes()
    with pytest.raises(type(error)):
        files.save_weights(Breaks(error), path, overwrite=True)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["w.h5f"]


# What others wrote --------------------------------------------------------------------------------


def write_as_keras_2(group, layers):
    """The layout of Keras 2.12's `save_weights(save_format="h5")`: a group a layer, by name.

    Args:
        layers: layer name -> {weight name: array}, layers without weights included.
    """
    group.attrs["backend"], group.attrs["keras_version"] = b"tensorflow", b"2.12.0"
    group.attrs["layer_names"] = [name.encode() for name in layers]
    for name, held in {**layers, "top_level_model_weights": {}}.items():
        layer = group.create_group(name)
        layer.attrs["weight_names"] = [f"{name}/{weight}:0".encode() for weight in held]
        for weight, values in held.items():
            layer.create_dataset(f"{name}/{weight}:0", data=values)


@pytest.mark.parametrize("whole_model", [False, True])
def test_weights_of_keras_2_load(tmp_path, whole_model):
    random = np.random.default_rng(5)
    want = [random.normal(size=w.shape).astype(np.float32) for w in model().get_weights()]
    norm = ("gamma", "beta", "moving_mean", "moving_variance")
    layers = {
        "flatten": {},
        "dense": dict(zip(("kernel", "bias"), want[:2], strict=True)),
        "batch_normalization": dict(zip(norm, want[2:6], strict=True)),
        "dense_1": dict(zip(("kernel", "bias"), want[6:], strict=True)),
    }
    path = tmp_path / "dqn_CartPole-v0_weights.h5f"
    with h5py.File(path, "w") as file:  # `model.save` puts the same one level down
        write_as_keras_2(file.create_group("model_weights") if whole_model else file, layers)
    agent = dqn(seed=1)
    agent.load_weights(path)
    assert_same(agent.model.get_weights(), want)


def test_what_is_no_weight_file_is_said_to_be_none(tmp_path):
    (tmp_path / "w.h5f").write_text("not HDF5")
    with pytest.raises(ArgumentError, match=r"w.h5f is no HDF5 weight file"):
        files.load_weights(model(), tmp_path / "w.h5f")
    with pytest.raises(FileNotFoundError, match=r"v.h5f: there is no such weight file"):
        files.load_weights(model(), tmp_path / "v.h5f")


# Through agents -----------------------------------------------------------------------------------


def on_device(agent, kind, name):
    """The leaves that the device holds, in the order of `get_weights` of each half."""
    weights = getattr(agent.state, kind)[name]
    return [engine.to_host(leaf) for leaf in (*weights.trainable, *weights.non_trainable)]


def of_model(keras_model):
    every = [*keras_model.trainable_variables, *keras_model.non_trainable_variables]
    return [keras.ops.convert_to_numpy(variable) for variable in every]


def test_a_dqn_gets_model_device_and_target_back(tmp_path):
    trained, fresh = dqn(seed=1), dqn(seed=2)
    trained.save_weights(tmp_path / "dqn.h5f")
    with pytest.raises(FileExistsError):
        trained.save_weights(tmp_path / "dqn.h5f")
    trained.save_weights(tmp_path / "dqn.h5f", overwrite=True)
    assert names_in(tmp_path) == ["dqn.h5f"]
    fresh.load_weights(tmp_path / "dqn.h5f")
    want = of_model(trained.model)
    assert_same(of_model(fresh.model), want)
    assert_same(on_device(fresh, "online", "model"), want)
    assert_same(on_device(fresh, "target", "model"), want)


def test_weights_load_before_compile(tmp_path):
    files.save_weights(model(seed=1), tmp_path / "dqn.h5f")
    agent = DQNAgent(model(seed=2), nb_actions=2, memory=Memory(window_length=1))
    agent.load_weights(tmp_path / "dqn.h5f")
    agent.compile("sgd")
    assert_same(on_device(agent, "target", "model"), of_model(model(seed=1)))


NAMES_OF_TWO = {
    "ddpg.h5f": ("ddpg_actor.h5f", "ddpg_critic.h5f"),
    "ddpg": ("ddpg_actor", "ddpg_critic"),
    "ddpg.weights.h5": ("ddpg.weights_actor.h5", "ddpg.weights_critic.h5"),
    "run.1/ddpg": ("run.1/ddpg_actor", "run.1/ddpg_critic"),
    ".ddpg": (".ddpg_actor", ".ddpg_critic"),
}


@pytest.mark.parametrize("name", NAMES_OF_TWO)
def test_ddpgs_two_names_are_keras_rls(name):
    assert files.actor_critic_names(name) == NAMES_OF_TWO[name]
    assert files.actor_critic_names(Path(name)) == NAMES_OF_TWO[name]


def test_a_ddpg_gets_both_networks_and_both_targets_back(tmp_path):
    trained, fresh = ddpg(seed=1), ddpg(seed=2)
    trained.save_weights(tmp_path / "ddpg.h5f")
    assert names_in(tmp_path) == ["ddpg_actor.h5f", "ddpg_critic.h5f"]
    fresh.load_weights(str(tmp_path / "ddpg.h5f"))
    for name in ("actor", "critic"):
        want = of_model(getattr(trained, name))
        assert_same(of_model(getattr(fresh, name)), want)
        assert_same(on_device(fresh, "online", name), want)
        assert_same(on_device(fresh, "target", name), want)


@pytest.mark.parametrize("there", ["ddpg_actor.h5f", "ddpg_critic.h5f"])
def test_a_ddpg_writes_both_files_or_none(tmp_path, there):
    (tmp_path / there).write_bytes(b"precious")
    with pytest.raises(FileExistsError, match=there):
        ddpg(seed=1).save_weights(tmp_path / "ddpg.h5f")
    assert names_in(tmp_path) == [there]
    assert (tmp_path / there).read_bytes() == b"precious"


def test_a_ddpg_reads_both_files_or_none(tmp_path):
    ddpg(seed=1).save_weights(tmp_path / "ddpg.h5f")
    (tmp_path / "ddpg_critic.h5f").unlink()
    agent = ddpg(seed=2)
    with pytest.raises(FileNotFoundError, match=r"ddpg_critic.h5f: there is no such weight file"):
        agent.load_weights(tmp_path / "ddpg.h5f")
    assert_same(of_model(agent.actor), of_model(model(seed=2)))


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"its folder does not exist.*os.makedirs"):
        files.save_weights(None, tmp_path / "no" / "x.weights.h5")
