"""`kerasrl-gpu plan` and `tune`: of an environment, and of the agent that a script trains."""

import re
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from kerasrl_gpu import networks
from kerasrl_gpu.cli import main
from kerasrl_gpu.commands import targets
from kerasrl_gpu.core import Agent
from kerasrl_gpu.errors import ArgumentError

SCRIPT = """
    import sys
    import gymnasium as gym
    import keras
    from kerasrl_gpu import DQNAgent, DeviceMemory
    from helping import WIDTH

    model = keras.Sequential([keras.Input((1, 4)), keras.layers.Flatten(),
                              keras.layers.Dense(WIDTH), keras.layers.Dense(2)])
    agent = DQNAgent(model, nb_actions=2, memory=DeviceMemory(int(sys.argv[1])), batch_size=8)
    agent.compile("sgd")
    try:
        agent.fit(gym.make("CartPole-v1"), nb_steps=10**9)
    except Exception:
        pass
    open(sys.argv[2], "w").write("went on")
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helping.py").write_text("WIDTH = 5")
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    return str(path)


def test_a_plan_of_an_environment_is_printed(capsys):
    status = main(["plan", "CartPole-v1", "--limit", "1_000", "--hidden", "3", "--report"])
    said = capsys.readouterr().out
    assert status == 0
    assert "batch of 32" in said
    # 4 floats of 1,000 rows: 15.625 KiB; 5 * 3 weights and 4 * 2 behind them: 23
    assert "15.62 KiB" in said
    assert " 23 " in said


def test_a_plan_beyond_its_budget_is_a_failure(capsys):
    assert main(["plan", "CartPole-v1", "--limit", "1000000", "--budget", "1MiB"]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_what_is_left_open_is_decided_and_said(capsys):
    words = ["--limit", "auto", "--batch-size", "auto", "--budget", "2GiB"]
    assert main(["plan", "CartPole-v1", *words]) == 0
    said = capsys.readouterr()
    assert "batch of 256" in said.out
    assert "100% of it" in said.out
    assert said.err.startswith("batch_size=256: an update takes ")


def test_a_script_is_run_up_to_its_first_fit(script, tmp_path, capsys):
    before, path, argv = Agent.fit, list(sys.path), sys.argv
    beyond = tmp_path / "beyond"
    assert main(["plan", script, "700", str(beyond)]) == 0
    assert "batch of 8" in capsys.readouterr().out
    assert not beyond.exists()
    assert Agent.fit is before
    assert (sys.path, sys.argv) == (path, argv)


def test_arguments_with_dashes_go_behind_two(tmp_path):
    (tmp_path / "told.py").write_text("import sys; raise ValueError(sys.argv[1:])")
    with pytest.raises(ValueError, match="'--steps', '3'"):
        main(["plan", str(tmp_path / "told.py"), "--", "--steps", "3"])
    with pytest.raises(ValueError, match="'7', '--steps', '3'"):
        main(["plan", str(tmp_path / "told.py"), "7", "--budget", "1GiB", "--", "--steps", "3"])


def test_forgotten_dashes_are_named(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "told.py", "--steps", "3"])
    assert "unrecognized: --steps 3; a script's own options go behind --" in capsys.readouterr().err


def test_tuning_prints_the_curve_the_arguments_and_a_picture(tmp_path, capsys):
    picture = tmp_path / "curve.png"
    options = ["--seconds", "0.05", "--no-cache", "--draw", str(picture), "--steps", "40"]
    words = ["--batch-size", "4", "--updates", "2", "--hidden", "4", "--limit", "100"]
    assert main(["tune", "CartPole-v1", *options, *words]) == 0
    said = capsys.readouterr().out
    assert "chosen" in said
    assert "batch_size=4, " in said
    assert "updates=2, train_interval=2" in said
    assert "replay ratio: 1 (updates a step), each of 4 transitions" in said
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan", "nothing-v0"], "is no file, and no environment either"),
        (["plan", "nothing.py"], "there is no file nothing.py"),
        (["plan", "own.py", "--limit", "9", "--batch-size", "4"], "^.*--batch-size, --limit: an"),
        (["plan", "CartPole-v1", "--batch-size", "0"], "batch_size=0; pass a whole number"),
        (["plan", "CartPole-v1", "--limit", "0"], "limit=0 is too small"),
        (["plan", "CartPole-v1", "--hidden", "0"], "hidden=0; pass a whole number of at least 1"),
        (["plan", "CartPole-v1", "more"], r"\['more'\] are for a script"),
        (["plan", "CartPole-v1", "--batch-size", "many"], "pass a whole number, or auto"),
        (["plan", "CartPole-v1", "--budget", "120%"], "at most at 100 %"),
        (["plan", "CartPole-v1", "--limit", "auto"], "spends a budget, and none is stated"),
        (["plan", "Blackjack-v1"], "pass a script that makes the agent for it"),
        (["tune", "CartPole-v1", "--seconds", "0"], "seconds above 0"),
        (["tune", "CartPole-v1", "--draw", "curve.xyz"], "no picture's name"),
        (["tune", "CartPole-v1", "--draw", "nowhere/curve.png"], "there is no folder nowhere"),
        (["plan", "CartPole-v1", "--budget", "70"], "'70%' or '70MiB'"),
    ],
)
def test_bad_input_is_a_sentence_and_a_status(words, sentence, capsys):
    assert main(words) == 1
    assert re.search(sentence, capsys.readouterr().err)


def test_a_script_that_trains_nothing_is_told_so(tmp_path):
    (tmp_path / "idle.py").write_text("x = 1")
    with pytest.raises(ArgumentError, match="ended without"):
        targets.from_script(str(tmp_path / "idle.py"), [])


def test_the_usual_agents_learn_from_their_environments():
    for name in ("CartPole-v1", "Pendulum-v1"):
        agent, env = targets.find(name, [], targets.Sizes(batch_size=4, hidden=(4,), limit=100))
        for warmup in vars(agent):
            if warmup.startswith("nb_steps_warmup"):
                setattr(agent, warmup, 5)
        agent.fit(env, nb_steps=10, verbose=0)
        assert agent.trainer.nb_updates == 4


def test_frames_have_no_dense_layers_to_size(monkeypatch):
    spaces = {"observation_space": Box(0, 255, (84, 84), np.uint8), "action_space": Discrete(2)}
    monkeypatch.setattr(targets, "_make", lambda name: SimpleNamespace(**spaces))
    with pytest.raises(ArgumentError, match=r"of shape \(84, 84\) go into the Nature CNN; leave"):
        targets.find("frames", [], targets.Sizes(hidden=(4,)))


def test_the_commands_are_there_without_a_backend():
    code = "import sys; from kerasrl_gpu.cli import main\n"
    code += "try: main(['tune', '--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('jax', 'tensorflow', 'keras') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "--free" in done.stdout


# The networks -------------------------------------------------------------------------------------


def test_the_nature_network_has_the_papers_weights():
    # 8*8*4*32+32, 4*4*32*64+64, 3*3*64*64+64, 3136*512+512, 512*6+6
    model = networks.nature_cnn((84, 84), 6)
    assert model.count_params() == 8_224 + 32_832 + 36_928 + 1_606_144 + 3_078
    assert model(np.full((2, 4, 84, 84), 255, np.uint8)).shape == (2, 6)


def test_an_actor_stays_between_its_bounds():
    actor, critic, action = networks.actor_critic((3,), [-2, 0], [2, 8], hidden=(64,))
    random = np.random.default_rng(0)
    actor.set_weights([random.normal(size=weight.shape) for weight in actor.get_weights()])
    seen = random.normal(scale=1e4, size=(50, 1, 3)).astype(np.float32)
    done = np.asarray(actor(seen))
    assert done.min(axis=0) == pytest.approx([-2, 0], abs=1e-3)
    assert done.max(axis=0) == pytest.approx([2, 8], abs=1e-3)
    assert critic.inputs[0] is action
    assert critic([done, seen]).shape == (50, 1)


def test_networks_that_cannot_be_are_refused():
    with pytest.raises(ArgumentError, match="36 by 36"):
        networks.nature_cnn((20, 84), 2)
    with pytest.raises(ArgumentError, match="finite bounds"):
        networks.actor_critic((3,), [-np.inf], [1.0])
    space = gymnasium.make("CartPole-v1").observation_space
    assert networks.q_network(space.shape, 2).output_shape == (None, 2)
