"""keras-rl's processors; the whitening one learns its statistics once an observation."""

from __future__ import annotations

import numpy as np

from kerasrl_gpu.errors import ObservationError, ShapeError
from kerasrl_gpu.keras_rl import Processor, rl_processors

__all__ = ["MultiInputProcessor", "Processor", "WhiteningNormalizerProcessor"]


class MultiInputProcessor(rl_processors.MultiInputProcessor):
    """Splits observations of several parts into one batch a part, for a network of many inputs.

    Args:
        nb_inputs: number of parts of an observation, and of inputs of the network.
    """

    def process_state_batch(self, state_batch):
        """One batch a part.

        Args:
            state_batch: numbers of shape [B, k, nb_inputs, ...], when all parts have one shape; or
                B states of k observations that are tuples or dictionaries of nb_inputs parts.

        Returns:
            A list of nb_inputs arrays [B, k, ...]; for dictionaries a dictionary of such arrays.

        Raises:
            ShapeError: the observations do not have nb_inputs parts.
        """
        dtype = getattr(state_batch, "dtype", None)
        if dtype is None or dtype == np.dtype(object):
            return _as_numbers(super().process_state_batch(state_batch))
        if len(state_batch.shape) < 3 or state_batch.shape[2] != self.nb_inputs:
            raise ShapeError(
                f"a batch of states of shape {tuple(state_batch.shape)} has no axis 2 of "
                f"nb_inputs={self.nb_inputs} parts, as in [B, window, nb_inputs, ...]."
            )
        return [state_batch[:, :, part] for part in range(self.nb_inputs)]


def _as_numbers(parts):
    """The parts; those of dtype object, which parts of one shape come as, are made of numbers."""
    if isinstance(parts, dict):
        return parts
    return [np.array(part.tolist()) if part.dtype == object else part for part in parts]


class WhiteningNormalizer(rl_processors.WhiteningNormalizer):
    """Mean and variance of observations, merged batch by batch without cancellation.

    keras-rl subtracts the square of the mean from the mean of the squares, which leaves nothing
    right of a small spread around a large mean.

    Args:
        shape: shape of one observation.
        eps: least standard deviation, in observation units.

    Source: Chan, Golub and LeVeque 1983, the pairwise update; a batch of one is Welford's.
    """

    def __init__(self, shape: tuple[int, ...], eps: float = 1e-2):
        super().__init__(shape, eps=eps, dtype=np.float64)
        self._deviation = np.zeros(shape)  # sum of squared distances from the mean

    def update(self, x: np.ndarray) -> None:
        """Learn from one observation [*shape] or several [n, *shape].

        Raises:
            ShapeError: x has another shape.
            ObservationError: x holds NaN or infinity, which would stay in the mean for good.
        """
        x = np.asarray(x, dtype=np.float64)
        if x.shape == self.shape:
            x = x[None]
        if x.shape[1:] != self.shape:
            raise ShapeError(f"shape {x.shape} came; observations here have shape {self.shape}.")
        if not np.isfinite(x).all():
            raise ObservationError(f"an observation holds NaN or infinity: {x!r}.")
        if not len(x):
            return
        mean = x.mean(axis=0)
        distance = mean - self.mean
        total = self._count + len(x)
        self._deviation += np.square(x - mean).sum(axis=0)
        self._deviation += np.square(distance) * (self._count * len(x) / total)
        self.mean = self.mean + distance * (len(x) / total)
        self._count = total
        self.std = np.sqrt(np.maximum(self.eps**2, self._deviation / total))

    def get_state(self) -> dict:
        """Plain values (JSON)."""
        return {
            "count": self._count,
            "mean": self.mean.tolist(),
            "deviation": self._deviation.tolist(),
        }

    def set_state(self, state: dict) -> None:
        """Go on exactly where `get_state` was called."""
        self._count = state["count"]
        self.mean = np.array(state["mean"], dtype=np.float64)
        self._deviation = np.array(state["deviation"], dtype=np.float64)
        variance = self._deviation / max(1, self._count)
        self.std = np.sqrt(np.maximum(self.eps**2, variance))
        if not self._count:
            self.std = np.ones(self.shape)


class WhiteningNormalizerProcessor(rl_processors.WhiteningNormalizerProcessor):
    """Gives every observation component mean 0 and standard deviation 1.

    Statistics are learned from each new observation once, and only while `training` is true (the
    agent sets it). keras-rl learned from every replay batch again, and in test too. The same
    statistics serve every position of the window.
    """

    def __init__(self):
        super().__init__()
        self.training = True

    def process_observation(self, observation):
        """The observation, unchanged; learns from it while training."""
        if self.training:
            if self.normalizer is None:
                self.normalizer = WhiteningNormalizer(np.shape(observation))
            self.normalizer.update(observation)
        return observation

    def process_state_batch(self, batch: np.ndarray) -> np.ndarray:
        """f32[B, k, ...], whitened; as it came, but float32, before the first observation."""
        if self.normalizer is None:
            return np.asarray(batch, dtype=np.float32)
        whitened = self.normalizer.normalize(np.asarray(batch, dtype=np.float64))
        return whitened.astype(np.float32)

    def get_state(self) -> dict:
        """Plain values (JSON): the statistics."""
        normalizer = self.normalizer
        return {"normalizer": None if normalizer is None else normalizer.get_state()}

    def set_state(self, state: dict) -> None:
        """Go on exactly where `get_state` was called."""
        self.normalizer = None
        if state["normalizer"] is not None:
            self.normalizer = WhiteningNormalizer(np.shape(state["normalizer"]["mean"]))
            self.normalizer.set_state(state["normalizer"])
