"""A network is more than its trainable weights; and the user's model object stays the user's.

Updates are driven through `agent.backward`, with a keras-rl Memory that hands out one fixed batch.
Where numbers are expected, NumPy works them out from the same batch.
"""

import gymnasium
import keras
import numpy as np
import pytest

from kerasrl_gpu import DDPGAgent, DeviceMemory, DQNAgent, engine
from kerasrl_gpu.callbacks import Callback
from kerasrl_gpu.keras_rl import Experience, Memory
from kerasrl_gpu.policy import GreedyQPolicy
from kerasrl_gpu.state import Weights

RATE, TAU, GAMMA = 0.1, 0.25, 0.5


def f32(values):
    return np.array(values, np.float32)


SEEN = f32([[1, 2], [3, -1], [0, 1], [-2, 3]])
SEEN_NEXT = f32([[0, 1], [1, 1], [2, -3], [-1, 2]])
ACTION = np.array([0, 1, 1, 0])
REWARD = f32([1, -1, 2, 0.5])
TERMINAL = np.array([False, False, True, False])
KERNEL = f32([[0.5, -1], [2, 0.25]])


class Batches(Memory):
    """Hands out the same rows at every `sample`, but for rewards, of which each draw has its own.

    Args:
        action: one a row.
        rewards: one f32[B] a draw; the last one stays.
    """

    def __init__(self, action=ACTION, rewards=(REWARD,)):
        super().__init__(window_length=1)
        self.action, self.rewards = action, list(rewards)

    def sample(self, batch_size, batch_idxs=None):
        rewards = self.rewards.pop(0) if len(self.rewards) > 1 else self.rewards[0]
        rows = zip(SEEN, self.action, rewards, SEEN_NEXT, TERMINAL, strict=True)
        return [Experience([s0], a, r, [s1], end) for s0, a, r, s1, end in rows]


def linear(**options):
    """Two Q-values, linear in the layer's two inputs."""
    return keras.layers.Dense(
        2, use_bias=False, kernel_initializer=keras.initializers.Constant(KERNEL), **options
    )


def dqn(*layers, optimizer=None, rewards=(REWARD,), metrics=()):
    agent = DQNAgent(
        model=keras.Sequential([keras.Input((1, 2)), keras.layers.Flatten(), *layers]),
        nb_actions=2,
        memory=Batches(rewards=rewards),
        gamma=GAMMA,
        batch_size=len(SEEN),
        nb_steps_warmup=0,
        target_model_update=TAU,
    )
    agent.compile(keras.optimizers.SGD(RATE) if optimizer is None else optimizer, metrics)
    return agent


def learn(agent, updates=1):
    """What the last of so many updates reports."""
    agent.training = True
    agent.recent_observation, agent.recent_action = SEEN[0], agent.memory.action[0]
    for _ in range(updates):
        agent.step += 1
        reported = list(agent.backward(0.0, terminal=False))
    return reported


def on_host(leaves):
    return [np.array(engine.to_host(leaf)) for leaf in leaves]


def weights(agent, name="model"):
    """(online, target) Weights of a network as host arrays of their own."""
    state = agent.state
    return tuple(Weights(*map(on_host, kind[name])) for kind in (state.online, state.target))


def q_loss(inputs, kernel, q_next):
    """Loss of a linear Q-network and its gradient to the kernel.

    Args:
        inputs: f32[B, 2], what the linear layer sees.
        q_next: f32[B, A], what the target network says to the next observations.
    """
    y = REWARD + GAMMA * ~TERMINAL * q_next.max(axis=1)
    error = (inputs @ kernel)[np.arange(len(y)), ACTION] - y
    taken = np.eye(2)[ACTION]
    return 0.5 * np.mean(error**2), inputs.T @ (error[:, None] * taken) / len(y)


def assert_close(got, want, rtol=1e-5):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-6)


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


# What a model brings along ----------------------------------------------------------------------


def test_a_regulariser_is_in_the_loss_and_in_the_gradient():
    # TD loss and gradient by q_loss; 0.1 * sum(W**2) adds 0.1 * 5.3125 and 0.2 * W
    agent = dqn(linear(kernel_regularizer=keras.regularizers.L2(0.1)))
    loss, gradient = q_loss(SEEN, KERNEL, SEEN_NEXT @ KERNEL)
    reported = learn(agent)
    assert_close(reported[0], loss + 0.1 * 5.3125)
    assert_close(weights(agent)[0].trainable[0], KERNEL - RATE * (gradient + 0.2 * KERNEL))


def test_a_constraint_holds_after_an_update():
    # a step of the rate 0.1 leaves columns longer than 1; MaxNorm brings them back to 1
    agent = dqn(linear(kernel_constraint=keras.constraints.MaxNorm(1, axis=0)))
    _, gradient = q_loss(SEEN, KERNEL, SEEN_NEXT @ KERNEL)
    free = KERNEL - RATE * gradient
    norm = np.linalg.norm(free, axis=0)
    assert norm.max() > 1
    learn(agent)
    assert_close(weights(agent)[0].trainable[0], free * np.minimum(norm, 1) / norm)


def test_a_frozen_layer_stays_and_the_others_move():
    frozen = keras.layers.Dense(3, trainable=False)
    agent = dqn(frozen, keras.layers.Dense(2))
    before, _ = weights(agent)
    learn(agent, updates=3)
    after, target = weights(agent)
    assert_same(after.non_trainable, before.non_trainable)
    assert_same(frozen.get_weights(), before.non_trainable)
    assert len(after.non_trainable) == len(after.trainable) == 2
    assert all(np.any(a != b) for a, b in zip(after.trainable, before.trainable, strict=True))
    for slow, fast in zip(target.non_trainable, after.non_trainable, strict=True):
        assert_close(slow, fast)


def normalised(seen, mean=0.0, variance=1.0):
    return (seen - mean) / np.sqrt(variance + 1e-3)  # Keras' default epsilon


def test_batch_normalisation_learns_from_the_batch_and_acts_on_its_statistics():
    agent = dqn(keras.layers.BatchNormalization(momentum=0.9), linear())
    mean, variance = SEEN.mean(axis=0), SEEN.var(axis=0)
    # the pass that is learned from normalises by the batch, the target's by its statistics, 0 and 1
    inputs, q_next = normalised(SEEN, mean, variance), normalised(SEEN_NEXT) @ KERNEL
    loss, gradient = q_loss(inputs, KERNEL, q_next)
    reported = learn(agent)
    online, target = weights(agent)
    gamma, beta, kernel = online.trainable
    assert_close(reported, [loss, np.mean((inputs @ KERNEL).max(axis=1))])
    assert_close(kernel, KERNEL - RATE * gradient)
    # momentum 0.9: 0.9 * 0 + 0.1 * mean and 0.9 * 1 + 0.1 * variance, moved by one pass
    assert_close(online.non_trainable, [0.1 * mean, 0.9 + 0.1 * variance])
    assert_same(target.non_trainable, [[0, 0], [1, 1]])  # the weights from before the step
    seen = normalised(SEEN_NEXT, *online.non_trainable) * gamma + beta
    q = agent.compute_batch_q_values([[row] for row in SEEN_NEXT])
    assert_close(q, seen @ kernel)
    assert_same(weights(agent)[0].non_trainable, online.non_trainable)  # acting moves nothing


def test_targets_blend_everything_with_the_weights_from_before_the_step():
    agent = dqn(keras.layers.BatchNormalization(momentum=0.5), linear())
    learn(agent)
    online, target = weights(agent)
    learn(agent)
    fresh, blended = weights(agent)
    for slow, fast, new, got in zip(
        [*target.trainable, *target.non_trainable],
        [*online.trainable, *online.non_trainable],
        [*fresh.trainable, *fresh.non_trainable],
        [*blended.trainable, *blended.non_trainable],
        strict=True,
    ):
        assert_close(got, (1 - TAU) * slow + TAU * fast)
        assert not np.allclose(got, (1 - TAU) * slow + TAU * new)  # not from behind it


def mean_target(y_true, y_pred):
    return keras.ops.mean(y_true)


def test_dropout_draws_a_new_mask_each_update_and_none_to_act_or_to_price():
    agent = dqn(
        keras.layers.Dropout(0.5, seed=3),
        linear(),
        optimizer=keras.optimizers.SGD(0.0),  # the weights stay, so that only masks can differ
        metrics=[mean_target],
    )
    seed = weights(agent)[0].non_trainable[0]
    first = learn(agent)
    between = weights(agent)[0].non_trainable
    second = learn(agent)
    assert first[0] != second[0]
    y = REWARD + GAMMA * ~TERMINAL * (SEEN_NEXT @ KERNEL).max(axis=1)  # no mask
    assert_close([first[1], second[1]], [y.sum() / 8] * 2)  # one of two actions a row is masked
    states = [[row] for row in SEEN]
    for _ in range(2):
        assert_close(agent.compute_batch_q_values(states), SEEN @ KERNEL)
    online, target = weights(agent)
    assert np.any(between[0] != seed)
    assert np.any(online.non_trainable[0] != between[0])
    assert_same(target.non_trainable, between)  # a seed has no halfway
    held = agent.model.non_trainable_variables[0]
    assert_same([keras.ops.convert_to_numpy(held)], online.non_trainable)
    dtypes = [seed.dtype, np.dtype(held.dtype)]
    assert [leaf.non_trainable[0].dtype for leaf in (online, target)] == dtypes
    assert "int" in str(seed.dtype)


# DDPG -------------------------------------------------------------------------------------------


def ddpg(only):
    """An agent of two batch-normalised networks, of which one learns."""
    seen, action = keras.Input((1, 2)), keras.Input((2,))
    normal = keras.layers.BatchNormalization
    actor = keras.Sequential(
        [keras.Input((1, 2)), keras.layers.Flatten(), normal(), keras.layers.Dense(2, "tanh")]
    )
    both = keras.layers.Concatenate()([action, keras.layers.Flatten()(seen)])
    critic = keras.Model([action, seen], keras.layers.Dense(1)(normal()(both)))
    warmups = {f"nb_steps_warmup_{name}": 0 if name == only else 10**6 for name in BOTH}
    agent = DDPGAgent(
        2,
        actor,
        critic,
        action,
        Batches(action=f32([[0.5, -0.5], [0.25, 0], [-1, 1], [0, 0.75]])),
        gamma=GAMMA,
        batch_size=len(SEEN),
        target_model_update=TAU,
        **warmups,
    )
    agent.compile(keras.optimizers.SGD(RATE))
    return agent


BOTH = ("actor", "critic")


@pytest.mark.parametrize("name", BOTH)
def test_a_ddpg_update_moves_only_the_network_that_learns(name):
    agent = ddpg(only=name)
    (other,) = set(BOTH) - {name}
    before = {network: weights(agent, network) for network in BOTH}
    reported = learn(agent, updates=2)
    assert np.isnan(reported).all() == (name == "actor")
    after = {network: weights(agent, network) for network in BOTH}
    for kind, changed in zip(after[name], before[name], strict=True):
        # the second update blends what the first made: statistics move in online and target
        for part, was in zip(kind, changed, strict=True):
            assert all(np.any(a != b) for a, b in zip(part, was, strict=True))
    for kind, was in zip(after[other], before[other], strict=True):
        for part, same in zip(kind, was, strict=True):
            assert_same(part, same)


def test_the_critics_statistics_see_the_stored_actions_only():
    agent = ddpg(only="critic")
    learn(agent)
    seen = np.concatenate([agent.memory.action, SEEN], axis=1)
    mean, variance = weights(agent, "critic")[0].non_trainable
    assert_close(mean, 0.01 * seen.mean(axis=0))  # 0.99 is Keras' default momentum
    assert_close(variance, 0.99 + 0.01 * seen.var(axis=0))


# Precision --------------------------------------------------------------------------------------


def test_mixed_bfloat16_trains():
    hidden = keras.layers.Dense(16, "relu", dtype="mixed_bfloat16")
    agent = dqn(
        hidden,
        keras.layers.Dense(2, dtype="mixed_bfloat16"),
        optimizer=keras.optimizers.Adam(0.02),
    )
    first = learn(agent)
    last = learn(agent, updates=60)
    assert last[0] < 0.2 * first[0]
    assert hidden.compute_dtype == "bfloat16"
    online, target = weights(agent)
    assert {leaf.dtype for leaf in [*online.trainable, *target.trainable]} == {np.dtype("float32")}
    assert agent.compute_q_values([SEEN[0]]).dtype == np.float32


def test_mixed_float16_halves_its_scale_and_skips_a_gradient_that_is_not_finite():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), initial_scale=2**10)
    rewards = (REWARD, np.full(4, 1e38, np.float32), REWARD)
    agent = dqn(linear(dtype="mixed_float16"), optimizer=scaled, rewards=rewards)

    def look():
        slots = on_host(agent.state.slots["model"])
        names = [variable.name for variable in agent.optimizer.variables]
        return weights(agent)[0].trainable[0], float(slots[names.index("dynamic_scale")])

    learn(agent)
    first, scale = look()
    _, gradient = q_loss(SEEN, KERNEL, SEEN_NEXT @ KERNEL)
    assert_close(first, KERNEL - RATE * gradient, rtol=1e-2)  # scaled up and down again
    assert scale == 2**10
    learn(agent)
    second, scale = look()
    np.testing.assert_array_equal(second, first)
    assert scale == 2**9
    learn(agent)
    third, scale = look()
    assert np.isfinite(third).all()
    assert np.any(third != first)
    assert scale == 2**9
    agent.sync()
    assert float(keras.ops.convert_to_numpy(scaled.dynamic_scale)) == 2**9


# The user's own model object --------------------------------------------------------------------


class Walk(gymnasium.Env):
    """Shows where one is and the time from 1 on; 6 steps an episode. Its 10th step `raises`."""

    observation_space = gymnasium.spaces.Box(-1, 2, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, raises=None):
        self.raises, self.actions = raises, []

    def reset(self, *, seed=None, options=None):
        self.at, self.time = 0.0, 0
        return f32([0, 1]), {}

    def step(self, action):
        self.actions.append(int(action))
        if self.raises is not None and len(self.actions) == 10:
            raise self.raises
        self.at += (2 * action - 1) / 6
        self.time += 1
        return f32([self.at, 1 + self.time / 6]), self.at, self.time == 6, False, {}


class Spy(Callback):
    """Keeps the weights that the agent's model has after each step; its 10th step `raises`."""

    def __init__(self, raises=None):
        super().__init__()
        self.raises, self.kept = raises, []

    def on_step_end(self, step, logs=None):
        self.kept.append(self.agent.model.get_weights())
        if self.raises is not None and len(self.kept) == 10:
            raise self.raises


def walker():
    model = keras.Sequential([keras.Input((1, 2)), keras.layers.Flatten(), linear()])
    agent = DQNAgent(
        model=model,
        policy=GreedyQPolicy(),
        nb_actions=2,
        memory=DeviceMemory(limit=50),
        batch_size=4,
        nb_steps_warmup=2,
        target_model_update=TAU,
        seed=0,
    )
    agent.compile(keras.optimizers.SGD(0.01))
    return agent, model


def on_device(agent):
    return on_host(agent.state.online["model"].trainable)


@pytest.fixture(scope="module")
def walked():
    """Two equal agents, one after 12 steps with a spy, one after 7; what the spy kept."""
    (agent, model), spy = walker(), Spy()
    agent.fit(Walk(), nb_steps=12, verbose=0, callbacks=[spy])
    shorter = walker()
    shorter[0].fit(Walk(), nb_steps=7, verbose=0)
    return (agent, model), shorter, spy.kept


def test_fit_leaves_its_weights_in_the_model(walked):
    _, (agent, model), _ = walked
    assert np.any(model.get_weights()[0] != KERNEL)
    assert_same(model.get_weights(), on_device(agent))  # nobody has read `agent.model` before


def test_a_callback_reads_the_weights_of_its_moment(walked):
    _, (_, model), kept = walked
    assert_same(kept[6], model.get_weights())  # where a run of 7 steps ends
    assert_same(kept[2], [KERNEL])  # warm-up lasts up to step 2; from step 3 on every step learns
    assert all(np.any(kept[step][0] != kept[step + 1][0]) for step in range(2, 11))


@pytest.mark.parametrize("where", ["env", "callback"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("the game crashed")])
def test_what_ends_a_run_leaves_the_weights_in_the_model(walked, where, error):
    (agent, model), _, _ = walked
    env = Walk(raises=error if where == "env" else None)
    callbacks = [Spy(raises=error)] if where == "callback" else []
    before = model.get_weights()
    if isinstance(error, KeyboardInterrupt):
        assert not agent.fit(env, nb_steps=20, verbose=0, callbacks=callbacks).completed
    else:
        with pytest.raises(RuntimeError, match="the game crashed"):
            agent.fit(env, nb_steps=20, verbose=0, callbacks=callbacks)
    assert len(env.actions) == 10
    held = model.get_weights()  # the user's own object, read before the agent is asked
    assert np.any(held[0] != before[0])
    assert_same(held, on_device(agent))


def test_weights_set_before_fit_and_before_test_are_the_ones_that_act(walked):
    _, (agent, model), _ = walked
    agent.nb_steps_warmup = 10**6
    for action in (1, 0):
        env = Walk()
        model.set_weights([f32([[0, 0], [0.5 - action, action - 0.5]])])  # always this action
        agent.fit(env, nb_steps=5, verbose=0)
        assert env.actions == [action] * 5
    model.set_weights([f32([[0, 0], [-1, 1]])])
    env = Walk()
    agent.test(env, nb_episodes=1, verbose=0, visualize=False)
    assert env.actions == [1] * 6


class Compare(GreedyQPolicy):
    """Keeps what it is given beside what the networks say when asked at that moment."""

    def __init__(self, agent):
        super().__init__()
        self.of, self.given, self.asked = agent, [], []

    def select_action(self, q_values):
        self.given.append(np.array(q_values))
        observation = self.of.env.at, 1 + self.of.env.time / 6
        state = self.of.memory.get_recent_state(f32(observation))
        self.asked.append(self.of.compute_q_values(state))
        return super().select_action(q_values=q_values)


class Meddler(Callback):
    """Reads metrics at some steps, sets weights at others."""

    def __init__(self, model):
        super().__init__()
        self.own = model

    def on_step_end(self, episode_step, logs=None):
        if episode_step % 2:
            list(logs["metrics"])
        if episode_step == 3:
            self.own.set_weights([f32([[0, 0], [episode_step, self.model.step]])])
            self.model.take_weights()


def test_actions_go_by_the_newest_weights_whatever_callbacks_do():
    agent, model = walker()
    agent.policy = policy = Compare(agent)
    agent.env = Walk()
    agent.fit(agent.env, nb_steps=20, verbose=0, callbacks=[Meddler(model)])
    assert len(policy.given) == 20
    np.testing.assert_allclose(policy.given, policy.asked, rtol=1e-6)
    # set at step 3 of the last episode, learned from once: still close to what was set
    assert abs(policy.given[16] - f32([3, 15]) * (1 + 4 / 6)).max() < 5


def test_weights_set_between_compile_and_fit_are_the_ones_that_act():
    agent, model = walker()
    agent.nb_steps_warmup = 10**6
    model.set_weights([f32([[0, 0], [-1, 1]])])
    env = Walk()
    agent.fit(env, nb_steps=5, verbose=0)
    assert env.actions == [1] * 5
