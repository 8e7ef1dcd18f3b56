"""A device call that fails after it has begun to overwrite the state, in the middle of a run."""

import itertools

import numpy as np
import pytest
from scenarios import begin, cartpole_soft, everything

from kerasrl_gpu import checkpoint, engine
from kerasrl_gpu.callbacks import Callback, RunCheckpoint
from kerasrl_gpu.errors import StateLost

NB_STEPS = 90


class Breaks(Callback):
    """At some steps of the process the next device call takes its state and pool with it."""

    def __init__(self, *steps):
        super().__init__()
        self.steps, self.count = steps, itertools.count(1)  # no plain value: a resume leaves it

    def on_step_end(self, episode_step, logs=None):
        if next(self.count) in self.steps:
            trainer = self.agent.trainer
            step = trainer.learner.step
            trainer.learner.step = lambda *args: _breaking(trainer, step)


def _breaking(trainer, step):
    def program(state, pool, wire):
        trainer.learner.step = step
        for leaf in [*engine.leaves(getattr(state, "arrays", state)), pool]:
            if hasattr(leaf, "delete"):
                leaf.delete()
        raise MemoryError("no room for the activations")

    return program


def run(folder, *breaks, every_steps=40):
    begin()
    env, agent = cartpole_soft()
    saves = RunCheckpoint(folder, every_steps=every_steps)
    history = agent.fit(env, NB_STEPS, callbacks=[saves, Breaks(*breaks)], verbose=0)
    return agent, history


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return everything(run(tmp_path_factory.mktemp("unbroken"))[0])


def test_the_run_goes_on_from_its_newest_checkpoint_to_the_same_end(unbroken, tmp_path):
    with pytest.warns(UserWarning, match="the state comes from .*step-80"):
        agent, history = run(tmp_path, 87)
    assert history.resumed.step == 80
    np.testing.assert_equal(everything(agent), unbroken)


def test_it_may_happen_again_later(unbroken, tmp_path):
    # step 70, on from 40; 55 steps later it is at 95 of them all, which is step 85, on from 80
    with pytest.warns(UserWarning, match="the state comes from"):
        agent, _ = run(tmp_path, 70, 115)
    np.testing.assert_equal(everything(agent), unbroken)


def test_without_a_new_checkpoint_it_is_an_error_and_a_new_run_can_begin(tmp_path):
    begin()
    env, agent = cartpole_soft()
    with pytest.raises(StateLost, match="goes on from the newest checkpoint"):
        agent.fit(env, NB_STEPS, callbacks=[Breaks(75)], verbose=0)
    assert agent.memory.nb_entries == 0
    agent.fit(env, 70, verbose=0)
    assert agent.memory.nb_entries > 60
    assert not checkpoint.find(tmp_path)
