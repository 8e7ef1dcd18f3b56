"""`agent.tune()`: chooses on the machine it runs on, within a budget, and leaves no trace."""

import random

import counting
import keras
import numpy as np
import pytest
import scenarios
from pretending import BYTES_A_ROW, caches, pretended  # noqa: F401  fixtures

from kerasrl_gpu import DDPGAgent, DeviceMemory
from kerasrl_gpu.callbacks import Callback
from kerasrl_gpu.errors import ArgumentError, EmptyPool
from kerasrl_gpu.keras_rl import Processor
from kerasrl_gpu.learner import Learner
from kerasrl_gpu.planning import budgets
from kerasrl_gpu.tuning import agents
from kerasrl_gpu.tuning.trials import trials

BRIEFLY = {"seconds": 0.05, "cache": False}


def model(*hidden, outputs=2):
    start = keras.initializers.GlorotUniform(seed=2)
    return keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(),
        keras.layers.Dense(8, "relu", kernel_initializer=start), *hidden,
        keras.layers.Dense(outputs, kernel_initializer=start),
    ])  # fmt: skip


def random_model():
    """With a seed in its state, and a layer so large that JAX hands it over by itself."""
    start = keras.initializers.GlorotUniform(seed=4)
    wide = keras.layers.Dense(2_100, kernel_initializer=start)
    return model(keras.layers.Dropout(0.5, seed=1), wide)


def prepared(network=None, rows=84, limit=256, **arguments):
    """An agent with rows stored, in which nothing is compiled yet."""
    agent = counting.new_agent(network or model(), DeviceMemory(limit), **arguments)
    agent.prepare(np.zeros(2, np.float32))
    for row in range(rows):
        agent.memory.append(np.float32([row, 1]), 0, 1.0, terminal=row % 5 == 4)
    return agent


# No trace ---------------------------------------------------------------------------------------


class At(Callback):
    """Calls a function of the agent in the middle of a run, and keeps what it was before and after.

    The step's update still runs, and the next action hangs on what it says.
    """

    def __init__(self, step, function):
        super().__init__()
        self.at, self.function = step, function

    def on_step_end(self, episode_step, logs=None):
        if self.agent.step != self.at:
            return
        self.before = scenarios.everything(self.agent)
        self.function(self.agent)
        self.after = scenarios.everything(self.agent)


def ran(function, network=None, **arguments):
    """(agent, its callback, every step's bytes) of a run that calls `function` once at step 50."""
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002  keras-rl's own objects draw from it
    agent = counting.new_agent(network or model(), **arguments)
    watch, trace = At(50, function), scenarios.Trace()
    agent.fit(counting.Counting(), 60, callbacks=[watch, trace], verbose=0)
    return agent, watch, trace.rows


@pytest.mark.parametrize(
    ("network", "options", "arguments"),
    [
        (model, {"free": False}, {"batch_size": 2}),
        (random_model, {"free": True}, {"batch_size": 3}),
    ],
    ids=["exact", "free"],
)
def test_a_run_that_tunes_and_applies_nothing_is_the_run_that_never_tuned(
    network, options, arguments
):
    chosen = []
    tune = lambda agent: chosen.append(agent.tune(apply=False, **BRIEFLY, **options))  # noqa: E731
    agent, watch, rows = ran(tune, network(), **arguments)
    assert len(chosen[0].curve) == 2  # two points, so something was tried
    np.testing.assert_equal(watch.after, watch.before)
    never, _, expected = ran(lambda agent: None, network(), **arguments)
    assert rows == expected
    np.testing.assert_equal(scenarios.everything(agent), scenarios.everything(never))
    assert agent.traces == never.traces  # nothing of the run was compiled anew
    assert agent.execution == never.execution
    assert agent.batch_size == never.batch_size


class Broken(Exception):
    """What a device may say in the middle of a call."""


@pytest.fixture(scope="module")
def learned():
    """An agent with a random layer in the middle of its run; whoever uses it leaves no trace."""
    agent = counting.new_agent(random_model(), batch_size=2, updates=2)
    agent.fit(counting.Counting(), 30, verbose=0)
    return agent


def break_after(monkeypatch, name, calls, error):
    """Let the method `name` of trials' programs raise once so many calls of it have ended."""
    make, done = Learner.trial, []

    def made(*args):
        program = make(*args)
        method = getattr(type(program), name)

        def broken(self, *args):
            found = method(self, *args)
            done.append(found)
            if len(done) == calls:
                raise error
            return found

        program.__class__ = type("Breaking", (type(program),), {name: broken})
        return program

    monkeypatch.setattr(Learner, "trial", made)


@pytest.mark.parametrize(
    ("free", "name", "calls", "error"),
    [
        (False, "__call__", 4, KeyboardInterrupt),
        (True, "__call__", 1, Broken),
        (False, "extra_bytes", 1, Broken),
    ],
)
def test_what_breaks_half_way_leaves_no_trace(
    learned,
    monkeypatch,
    caches,  # noqa: F811
    free,
    name,
    calls,
    error,
):
    before = scenarios.everything(learned)
    break_after(monkeypatch, name, calls, error)
    with pytest.raises(error):
        learned.tune(free=free, seconds=0.05)
    np.testing.assert_equal(scenarios.everything(learned), before)
    assert learned.execution == (None, None)
    assert not caches.exists()


def on_host(state):
    return [np.asarray(leaf) for leaf in agents.engine.leaves(state)]


def test_a_trial_does_compute(learned):
    # what the tests above compare would move, were it not a copy's
    before = learned.trainer.get_state()
    with trials(learned) as one:
        point = agents.exact_points(2, 2)[0]
        with one.run(point) as call:
            call()
        after = on_host(agents.engine.unpack(one._state))
    held = on_host(learned.state)
    assert any(not np.array_equal(a, b) for a, b in zip(after, held, strict=True))
    np.testing.assert_equal(learned.trainer.get_state(), before)


# Exact and free -----------------------------------------------------------------------------------


def test_exact_tuning_splits_and_fuses_and_keeps_the_batch(pretended):  # noqa: F811
    agent = prepared(batch_size=8, updates=4, train_interval=2)
    choice = agent.tune(seconds=0.3, cache=False)
    assert {size for _, size, _ in pretended} == {1, 2, 4, 8}
    assert {fused for _, _, fused in pretended} == {1, 2, 4}
    assert {batch for batch, _, _ in pretended} == {8}
    assert choice.point.fused == 4  # a call lasts as long with 4 updates as with 1
    assert (agent.batch_size, agent.updates, agent.train_interval) == (8, 4, 2)
    assert agent.execution.rows(8) == choice.point.micro_batch
    assert agent.execution.per_call(4) == choice.point.fused


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (lambda: keras.layers.BatchNormalization(name="norm"), "'norm' normalises a batch"),
        (lambda: keras.layers.Dropout(0.5), "A random layer draws other numbers"),
    ],
    ids=["batch norm", "dropout"],
)
def test_what_cannot_be_split_exactly_is_only_fused(pretended, layer, why):  # noqa: F811
    agent = prepared(model(layer()), batch_size=8, updates=2)
    choice = agent.tune(**BRIEFLY)
    assert set(pretended) == {(8, 8, 1), (8, 8, 2)}
    assert choice.point == (8, 8, 2)
    assert why in choice.reason
    assert "not split" in choice.reason
    assert agent.execution == (None, None)


def test_free_tuning_changes_the_batch_and_nothing_else(pretended):  # noqa: F811
    # 84 rows are stored: a batch of 84 / 8 = 10 at most, 8 as a power of two
    agent = prepared(batch_size=3, updates=2, train_interval=2)
    before = {**agent.get_config(), "batch_size": 8}
    choice = agent.tune(free=True, **BRIEFLY)
    assert {(batch, size) for batch, size, _ in pretended} == {(3, 3), (4, 4), (8, 8)}
    assert choice.point == (8, 8, 2)
    assert agent.get_config() == before
    agent.fit(counting.Counting(), 8, verbose=0)
    assert agent.traces["step ('model',) batch_size=8"] == 1


def test_free_tuning_computes_a_batch_in_one_piece(pretended):  # noqa: F811
    agent = prepared(batch_size=4, micro_batch=2)
    agent.tune(free=True, **BRIEFLY)
    assert agent.batch_size == 8
    assert agent.execution == (None, None)


def test_ddpg_is_tuned_with_all_of_its_networks():
    env, agent = scenarios.pendulum()
    agent.batch_size, agent.nb_steps_warmup_actor, agent.nb_steps_warmup_critic = 2, 99, 99
    agent.fit(env, 20, verbose=0)
    before = scenarios.everything(agent)
    choice = agent.tune(apply=False, **BRIEFLY)
    assert isinstance(agent, DDPGAgent)
    assert [reading.point.micro_batch for reading in choice.curve] == [1, 2]
    np.testing.assert_equal(scenarios.everything(agent), before)


# The budget -----------------------------------------------------------------------------------


def held_bytes(agent):
    with trials(agent) as one:
        return one.held_bytes


def test_what_is_held_is_counted():
    # Dense(2) on 2 numbers has 6 weights, 24 bytes; Adam has twice as many, a learning rate of 4
    # bytes and a counter of 4 or 8; rows are 8 + 1 + 4 + 1 = 14 bytes
    agent = counting.new_agent()
    agent.prepare(np.zeros(2, np.float32))
    copies = 2 if agents.engine.NAME == "jax" else 1
    counter_bytes = 4 if agents.engine.NAME == "jax" else 8
    state = 24 + 24 + 48 + 4 + counter_bytes
    keras_copies = (state - 24) * (copies - 1)
    assert held_bytes(agent) == 2 * state + keras_copies + 64 * 14


def test_nothing_above_the_budget_is_tried(pretended):  # noqa: F811
    # a call takes 100,000 bytes a row and 10 % for rare peaks: 2 rows are 220,000, 4 440,000
    agent = prepared(batch_size=8)
    budget = held_bytes(agent) + 230_000
    choice = agent.tune(budget=budget, **BRIEFLY)
    assert set(pretended) == {(8, 1, 1), (8, 2, 1)}
    assert choice.point.micro_batch in (1, 2)
    assert agent.execution.micro_batch == choice.point.micro_batch
    assert "was not tried" in choice.reason
    for reading in choice.curve:
        tried = reading.samples_per_s is not None
        assert tried == (reading.peak_bytes <= budget)
        assert not tried or reading.peak_bytes == held_bytes(agent) + (
            BYTES_A_ROW * reading.point.micro_batch
        )


def test_the_memorys_budget_holds_where_none_is_passed(pretended):  # noqa: F811
    agent = prepared(batch_size=8)
    agent.memory.budget = held_bytes(agent) + 230_000
    agent.tune(**BRIEFLY)
    assert set(pretended) == {(8, 1, 1), (8, 2, 1)}


def test_a_budget_below_the_networks_is_refused_before_anything_is_tried(pretended):  # noqa: F811
    agent = prepared(batch_size=8)
    held = held_bytes(agent)
    with pytest.raises(ArgumentError, match="the budget leaves 1000 B; ") as caught:
        agent.tune(budget=1_000, **BRIEFLY)
    assert f"Pass more than budget={held:_}, or a smaller pool" in str(caught.value)
    assert pretended == []


def test_a_call_that_takes_more_than_the_budget_is_never_run(pretended):  # noqa: F811
    agent = prepared(batch_size=8)
    called = []
    pretended.on_call = called.append
    with pytest.raises(ArgumentError, match="needs up to"):
        agent.tune(budget=held_bytes(agent) + 105_000, **BRIEFLY)
    assert not called


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"budget": "170%"}, "at most at 100 %"),
        ({"budget": "0%"}, "above 0 %"),
        ({"budget": "6 gigs"}, "no unit of bytes"),
        ({"budget": -1}, "leaves no byte"),
        ({"budget": True}, "is no budget"),
        ({"seconds": 0}, "seconds above 0"),
        ({"seconds": "long"}, "seconds above 0"),
        ({"cache": 1}, "cache=1; pass True, False or the path"),
        ({"cache": None}, "cache=None; pass True"),
    ],
)
def test_numbers_that_cannot_be_honoured_are_refused(pretended, options, match):  # noqa: F811
    agent = prepared()
    with pytest.raises(ArgumentError, match=match):
        agent.tune(**{"cache": False, **options})
    assert pretended == []


# Too early, or nothing to tune ----------------------------------------------------------------


def test_before_the_first_step_there_is_nothing_to_try():
    with pytest.raises(ArgumentError, match="after some steps of fit"):
        counting.new_agent().tune(cache=False)


def test_before_the_first_transition_there_is_nothing_to_draw():
    agent = counting.new_agent()
    agent.prepare(np.zeros(2, np.float32))
    with pytest.raises(EmptyPool, match="none of the 0 stored rows"):
        agent.tune(cache=False)


class Untraceable(Processor):
    def process_state_batch(self, batch):
        return np.asarray([float(str(x)) for x in batch.ravel()], np.float32).reshape(batch.shape)


@pytest.mark.filterwarnings("ignore:.*takes calls of its own")
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"memory": counting.Own(window_length=1)}, "Own is sampled on the host"),
        ({"processor": Untraceable()}, "states are on the host"),
    ],
    ids=["memory", "processor"],
)
def test_what_runs_on_the_host_is_not_tuned(arguments, match):
    agent = counting.new_agent(**arguments)
    agent.prepare(np.zeros(2, np.float32))
    with pytest.raises(ArgumentError, match=match):
        agent.tune(cache=False)


# The cache --------------------------------------------------------------------------------------


def test_a_second_run_takes_the_first_ones_choice_without_a_trial(pretended, caches):  # noqa: F811
    first = prepared(batch_size=8, updates=2)
    choice = first.tune(seconds=0.05)
    assert caches.exists()
    tried = len(pretended)
    second = prepared(batch_size=8, updates=2)
    for again in (second.tune(seconds=0.05), first.tune(seconds=0.05)):
        assert again.reason.startswith(choice.reason)
        assert again.reason.endswith("kept; cache=False measures again.")
        assert again._replace(reason=choice.reason) == choice
    assert len(pretended) == tried > 0
    assert second.execution == first.execution


def test_a_network_that_keras_cannot_describe_is_known_by_its_sizes(pretended):  # noqa: F811
    for units in (3, 4):
        tried = len(pretended)
        hidden = keras.layers.Lambda(lambda x: x), keras.layers.Dense(units)
        prepared(model(*hidden), batch_size=2).tune(seconds=0.05)
        assert len(pretended) > tried


def test_a_network_of_the_same_sizes_that_computes_otherwise_is_another(pretended):  # noqa: F811
    for regularizer in (None, "l2"):
        tried = len(pretended)
        hidden = keras.layers.Dense(3, kernel_regularizer=regularizer)
        prepared(model(hidden), batch_size=2).tune(seconds=0.05)
        assert len(pretended) > tried


def another(name):
    """Arguments of `prepared` and of `tune` that are not those of the run before."""
    return {
        "budget": ({}, {"budget": "2GiB"}),
        "batch": ({"batch_size": 4}, {}),
        "updates": ({"updates": 2}, {}),
        "network": ({"network": model(keras.layers.Dense(3))}, {}),
        "free": ({}, {"free": True}),
    }[name]


@pytest.mark.parametrize("name", ["budget", "batch", "updates", "network", "free"])
def test_another_run_is_tuned_anew(pretended, tmp_path, name):  # noqa: F811
    tune = {"seconds": 0.05, "cache": tmp_path / "own.json"}
    prepared(batch_size=2).tune(**tune)
    tried = len(pretended)
    arguments, options = another(name)
    agent = prepared(**{"batch_size": 2, **arguments})
    agent.tune(**tune, **options)
    assert len(pretended) > tried
    assert [path.name for path in tmp_path.iterdir()] == ["own.json"]


def test_another_pool_is_tuned_anew(pretended):  # noqa: F811
    for limit in (64, 65):
        tried = len(pretended)
        prepared(limit=limit, batch_size=2).tune(seconds=0.05)
        assert len(pretended) > tried


def test_more_rows_allow_batches_that_an_earlier_choice_has_not_seen(pretended):  # noqa: F811
    few, many = prepared(batch_size=2, rows=20), prepared(batch_size=2)
    assert few.tune(free=True, seconds=0.05).point.batch == 2
    assert many.tune(free=True, seconds=0.3).point.batch == 8
    assert few.tune(free=True, seconds=0.05).point.batch == 2


def test_a_choice_that_no_longer_fits_is_tuned_anew(pretended, monkeypatch):  # noqa: F811
    agent = prepared(batch_size=8)
    held = held_bytes(agent)
    room = [held + 900_000]
    monkeypatch.setattr(agents.room, "spendable", lambda budget, held_bytes=0: room[0])
    first = agent.tune(seconds=0.05)
    needs = next(one.peak_bytes for one in first.curve if one.point == first.point)
    room[0], tried = needs, len(pretended)  # it fits exactly
    assert agent.tune(seconds=0.05).point == first.point
    assert len(pretended) == tried
    room[0] = needs - 1
    if needs - 1 >= held + 110_000:
        again = agent.tune(seconds=0.05)
        assert again.point.micro_batch < first.point.micro_batch
    else:  # the smallest was the choice; nothing is left to try
        with pytest.raises(ArgumentError, match="the budget leaves"):
            agent.tune(seconds=0.05)


def test_a_choice_without_its_reading_is_no_choice(pretended, tmp_path):  # noqa: F811
    path = tmp_path / "own.json"
    agent = prepared(batch_size=2)
    agent.tune(seconds=0.05, cache=path)
    text = path.read_text()
    path.write_text(text.replace('"point": [2', '"point": [3'))
    tried = len(pretended)
    agent.tune(seconds=0.05, cache=path)
    assert len(pretended) > tried
    assert agent.batch_size == 2


def test_a_split_is_not_taken_over_by_a_network_that_cannot_be_split(pretended):  # noqa: F811
    # Keras describes neither of the two, and their sizes are the same
    rows, centred = (
        model(keras.layers.Lambda(function))
        for function in (lambda x: x, lambda x: x - keras.ops.mean(x, axis=0))
    )
    pretended.lasts = lambda rows: 1e-6 if rows == 4 else 0.002
    assert prepared(rows, batch_size=8).tune(seconds=0.05).point.micro_batch == 4
    choice = prepared(centred, batch_size=8).tune(seconds=0.05)
    assert choice.point.micro_batch == 8
    assert "The batch is not split" in choice.reason


def test_nothing_is_kept_where_nothing_shall_be(pretended, caches):  # noqa: F811
    agent = prepared(batch_size=2)
    for _ in range(2):
        tried = len(pretended)
        agent.tune(**BRIEFLY)
        assert len(pretended) > tried
    assert not caches.exists()


def test_a_budget_of_all_that_is_free_is_some_number(pretended):  # noqa: F811
    agent = prepared(batch_size=2)
    assert budgets.parse(None) is None
    assert agent.tune(**BRIEFLY).point.batch == 2
