"""`python -m kerasrl_gpu verify PATH`: its exit status and what it says."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import keras
import numpy as np
import pytest
import scenarios

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, checkpoint
from kerasrl_gpu.cli import main
from kerasrl_gpu.keras_rl import rl_processors
from kerasrl_gpu.processors import Processor, WhiteningNormalizerProcessor


def dqn(model, **arguments):
    agent = DQNAgent(
        model, nb_actions=2, memory=DeviceMemory(limit=90), nb_steps_warmup=10, batch_size=8,
        target_model_update=20, seed=1, **arguments,
    )  # fmt: skip
    agent.compile(keras.optimizers.Adam(1e-2))
    return agent


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run directory with two checkpoints of an agent that trained."""
    path, env = tmp_path_factory.mktemp("run"), gymnasium.make("CartPole-v1")
    agent = dqn(scenarios.q_network((4,), 2), enable_dueling_network=True)
    agent.fit(env, 30, verbose=0)
    agent.save(path)
    agent.fit(env, 60, verbose=0, resume=True)
    agent.save(path)
    return path


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the newest checkpoint, to damage."""
    return Path(shutil.copytree(checkpoint.find(trained)[0], tmp_path / "000009-step-60"))


@pytest.fixture
def verify(capsys):
    """verify(arguments) -> (exit status, what it said)."""

    def run(*arguments):
        capsys.readouterr()
        status = main(["verify", *map(str, arguments)])
        return status, capsys.readouterr().out

    return run


def test_a_good_checkpoint_says_what_is_in_it(trained, verify):
    newest = checkpoint.find(trained)[0]
    status, said = verify(newest)
    lines = said.splitlines()
    assert status == 0
    assert lines[0].startswith(f"{newest}: 3 files, ")
    assert lines[0].endswith(" bytes, every digest is right")
    rows = checkpoint.open_newest(newest).manifest["counters"]["rows"]
    assert lines[1].startswith("  DQNAgent, step 60, episode ")
    assert lines[1].endswith(f"updates 49, rows {rows}")  # at steps 11 to 59
    assert lines[2].startswith("  networks: they say what they said, [")
    assert len(lines) == 3


def test_of_a_run_directory_the_newest_counts(trained, verify):
    status, said = verify(trained)
    assert status == 0
    assert said.startswith(f"{checkpoint.find(trained)[0]}: ")


def test_a_damaged_newest_one_is_not_passed_over(trained, tmp_path, verify):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    flip(checkpoint.find(run)[0] / "state.safetensors")
    status, said = verify(run)
    assert status == 1
    assert said.startswith(f"wrong: {checkpoint.find(run)[0]}")


@pytest.mark.filterwarnings("ignore:WhiteningNormalizerProcessor.process_state_batch stays")
def test_actors_critics_and_statistics(tmp_path, verify):
    networks = scenarios.actor_critic((3,), 1)
    agent = DDPGAgent(
        1, networks["actor"], networks["critic"], networks["input"], DeviceMemory(limit=90),
        processor=WhiteningNormalizerProcessor(),
    )  # fmt: skip
    agent.compile("adam")
    agent.fit(gymnasium.make("Pendulum-v1"), 5, verbose=0)
    agent.save(tmp_path)
    status, said = verify(tmp_path)
    assert (status, "they say what they said" in said) == (0, True)


@pytest.mark.filterwarnings("ignore:WhiteningNormalizerProcessor.process_state_batch stays")
def test_a_processor_that_learns_from_every_batch(tmp_path, verify):
    agent = dqn(
        scenarios.q_network((4,), 2), processor=rl_processors.WhiteningNormalizerProcessor()
    )
    agent.fit(gymnasium.make("CartPole-v1"), 5, verbose=0)
    agent.save(tmp_path)
    status, said = verify(tmp_path)
    assert (status, "they say what they said" in said) == (0, True)


@pytest.mark.filterwarnings("ignore:KeepsALock.process_state_batch stays")
def test_a_processor_that_cannot_be_copied_is_saved_without_outputs(tmp_path, verify):
    class KeepsALock(Processor):
        def __init__(self):
            self.lock = threading.Lock()

        def process_state_batch(self, batch):
            with self.lock:
                return batch

    agent = dqn(scenarios.q_network((4,), 2), processor=KeepsALock())
    agent.fit(gymnasium.make("CartPole-v1"), 5, verbose=0)
    agent.save(tmp_path)
    assert verify(tmp_path)[0] == 0
    assert checkpoint.open_newest(tmp_path).state_part("probe", "outputs") is None


def test_before_the_first_step_there_is_nothing_to_compare(tmp_path, verify):
    dqn(scenarios.q_network((4,), 2)).save(tmp_path)
    status, said = verify(tmp_path)
    assert status == 0
    assert "networks: no outputs were stored to compare with" in said


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


FILES = ["state.json", "state.safetensors", "manifest.json", "pool/000-00000.safetensors"]


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_wrong(copied, verify, name):
    flip(copied / name)
    status, said = verify(copied)
    assert status == 1
    assert said.startswith(f"wrong: {copied / name} is damaged: its sha256 is")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_wrong(copied, verify, name):
    (copied / name).unlink()
    status, said = verify(copied)
    assert status == 1
    assert said.startswith(f"wrong: {copied / name} cannot be read: No such file")


def test_what_is_no_checkpoint_is_wrong(tmp_path, copied, verify):
    for path in (tmp_path / "nothing", tmp_path / "empty", copied):
        (tmp_path / "empty").mkdir(exist_ok=True)
        (copied / "COMMIT").unlink(missing_ok=True)
        status, said = verify(path)
        assert status == 1
        assert said.startswith("wrong: ")
        assert str(path) in said


def rewrite(path, change):
    """The checkpoint with another state and the right digests."""
    saved = checkpoint.open_newest(path)
    state = saved.state
    change(state)
    kept = {key: value for key, value in saved.manifest.items() if key not in ("format", "files")}
    rows = [checkpoint.Range(name, lambda n=name: saved.rows(n)) for name in saved.range_names]
    return checkpoint.write(
        path.parent / "changed", step=60, manifest=kept, state=state, ranges=rows
    )


def test_weights_that_say_something_else_are_wrong(copied, verify):
    def change(state):
        state["trainer"]["online"]["model"]["trainable"][-1] += np.float32(0.01)

    status, said = verify(rewrite(copied, change))
    assert status == 1
    assert "every digest is right" in said
    assert "wrong: networks: they say [" in said


def test_weights_of_another_shape_are_wrong(copied, verify):
    def change(state):
        weights = state["trainer"]["online"]["model"]["trainable"]
        weights[0] = weights[0][:-1]

    status, said = verify(rewrite(copied, change))
    assert status == 1
    assert "wrong: networks: the checkpoint's networks do not fit" in said


# Layers of one's own -----------------------------------------------------------------------------

MODULE = """
import keras

@keras.saving.register_keras_serializable("mine")
class Mine(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs
"""


def in_a_shell(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "kerasrl_gpu", "verify", *map(str, arguments)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def custom(tmp_path_factory):
    """A folder with layers_of_mine.py, and a run in it whose network has such a layer."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "layers_of_mine.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(folder)
        import layers_of_mine

        model = keras.Sequential(
            [keras.Input((1, 4)), keras.layers.Flatten(), layers_of_mine.Mine()]
        )
        model.add(keras.layers.Dense(2))
        agent = dqn(model)
        agent.fit(gymnasium.make("CartPole-v1"), 5, verbose=0)
        agent.save(folder / "run")
        del sys.modules["layers_of_mine"]
    return folder


def test_a_layer_that_is_not_registered_is_said_and_not_wrong(custom):
    done = in_a_shell(custom, "run")
    assert done.returncode == 0, done.stderr
    assert "every digest is right" in done.stdout
    assert "networks: not compared: the network 'model' cannot be rebuilt" in done.stdout
    assert "Mine" in done.stdout


def test_an_imported_module_registers_it(custom):
    done = in_a_shell(custom, "run", "--import", "layers_of_mine")
    assert done.returncode == 0, done.stderr
    assert "networks: they say what they said" in done.stdout


def test_the_module_may_lie_in_the_working_folder(custom, monkeypatch, verify):
    monkeypatch.chdir(custom)
    monkeypatch.setattr(
        sys, "path", [place for place in sys.path if place not in ("", str(custom))]
    )
    status, said = verify("run", "--import", "layers_of_mine")
    assert (status, "they say what they said" in said) == (0, True)


def test_a_module_that_is_not_there_is_said(custom, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["verify", str(custom / "run"), "--import", "no_such_module"])
    assert "--import no_such_module: No module named" in capsys.readouterr().err
