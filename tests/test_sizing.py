"""`limit="auto"` and `batch_size="auto"`: a stated budget is spent, and what was chosen is said."""

import json

import counting
import keras
import numpy as np
import pytest
from pretending import caches, pretended  # noqa: F401  fixtures

import kerasrl_gpu
from kerasrl_gpu import DeviceMemory
from kerasrl_gpu.callbacks import BatchTuner
from kerasrl_gpu.errors import ArgumentError, NotCompiled, PoolTooLarge, ShapeError
from kerasrl_gpu.keras_rl import SequentialMemory
from kerasrl_gpu.planning import room
from kerasrl_gpu.probes import Limit

SEEN = np.zeros(2, np.float32)
ROW = 8 + 1 + 4 + 1  # two numbers, an action of two, a reward, flags
MIB = 2**20
LEAST = 3  # rows of a pool with a window of 1


def auto(budget, **options):
    return DeviceMemory("auto", budget=budget, **options)


def large(units=512):
    """A network whose updates take bytes that count."""
    return keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(),
        keras.layers.Dense(units, "relu"), keras.layers.Dense(units, "relu"), keras.layers.Dense(2),
    ])  # fmt: skip


def beside_bytes(**arguments):
    """What an agent takes at its peak beside its pool."""
    agent = counting.new_agent(memory=DeviceMemory(512), **arguments)
    plan = agent.plan(SEEN)
    return plan.peak_bytes - plan.pool_bytes


@pytest.fixture
def host(monkeypatch):
    """A machine of 1,000 MiB, of which 400 are in use."""
    limits = [Limit(1_000 * MIB, 400 * MIB, "a test")]
    monkeypatch.setattr(room.probes, "host_limits", lambda: limits)
    return limits


# limit="auto" ------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, ROW - 1, ROW])
def test_rows_are_what_the_budget_leaves_beside_networks_and_an_update(more, capsys):
    #   rows = floor((budget - beside) / row): 50 rows to the byte, with 13 more still, 51 with 14
    budget = beside_bytes() + 50 * ROW + more
    agent = counting.new_agent(memory=auto(budget))
    agent.prepare(SEEN)
    assert agent.memory.limit == 50 + (more == ROW)
    assert agent.memory.nbytes == agent.memory.limit * ROW
    assert f"limit={agent.memory.limit}: " in (said := capsys.readouterr().err)
    assert f"budget={budget}" in said


@pytest.mark.parametrize("network", [None, large], ids=["small", "large"])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_the_plan_of_the_run_lies_within_its_budget_and_no_row_more_would(network, micro_batch):
    budget = "300MB"
    agent = counting.new_agent(network and network(), auto(budget), micro_batch=micro_batch)
    agent.prepare(SEEN)
    limit = agent.memory.limit
    sizes = {"budget": budget, "micro_batch": micro_batch}
    assert agent.plan(**sizes).fits
    assert agent.plan(**sizes).peak_bytes <= 300_000_000
    assert not agent.plan(**sizes, limit=limit + 1).fits


@pytest.mark.parametrize(
    ("budget", "nbytes"),
    [
        (100_000, 100_000),
        ("100_000", 100_000),
        ("0.1MB", 100_000),
        ("1MiB", MIB),
        # of 1,000 MiB 400 are in use: up to 41 % leaves 10, and an amount gets no more than 600
        ("41%", 10 * MIB),
    ],
)
def test_without_an_agent_the_pool_takes_all_of_it(host, budget, nbytes):
    memory = auto(budget)
    rows = nbytes // 17  # an action is an int32 where no agent says otherwise
    assert memory.estimate(SEEN)["limit"] == rows
    assert memory.limit == "auto"
    memory.allocate(SEEN)
    assert memory.limit == rows == memory.estimate(SEEN)["limit"]


def test_no_budget_gets_more_than_is_free(host):
    assert auto("6GiB").estimate(SEEN)["nbytes"] == 600 * MIB // 17 * 17


@pytest.mark.parametrize(
    ("limit", "budget", "match"),
    [
        ("auto", None, r"pass budget='70%' or budget='6GiB'"),
        ("auto", "101%", "at most at 100 %"),
        ("auto", "0%", "above 0 %"),
        ("auto", "-5%", "above 0 %"),
        ("auto", "much", "is no budget"),
        ("auto", 0, "leaves no byte"),
        ("all", "70%", "limit='all'; pass a whole number"),
        (50, "7 apples", "no unit of bytes"),
        (50, 0.7, "is no budget"),
    ],
)
def test_what_is_no_budget_is_refused_at_once(limit, budget, match):
    with pytest.raises(ArgumentError, match=match):
        DeviceMemory(limit, budget=budget)


@pytest.fixture
def unallocated(monkeypatch):
    """Fails the test that allocates a pool."""

    def refuse(*args):
        raise AssertionError("a pool was allocated")

    monkeypatch.setattr("kerasrl_gpu.memory.engine.zeros", refuse)


def test_a_budget_below_the_networks_is_refused_and_names_the_one_that_does(unallocated):
    needs = beside_bytes() + 4 * ROW  # as many as the batch has
    agent = counting.new_agent(memory=auto(needs - 1))
    with pytest.raises(PoolTooLarge, match="slots, an update and compiled code") as caught:
        agent.prepare(SEEN)
    assert f"Pass budget={needs:_} or more" in str(caught.value)
    assert agent.memory.limit == "auto"


def test_the_budget_that_is_named_does():
    agent = counting.new_agent(memory=auto(beside_bytes(batch_size=2) + LEAST * ROW), batch_size=2)
    agent.prepare(SEEN)
    assert agent.memory.limit == LEAST


def test_a_batch_that_the_budgets_pool_cannot_hold_is_refused(unallocated):
    agent = counting.new_agent(memory=auto(beside_bytes() + 3 * ROW))
    with pytest.raises(PoolTooLarge, match="and 4 rows of the pool"):
        agent.prepare(SEEN)


def test_what_the_run_will_take_is_known_before_it_begins():
    budget = beside_bytes() + 50 * ROW
    agent = counting.new_agent(memory=auto(budget))
    assert agent.memory.estimate(SEEN) == {
        "limit": 50,
        "row_bytes": ROW,
        "nbytes": 50 * ROW,
        "fields": {"leaf/observation": 400, "action": 50, "reward": 200, "flags": 50},
    }
    assert agent.plan(SEEN).pool_bytes == 50 * ROW
    assert agent.memory.pool is None
    agent.prepare(SEEN)
    assert agent.memory.estimate(SEEN)["limit"] == 50
    assert agent.plan().pool_bytes == 50 * ROW


def test_a_budget_cannot_be_split_before_the_optimizer_is_known():
    agent = kerasrl_gpu.DQNAgent(large(8), nb_actions=2, memory=auto("1GiB"), seed=1)
    with pytest.raises(NotCompiled):
        agent.memory.estimate(SEEN)


def test_a_model_that_cannot_be_planned_runs_without_a_budget_and_not_with_one(monkeypatch):
    def refuse(model):
        raise ShapeError("its shapes are not known")

    monkeypatch.setattr("kerasrl_gpu.planning.agents.graph.trace", refuse)
    with pytest.raises(ShapeError):
        counting.new_agent(memory=auto("1GiB")).prepare(SEEN)
    counting.new_agent(memory=DeviceMemory(64)).prepare(SEEN)


def test_the_config_is_plain_and_builds_the_like_before_and_after():
    memory = auto("1MB", window_length=2)
    for limit in ("auto", 1_000_000 // 17):
        config = json.loads(json.dumps(memory.get_config()))
        assert (config["limit"], config["budget"]) == (limit, "1MB")
        again = DeviceMemory(**config)
        assert again.get_config() == config
        again.allocate(SEEN)
        assert again.limit == 1_000_000 // 17
        memory.allocate(SEEN)


def test_a_memory_of_keras_rl_is_taken_over_as_ever():
    memory = SequentialMemory(limit=50, window_length=1)
    agent = counting.new_agent(memory=memory)
    agent.fit(counting.Counting(), 8, verbose=0)
    assert (agent.memory.limit, agent.memory.budget) == (50, None)
    assert memory.nb_entries == agent.memory.nb_entries == 9  # one final observation


# A pool that fits alone, but not beside the rest ------------------------------------------------


def test_a_limit_that_fits_only_without_the_networks_is_refused_before_it_is_made(unallocated):
    # 450 MB of frames, and a network of 10 MB with its target, slots and one update beside it
    frames = np.zeros((84, 84), np.uint8)
    row, limit, budget = 84 * 84 + 6, 63_700, 450_000_000

    def agent(limit):
        model = keras.Sequential([
            keras.Input((1, 84, 84)), keras.layers.Flatten(),
            keras.layers.Dense(256, "relu"), keras.layers.Dense(2),
        ])  # fmt: skip
        return counting.new_agent(model, DeviceMemory(limit, budget=budget))

    assert limit * row <= budget
    run = agent(limit)
    plan = run.plan(frames)
    most = (budget - (plan.peak_bytes - plan.pool_bytes)) // row
    assert 2 < most < limit
    with pytest.raises(PoolTooLarge, match=r"limit=63_700 rows of 7_062 B need") as caught:
        run.prepare(frames)
    assert f"Pass limit={most:_} or less" in str(caught.value)
    with pytest.raises(AssertionError, match="a pool was allocated"):
        agent(most).prepare(frames)
    with pytest.raises(PoolTooLarge):
        agent(most + 1).prepare(frames)


def test_a_limit_is_not_named_where_no_pool_fits(unallocated):
    agent = counting.new_agent(memory=DeviceMemory(50, budget=beside_bytes() + 2 * ROW))
    with pytest.raises(PoolTooLarge, match="Pass budget=") as caught:
        agent.prepare(SEEN)
    assert "Pass limit" not in str(caught.value)


def test_a_limit_that_no_budget_is_stated_for_is_checked_against_what_is_free(host, unallocated):
    # 600 MiB are free: the pool alone would fit
    host[0] = Limit(600 * MIB, 0, "a test")
    limit = 600 * MIB // ROW
    with pytest.raises(PoolTooLarge, match="for networks and updates"):
        counting.new_agent(memory=DeviceMemory(limit)).prepare(SEEN)


# batch_size="auto" -------------------------------------------------------------------------------


def test_the_largest_batch_is_taken_where_a_budget_has_room(capsys):
    agent = counting.new_agent(memory=auto("300MB"), batch_size="auto")
    agent.prepare(SEEN)
    assert agent.batch_size == 256
    assert agent.get_config()["batch_size"] == 256
    assert "batch_size=256: an update takes" in capsys.readouterr().err


@pytest.mark.parametrize("fits", [256, 128, 64, 32])
def test_the_batch_is_the_largest_that_fits_beside_the_pool(fits, capsys):
    # a budget that the run with that batch fills to the byte
    limit = 10_000
    agent = counting.new_agent(large(), DeviceMemory(limit), batch_size=32)
    plan = agent.plan(SEEN, batch_size=fits)
    agent = counting.new_agent(
        large(), DeviceMemory(limit, budget=plan.peak_bytes), batch_size="auto"
    )
    agent.prepare(SEEN)
    assert agent.batch_size == fits
    assert agent.plan().peak_bytes == plan.peak_bytes
    assert f"batch_size={fits}: " in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "batch_size"), [(0, 128), (1, 64)])
def test_a_larger_batch_gets_a_quarter_where_the_pool_takes_the_rest(missing, batch_size):
    # 128 rows need as much more than 32 do as a quarter of what 32 and the fewest rows leave
    plan = counting.new_agent(large(64), DeviceMemory(512)).plan
    needs = {size: plan(SEEN, batch_size=size, limit=LEAST).peak_bytes for size in (32, 64, 128)}
    assert needs[32] < needs[64] < needs[128]
    budget = needs[32] + 4 * (needs[128] - needs[32]) - missing
    agent = counting.new_agent(large(64), auto(budget), batch_size="auto")
    agent.prepare(SEEN)
    assert agent.batch_size == batch_size
    assert agent.plan(budget=budget).fits


@pytest.mark.parametrize(
    ("limit", "batch_size"), [(8 * 64 - 1, 32), (8 * 64, 64), (8 * 128 - 1, 64), (8 * 128, 128)]
)
def test_a_small_pool_gets_a_small_batch(limit, batch_size, capsys):
    agent = counting.new_agent(memory=DeviceMemory(limit, budget="1GiB"), batch_size="auto")
    agent.prepare(SEEN)
    assert agent.batch_size == batch_size
    assert f"enough for {limit:_} rows" in capsys.readouterr().err  # more would fit


def test_a_pool_below_the_smallest_batch_is_refused(unallocated):
    agent = counting.new_agent(memory=DeviceMemory(20, budget="1GiB"), batch_size="auto")
    with pytest.raises(ArgumentError, match=r"batch_size=32 is more than the memory holds"):
        agent.prepare(SEEN)


def test_no_batch_is_chosen_where_not_even_the_smallest_fits(unallocated):
    agent = counting.new_agent(memory=DeviceMemory(1_000, budget=1_000_000), batch_size="auto")
    with pytest.raises(PoolTooLarge, match="an update of 32 transitions") as caught:
        agent.prepare(SEEN)
    assert agent.batch_size == "auto"
    needs = beside_bytes(batch_size=32) + 1_000 * ROW
    assert f"Pass budget={needs:_} or more" in str(caught.value)


@pytest.mark.parametrize("callbacks", [[], [BatchTuner()]])
def test_a_batch_of_auto_needs_something_to_go_by(callbacks):
    agent = counting.new_agent(batch_size="auto")
    with pytest.raises(ArgumentError, match=r"needs something to go by.*BatchTuner\(free=True\)"):
        agent.fit(counting.Counting(), 8, callbacks=callbacks, verbose=0)


def test_a_free_tuner_begins_with_32_and_chooses(pretended, capsys):  # noqa: F811
    agent = counting.new_agent(memory=DeviceMemory(2_000), batch_size="auto")
    agent.nb_steps_warmup = 520
    tuner = BatchTuner(free=True, seconds=0.05)
    agent.fit(counting.Counting(), 524, callbacks=[tuner], verbose=0)
    assert "batch_size=32: to begin with" in capsys.readouterr().err
    assert {batch for batch, _, _ in pretended} == {32, 64}  # an eighth of 625 rows
    assert agent.batch_size == tuner.choice.point.batch == 64


def test_a_batch_that_is_still_open_is_neither_planned_nor_reported():
    # FLOPs of an update are those of a transition times the batch: times "auto" they were a text
    agent = counting.new_agent(memory=auto("1GiB"), batch_size="auto")
    for ask in (agent.plan, agent.report):
        with pytest.raises(ArgumentError, match="is chosen at the first observation"):
            ask()
    assert agent.plan(SEEN, batch_size=32).batch_size == 32
    agent.prepare(SEEN)
    assert agent.report().batch_size == agent.batch_size == 256


@pytest.mark.parametrize("batch_size", ["automatic", 0, 1.5, None, True])
def test_what_is_no_batch_is_refused(batch_size):
    with pytest.raises(ArgumentError, match="batch_size"):
        counting.new_agent(batch_size=batch_size)


def test_a_memory_of_the_users_own_needs_a_number():
    with pytest.raises(ArgumentError, match="planned for a DeviceMemory; Own needs a number"):
        counting.new_agent(memory=counting.Own(window_length=1), batch_size="auto")


def test_micro_batches_hold_for_the_batch_that_is_chosen():
    agent = counting.new_agent(memory=auto("300MB"), batch_size="auto", micro_batch=64)
    agent.prepare(SEEN)
    assert (agent.batch_size, agent.execution.micro_batch) == (256, 64)


@pytest.mark.filterwarnings("ignore:.*batches repeat rows")
def test_a_micro_batch_above_the_batch_that_is_chosen_is_the_whole_batch(tmp_path):
    memory = DeviceMemory(512, budget="1GiB")
    agent = counting.new_agent(memory=memory, batch_size="auto", micro_batch=100)
    agent.fit(counting.Counting(), 8, verbose=0)
    assert (agent.batch_size, agent.execution.micro_batch) == (64, None)
    assert kerasrl_gpu.load(agent.save(tmp_path)).batch_size == 64


# Set on the way -----------------------------------------------------------------------------------


def test_a_smaller_batch_takes_a_micro_batch_above_it_back():
    agent = counting.new_agent(batch_size=8, micro_batch=4)
    agent.set_batch_size(2)
    assert agent.execution.micro_batch is None


def test_a_larger_batch_is_not_split_where_the_network_looks_at_it_as_a_whole():
    model = keras.Sequential([
        keras.Input((1, 2)), keras.layers.Flatten(), keras.layers.BatchNormalization(),
        keras.layers.Dense(2),
    ])  # fmt: skip
    agent = counting.new_agent(model, batch_size=4, micro_batch=4)
    agent.prepare(SEEN)
    with pytest.raises(ArgumentError, match="cannot learn from a batch in parts"):
        agent.set_batch_size(8)
    assert agent.batch_size == 4
    agent.set_micro_batch(None)
    agent.set_batch_size(8)


# Checkpoints ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*batches repeat rows")
def test_a_resumed_run_has_the_pool_and_batch_of_the_one_before(tmp_path):
    budget = beside_bytes(batch_size=256) + 2_048 * ROW
    agent = counting.new_agent(memory=auto(budget), batch_size=32)
    agent.fit(counting.Counting(), 8, verbose=0)
    agent.save(tmp_path)
    rows = agent.memory.limit
    # a larger budget would give a larger pool and batch, but it is the same run
    other = counting.new_agent(memory=auto(2 * budget), batch_size="auto")
    other.load(tmp_path)
    assert (other.memory.limit, other.batch_size) == (rows, 32)
    assert other.memory.nb_entries == agent.memory.nb_entries
    again = kerasrl_gpu.load(tmp_path)
    assert (again.memory.limit, again.memory.budget, again.batch_size) == (rows, budget, 32)


def test_a_smaller_budget_keeps_the_newest_rows(tmp_path):
    agent = counting.new_agent(memory=DeviceMemory(64))
    agent.fit(counting.Counting(), 20, verbose=0)
    agent.save(tmp_path)
    other = counting.new_agent(memory=auto(beside_bytes() + 6 * ROW))
    other.load(tmp_path)
    assert other.memory.limit == other.memory.nb_entries == 6
    np.testing.assert_array_equal(other.memory.rewards, agent.memory.rewards[-6:])


def test_a_checkpoint_from_before_the_first_step_leaves_sizes_open(tmp_path):
    budget = beside_bytes(batch_size=256) + 50_000 * ROW
    counting.new_agent(memory=auto(budget), batch_size="auto").save(tmp_path)
    for agent in (
        kerasrl_gpu.load(tmp_path),
        counting.new_agent(memory=auto(budget), batch_size="auto"),
    ):
        agent.load(tmp_path)
        agent.prepare(SEEN)
        assert agent.memory.limit >= 50_000
        assert agent.batch_size in (32, 64, 128, 256)
