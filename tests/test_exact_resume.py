"""2n steps are n steps, a kill, a resume and n steps: bit for bit."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scenarios
from scenarios import SCENARIOS, Trace, everything

from kerasrl_gpu import checkpoint

GO_ON = 1_000  # steps that are compared after the resume


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """scenario -> run directory that a killed process left; two processes at a time."""
    folder, waiting, running = tmp_path_factory.mktemp("killed"), list(SCENARIOS), []
    program = Path(scenarios.__file__)
    while waiting or running:
        while waiting and len(running) < 2:
            name = waiting.pop(0).__name__
            command = [sys.executable, program, name, folder / name]
            running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        process = running.pop(0)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, errors
    return folder


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_ends_as_an_unbroken_one(tmp_path):
    scenario, steps = scenarios.cartpole_soft, 2_000
    scenarios.begin()
    env, agent = scenario()
    history = agent.fit(env, steps, verbose=0)
    command = [sys.executable, Path(scenarios.__file__), scenario.__name__, tmp_path, str(steps)]
    random_s, kills = np.random.default_rng(3), 0
    while True:
        before = checkpoint.find(tmp_path)
        process = subprocess.Popen(command)
        deadline_s = time.monotonic() + 120
        while process.poll() is None and checkpoint.find(tmp_path) == before:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        try:  # it trains now and saves every few dozen milliseconds
            process.wait(timeout=random_s.uniform(0, 0.3))
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert process.returncode == 0
    assert kills >= 3
    env, other = scenario()
    again = other.fit(env, steps, verbose=0, resume=tmp_path)
    assert again.history == history.history
    np.testing.assert_equal(everything(other)["trainer"], everything(agent)["trainer"])


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_a_killed_run_goes_on_bit_for_bit(scenario, killed):
    steps = SCENARIOS[scenario]
    scenarios.begin()
    env, agent = scenario()
    straight = Trace()
    history = agent.fit(env, steps + GO_ON, callbacks=[straight], verbose=0)
    expected = everything(agent)

    scenarios.begin(seed=77)  # other weights, other global generators: all of it is replaced
    env, agent = scenario()
    went_on = Trace()
    path = killed / scenario.__name__
    again = agent.fit(env, steps + GO_ON, callbacks=[went_on], verbose=0, resume=path)

    assert again.resumed.step == steps
    assert again.resumed.absent == []
    assert len(went_on.rows) == GO_ON
    assert went_on.rows == straight.rows[steps:]
    assert again.history == history.history
    np.testing.assert_equal(everything(agent), expected)
