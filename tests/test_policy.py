"""Policies: frequencies with fixed seeds, values by hand, states, and keras-rl's own classes."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from kerasrl_gpu import policy as policies
from kerasrl_gpu.errors import ArgumentError, ShapeError
from kerasrl_gpu.keras_rl import rl_policy
from kerasrl_gpu.policy import (
    BoltzmannGumbelQPolicy,
    BoltzmannQPolicy,
    EpsGreedyQPolicy,
    GreedyQPolicy,
    LinearAnnealedPolicy,
    MaxBoltzmannQPolicy,
    Policy,
    SoftmaxPolicy,
)

Q = np.array([0.1, 0.4, 0.2], dtype="float32")


def annealed():
    return LinearAnnealedPolicy(
        EpsGreedyQPolicy(), "eps", value_max=1.0, value_min=0.1, value_test=0.05, nb_steps=90
    )


MAKERS = [
    GreedyQPolicy,
    lambda: EpsGreedyQPolicy(0.4),
    SoftmaxPolicy,
    lambda: BoltzmannQPolicy(tau=0.5),
    lambda: MaxBoltzmannQPolicy(eps=0.6, tau=0.5),
    BoltzmannGumbelQPolicy,
    annealed,
]
DRAWING = MAKERS[1:]


def made(make, seed=None, training=True, step=0):
    policy = make()
    policy._set_agent(SimpleNamespace(training=training, step=step))
    if seed is not None:
        policy.seed(seed)
    return policy


def frequencies(policy, q_values, draws=20_000):
    actions = [policy.select_action(q_values=q_values) for _ in range(draws)]
    return np.bincount(actions, minlength=len(q_values)) / draws


def check_frequencies(policy, q_values, expected, draws=20_000):
    """Chi-square at 1e-4: the bounds for 1, 2 and 3 degrees of freedom are 15.1, 18.4 and 21.1."""
    expected = np.asarray(expected)
    seen = frequencies(policy, q_values, draws)
    possible = expected > 0
    assert (seen[~possible] == 0).all()
    chi_square = draws * np.sum((seen - expected)[possible] ** 2 / expected[possible])
    assert chi_square < [0, 15.1, 18.4, 21.1][possible.sum() - 1] + 1e-9


@pytest.mark.parametrize("make", MAKERS)
def test_policies_are_keras_rls(make):
    policy = make()
    assert isinstance(policy, getattr(rl_policy, type(policy).__name__))
    assert isinstance(policy, Policy)
    assert isinstance(policy, rl_policy.Policy)


def test_every_policy_of_keras_rl_is_here():
    theirs = {
        name
        for name, kind in vars(rl_policy).items()
        if isinstance(kind, type) and issubclass(kind, rl_policy.Policy)
    }
    assert all(issubclass(getattr(policies, name), getattr(rl_policy, name)) for name in theirs)


def test_greedy_takes_the_first_of_the_best():
    assert GreedyQPolicy().select_action(q_values=np.float32([1, 3, 3, 2])) == 1


def test_eps_greedy_frequencies():
    # 0.3 spread over 3 actions, the rest on the best: 0.1, 0.7 + 0.1, 0.1
    check_frequencies(made(lambda: EpsGreedyQPolicy(0.3), seed=0), Q, [0.1, 0.8, 0.1])
    check_frequencies(made(lambda: EpsGreedyQPolicy(1.0), seed=1), Q, [1 / 3] * 3)
    check_frequencies(made(lambda: EpsGreedyQPolicy(0.0), seed=2), Q, [0, 1, 0])


def test_eps_greedy_draws_are_independent():
    policy = made(lambda: EpsGreedyQPolicy(1.0), seed=0)
    actions = np.array([policy.select_action(q_values=Q[:2]) for _ in range(20_000)])
    pairs = np.bincount(2 * actions[:-1] + actions[1:], minlength=4) / 19_999
    np.testing.assert_allclose(pairs, 0.25, atol=0.012)


def test_boltzmann_frequencies():
    # tau 0.5 on [0, 0.5 log 2, 0.5 log 5]: weights 1, 2, 5
    q_values = (0.5 * np.log([1, 2, 5])).astype("float32")
    policy = made(lambda: BoltzmannQPolicy(tau=0.5), seed=0)
    check_frequencies(policy, q_values, np.array([1, 2, 5]) / 8)
    check_frequencies(policy, q_values + 1000, np.array([1, 2, 5]) / 8)


def test_boltzmann_keeps_large_gaps_apart():
    # keras-rl clips 600 and 700 to 500 each and calls them equal
    policy = made(BoltzmannQPolicy, seed=0)
    check_frequencies(policy, np.float32([600, 700, -600]), [0, 1, 0])


def test_boltzmann_clip_bounds_the_gap():
    # clip (-1, 1): nothing counts as more than 2 below the best: e^-2 : e^-2 : 1
    weights = np.exp([-2.0, -2.0, 0.0])
    policy = made(lambda: BoltzmannQPolicy(clip=(-1, 1)), seed=0)
    check_frequencies(policy, np.float32([-9, 0, 5]), weights / weights.sum())


def test_boltzmann_never_draws_a_masked_action():
    policy = made(BoltzmannQPolicy, seed=0)
    check_frequencies(policy, np.float32([0, -np.inf, 0]), [0.5, 0, 0.5])


@pytest.mark.parametrize("uniform, action", [(0.0, 1), (0.5, 2), (1.0 - 2**-53, 2)])
def test_boltzmann_at_the_edges_of_its_shares(uniform, action):
    # weights 0, 1, 1, 0: action 1 owns [0, 0.5), action 2 the rest
    policy = made(BoltzmannQPolicy)
    policy._draws.next = lambda: uniform
    assert policy.select_action(q_values=np.float32([-np.inf, 0, 0, -np.inf])) == action


def test_max_boltzmann_frequencies():
    # eps 0.6 on weights 1, 2, 5 of 8, else the best: 0.075, 0.15, 0.375 + 0.4
    q_values = np.log([1, 2, 5]).astype("float32")
    policy = made(lambda: MaxBoltzmannQPolicy(eps=0.6), seed=0)
    check_frequencies(policy, q_values, [0.075, 0.15, 0.775])


def test_softmax_frequencies_by_either_call():
    policy = made(SoftmaxPolicy, seed=0)
    actions = [policy.select_action(3, [0.2, 0.0, 0.8]) for _ in range(10_000)]
    np.testing.assert_allclose(np.bincount(actions) / 10_000, [0.2, 0, 0.8], atol=0.015)
    check_frequencies(policy, np.log([1, 2, 5]).astype("float32"), np.array([1, 2, 5]) / 8)


def test_gumbel_first_draw_is_the_softmax_and_counts_narrow_it():
    # C = 1 and all counts 1: argmax(q + Gumbel) is the softmax
    q_values = np.log([1, 2, 5]).astype("float32")
    policy = made(BoltzmannGumbelQPolicy, seed=0)
    actions = []
    for _ in range(20_000):
        policy.reset_counts()
        actions.append(policy.select_action(q_values=q_values))
    np.testing.assert_allclose(np.bincount(actions) / 20_000, [0.125, 0.25, 0.625], atol=0.015)
    # with every action counted 10_000 times the noise is 1/100 wide, the gap log(5/2) = 0.92
    policy.action_counts = np.full(3, 10_000.0)
    assert all(policy.select_action(q_values=q_values) == 2 for _ in range(1000))


def test_gumbel_counts_each_action_and_starts_at_any_step():
    policy = made(BoltzmannGumbelQPolicy, seed=0, step=500)  # keras-rl fails unless step is 0
    actions = [policy.select_action(q_values=Q) for _ in range(50)]
    np.testing.assert_array_equal(policy.action_counts, 1 + np.bincount(actions, minlength=3))
    policy.agent.step = 0  # keras-rl forgets the counts here
    policy.select_action(q_values=Q)
    assert policy.action_counts.sum() == 3 + 51


def test_linear_annealing_by_hand():
    policy = made(annealed)
    values = []
    for step in (0, 30, 90, 1000):
        policy.agent.step = step
        policy.select_action(q_values=Q)
        values.append(policy.inner_policy.eps)
    # 1 - 0.01 a step, never under 0.1
    assert values == pytest.approx([1.0, 0.7, 0.1, 0.1])
    assert policy.metrics == pytest.approx([0.1])
    assert policy.metrics_names == ["mean_eps"]
    policy.agent.training = False
    policy.select_action(q_values=Q)
    assert policy.inner_policy.eps == 0.05


def test_linear_annealing_hands_the_agent_on():
    # keras-rl: AttributeError, BoltzmannGumbelQPolicy has no agent
    inner = BoltzmannGumbelQPolicy()
    policy = made(lambda: LinearAnnealedPolicy(inner, "C", 1.0, 0.1, 0.1, 100), seed=0)
    policy.select_action(q_values=Q)
    assert inner.agent is policy.agent


def test_linear_annealing_takes_keras_rls_own_inner_policy():
    policy = made(
        lambda: LinearAnnealedPolicy(rl_policy.EpsGreedyQPolicy(), "eps", 0, 0, 0, 10), seed=0
    )
    assert policy.select_action(q_values=Q) == 1
    assert policy.get_state() == {"inner_policy": {}}
    policy.set_state(policy.get_state())


@pytest.mark.parametrize("make", DRAWING)
def test_seed_repeats_and_another_seed_differs(make):
    def run(seed):
        policy = made(make, seed)
        return [policy.select_action(q_values=Q) for _ in range(600)]  # more than one block

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("make", DRAWING)
def test_unseeded_policies_differ_and_leave_numpys_generator_alone(make):
    before = np.random.get_state()  # noqa: NPY002 - read only
    one, other = made(make), made(make)
    runs = [[policy.select_action(q_values=Q) for _ in range(300)] for policy in (one, other)]
    after = np.random.get_state()  # noqa: NPY002
    assert runs[0] != runs[1]
    assert before[2] == after[2]
    np.testing.assert_array_equal(before[1], after[1])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("actions", [0, 1, 300])
def test_state_goes_through_json_and_goes_on(make, actions):
    policy, resumed = made(make, seed=5), made(make)
    for _ in range(actions):
        policy.select_action(q_values=Q)
    resumed.set_state(json.loads(json.dumps(policy.get_state())))
    for _ in range(300):
        assert resumed.select_action(q_values=Q) == policy.select_action(q_values=Q)
    assert resumed.get_state() == policy.get_state()


@pytest.mark.parametrize("make", MAKERS)
def test_config_and_arguments_are_keras_rls(make):
    policy = make()
    theirs = getattr(rl_policy, type(policy).__name__)
    assert policy.get_config() == theirs.get_config(policy)
    for name, value in policy.get_config().items():
        assert name == "inner_policy" or getattr(policy, name) == value


@pytest.mark.parametrize("make", MAKERS)
def test_actions_are_plain_indices(make):
    policy = made(make, seed=0)
    assert all(isinstance(policy.select_action(q_values=Q), (int, np.int64)) for _ in range(50))


@pytest.mark.parametrize("make", MAKERS)
def test_a_batch_of_rows_is_refused(make):
    policy = made(make, seed=0)
    with pytest.raises(ShapeError, match=r"shape \(1, 3\); a policy takes one row"):
        [policy.select_action(q_values=Q[None]) for _ in range(20)]


@pytest.mark.parametrize("q_values, tau", [([0, np.nan], 1.0), ([0, np.inf], 1.0), ([0, 1], 0.0)])
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_boltzmann_refuses_what_has_no_distribution(q_values, tau):
    policy = made(lambda: BoltzmannQPolicy(tau=tau), seed=0)
    with pytest.raises(ArgumentError, match="NaN or infinity, or tau is 0"):
        policy.select_action(q_values=np.float32(q_values))


@pytest.mark.parametrize("probs", [[0.5, 0.4], [1.5, -0.5], [0.5, 0.25, 0.25], [np.nan, 1.0]])
def test_softmax_refuses_what_is_no_distribution(probs):
    with pytest.raises(ArgumentError, match="not probabilities of nb_actions=2"):
        SoftmaxPolicy().select_action(2, probs)


@pytest.mark.parametrize("call", [{}, {"nb_actions": 3, "probs": Q, "q_values": Q}])
def test_softmax_takes_one_kind_of_argument(call):
    with pytest.raises(ArgumentError, match="either probs or q_values"):
        SoftmaxPolicy().select_action(**call)


def test_gumbel_refuses_testing_other_actions_and_a_bad_C():
    with pytest.raises(ArgumentError, match=r"test_policy=GreedyQPolicy\(\)"):
        made(BoltzmannGumbelQPolicy, training=False).select_action(q_values=Q)
    policy = made(BoltzmannGumbelQPolicy)
    policy.select_action(q_values=Q)
    with pytest.raises(ShapeError, match=r"reset_counts\(\)"):
        policy.select_action(q_values=Q[:2])
    for C in (0, -1, np.nan):
        with pytest.raises(ArgumentError, match="above 0"):
            BoltzmannGumbelQPolicy(C=C)


def test_a_policy_of_ones_own_has_nothing_to_seed():
    class Mine(Policy):
        def select_action(self, q_values):
            return 0

    policy = made(Mine, seed=3)
    assert policy.get_state() == {}
    policy.set_state({})
