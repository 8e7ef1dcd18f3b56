"""Going on: in one process and from a checkpoint, and what happens where that cannot be exact."""

import counting
import gymnasium
import keras
import numpy as np
import pytest
import scenarios
from gymnasium.spaces import Box, Discrete
from scenarios import Trace

from kerasrl_gpu import DeviceMemory, DQNAgent, checkpoint
from kerasrl_gpu.callbacks import Callback, RunCheckpoint
from kerasrl_gpu.errors import ArgumentError, CheckpointError, NotCompiled
from kerasrl_gpu.keras_rl import SequentialMemory
from kerasrl_gpu.processors import Processor

N, GO_ON = 300, 200


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(environment, agent, checkpoint from before its first run); compiling is what takes time."""
    scenarios.begin()
    env, agent = scenarios.cartpole_soft()
    return env, agent, agent.save(tmp_path_factory.mktemp("first"))


@pytest.fixture
def begun(compiled):
    """(environment, agent) before the first step, whatever the test before made of them."""
    env, agent, first = compiled
    agent.load(first)
    return env, agent


@pytest.fixture(scope="module")
def unbroken():
    """(rows of every step, history, weights) of a run in one piece."""
    scenarios.begin()
    env, agent = scenarios.cartpole_soft()
    trace = Trace()
    history = agent.fit(env, N + GO_ON, callbacks=[trace], verbose=0)
    return trace.rows, history.history, agent.model.get_weights()


@pytest.fixture
def stopped(begun):
    """(environment, agent) after N steps, in the middle of an episode."""
    env, agent = begun
    agent.fit(env, N, verbose=0)
    return env, agent


@pytest.fixture(scope="module")
def compiled_too():
    """(environment, agent with other weights)."""
    return scenarios.cartpole_soft()


@pytest.fixture
def other(compiled_too):
    """(environment, another agent), which keeps what the test before made of it."""
    return compiled_too


def goes_on_like(unbroken, agent, env, resume):
    rows, history, weights = unbroken
    trace = Trace()
    again = agent.fit(env, N + GO_ON, callbacks=[trace], verbose=0, resume=resume)
    assert trace.rows == rows[N:]
    assert again.history == history
    for ours, theirs in zip(agent.model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_resume_true_goes_on_in_the_same_process(unbroken, stopped):
    env, agent = stopped
    goes_on_like(unbroken, agent, env, resume=True)
    assert "environment" in agent.resumed.restored


def test_a_test_on_another_environment_does_not_touch_the_open_episode(unbroken, stopped):
    env, agent = stopped
    agent.test(gymnasium.make("CartPole-v1"), nb_episodes=2, visualize=False, verbose=0)
    goes_on_like(unbroken, agent, env, resume=True)


@pytest.mark.filterwarnings("ignore:WhiteningNormalizerProcessor.process_state_batch stays")
@pytest.mark.parametrize("scenario", [scenarios.cartpole_hard, scenarios.pendulum])
def test_windows_and_noise_wait_too_while_a_test_plays(scenario, tmp_path):
    scenarios.begin()
    env, agent = scenario()
    first, whole, later = agent.save(tmp_path), Trace(), Trace()
    agent.fit(env, 130, callbacks=[whole], verbose=0)
    agent.load(first)
    agent.fit(env, 95, verbose=0)
    window = list(agent.memory.recent_observations)
    assert len(window) == agent.memory.window_length
    another = gymnasium.make(env.spec.id)
    agent.test(another, nb_max_episode_steps=30, visualize=False, verbose=0)
    np.testing.assert_array_equal(agent.memory.recent_observations, window)
    agent.fit(env, 130, callbacks=[later], verbose=0, resume=True)
    assert later.rows == whole.rows[95:]


def test_saving_disturbs_nothing(unbroken, stopped, tmp_path):
    env, agent = stopped
    agent.save(tmp_path)

    class Saves(Callback):
        def on_step_end(self, episode_step, logs=None):
            if self.agent.step % 9 == 0:
                assert self.agent.save(tmp_path, keep=1) is None

    rows, history, _ = unbroken
    trace = Trace()
    again = agent.fit(env, N + GO_ON, callbacks=[trace, Saves()], verbose=0, resume=True)
    assert trace.rows == rows[N:]
    assert again.history == history
    assert len(checkpoint.find(tmp_path)) == 1


class Jitter(Processor):
    """Changes with every batch that it is shown, and draws from two generators for it."""

    def __init__(self):
        self.shown, self.own = 0, np.random.default_rng(1)

    def process_state_batch(self, batch):
        self.shown += 1
        noise = self.own.normal() + np.random.random()  # noqa: NPY002
        return np.asarray(batch) + np.float32(self.shown * 1e-3 + noise)


@pytest.mark.filterwarnings("ignore:Jitter.process_state_batch stays on the host")
def test_a_processor_that_changes_as_it_is_asked_does_not_notice_a_save(tmp_path):
    agent = counting.new_agent(processor=Jitter())
    agent.fit(counting.Counting(), 7, verbose=0)
    shown, own = agent.processor.shown, agent.processor.own.bit_generator.state
    np.random.seed(2)  # noqa: NPY002
    agent.save(tmp_path)
    drawn = np.random.random()  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    assert drawn == np.random.random()  # noqa: NPY002
    assert agent.processor.shown == shown
    assert agent.processor.own.bit_generator.state == own


def test_a_checkpoint_between_two_episodes(unbroken, begun, other, tmp_path):
    rows, history, _ = unbroken
    at_an_end = history["nb_steps"][3]
    env, agent = begun
    agent.fit(env, at_an_end, verbose=0)
    assert agent.runs.left.state["observation"] is None
    agent.save(tmp_path)
    env, other = other
    trace = Trace()
    again = other.fit(env, N + GO_ON, callbacks=[trace], verbose=0, resume=tmp_path)
    assert trace.rows == rows[at_an_end:]
    assert again.history == history


def test_a_checkpoint_from_before_the_first_run(unbroken, compiled, other):
    env, other = other
    trace = Trace()
    other.fit(env, 100, callbacks=[trace], verbose=0, resume=compiled[-1])
    assert trace.rows == unbroken[0][:100]


def test_a_checkpoint_that_was_loaded_can_be_written_again_before_it_is_resumed(
    unbroken, stopped, other, tmp_path
):
    _, agent = stopped
    agent.save(tmp_path / "one")
    _, second = scenarios.cartpole_soft()
    second.load(tmp_path / "one")
    second.save(tmp_path / "two")
    env, third = other
    goes_on_like(unbroken, third, env, resume=tmp_path / "two")


def test_without_resume_the_counter_starts_again_and_the_episode_is_closed(stopped):
    env, agent = stopped
    rows, trace = agent.memory.nb_entries, Trace()
    agent.fit(env, 5, callbacks=[trace], verbose=0)
    assert (agent.step, len(trace.rows)) == (5, 5)
    assert agent.memory.nb_entries == rows + 1 + 5  # the last observation of what was open, 5 steps


def test_nb_steps_means_until(stopped):
    env, agent = stopped
    agent.fit(env, N, verbose=0, resume=True)  # nothing is left to do
    assert agent.step == N


def test_an_episode_that_a_test_closed_is_not_gone_on_with(stopped):
    env, agent = stopped
    episode = agent.runs.left.state["episode"]
    agent.test(env, nb_episodes=1, visualize=False, verbose=0)
    trace = Trace()
    history = agent.fit(env, N + GO_ON, callbacks=[trace], verbose=0, resume=True)
    assert len(trace.rows) == GO_ON
    assert "closed as truncated" in agent.resumed.absent[0]
    assert episode not in history.epoch  # it was closed, and the next one has its own number
    assert history.epoch[-1] > episode


def test_there_has_to_be_something_to_go_on_with():
    env, agent = scenarios.cartpole_soft()
    with pytest.raises(ArgumentError, match=r"resume=True .* there was none; pass resume=path"):
        agent.fit(env, 5, resume=True)


def test_nothing_can_be_saved_before_there_is_a_model(tmp_path):
    agent = DQNAgent(
        keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)]),
        nb_actions=2,
        memory=DeviceMemory(limit=50),
    )
    with pytest.raises(NotCompiled, match=r"no weights to save yet"):
        agent.save(tmp_path)
    agent.compile("adam")
    with pytest.raises(NotCompiled, match=r"keras\.Input"):
        agent.save(tmp_path)


def test_save_and_load_are_refused_where_they_could_not_be_right(stopped, tmp_path):
    env, agent = stopped
    path = agent.save(tmp_path)

    class Asks(Callback):
        def on_step_begin(self, episode_step, logs=None):
            self.agent.save(tmp_path)

    with pytest.raises(ArgumentError, match="inside test"):
        agent.test(env, callbacks=[Asks()], visualize=False, verbose=0)

    class Loads(Callback):
        def on_step_end(self, episode_step, logs=None):
            self.agent.load(path)

    with pytest.raises(ArgumentError, match="inside fit or test"):
        agent.fit(env, 2, callbacks=[Loads()], verbose=0)
    with pytest.raises(ArgumentError, match="keep=0"):
        agent.save(tmp_path, keep=0)


class Locked(gymnasium.Env):
    """Holds its state where nobody can take it; episodes of 20 steps, observation = step."""

    observation_space, action_space = Box(0, 99, (4,), np.float32), Discrete(2)

    def __init__(self, fails_at=None):
        self.steps, self.fails_at = iter(()), fails_at

    def reset(self, *, seed=None, options=None):
        self.steps = iter(range(1, 21))
        return np.zeros(4, np.float32), {}

    def step(self, action):
        step = next(self.steps)
        if step == self.fails_at:
            raise OSError("the simulator is gone")
        return np.full(4, step, np.float32), 1.0, step == 20, False, {}


def test_an_environment_that_cannot_be_saved_ends_its_episode_as_truncated(begun, other, tmp_path):
    _, agent = begun
    agent.fit(Locked(), 50, verbose=0)  # 20 + 20 + 10 steps
    with pytest.warns(UserWarning, match="the environment is not in the checkpoint: .* in steps"):
        path = agent.save(tmp_path)
    _, other = other
    history = other.fit(Locked(), 75, verbose=0, resume=path)
    assert len(other.resumed.absent) == 1
    assert "keeps part of its state in steps" in other.resumed.absent[0]
    assert "the open episode was closed as truncated" in other.resumed.absent[0]
    assert history.epoch == [0, 1, 3]  # 2 was cut at its 10th step
    # 0: 21 rows with the final one, 1: 21, 2: 10 and its last observation, 10, marked as final
    observations, terminals = other.memory.observations, other.memory.terminals
    assert [int(observations[row][0]) for row in (51, 52, 53)] == [9, 10, 0]
    assert terminals[51]
    batch = other.memory.read_batch(1, [51])
    assert batch["discount"][0] > 0  # truncated: the value of what follows counts
    assert other.step == 75


def test_a_step_that_was_broken_off_ends_the_episode(begun):
    _, agent = begun
    env = Locked(fails_at=7)
    with pytest.raises(OSError, match="simulator"):
        agent.fit(env, 50, verbose=0)
    env.fails_at = None
    history = agent.fit(env, 50, verbose=0, resume=True)
    assert "broken off" in agent.resumed.absent[0]
    assert history.epoch == [1, 2]
    assert agent.step == 50


def goes_on_as(straight, path, agent):
    """Whether an agent goes on from step 12 as the one whose 24 rows these are.

    The first 12 rows come from the checkpoint: they are what the trace held.
    """
    trace = Trace()
    agent.fit(counting.Counting(), 24, callbacks=[trace], verbose=0, resume=path)
    return trace.rows == straight


def run_of(agent, path, *callbacks):
    """(rows of 24 steps, the checkpoint at step 12)."""
    trace, saves = Trace(), RunCheckpoint(path, every_steps=12, keep=9)
    agent.fit(counting.Counting(), 24, callbacks=[trace, saves, *callbacks], verbose=0)
    return trace.rows, checkpoint.find(path)[-1]


def test_an_agent_whose_last_episode_broke_off_at_its_end_goes_on_from_a_checkpoint(tmp_path):
    class Fails(Callback):
        def on_step_end(self, episode_step, logs=None):
            if logs["reward"] == 15:  # the third episode's last step
                raise OSError("a full disk")

    agent = counting.new_agent()
    straight, path = run_of(agent, tmp_path)
    with pytest.raises(OSError, match="full"):
        agent.fit(counting.Counting(), 24, callbacks=[Fails()], verbose=0, resume=path)
    assert goes_on_as(straight, path, agent)


class Rate(Callback):
    """Lowers the learning rate after every step."""

    def on_step_end(self, episode_step, logs=None):
        optimizer = self.agent.optimizer
        optimizer.learning_rate = 0.9 * float(optimizer.learning_rate)


def test_a_learning_rate_that_no_update_has_used_yet_is_saved(tmp_path):
    agent = counting.new_agent()
    _, path = run_of(agent, tmp_path, Rate())
    agent.load(path)  # 0.01 * 0.9**12
    assert float(agent.optimizer.learning_rate) == pytest.approx(0.0028243, rel=1e-4)


def test_an_agent_that_is_compiled_again_goes_on_in_its_open_episode():
    agent, env = counting.new_agent(), counting.Counting()
    agent.fit(env, 7, verbose=0)
    agent.compile("sgd")
    history = agent.fit(env, 10, verbose=0, resume=True)
    assert history.history["episode_reward"] == [15, 40]


def test_a_model_that_waits_for_its_first_input_is_built_for_a_resume(tmp_path):
    def unbuilt():
        layers = [keras.layers.Flatten(), keras.layers.Dense(2)]
        return counting.new_agent(keras.Sequential(layers))

    straight, path = run_of(unbuilt(), tmp_path)
    assert goes_on_as(straight, path, unbuilt())


@pytest.mark.filterwarnings("ignore:Jitter.process_state_batch stays on the host")
def test_a_processor_that_changes_as_it_is_asked_goes_on_bit_for_bit(tmp_path):
    straight, path = run_of(counting.new_agent(processor=Jitter()), tmp_path)
    assert goes_on_as(straight, path, counting.new_agent(processor=Jitter()))


class Rows(SequentialMemory):
    """A memory of the user's own that says what it stores, and nothing of the acting window."""

    def get_state(self):
        return {name: list(map(np.asarray, getattr(self, name))) for name in self.stores}

    def set_state(self, state):
        for name in self.stores:
            getattr(self, name).extend(state[name])

    stores = ("observations", "actions", "rewards", "terminals")


def own_memory(window):
    model = keras.Sequential([
        keras.Input((window, 2)), keras.layers.Flatten(), keras.layers.Dense(2),
    ])  # fmt: skip
    return counting.new_agent(model, memory=Rows(limit=64, window_length=window))


def test_the_acting_window_does_not_depend_on_what_a_memory_says_of_itself(tmp_path):
    agent = own_memory(3)
    _, path = run_of(agent, tmp_path)
    other = own_memory(3)
    other.load(path)
    seen = [list(shown) for shown in other.memory.recent_observations]
    # steps 11 and 12 of episodes of 5: 11 and 12 begin at observations 10 and 11
    np.testing.assert_allclose(seen[-2:], [[0.0, 3 / 7], [0.2, 4 / 7]], atol=1e-6)


def test_a_memory_of_another_kind_goes_on_as_it_is_where_that_is_allowed(tmp_path):
    agents = [own_memory(1), counting.new_agent()]
    for number, (writes, reads) in enumerate([agents, reversed(agents)]):
        path = run_of(writes, tmp_path / str(number))[1]
        with pytest.raises(CheckpointError, match="memory"):
            reads.load(path)
        report = reads.load(path, allow=("memory",))
        assert "memory: goes on as it is, allowed" in report.ignored


def test_a_run_whose_place_could_not_be_told_is_not_taken_for_a_new_one(tmp_path):
    class Silent(Callback):
        def get_state(self):
            raise OSError("a full disk")

        def set_state(self, state):
            pass

    agent = counting.new_agent()
    with pytest.warns(UserWarning, match="nothing can go on"):
        agent.fit(counting.Counting(), 7, callbacks=[Silent()], verbose=0)
    agent.save(tmp_path)
    other = counting.new_agent()
    with pytest.raises(CheckpointError, match="does not hold where its run stood"):
        other.fit(counting.Counting(), 9, verbose=0, resume=tmp_path)
    other.fit(counting.Counting(), 9, verbose=0)
    assert other.memory.nb_entries == 8 + 1 + 9 + 1


def test_another_environment_is_a_mismatch_unless_it_is_allowed(stopped, other, tmp_path):
    _, agent = stopped
    path = agent.save(tmp_path)
    _, other = other
    with pytest.raises(CheckpointError, match=r"environment.*allow=\('environment',\)"):
        other.fit(gymnasium.make("CartPole-v0"), N + 9, verbose=0, resume=path)
    assert not other.in_loop
    history = other.fit(
        gymnasium.make("CartPole-v0"), N + 9, verbose=0, resume=path, allow=("environment",)
    )
    assert "closed as truncated" in history.resumed.absent[0]
    assert other.step == N + 9


def test_the_report_is_printed_and_returned(stopped, other, tmp_path, capsys):
    _, agent = stopped
    path = agent.save(tmp_path)
    env, other = other
    history = other.fit(env, N + 2, resume=tmp_path)
    assert history.resumed is other.resumed
    assert history.resumed.path == path
    printed = capsys.readouterr().out
    assert f"Resumed {path} at step {N}" in printed
    assert "restored: policy, test_policy, memory" in printed
    assert f"Training begins at step {N}" in printed


def test_a_damaged_pool_falls_back_to_the_checkpoint_before(unbroken, stopped, tmp_path):
    env, agent = stopped
    before = agent.save(tmp_path)
    agent.fit(env, N + 20, verbose=0, resume=True)
    newest = agent.save(tmp_path)
    [file] = (newest / "pool").iterdir()
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    env, other = scenarios.cartpole_soft()
    with pytest.raises(CheckpointError, match=r"sha256 .* agent\.load_weights\(path\)"):
        other.load(newest)
    with pytest.warns(UserWarning, match="Falling back to the checkpoint before it"):
        goes_on_like(unbroken, other, env, resume=tmp_path)
    assert other.resumed.path == before


def test_a_name_in_allow_that_means_nothing_is_told(stopped, tmp_path):
    env, agent = stopped
    with pytest.raises(ArgumentError, match=r"allow=\['gama'\]; pass some of .*'gamma'"):
        agent.load(agent.save(tmp_path), allow=("gama",))
    with pytest.raises(ArgumentError, match=r"allow=\['enviroment'\]"):
        agent.fit(env, N + 1, resume=True, allow="enviroment")


def test_a_fit_without_resume_is_another_run_and_deletes_nothing_of_the_first(tmp_path):
    saves = RunCheckpoint(tmp_path, every_steps=2)
    agent = counting.new_agent()
    agent.fit(counting.Counting(), 7, callbacks=[saves], verbose=0)
    first = checkpoint.find(tmp_path)
    assert saves.newest == first[0]
    with pytest.warns(UserWarning, match=f"{first[0].name} is of another run"):
        agent.fit(counting.Counting(), 7, callbacks=[saves], verbose=0)
    found = checkpoint.find(tmp_path)
    assert len(found) == 4
    assert found[2:] == first
    agent.fit(counting.Counting(), 9, callbacks=[saves], verbose=0, resume=first[0])
    assert len(checkpoint.find(tmp_path)) == 4  # the first run's own were pruned, the other stays
    assert set(found[:2]) < set(checkpoint.find(tmp_path))


def test_nb_steps_taken_for_more_is_told(stopped):
    env, agent = stopped
    with pytest.warns(
        UserWarning, match=rf"at step {N} already, .* pass nb_steps={N + 9} to add 9"
    ):
        agent.fit(env, 9, verbose=0, resume=True)


def test_a_loaded_agent_that_is_not_resumed_is_told(stopped, other, tmp_path):
    env, agent = stopped
    agent.save(tmp_path)
    env, other = other
    other.load(tmp_path)
    with pytest.warns(UserWarning, match=f"loaded at step {N}, and fit starts at step 0 again"):
        other.fit(env, 2, verbose=0)


def test_a_directory_that_cannot_be_written_is_told_before_the_first_step(tmp_path):
    path = tmp_path / "run"
    path.write_text("mine")
    agent = counting.new_agent()
    with pytest.raises(CheckpointError, match=r"no checkpoint can be written into .*run: .*exists"):
        agent.fit(counting.Counting(), 7, callbacks=[RunCheckpoint(path)], verbose=0)
    assert agent.step == 0
    assert not agent.in_loop
