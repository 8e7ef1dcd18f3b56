"""Exploration noise: keras-rl's random processes, each with a generator of its own.

A process draws from fresh entropy until `seed` is called. NumPy's global generator is neither read
nor changed.
"""

from __future__ import annotations

import numpy as np

from kerasrl_gpu.keras_rl import rl_random

_BLOCK = 256  # numbers a block: one NumPy call costs about 1 us, so a block makes a draw cheap


class Draws:
    """Numbers of one distribution, drawn from an own generator in blocks.

    Args:
        kind: name of the `numpy.random.Generator` method: "random", "gumbel", "standard_normal".
        shape: shape of one draw; () gives Python floats, anything else f64[*shape].
        seed: None takes fresh entropy.
    """

    def __init__(self, kind: str, shape: tuple[int, ...] = (), seed: int | None = None):
        self.kind, self.shape = kind, tuple(shape)
        self.seed(seed)

    def seed(self, seed: int | None) -> None:
        """Start anew from `seed`; numbers drawn ahead are dropped."""
        self._generator = np.random.default_rng(seed)
        self._block_state = self._generator.bit_generator.state
        self._ahead = []
        self._rows = 0

    def next(self):
        """One draw."""
        if not self._ahead:
            self._refill()
        return self._ahead.pop()

    def _refill(self) -> None:
        self._block_state = self._generator.bit_generator.state
        self._rows = max(1, _BLOCK // int(np.prod(self.shape, dtype=int)))
        block = getattr(self._generator, self.kind)(size=(self._rows, *self.shape))
        self._ahead = block.tolist() if self.shape == () else list(block)

    def get_state(self) -> dict:
        """Plain values from which `set_state` makes the same numbers follow."""
        return {"generator": self._block_state, "used": self._rows - len(self._ahead)}

    def set_state(self, state: dict) -> None:
        """Go on where `get_state` was called."""
        self.seed(0)
        self._generator.bit_generator.state = state["generator"]
        self._block_state = state["generator"]
        if state["used"]:
            self._refill()
            del self._ahead[len(self._ahead) - state["used"] :]


class RandomProcess(rl_random.RandomProcess):
    """A process without randomness or state; the base of a process of one's own."""

    def seed(self, seed: int) -> None:
        """Start the process' generator anew from `seed`; nothing here."""

    def get_state(self) -> dict:
        """Plain values (JSON) that decide what comes next."""
        return {}

    def set_state(self, state: dict) -> None:
        """Take over what `get_state` returned."""


class AnnealedGaussianProcess(rl_random.AnnealedGaussianProcess, RandomProcess):
    """Base of the Gaussian processes: sigma falls linearly to `sigma_min` over the samples drawn.

    `n_steps` counts samples over the process' whole life, episodes and calls of `fit` included; it
    is part of the state.

    Args:
        mu: mean, in action units; a number or f[size].
        sigma: standard deviation of the first sample, in action units.
        sigma_min: value that sigma falls to; None keeps sigma constant.
        n_steps_annealing: samples until `sigma_min` is reached.
    """

    def __init__(self, mu, sigma, sigma_min, n_steps_annealing):
        super().__init__(mu, sigma, sigma_min, n_steps_annealing)
        self._draws = Draws("standard_normal", (1,))

    def seed(self, seed: int) -> None:
        """Start the generator anew from `seed`."""
        self._draws.seed(seed)

    def get_state(self) -> dict:
        """Plain values (JSON): the generator's state and the number of samples drawn."""
        return {"draws": self._draws.get_state(), "n_steps": int(self.n_steps)}

    def set_state(self, state: dict) -> None:
        """Go on exactly where `get_state` was called."""
        self._draws.set_state(state["draws"])
        self.n_steps = state["n_steps"]


class GaussianWhiteNoiseProcess(rl_random.GaussianWhiteNoiseProcess, AnnealedGaussianProcess):
    """Independent samples from N(mu, current_sigma); `size` is a sample's shape, int or tuple."""

    def __init__(self, mu=0.0, sigma=1.0, sigma_min=None, n_steps_annealing=1000, size=1):
        super().__init__(mu, sigma, sigma_min, n_steps_annealing, size)
        self._draws = Draws("standard_normal", _shape(size))

    def sample(self) -> np.ndarray:
        """f64[*size], in action units."""
        noise = self.mu + self.current_sigma * self._draws.next()
        self.n_steps += 1
        return noise


class OrnsteinUhlenbeckProcess(rl_random.OrnsteinUhlenbeckProcess, AnnealedGaussianProcess):
    """Noise that is pulled back to mu, by the Euler-Maruyama step

        x <- x + theta * (mu - x) * dt + current_sigma * sqrt(dt) * N(0, 1)

    `reset_states` starts at mu (keras-rl drew the start from N(mu, sigma), which for small theta is
    a constant error of size sigma over the whole episode).

    Args:
        theta: pull towards mu, per unit of time.
        mu: mean, in action units; a number or f[size].
        sigma: size of the disturbance, in action units per square root of time.
        dt: time of one sample.
        size: shape of a sample, an int or a tuple.
        sigma_min, n_steps_annealing: as in AnnealedGaussianProcess.

    Source: Uhlenbeck and Ornstein 1930; as exploration noise arXiv:1509.02971.
    """

    def __init__(
        self, theta, mu=0.0, sigma=1.0, dt=1e-2, size=1, sigma_min=None, n_steps_annealing=1000
    ):
        super().__init__(theta, mu, sigma, dt, size, sigma_min, n_steps_annealing)
        self._draws = Draws("standard_normal", _shape(size))

    def sample(self) -> np.ndarray:
        """f64[*size], in action units."""
        pull = (self.theta * self.dt) * (self.mu - self.x_prev)
        disturbance = (self.current_sigma * self.dt**0.5) * self._draws.next()
        self.x_prev = self.x_prev + pull + disturbance
        self.n_steps += 1
        return self.x_prev.copy()  # the caller may write into it

    def reset_states(self) -> None:
        """Back to mu, at the start of an episode; the annealing goes on."""
        self.x_prev = np.zeros(self.size) + self.mu

    def get_state(self) -> dict:
        """Plain values (JSON): as in AnnealedGaussianProcess, and the position."""
        return {**super().get_state(), "x_prev": self.x_prev.tolist()}

    def set_state(self, state: dict) -> None:
        """Go on exactly where `get_state` was called."""
        super().set_state(state)
        self.x_prev = np.array(state["x_prev"], dtype=np.float64)


def _shape(size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (int(size),) if np.ndim(size) == 0 else tuple(size)
