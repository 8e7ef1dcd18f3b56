"""keras-rl's policies, each with a generator of its own.

A policy draws from fresh entropy until `seed` is called. NumPy's global generator is neither read
nor changed. Every policy has `get_state` and `set_state` of plain values for checkpoints. In all
of them `q_values` is f32[A], one value an action, in reward units, and the action returned is an
index into it.
"""

from __future__ import annotations

import numpy as np

from kerasrl_gpu.errors import ArgumentError, ShapeError
from kerasrl_gpu.keras_rl import rl_policy
from kerasrl_gpu.random import Draws


class Policy(rl_policy.Policy):
    """A policy without randomness or state; the base of a policy of one's own."""

    def seed(self, seed: int) -> None:
        """Start the policy's generator anew from `seed`; nothing here."""

    def get_state(self) -> dict:
        """Plain values (JSON) that decide what comes next."""
        return {}

    def set_state(self, state: dict) -> None:
        """Take over what `get_state` returned."""


class DrawingPolicy(Policy):
    """Base of the policies that draw numbers."""

    _kind = "random"  # uniform on [0, 1)

    def __init__(self):
        super().__init__()
        self._draws = Draws(self._kind)

    def seed(self, seed: int) -> None:
        """Start the generator anew from `seed`."""
        self._draws.seed(seed)

    def get_state(self) -> dict:
        """Plain values (JSON): the generator's state."""
        return {"draws": self._draws.get_state()}

    def set_state(self, state: dict) -> None:
        """Go on exactly where `get_state` was called."""
        self._draws.set_state(state["draws"])


class LinearAnnealedPolicy(rl_policy.LinearAnnealedPolicy, Policy):
    """Sets `inner_policy.attr` on a line from `value_max` at step 0 to `value_min` at `nb_steps`.

    While the agent tests it is `value_test`. The inner policy gets the agent too, which keras-rl
    forgot; `seed` and the state are the inner policy's.
    """

    def _set_agent(self, agent) -> None:
        super()._set_agent(agent)
        self.inner_policy._set_agent(agent)

    def seed(self, seed: int) -> None:
        """Seed the inner policy, unless it is one of keras-rl's own, which cannot be seeded."""
        if hasattr(self.inner_policy, "seed"):
            self.inner_policy.seed(seed)

    def get_state(self) -> dict:
        """Plain values (JSON): the inner policy's. The annealed value follows from the step."""
        get_state = getattr(self.inner_policy, "get_state", dict)
        return {"inner_policy": get_state()}

    def set_state(self, state: dict) -> None:
        """Go on exactly where `get_state` was called."""
        if hasattr(self.inner_policy, "set_state"):
            self.inner_policy.set_state(state["inner_policy"])


class SoftmaxPolicy(rl_policy.SoftmaxPolicy, DrawingPolicy):
    """Draws an action from given probabilities, or from the softmax of Q-values.

    keras-rl's signature takes `nb_actions` and `probs`, which no agent passes; an agent's call with
    `q_values` works too, and treats them as the logits.
    """

    def select_action(self, nb_actions=None, probs=None, *, q_values=None) -> int:
        """One action.

        Args:
            nb_actions: number of actions A; only checked.
            probs: f[A], probabilities; they must sum to 1 within 1e-6.
            q_values: f[A], logits, in place of `nb_actions` and `probs`.

        Raises:
            ArgumentError: neither or both are given, or `probs` are not A probabilities.
        """
        if (probs is None) == (q_values is None):
            raise ArgumentError("SoftmaxPolicy.select_action takes either probs or q_values.")
        if probs is None:
            return _pick(_boltzmann(q_values, 1.0, (-np.inf, np.inf)), self._draws.next())
        probs = np.asarray(probs, dtype=np.float64)
        fits = probs.shape == (nb_actions,) if nb_actions is not None else probs.ndim == 1
        if not (fits and (probs >= 0).all() and abs(probs.sum() - 1) < 1e-6):
            raise ArgumentError(
                f"probs={probs!r} are not probabilities of nb_actions={nb_actions} actions: "
                "one number of at least 0 an action, together 1."
            )
        return _pick(probs, self._draws.next())


class EpsGreedyQPolicy(rl_policy.EpsGreedyQPolicy, DrawingPolicy):
    """Any action with probability `eps`, else the best; ties go to the lowest action."""

    def select_action(self, q_values: np.ndarray) -> int:
        """One action."""
        if q_values.ndim != 1:
            raise _not_one_row(q_values)
        if self._draws.next() < self.eps:
            return int(self._draws.next() * q_values.shape[0])
        return q_values.argmax()


class GreedyQPolicy(rl_policy.GreedyQPolicy, Policy):
    """The best action; ties go to the lowest."""

    def select_action(self, q_values: np.ndarray) -> int:
        """One action."""
        if q_values.ndim != 1:
            raise _not_one_row(q_values)
        return q_values.argmax()


class BoltzmannQPolicy(rl_policy.BoltzmannQPolicy, DrawingPolicy):
    """Draws action a with probability proportional to exp(q[a] / tau).

    Args:
        tau: temperature, in reward units.
        clip: (low, high). No action counts as more than high - low below the best, in units of
            tau. Where keras-rl clips nothing, the probabilities are keras-rl's; where it clips,
            it flattens the gap between large values, which are kept apart here.
    """

    def select_action(self, q_values: np.ndarray) -> int:
        """One action."""
        return _pick(_boltzmann(q_values, self.tau, self.clip), self._draws.next())


class MaxBoltzmannQPolicy(rl_policy.MaxBoltzmannQPolicy, DrawingPolicy):
    """BoltzmannQPolicy with probability `eps`, else the best; ties go to the lowest action.

    Source: Wiering, Explorations in Efficient Reinforcement Learning, 1999.
    """

    def select_action(self, q_values: np.ndarray) -> int:
        """One action."""
        if self._draws.next() < self.eps:
            return _pick(_boltzmann(q_values, self.tau, self.clip), self._draws.next())
        if q_values.ndim != 1:
            raise _not_one_row(q_values)
        return q_values.argmax()


class BoltzmannGumbelQPolicy(rl_policy.BoltzmannGumbelQPolicy, DrawingPolicy):
    """argmax over a of q[a] + C / sqrt(n[a]) * Gumbel(0, 1), n[a] = 1 + times a was taken.

    The counts start at the first call, at whatever step that is, and go on from one `fit` to the
    next; `reset_counts` starts them anew. keras-rl reset them whenever the step was 0, and could
    start at no other step.

    Args:
        C: least upper bound on the standard deviation of the rewards, in reward units.

    Raises:
        ArgumentError: C is not above 0.

    Source: arXiv:1705.10257, Boltzmann-Gumbel exploration.
    """

    _kind = "gumbel"

    def __init__(self, C=1.0):
        if not C > 0:
            raise ArgumentError(f"C={C!r} must be above 0; keras-rl's default is 1.0.")
        super().__init__(C)

    def reset_counts(self) -> None:
        """Forget how often each action was taken."""
        self.action_counts = None

    def select_action(self, q_values: np.ndarray) -> int:
        """One action; counts it.

        Raises:
            ArgumentError: the agent tests, and the exploration belongs to training.
            ShapeError: not one value for each action counted so far.
        """
        agent = getattr(self, "agent", None)
        if agent is not None and not agent.training:
            raise ArgumentError(
                "BoltzmannGumbelQPolicy explores, so it only serves in training: "
                "pass it as policy= and, say, test_policy=GreedyQPolicy()."
            )
        if q_values.ndim != 1:
            raise _not_one_row(q_values)
        if self.action_counts is None:
            self.action_counts = np.ones(q_values.shape)
        if self.action_counts.shape != q_values.shape:
            raise ShapeError(
                f"q_values of shape {q_values.shape} came after {self.action_counts.size} actions "
                "were counted; call reset_counts() before the policy serves another agent."
            )
        noise = np.array([self._draws.next() for _ in range(q_values.shape[0])])
        action = int((q_values + self.C / np.sqrt(self.action_counts) * noise).argmax())
        self.action_counts[action] += 1
        return action

    def get_state(self) -> dict:
        """Plain values (JSON): the generator's state and the counts."""
        counts = None if self.action_counts is None else self.action_counts.tolist()
        return {**super().get_state(), "action_counts": counts}

    def set_state(self, state: dict) -> None:
        """Go on exactly where `get_state` was called."""
        super().set_state(state)
        counts = state["action_counts"]
        self.action_counts = None if counts is None else np.array(counts)


def _boltzmann(q_values: np.ndarray, tau: float, clip: tuple[float, float]) -> np.ndarray:
    """f64[A], exp((q - max q) / tau) with gaps of at most clip[1] - clip[0]; the largest is 1."""
    if q_values.ndim != 1:
        raise _not_one_row(q_values)
    scaled = q_values.astype(np.float64) / tau
    return np.exp(np.maximum(scaled - scaled.max(), clip[0] - clip[1]))


def _pick(weights: np.ndarray, uniform: float) -> int:
    """The action in whose share of the weights `uniform`, from [0, 1), falls."""
    edges = weights.cumsum()
    if not edges[-1] < np.inf:  # NaN compares false
        raise ArgumentError(
            f"no action can be drawn with weights {weights!r}: the Q-values hold NaN or "
            "infinity, or tau is 0."
        )
    # Neither end gives an action of weight 0, even where the product rounds up to the total.
    last = edges.searchsorted(edges[-1])
    return int(min(edges.searchsorted(uniform * edges[-1], side="right"), last))


def _not_one_row(q_values: np.ndarray) -> ShapeError:
    return ShapeError(
        f"q_values came with shape {q_values.shape}; a policy takes one row, shape (nb_actions,)."
    )
