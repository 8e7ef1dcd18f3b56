"""A player acts as the agent of a checkpoint would in `test`; reads no pool, and makes none."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import keras
import numpy as np
import pytest
import scenarios

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, Player, checkpoint
from kerasrl_gpu.callbacks import Callback
from kerasrl_gpu.errors import CheckpointError, ObservationError
from kerasrl_gpu.keras_rl import Policy
from kerasrl_gpu.processors import WhiteningNormalizerProcessor
from kerasrl_gpu.random import OrnsteinUhlenbeckProcess

EPISODES, MOST_STEPS = 2, 40


def dqn(window, processor=None):
    keras.utils.set_random_seed(window)
    agent = DQNAgent(
        scenarios.q_network((4,), 2, window), nb_actions=2, batch_size=8, nb_steps_warmup=10,
        memory=DeviceMemory(limit=90, window_length=window), processor=processor,
        target_model_update=20, seed=1,
    )  # fmt: skip
    agent.compile(keras.optimizers.Adam(1e-2))
    return agent


def single():
    return "CartPole-v1", dqn(1)


def stacked():
    return "CartPole-v1", dqn(3)


class Mirrored(WhiteningNormalizerProcessor):
    """Learns from observations while training, and swaps the actions."""

    def process_action(self, action):
        return 1 - action


def processed():
    return "CartPole-v1", dqn(3, Mirrored())


def bounded():
    """Weights so large that the actor wants more than the environment takes."""
    keras.utils.set_random_seed(2)
    networks = scenarios.actor_critic((3,), 1)
    actor = networks["actor"]
    actor.layers[-1].activation = keras.activations.linear
    agent = DDPGAgent(
        1, actor, networks["critic"], networks["input"], DeviceMemory(limit=90), batch_size=8,
        nb_steps_warmup_critic=10, nb_steps_warmup_actor=10, seed=2,
        random_process=OrnsteinUhlenbeckProcess(theta=0.15, sigma=0.3),
    )  # fmt: skip
    agent.compile(keras.optimizers.Adam(1e-3))
    return "Pendulum-v1", agent


class Watch(Callback):
    """Every action that the environment gets."""

    def on_train_begin(self, logs=None):
        self.actions = []

    def on_action_begin(self, action, logs=None):
        self.actions.append(action)


def play(player, name, seed=7):
    """Every action of whole episodes, as `Agent.test` plays them."""
    env, actions = gymnasium.make(name, max_episode_steps=MOST_STEPS), []
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=None if episode else seed)
        player.reset()
        ended = False
        while not ended:
            actions.append(player.act(observation))
            observation, _, terminated, truncated, _ = env.step(actions[-1])
            ended = terminated or truncated
    return np.array(actions, np.float32)


class Seeded(gymnasium.Wrapper):
    """The first episode of whatever asks begins as `play`'s does."""

    first = True

    def reset(self, **options):
        seed, self.first = (7 if self.first else None), False
        return self.env.reset(seed=seed)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """make -> (environment's name, run directory, the actions of `agent.test`); made when asked."""
    made = {}

    def of(make):
        if make not in made:
            name, agent = make()
            path, watch = tmp_path_factory.mktemp(make.__name__), Watch()
            agent.fit(gymnasium.make(name), 40, verbose=0)
            if make is bounded:
                agent.actor.set_weights([3 * w for w in agent.actor.get_weights()])
            agent.save(path)
            env = Seeded(gymnasium.make(name, max_episode_steps=MOST_STEPS))
            agent.test(env, EPISODES, callbacks=[watch], visualize=False, verbose=0)
            made[make] = name, path, np.array(watch.actions, np.float32)
        return made[make]

    return of


@pytest.fixture
def opened(monkeypatch):
    """Files that were read; where a pool is made, the test fails."""
    files, read, check = [], checkpoint.files.read, checkpoint.files.check
    monkeypatch.setattr(
        checkpoint.files, "read", lambda path, *rest: files.append(path.name) or read(path, *rest)
    )
    monkeypatch.setattr(
        checkpoint.files, "check", lambda path, *rest: files.append(path.name) or check(path, *rest)
    )
    monkeypatch.setattr(DeviceMemory, "allocate", lambda *_: pytest.fail("a pool was made"))
    return files


@pytest.mark.filterwarnings("ignore:Mirrored.process_state_batch stays on the host")
@pytest.mark.parametrize("make", [single, stacked, processed, bounded])
def test_a_player_acts_as_the_agent_does_in_test(saved, make, request):
    name, path, expected = saved(make)
    opened = request.getfixturevalue("opened")  # only now: the agent has a pool
    player = Player(path, processor=Mirrored() if make is processed else None)
    np.testing.assert_allclose(play(player, name), expected, rtol=1e-5, atol=1e-6)
    assert set(opened) == {"manifest.json", "COMMIT", "state.json", "state.safetensors"}
    if make is bounded:  # the bounds were met, and what lies between them too
        assert np.abs(expected).max() == 2 > np.abs(expected).min()


def test_threads_share_a_player_and_each_has_its_own_window(saved):
    name, path, expected = saved(stacked)
    player, found = Player(path), {}

    def run(seed):
        found[seed] = play(player, name, seed)

    seeds = [7, 8, 9, 10]
    threads = [threading.Thread(target=run, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    np.testing.assert_array_equal(found[7], expected)
    for seed in seeds[1:]:
        np.testing.assert_array_equal(found[seed], play(player, name, seed))


def test_a_player_in_another_process(saved):
    name, path, expected = saved(stacked)
    program = (
        "import test_player as test; from kerasrl_gpu import Player\n"
        f"print(); print(test.play(Player({str(path)!r}), {name!r}).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=os.environ,
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == str(expected.tolist())


def test_a_new_episode_begins_with_an_empty_window(saved):
    _, path, _ = saved(stacked)
    player, fresh = Player(path), Player(path)
    one, two = np.float32([3, -2, 0.1, 4]), np.float32([-3, 2, 0.2, -4])
    player.act(one), player.act(two)
    state = [np.zeros(4, np.float32), one, two]
    np.testing.assert_array_equal(np.stack(list(player._seen())), state[1:])
    player.reset()
    fresh.act(two), player.act(two)
    np.testing.assert_array_equal(player._seen(), fresh._seen())
    assert len(player._seen()) == 1


def test_wrong_observations_are_refused_and_leave_the_episode_as_it_was(saved):
    _, path, _ = saved(stacked)
    player, right = Player(path), np.zeros(4, np.float32)
    with pytest.raises(ObservationError, match=r"shape \(5,\) where the pool holds \(4,\)"):
        player.act(np.zeros(5, np.float32))  # also the first
    first = player.act(right)
    with pytest.raises(ObservationError, match="the observation holds NaN"):
        player.act(np.float32([0, np.nan, 0, 0]))
    with pytest.raises(ObservationError, match="None"):
        player.act(None)
    assert len(player._seen()) == 1
    player.reset()
    assert player.act(right) == first


class Worst(Policy):
    def select_action(self, q_values):
        return q_values.argmin()


def test_a_policy_chooses_among_the_values(saved):
    _, path, _ = saved(single)
    greedy, worst = Player(path), Player(path, policy=Worst())
    for observation in np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32):
        assert greedy.act(observation) == 1 - worst.act(observation)


def test_what_cannot_be_rebuilt_is_named(saved, tmp_path):
    _, path, _ = saved(processed)
    with pytest.raises(CheckpointError, match=r"processor is of a class of your own, .*Mirrored"):
        Player(path)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        Player(tmp_path)

    def model():
        doubled = keras.layers.Lambda(lambda inputs: 2 * inputs)
        last = keras.layers.Dense(2)
        return keras.Sequential([keras.Input((1, 4)), keras.layers.Flatten(), doubled, last])

    agent = DQNAgent(model(), nb_actions=2, memory=DeviceMemory(limit=90))
    agent.compile("sgd")
    agent.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"Lambda layer.*model="):
        Player(tmp_path)
    observation = np.float32([1, 2, 3, 4])
    player = Player(tmp_path, model=model())
    assert player.act(observation) == agent.compute_q_values([observation]).argmax()
