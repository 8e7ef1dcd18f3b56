"""`BatchTuner`: tunes once, after the first update, and again when asked; never in `test`."""

import time

import counting
import keras
import numpy as np
import pytest
from pretending import caches, pretended  # noqa: F401  fixtures

import kerasrl_gpu
from kerasrl_gpu import DeviceMemory
from kerasrl_gpu.callbacks import BatchTuner, Callback
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.execution import Execution
from kerasrl_gpu.planning import engines

FIRST = 5  # the step that learns first


class Steps(Callback):
    """The step at whose end each trial was made; says when to ask for more."""

    def __init__(self, trials, tuner=None, ask_at=()):
        super().__init__()
        self.trials, self.tuner, self.ask_at, self.tuned_at = trials, tuner, ask_at, []

    def on_step_end(self, episode_step, logs=None):
        if self.trials:
            self.tuned_at.append(self.agent.step)
            self.trials.clear()
        if self.agent.step in self.ask_at:
            self.tuner.request()


def briefly(**options):
    return BatchTuner(seconds=0.05, **{"cache": False, **options})


@pytest.fixture(scope="module")
def agent():
    """Learns from one row at a time, which is all that can be tried: nothing is compiled anew."""
    return counting.new_agent(batch_size=1)


def run(trials, tuner, agent, nb_steps=30, ask_at=()):
    """The steps at which the agent was tuned."""
    watch = Steps(trials, tuner, ask_at)
    agent.fit(counting.Counting(), nb_steps, callbacks=[tuner, watch], verbose=0)
    return watch.tuned_at


# When -------------------------------------------------------------------------------------------


def test_it_tunes_once_when_the_first_update_was_made(pretended, agent):  # noqa: F811
    tuner = briefly()
    assert run(pretended, tuner, agent) == [FIRST]
    assert tuner.choice.point == (1, 1, 1)
    assert run(pretended, tuner, agent) == []  # a second fit goes on as it is


def test_it_waits_for_the_warm_up(pretended, agent, monkeypatch):  # noqa: F811
    monkeypatch.setattr(agent, "nb_steps_warmup", 12)
    assert run(pretended, briefly(), agent) == [13]


def test_without_an_update_nothing_is_tuned(pretended, agent):  # noqa: F811
    tuner = briefly()
    assert run(pretended, tuner, agent, nb_steps=FIRST) == []
    assert tuner.choice is None


def test_it_tunes_again_when_asked(pretended, agent):  # noqa: F811
    assert run(pretended, briefly(), agent, ask_at=(10, 11, 20)) == [FIRST, 11, 12, 21]


def test_it_never_tunes_while_testing(pretended, agent):  # noqa: F811
    tuner = briefly()
    run(pretended, tuner, agent, nb_steps=10)
    tuner.request()
    agent.test(counting.Counting(), nb_episodes=2, callbacks=[tuner], visualize=False, verbose=0)
    assert pretended == []
    assert run(pretended, tuner, agent) == [FIRST]


# What it says ---------------------------------------------------------------------------------


def test_it_says_the_choice_and_why(pretended, agent, capsys):  # noqa: F811
    tuner = briefly()
    run(pretended, tuner, agent, nb_steps=8)
    said = capsys.readouterr().err.splitlines()
    assert said == ["tuning: 0.05 s, and compiling", tuner.choice.reason]


def test_it_is_silent_where_nothing_shall_be_said(pretended, agent, capsys):  # noqa: F811
    tuner = briefly(verbose=0)
    run(pretended, tuner, agent, nb_steps=8)
    assert tuner.choice is not None
    assert capsys.readouterr() == ("", "")


# What it changes ----------------------------------------------------------------------------------


def test_free_it_changes_the_batch(pretended):  # noqa: F811
    agent = counting.new_agent(batch_size=2)
    run(pretended, briefly(free=True), agent, nb_steps=45, ask_at=(40,))
    assert agent.batch_size == 4  # an eighth of 48 rows, as a power of two
    assert (agent.updates, agent.train_interval, agent.execution) == (1, 1, (None, None))


def network():
    start = keras.initializers.GlorotUniform(seed=2)
    return keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(),
        keras.layers.Dense(8, "tanh", kernel_initializer=start),
        keras.layers.Dense(2, kernel_initializer=start),
    ])  # fmt: skip


def learned(agent) -> list:
    state = agent.trainer.get_state()
    return [array for part in ("online", "target") for array in state[part]["model"]["trainable"]]


def test_a_run_that_is_tuned_learns_what_one_that_is_not_does(pretended):  # noqa: F811
    pretended.lasts = lambda rows: 1e-3 * rows  # so that one row at a time is chosen
    make = lambda: counting.new_agent(network())  # noqa: E731
    plain, tuned, tuner = make(), make(), briefly()
    plain.fit(counting.Counting(), 40, verbose=0)
    tuned.fit(counting.Counting(), 40, callbacks=[tuner], verbose=0)
    assert tuned.execution.micro_batch == tuner.choice.point.micro_batch == 1
    assert tuned.trainer.nb_updates == plain.trainer.nb_updates
    for ours, theirs in zip(learned(tuned), learned(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())


# What goes wrong ----------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_ends_the_run_at_the_first_tuning(pretended, agent):  # noqa: F811
    with pytest.raises(ArgumentError, match="the budget leaves 1000 B"):
        run(pretended, briefly(budget=1_000), agent)


def test_later_the_run_goes_on_as_it_was(pretended, agent):  # noqa: F811
    tuner = briefly()
    run(pretended, tuner, agent, nb_steps=10)
    execution, choice = agent.execution, tuner.choice
    tuner.budget = 1_000
    with pytest.warns(UserWarning, match="goes on as it was, not tuned again: the budget leaves"):
        run(pretended, tuner, agent, ask_at=(6,))
    assert agent.step == 30
    assert (agent.execution, tuner.choice) == (execution, choice)


def test_ctrl_c_while_it_tunes_ends_the_run_as_ever(pretended, agent):  # noqa: F811
    def interrupt(rows):
        raise KeyboardInterrupt

    pretended.on_call = interrupt
    history = agent.fit(counting.Counting(), 30, callbacks=[briefly()], verbose=0)
    assert history.reason == "keyboard interrupt"
    assert agent.step == FIRST  # which has not ended


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"budget": "120%"}, "at most at 100 %"),
        ({"budget": "lots"}, "is no budget"),
        ({"seconds": 0}, "seconds above 0"),
        ({"seconds": None}, "seconds above 0"),
        ({"cache": 3.5}, "cache=3.5; pass True, False or the path"),
    ],
)
def test_what_cannot_be_honoured_is_refused_at_once(options, match):
    with pytest.raises(ArgumentError, match=match):
        BatchTuner(**options)


# A pool that takes the rest ---------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["auto", 1_000])
def test_a_pool_of_a_tuned_run_leaves_room_for_trials(monkeypatch, memory):
    # a pool that filled the budget but for the run itself would leave none to a second state
    for name in ("JAX_CPU", "TENSORFLOW_XLA"):
        plain = engines.replace(getattr(engines, name), code_bytes=0)
        monkeypatch.setattr(engines, name, plain)
    model = keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(),
        keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu"), keras.layers.Dense(2),
    ])  # fmt: skip
    agent = counting.new_agent(model, DeviceMemory(memory, budget="4MB"), batch_size=1)
    tuner = briefly()
    agent.fit(counting.Counting(), 8, callbacks=[tuner], verbose=0)
    assert tuner.choice.point.batch == 1
    assert agent.plan(budget="4MB").fits


# Checkpoints ------------------------------------------------------------------------------------


def test_a_resumed_run_is_executed_as_it_was_and_not_tuned_again(pretended, tmp_path):  # noqa: F811
    agent = counting.new_agent(updates=2)
    run(pretended, briefly(), agent, nb_steps=8)
    agent.set_micro_batch(3)  # a choice that a test can know
    path = agent.save(tmp_path)
    other, tuner, watch = counting.new_agent(updates=2), briefly(), Steps(pretended)
    env = counting.Counting()
    other.fit(env, 12, callbacks=[tuner, watch], verbose=0, resume=path)
    assert watch.tuned_at == [FIRST]  # by the run before: the checkpoint holds that, too
    assert other.execution == Execution(3, None)
    assert other.trainer.nb_updates == 2 * (12 - FIRST)
    assert tuner.get_state() == {"tuned": True, "due": False}
    assert kerasrl_gpu.load(path).execution == Execution(3, None)


@pytest.mark.parametrize(
    ("left_at", "ask_at", "tuned_at"),
    [(3, (), [FIRST]), (12, (11,), [FIRST, 12]), (12, (), [FIRST])],
    ids=["in the warm-up", "when asked", "when tuned"],
)
def test_what_is_due_survives_a_checkpoint(
    pretended,  # noqa: F811
    agent,
    tmp_path,
    left_at,
    ask_at,
    tuned_at,
):
    run(pretended, briefly(), agent, nb_steps=left_at, ask_at=ask_at)
    path = agent.save(tmp_path)
    watch, env = Steps(pretended), counting.Counting()
    agent.fit(env, 16, callbacks=[briefly(), watch], verbose=0, resume=path)
    assert watch.tuned_at == tuned_at


def test_a_run_that_is_asked_to_stop_does_not_wait_for_the_tuning(pretended, agent):  # noqa: F811
    tuner = BatchTuner(seconds=60.0, cache=False)
    pretended.on_call = lambda rows: agent.request_stop("enough")
    start = time.perf_counter()
    run(pretended, tuner, agent, nb_steps=1_000)
    assert time.perf_counter() - start < 30
    assert (tuner.choice, agent.stop_reason) == (None, "enough")
    assert tuner.get_state() == {"tuned": False, "due": True}
