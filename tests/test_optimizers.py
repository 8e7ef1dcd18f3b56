"""Every Keras optimizer, inside a compiled call, does what Keras' own `apply` does.

Two optimizers of the same settings get the same gradients for the same weights: one through
`engine.Optimizer` in a compiled function, one by Keras, eagerly. Weights and slots stay equal.
"""

import keras
import numpy as np
import pytest

from kerasrl_gpu import DDPGAgent, DQNAgent, engine, optimizers
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.keras_rl import Experience, Memory
from kerasrl_gpu.state import TrainState, Weights

STEPS = 5
RANDOM = np.random.default_rng(7)
SHAPES = [(3, 4), (4,)]
BEFORE = [RANDOM.normal(size=shape).astype(np.float32) for shape in SHAPES]
# gradients of very different norms: each clip option cuts some of them and leaves others
GRADIENTS = [
    [(10.0**-step * RANDOM.normal(size=shape)).astype(np.float32) for shape in SHAPES]
    for step in range(STEPS)
]

OF_ITS_OWN = ("LossScaleOptimizer", "MultiOptimizer", "Optimizer", "OptimizerMap")
PLAIN = [
    name
    for name, kind in vars(keras.optimizers).items()
    if isinstance(kind, type) and name not in OF_ITS_OWN
]
Adam, SGD = keras.optimizers.Adam, keras.optimizers.SGD


def multi():
    """Adam for the matrices, SGD with momentum for the vector."""
    adam, sgd = Adam(0.1), SGD(0.1, momentum=0.9)
    return keras.optimizers.MultiOptimizer(lambda v: sgd if len(v.shape) == 1 else adam)


CASES = {name: lambda name=name: getattr(keras.optimizers, name)(0.1) for name in PLAIN} | {
    "SGD momentum": lambda: SGD(0.1, momentum=0.9),
    "SGD nesterov": lambda: SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop centered": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "Adam amsgrad": lambda: Adam(0.1, amsgrad=True),
    "Adam clipnorm": lambda: Adam(0.1, clipnorm=0.5),
    "SGD clipnorm": lambda: SGD(0.1, clipnorm=0.5),
    "SGD clipvalue": lambda: SGD(0.1, clipvalue=0.2),
    "SGD global_clipnorm": lambda: SGD(0.1, global_clipnorm=0.5),
    "Adam weight_decay": lambda: Adam(0.1, weight_decay=0.3),
    "AdamW weight_decay": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.3),
    "Adam use_ema": lambda: Adam(0.1, use_ema=True, ema_momentum=0.5),
    "Adam use_ema overwrites": lambda: Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
    "Adam accumulates": lambda: Adam(0.1, gradient_accumulation_steps=2),
    "Adam loss_scale_factor": lambda: Adam(0.1, loss_scale_factor=8.0),
    "Adam schedule": lambda: Adam(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
    "MultiOptimizer": multi,
}


def variables():
    return [keras.Variable(value) for value in BEFORE]


def on_host(leaves):
    return [np.array(engine.to_host(leaf)) for leaf in leaves]


def apply_compiled(optimizer):
    """Weights and slots after each gradient, through the engine."""
    kept = variables()
    ours = engine.Optimizer(optimizer, kept)
    state = TrainState(
        online={"model": Weights(engine.adopt(kept), [])}, target={}, slots={"model": ours.slots}
    )

    def update(state, gradients):
        online = state.online["model"]
        trainable, slots = ours.apply(gradients, online.trainable, state.slots["model"])
        new = state._replace(
            online={"model": online._replace(trainable=trainable)}, slots={"model": slots}
        )
        return new, keras.ops.ones((1,))

    learn, found = engine.compile_learn(update), []
    for gradients in GRADIENTS:
        state, _ = learn(state, gradients)
        found.append(on_host([*state.online["model"].trainable, *state.slots["model"]]))
    assert learn.traces == 1
    return found


def apply_eagerly(optimizer, every=GRADIENTS):
    """The same by Keras alone."""
    kept, found = variables(), []
    optimizer.build(kept)
    for gradients in every:
        optimizer.apply([keras.ops.convert_to_tensor(array) for array in gradients], kept)
        leaves = [*kept, *optimizer.variables]
        found.append([np.array(keras.ops.convert_to_numpy(leaf)) for leaf in leaves])
    return found


def assert_same(got, want):
    for step in range(STEPS):
        for ours, theirs in zip(got[step], want[step], strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=f"step {step}")


@pytest.mark.parametrize("case", CASES)
def test_a_compiled_step_is_keras_own(case):
    got = apply_compiled(CASES[case]())
    assert_same(got, apply_eagerly(CASES[case]()))
    assert all(np.any(after != before) for after, before in zip(got[-1], BEFORE, strict=False))


def test_a_loss_scale_is_taken_out_of_the_gradients_and_grows():
    # Keras applies a LossScaleOptimizer eagerly on TensorFlow only, so its inner optimizer is the
    # measure, on gradients divided by hand. The scale doubles with every second step:
    before, after = [8, 8, 16, 16, 32], [8, 16, 16, 32, 32]
    scaled = keras.optimizers.LossScaleOptimizer(
        Adam(0.1, clipnorm=0.5), initial_scale=8.0, dynamic_growth_steps=2
    )
    got = apply_compiled(scaled)
    divided = [
        [array / scale for array in gradients]
        for gradients, scale in zip(GRADIENTS, before, strict=True)
    ]
    want = apply_eagerly(Adam(0.1, clipnorm=0.5), divided)
    weights, inner = len(SHAPES), len(scaled.inner_optimizer.variables)
    assert_same([leaves[:weights] + leaves[-inner:] for leaves in got], want)
    at = weights + [variable.name for variable in scaled.variables].index("dynamic_scale")
    assert [float(leaves[at]) for leaves in got] == after


def test_a_gradient_that_is_not_finite_halves_the_scale_and_moves_nothing_else():
    kept = variables()
    scaled = keras.optimizers.LossScaleOptimizer(SGD(0.1), initial_scale=8.0)
    ours = engine.Optimizer(scaled, kept)
    state = TrainState({"model": Weights(engine.adopt(kept), [])}, {}, {"model": ours.slots})

    def update(state, gradients):
        trainable, slots = ours.apply(
            gradients, state.online["model"].trainable, state.slots["model"]
        )
        online = {"model": Weights(trainable, [])}
        return state._replace(online=online, slots={"model": slots}), keras.ops.ones((1,))

    gradients = [array.copy() for array in GRADIENTS[0]]
    gradients[1][2] = np.nan
    state, _ = engine.compile_learn(update)(state, gradients)
    for got, want in zip(on_host(state.online["model"].trainable), BEFORE, strict=True):
        np.testing.assert_array_equal(got, want)
    names = [variable.name for variable in scaled.variables]
    slots = dict(zip(names, on_host(state.slots["model"]), strict=True))
    assert slots["dynamic_scale"] == 4


# Through an agent: one weight, one observation 1, one reward 1, always the end --------------------


class One(Memory):
    """The same row at every draw: observation 1, reward 1, an ending."""

    def __init__(self):
        super().__init__(window_length=1)

    def sample(self, batch_size, batch_idxs=None):
        return [Experience([np.ones(1, np.float32)], 0, 1.0, [np.ones(1, np.float32)], True)]


def one_weight():
    return keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )


def one_weight_agent(model=None):
    return DQNAgent(
        model=one_weight() if model is None else model,
        nb_actions=1,
        memory=One(),
        batch_size=1,
        nb_steps_warmup=0,
    )


def learn(agent):
    """One update; the weight after it, read without telling Keras."""
    agent.training, agent.step = True, agent.step + 1
    agent.recent_observation, agent.recent_action = np.ones(1, np.float32), 0
    agent.backward(0.0, terminal=False)
    return float(on_host(agent.state.online["model"].trainable)[0][0, 0])


def read_nothing(agent):
    pass


def read_model(agent):
    assert agent.model.get_weights()


def set_target(agent):
    agent.update_target_model_hard()


WRAPS = {
    "alone": lambda sgd: sgd,
    "scaled": lambda sgd: keras.optimizers.LossScaleOptimizer(sgd, initial_scale=4.0),
    "multi": lambda sgd: keras.optimizers.MultiOptimizer(lambda variable: sgd),
}


@pytest.mark.parametrize("between", [read_nothing, read_model, set_target])
@pytest.mark.parametrize("wrap", WRAPS)
def test_a_learning_rate_that_is_set_holds_from_the_next_update(between, wrap):
    # the gradient is w - 1:  0.5 * (0 - 1)          ->  0    + 0.5  * 1    = 0.5
    # rate set to 0.25:                                  0.5  + 0.25 * 0.5  = 0.625
    # and it stays set:                                  0.625 + 0.25 * 0.375 = 0.71875
    agent, sgd = one_weight_agent(), SGD(0.5)
    agent.compile(WRAPS[wrap](sgd))
    assert learn(agent) == 0.5
    changed = sgd if wrap == "multi" else agent.optimizer
    changed.learning_rate = 0.25
    between(agent)
    assert learn(agent) == 0.625
    between(agent)
    assert learn(agent) == 0.71875
    assert float(keras.ops.convert_to_numpy(sgd.learning_rate)) == 0.25


def test_weights_and_a_rate_that_are_set_together_both_hold():
    # 7 - 0.25 * (7 - 1) = 5.5
    agent = one_weight_agent()
    agent.compile(SGD(0.5))
    learn(agent)
    agent.model.set_weights([np.float32([[7]])])
    agent.optimizer.learning_rate = 0.25
    assert agent.model.get_weights()[0] == 7
    agent.take_weights()
    assert learn(agent) == 5.5


def test_a_schedule_that_is_set_in_mid_run_is_refused():
    agent = one_weight_agent()
    agent.compile(SGD(0.5, momentum=0.5))
    learn(agent)
    schedule = keras.optimizers.schedules.ExponentialDecay(0.25, 1, 1.0)
    agent.optimizer.learning_rate = schedule
    with pytest.raises(ArgumentError, match=r"schedule while it was in use; call agent\.compile"):
        learn(agent)
    assert agent.model.get_weights()[0] == 0.5
    agent.compile(SGD(schedule))
    assert learn(agent) == 0.625


def test_the_keras_optimizer_shows_its_slots_after_a_sync():
    # momentum of the first step -0.1 * (0 - 1) = 0.1
    agent = one_weight_agent()
    agent.compile(SGD(0.1, momentum=0.9))
    learn(agent)
    agent.sync()
    held = {v.name: keras.ops.convert_to_numpy(v) for v in agent.optimizer.variables}
    assert held["iteration"] == 1
    (momentum,) = (value for name, value in held.items() if name.endswith("momentum"))
    np.testing.assert_allclose(momentum, [[0.1]])


def test_compiled_again_the_slots_are_fresh_and_the_weights_stay():
    # momentum 0.9, rate 0.1:  0 + 0.1 = 0.1; fresh: 0.1 + 0.1 * 0.9 = 0.19 (kept: 0.19 + 0.09)
    agent, optimizer = one_weight_agent(), SGD(0.1, momentum=0.9)
    agent.compile(optimizer)
    assert learn(agent) == pytest.approx(0.1)
    agent.compile(optimizer)
    assert agent.model.get_weights()[0] == pytest.approx(0.1)
    assert learn(agent) == pytest.approx(0.19)


def test_an_optimizer_that_something_else_uses_stays_untouched():
    used = Adam(0.3, beta_1=0.5)
    theirs = keras.Variable(np.ones(2, np.float32))
    used.build([theirs])
    used.apply([keras.ops.ones(2)], [theirs])
    before = [keras.ops.convert_to_numpy(variable) for variable in used.variables]
    agent = one_weight_agent()
    agent.compile(used)
    learn(agent)
    agent.sync()
    for variable, value in zip(used.variables, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value)
    assert agent.optimizer is not used
    assert agent.optimizer.get_config()["beta_1"] == 0.5
    used.apply([keras.ops.ones(2)], [theirs])  # and still knows its own variables


def test_two_agents_that_wait_for_their_models_share_no_slots():
    # models without an input shape are built at the first observation, after `compile`
    shared = SGD(0.1, momentum=0.9)
    layer = {"use_bias": False, "kernel_initializer": "zeros"}
    agents = [
        one_weight_agent(keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1, **layer)]))
        for _ in range(2)
    ]
    for agent in agents:
        agent.compile(shared)
    # 0 + 0.1, then 0.1 + 0.09 + 0.9 * 0.1 = 0.28, each for itself
    assert [learn(agent) for agent in agents] == pytest.approx([0.1, 0.1])
    assert [learn(agent) for agent in agents] == pytest.approx([0.28, 0.28])


@pytest.mark.parametrize("name, kind", [("adam", Adam), ("rmsprop", keras.optimizers.RMSprop)])
def test_an_optimizer_by_name(name, kind):
    agent = one_weight_agent()
    agent.compile(name)
    assert type(agent.optimizer) is kind


@pytest.mark.parametrize("wrong", ["adamm", 3, None])
def test_what_is_no_optimizer_is_refused_by_name(wrong):
    with pytest.raises(ArgumentError, match=f"optimizer={wrong!r} is no Keras optimizer"):
        one_weight_agent().compile(wrong)


def test_ddpg_takes_one_optimizer_for_two_or_a_pair():
    seen, action = keras.Input((1,)), keras.Input((1,))
    critic = keras.Model([action, seen], keras.layers.Dense(1)(action + seen))
    agent = DDPGAgent(1, one_weight(), critic, action, One())
    agent.compile(Adam(0.25))
    assert agent.actor_optimizer is not agent.critic_optimizer
    rates = [agent.actor_optimizer.learning_rate, agent.critic_optimizer.learning_rate]
    assert [float(keras.ops.convert_to_numpy(rate)) for rate in rates] == [0.25, 0.25]
    sgd = SGD(0.5)
    agent.compile((sgd, sgd))  # twice the same object still makes two
    assert agent.actor_optimizer is not agent.critic_optimizer
    agent.compile(("adam", SGD(0.5)))
    assert [type(agent.actor_optimizer), type(agent.critic_optimizer)] == [Adam, SGD]
    with pytest.raises(ArgumentError, match="3 optimizers; pass one, or a pair"):
        agent.compile(("adam", "adam", "adam"))


# What `compile` takes ---------------------------------------------------------------------------


def model_of(dtype="float32"):
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype=dtype)])


def test_a_fresh_optimizer_is_the_one_given_or_a_new_one_of_its_settings():
    unused, model = keras.optimizers.RMSprop(0.25, rho=0.5), model_of()
    assert optimizers.fresh(unused, model) is unused
    made = optimizers.fresh(unused, model)  # somebody has it now
    assert made is not unused
    assert not made.built
    assert made.get_config() == unused.get_config()
    built = keras.optimizers.SGD(0.5)
    built.build(model.trainable_variables)
    assert optimizers.fresh(built, model) is not built
    assert type(optimizers.fresh("rmsprop", model)) is keras.optimizers.RMSprop
    with pytest.raises(ArgumentError, match="optimizer='nothing' is no Keras optimizer"):
        optimizers.fresh("nothing", model)


def test_float16_gets_its_loss_scaled_once():
    sgd, half = keras.optimizers.SGD(0.5), model_of("mixed_float16")
    scaling = optimizers.fresh(sgd, half)
    assert isinstance(scaling, keras.optimizers.LossScaleOptimizer)
    assert scaling.inner_optimizer is sgd
    given = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    assert optimizers.fresh(given, half) is given
    assert type(optimizers.fresh("sgd", model_of("mixed_bfloat16"))) is keras.optimizers.SGD


@pytest.mark.parametrize("same", [True, False])
def test_two_networks_get_two_optimizers(same):
    one = keras.optimizers.SGD(0.25)
    given = (one, one) if same else one
    first, second = optimizers.fresh_pair(given, model_of(), model_of())
    assert first is one
    assert second is not one
    assert second.get_config() == one.get_config()
    with pytest.raises(ArgumentError, match="3 optimizers; pass one, or a pair"):
        optimizers.fresh_pair(("sgd", "sgd", "sgd"), model_of(), model_of())
