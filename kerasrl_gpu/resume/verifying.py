"""Whether a checkpoint is whole, loads, and its networks say what they said."""

from __future__ import annotations

import warnings

import numpy as np

from kerasrl_gpu import checkpoint
from kerasrl_gpu.errors import KerasRLError
from kerasrl_gpu.resume import parts, restoring
from kerasrl_gpu.resume.rebuilding import build

# Another backend or processor adds up in another order.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5


def verify(path, say=print) -> bool:
    """Check one checkpoint, or the newest of a run directory.

    Args:
        say: called with each line of the findings.

    Returns:
        whether nothing is wrong. What cannot be checked here, a network or a processor of a class
        that is not registered, is said and is not wrong.
    """
    try:
        found = checkpoint.find(path)
        chosen = found[0] if found else path
        problems = checkpoint.verify(chosen)
    except KerasRLError as error:
        say(f"wrong: {error}")
        return False
    for problem in problems:
        say(f"wrong: {problem}")
    if problems:
        return False
    saved = checkpoint.open_newest(chosen)
    files = len(saved.manifest["files"])
    say(f"{saved.path}: {files} files, {saved.nbytes:,} bytes, every digest is right")
    say(f"  {saved.manifest['agent'].partition(':')[2]}, {_counters(saved.manifest)}")
    return _check_networks(saved, say)


def _counters(manifest) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in manifest["counters"].items())


def _check_networks(saved, say) -> bool:
    probe = saved.state_part("probe")
    if probe is None or probe["outputs"] is None:
        say("  networks: no outputs were stored to compare with")
        return True
    window = len(probe["state"])
    try:  # a pool of the smallest size: the rows have been checked, and are not needed
        agent = build(saved, {}, limit=max(window + 2, saved.state_part("config")["batch_size"]))
    except KerasRLError as error:
        say(f"  networks: not compared: {error}")
        return True
    try:
        outputs = _outputs(agent, saved, probe["state"])
    except KerasRLError as error:
        say(f"wrong: networks: {error}")
        return False
    if np.allclose(outputs, probe["outputs"], _RELATIVE, _ABSOLUTE):
        say(f"  networks: they say what they said, {np.array2string(outputs, threshold=6)}")
        return True
    say(f"wrong: networks: they say {outputs} where they said {probe['outputs']}")
    return False


def _outputs(agent, saved, state) -> np.ndarray:
    """What the agent's networks say to a state with the weights of a checkpoint, f32[P]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how fast it would train is not the question here
        agent.prepare(state[-1], state)
    agent.trainer.set_weights(saved.state_part("trainer", "online"))
    # only now: preparing shows the state to the processor, too
    restoring.restore_parts(agent, saved.state_part("parts"))
    with parts.generators_kept():
        parts.set_global_generators(saved.state_part("generators"))
        return agent.outputs([state])[0]
