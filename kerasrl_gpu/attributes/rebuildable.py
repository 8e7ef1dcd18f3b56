"""The classes that a checkpoint may name, and no others."""

from __future__ import annotations

import functools

from kerasrl_gpu import keras_rl, policy, processors, random
from kerasrl_gpu.errors import CheckpointError


def class_called(name: str) -> type:
    """The class of that name, "module:Name".

    Looked up in a table: whatever a checkpoint says, nothing is imported for it.

    Raises:
        CheckpointError: it is no policy, random process or processor of keras-rl or this package.
    """
    if not isinstance(name, str) or name not in _table():
        raise CheckpointError(
            f"{name} cannot be rebuilt from a checkpoint: only policies, random processes and "
            "processors of keras-rl and kerasrl_gpu can. Construct the object yourself and pass it."
        )
    return _table()[name]


@functools.cache
def _table() -> dict[str, type]:
    theirs = (keras_rl.rl_policy, keras_rl.rl_random, keras_rl.rl_processors, keras_rl.rl_core)
    modules = (*theirs, policy, random, processors)
    bases = (
        keras_rl.Policy,
        keras_rl.Processor,
        keras_rl.rl_random.RandomProcess,
        keras_rl.rl_processors.WhiteningNormalizer,
        random.Draws,
    )
    return {
        f"{kind.__module__}:{kind.__qualname__}": kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, bases)
    }
