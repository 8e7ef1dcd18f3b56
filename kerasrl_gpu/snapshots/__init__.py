"""An environment's state as plain data, without pickle, so that its open episode can go on.

`take` and `restore` go through the wrappers from the outermost one to the environment itself. Each
is saved by its own `get_state` and `set_state(state)`, by what this package knows about Atari and
MuJoCo, or by its attributes; and refused where none of these holds everything. The generators that
`numpy.random.seed` and `random.seed` set are not part of an environment.
"""

from __future__ import annotations

from kerasrl_gpu import attributes
from kerasrl_gpu.errors import CheckpointError, SnapshotError
from kerasrl_gpu.snapshots import identity
from kerasrl_gpu.snapshots.layers import adapter_of, chain


def prepare(env) -> None:
    """Make the episodes of `env` that begin from now on ones that `take` can save.

    Only Atari games need it: they keep a journal of their actions from then on, 5 bytes a frame.
    It changes nothing in what happens, and calling it twice does no harm.
    """
    for layer in chain(env):
        adapter_of(layer).prepare(layer)


def take(env) -> dict:
    """What decides how `env` goes on, as plain data; the environment is only read.

    Frames that wrappers have collected for a video are left out, and so are windows.

    Args:
        env: gymnasium.Env, or any object with keras-rl's `reset` and `step`.

    Returns:
        A tree of plain values and arrays for `restore`, without references into `env`.

    Raises:
        SnapshotError: `env` keeps its state where it cannot be taken; the message says where. Or
            it is an Atari game whose episode began before `prepare`.
    """
    layers = chain(env)
    adapters = [adapter_of(layer) for layer in layers]
    skips = [adapter.skip(layer) for adapter, layer in zip(adapters, layers)]
    captured = attributes.capture_all(layers, skips)
    for layer, (_, missing) in zip(layers, captured):
        if missing:
            raise _cannot_be_saved(env, layer, missing)
    return {
        "layers": [
            {
                "identity": identity.of(layer),
                "own": adapter.take(layer),
                "attributes": state,
            }
            for layer, adapter, (state, _) in zip(layers, adapters, captured)
        ]
    }


def restore(env, snapshot: dict) -> None:
    """Make `env` go on where `take` found the one that `snapshot` is of.

    Args:
        env: an environment that was made as that one was. It need not have been reset.
        snapshot: what `take` returned.

    Raises:
        SnapshotError: `env` was made in another way; the message names the first difference.
            `env` has to be reset, or made anew, before it is used.
    """
    layers, saved = chain(env), snapshot["layers"]
    identity.check(layers, [layer["identity"] for layer in saved])
    for layer, part in zip(layers, saved, strict=True):
        identity.warn_of_changes(layer, part["attributes"])
        adapter_of(layer).put(layer, part["own"])
    try:
        attributes.restore_all(layers, [part["attributes"] for part in saved])
    except CheckpointError as error:
        raise SnapshotError(str(error)) from None


def _cannot_be_saved(env, layer, missing: dict) -> SnapshotError:
    name = type(layer).__name__
    path, what = next(iter(missing.items()))
    more = f" (and {len(missing) - 1} more such attributes)" if len(missing) > 1 else ""
    return SnapshotError(
        f"{env} cannot be saved: {name} keeps part of its state in {path}{more}, which is {what} "
        f"and no plain data. Give {name} the methods get_state() and set_state(state), with a "
        "state of numbers, strings, lists, dicts and arrays."
    )
