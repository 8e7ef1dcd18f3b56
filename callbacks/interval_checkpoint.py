"""Weights on disk, every so many steps."""

import os
import re
import string

from kerasrl_gpu.callbacks.base import Callback
from kerasrl_gpu.callbacks.checks import check_folder, check_interval
from kerasrl_gpu.errors import ArgumentError

# A pattern can be tried out before the run only where the type of the value is known.
_SAMPLES = {"step": 1, "episode": 0, "reward": 0.0}
_FIELDS = (*_SAMPLES, "action", "observation", "metrics", "info")


def check_pattern(pattern: str) -> None:
    """Raise ArgumentError unless `pattern` can be filled in at a step's end.

    It must name known fields, each in a format that suits it, have none of them in the folder's
    name, and lie in a folder that exists.
    """
    folder, name = os.path.split(pattern)
    try:
        for field, spec in _fields(pattern):
            root = re.split(r"[.\[]", field)[0]
            if root not in _FIELDS:
                raise ValueError(f"{{{field}}} is not known at a step's end")
            if field in _SAMPLES:
                format(_SAMPLES[field], spec)
        if _fields(folder):
            raise ValueError(f"the folder {folder!r} would be another one for each file")
    except ValueError as error:
        fits = ", ".join(f"{{{field}}}" for field in _FIELDS)
        example = os.path.join(folder if "{" not in folder else "", "weights_{step}.weights.h5")
        raise ArgumentError(
            f"filepath={pattern!r} cannot be filled in: {error}. Its file name may hold {fits}. "
            f"Pass for example filepath={example!r}."
        ) from None
    check_folder(os.path.join(folder.format(), name))


class ModelIntervalCheckpoint(Callback):
    """Saves the agent's weights every `interval` steps.

    Args:
        filepath: text or path. Its file name may hold `{step}` (environment steps of this
            `fit`) and the keys of a step's logs, such as `{episode}` and `{reward:.1f}`.
            Without a field each save replaces the one before. Naming `{metrics[0]}` waits for the
            device at each save.
        interval: environment steps between two saves.
        verbose: 1 prints a line at each save.

    Raises:
        ArgumentError: `interval` is no whole number from 1 upwards; or, when training begins,
            `filepath` cannot be filled in or written (see `check_pattern`).
    """

    def __init__(self, filepath, interval, verbose=0):
        super().__init__()
        self.filepath = os.fspath(filepath)
        self.interval = check_interval(interval, "steps")
        self.verbose = verbose
        self.total_steps = 0

    def on_train_begin(self, logs=None):
        check_pattern(self.filepath)
        self.total_steps = self.agent.step  # not always 0 when a run begins

    def on_step_end(self, episode_step, logs=None):
        self.total_steps += 1
        if self.total_steps % self.interval:
            return
        filepath = self.filepath.format_map({**(logs or {}), "step": self.total_steps})
        if self.verbose > 0:
            print(f"Step {self.total_steps}: weights go to {filepath}")
        self.agent.save_weights(filepath, overwrite=True)


def _fields(pattern: str) -> list[tuple[str, str]]:
    """(name, format) of each replacement field of `pattern`. Raises ValueError on stray braces."""
    parsed = string.Formatter().parse(pattern)
    return [(field, spec) for _, field, spec, _ in parsed if field is not None]
