"""From steps to rows: memories that were filled before, and what a truncated episode leaves."""

import warnings

import gymnasium
import keras
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from kerasrl_gpu import DeviceMemory, DQNAgent
from kerasrl_gpu.keras_rl import Memory, Processor, SequentialMemory


class Count(gymnasium.Env):
    """Shows 0, 1, 2, ...; an episode is cut after `length` steps, or ends there."""

    observation_space, action_space = Box(0, 100, (1,), np.float32), Discrete(2)

    def __init__(self, length=4, cut=True):
        self.length, self.cut = length, cut

    def reset(self, *, seed=None, options=None):
        self.at = 0
        return np.float32([0]), {}

    def step(self, action):
        self.at += 1
        over = self.at == self.length
        return np.float32([self.at]), 1.0, over and not self.cut, over and self.cut, {}


def dqn(memory, optimizer="sgd", **options):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    options = {"nb_steps_warmup": 3, "batch_size": 4, "target_model_update": 0.1, **options}
    agent = DQNAgent(model=model, nb_actions=2, memory=memory, **options)
    agent.compile(optimizer)
    return agent


@pytest.mark.parametrize("kind", [DeviceMemory, SequentialMemory])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_memory_filled_before_ends_where_nobody_knows_what_came_next(kind, rows):
    # 50, 51, ... with reward 2: the last one's next observation was never stored
    memory = kind(limit=40, window_length=1)
    for step in range(rows):
        memory.append(np.float32([50 + step]), 0, 2.0, False)
    agent = dqn(memory, nb_steps_warmup=10**6)
    assert agent.fit(Count(), nb_steps=10, verbose=0).completed
    batch = agent.memory.read_batch(256)
    shown = batch["observation"]["observation"].ravel()
    np.testing.assert_array_equal(batch["next_observation"]["observation"].ravel(), shown + 1)
    assert set(shown[shown >= 50]) == set(range(50, 50 + rows - 1))
    assert (batch["discount"] > 0).all()
    assert agent.memory.nb_entries == rows + 10 + 2 + 0  # and two final observations


class Halves(Processor):
    """Not to be traced: it counts its calls."""

    calls = 0

    def process_state_batch(self, batch):
        Halves.calls += 1
        return np.asarray(batch, np.float32) / 2


class Spy(DeviceMemory):
    """Keeps what was drawn from it."""

    def sample(self, *args, **options):
        drawn = super().sample(*args, **options)
        self.__dict__.setdefault("drawn", []).append(drawn)
        return drawn


def learned_on_host(**options):
    agent = dqn(Spy(40), processor=Halves(), **options)
    with pytest.warns(UserWarning, match="stays on the host"):
        agent.fit(Count(), nb_steps=20, verbose=0)
    drawn = [one for batch in agent.memory.drawn for one in batch]
    return agent, drawn


@pytest.mark.parametrize("truncation, ends", [("bootstrap", False), ("terminal", True)])
def test_truncation_means_the_same_where_the_host_processes(truncation, ends):
    _, drawn = learned_on_host(seed=1, truncation=truncation)
    last = [one.terminal1 for one in drawn if one.state0[0][0] == 3]
    assert last
    assert set(last) == {ends}
    assert not any(one.terminal1 for one in drawn if one.state0[0][0] < 3)


def test_draws_go_by_the_agents_seed_where_the_host_processes():
    first, again, other = (
        [one.state0[0][0] for one in learned_on_host(seed=seed)[1]] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_updates_on_the_host_report_their_mean():
    agent, _ = learned_on_host(seed=1, updates=3, optimizer=keras.optimizers.SGD(0.0))
    agent.training, agent.step = True, 10
    losses = []
    learn = agent.trainer.learn
    agent.trainer.learn = lambda *args: losses.append(learn(*args)) or losses[-1]
    agent.forward(np.float32([1]))
    reported = list(agent.backward(1.0, terminal=False))
    assert len(losses) == 3
    np.testing.assert_allclose(reported[: len(losses[0])], np.mean(losses, axis=0), rtol=1e-6)


class Deque(Memory):
    """A memory of the user's own."""

    def __init__(self):
        super().__init__(window_length=1)
        self.rows = []

    def append(self, observation, action, reward, terminal, training=True):
        super().append(observation, action, reward, terminal, training)
        self.rows.append(terminal)


def test_a_memory_that_knows_no_truncation_is_told_of_once():
    with pytest.warns(UserWarning, match="Deque cannot tell an episode that ran out") as caught:
        dqn(Deque(), nb_steps_warmup=10**6).fit(Count(), nb_steps=12, verbose=0)
    assert len([one for one in caught if "ran out" in str(one.message)]) == 1
    for options, env in (({"truncation": "terminal"}, Count()), ({}, Count(cut=False))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            dqn(Deque(), nb_steps_warmup=10**6, **options).fit(env, nb_steps=12, verbose=0)


class Scale(Processor):
    def __init__(self, factor):
        self.factor = factor

    def process_state_batch(self, batch):
        return batch * self.factor


def test_a_processor_changed_between_two_runs_counts_in_the_next():
    agent = dqn(DeviceMemory(40), processor=Scale(np.float32(1)), nb_steps_warmup=10**6, seed=0)
    acted = []

    class Record(type(agent.policy)):
        def select_action(self, q_values):
            acted.append(np.array(q_values))
            return 0

    agent.policy = Record()
    for factor in (1, 100):
        agent.processor.factor = np.float32(factor)
        agent.fit(Count(), nb_steps=2, verbose=0)
        np.testing.assert_allclose(acted[-1], agent.compute_q_values([np.float32([1])]), rtol=1e-6)
    assert agent.traces["write"] == 1  # of the newest learner
    agent.fit(Count(), nb_steps=2, verbose=0)
    assert agent.traces["write"] == 1
