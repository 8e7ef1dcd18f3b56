"""Memory figures for logs, and how figures are written for people."""

import datetime
import math

from kerasrl_gpu import probes
from kerasrl_gpu.units import human_bytes


def memory_bytes(agent) -> int | None:
    """Bytes of the agent's replay memory; None where it has none or one of unknown size."""
    nbytes = getattr(getattr(agent, "memory", None), "nbytes", None)
    return None if nbytes is None else int(nbytes)


def human_memory(agent) -> str:
    """The agent's replay memory and the process's resident memory, in words."""
    sizes = {"replay": memory_bytes(agent), "process": probes.process_rss()}
    known = [f"{human_bytes(size, 1)} {name}" for name, size in sizes.items() if size is not None]
    return ", ".join(known) or "--"


def human_time(seconds: float) -> str:
    """Whole seconds as h:mm:ss, or "--" where they are not finite."""
    return str(datetime.timedelta(seconds=round(seconds))) if math.isfinite(seconds) else "--"


def human_steps(step: int, nb_steps: int | None) -> str:
    """How far a run is: "120/1000", or "120" where it has no number of steps to go to."""
    return f"{step}" if nb_steps is None else f"{step:{len(str(nb_steps))}d}/{nb_steps}"


def human_mean(value: float, digits: int = 3) -> str:
    """A mean for a log line; a mean of nothing is "--"."""
    return "--" if math.isnan(value) else f"{value:.{digits}f}"
