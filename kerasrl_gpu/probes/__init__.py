"""Probes: how much memory there is, how much of it is in use, and by whom.

A probe is called without arguments and returns a `Reading`; what cannot be read is a value that
says why. `auto` makes the probes of this machine, `read` reads them and never raises.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from kerasrl_gpu.errors import check_count
from kerasrl_gpu.probes import address, device, disk, groups, host, nvml, parsing, readings, stalls

ROOT = parsing.ROOT
parse_bytes, parse_kib, parse_stat = parsing.parse_bytes, parsing.parse_kib, parsing.parse_stat
parse_cgroup, parse_mounts = groups.parse_cgroup, groups.parse_mounts
below_mount = groups.below_mount

Limit = host.Limit
host_limit, host_limits, free_for_pool = host.host_limit, host.host_limits, host.free_for_pool
process_rss, max_rss_bytes = host.process_rss, host.max_rss_bytes

Probe, Reading = readings.Probe, readings.Reading
listed, read = readings.listed, readings.read


def auto(path=None, budget_bytes: int | None = None, *, root: Path = ROOT) -> list[Probe]:
    """A probe for everything that may run out; what this machine lacks, its reading says.

    Args:
        path: where checkpoints go, which need not exist yet; None leaves the disk out.
        budget_bytes: a limit on the resident memory of this process and its descendants.
        root: where /proc and the control groups are looked up; another folder for tests.

    Raises:
        ArgumentError: a budget that is no whole number of at least 1.
    """
    if budget_bytes is not None:
        budget_bytes = check_count("budget_bytes", budget_bytes, 1)
    probes = [
        device.device,
        nvml.Card(root),
        partial(host.process, budget_bytes, root),
        partial(host.host, root),
        partial(address.address_space, root),
        partial(stalls.stalls, root),
    ]
    return probes if path is None else [*probes, partial(disk.disk, path)]
