"""How much host memory there is, and how much of it this process already uses.

A machine's total says little inside a container: the control group that a process sits in, or any
group above it, may allow far less. What cannot be read is None or left out, never an exception.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kerasrl_gpu.probes import groups
from kerasrl_gpu.probes.parsing import ROOT, name, parse_bytes, parse_kib, read
from kerasrl_gpu.probes.readings import Reading, absent
from kerasrl_gpu.units import human_bytes

try:
    import psutil
except ImportError:  # then only /proc is asked
    psutil = None

UNLIMITED_BYTES = 1 << 60  # version 1 writes "no limit" as 2**63 less a page


@dataclass(frozen=True)
class Limit:
    """One limit on host memory.

    Attributes:
        bytes: the limit, or None where not even the physical memory could be read.
        used_bytes: what counts against it, without page cache; None where it could not be read.
        source: the file or reading that both numbers came from.
    """

    bytes: int | None
    used_bytes: int | None
    source: str

    @property
    def free_bytes(self) -> int | None:
        """What is left, never below zero; None where either number is missing."""
        if self.bytes is None or self.used_bytes is None:
            return None
        return max(0, self.bytes - self.used_bytes)


def host_limit(root: Path = ROOT, pid: int | None = None) -> Limit:
    """The smallest limit on this process: physical memory, its control group or one above it.

    Args:
        root: where /proc and the control groups are looked up; another folder for tests.
        pid: the process that is asked about, or None for this one.
    """
    return host_limits(root, pid)[0]


def host_limits(root: Path = ROOT, pid: int | None = None) -> list[Limit]:
    """Every limit on this process, smallest first; at least one, the physical memory.

    The use that belongs to a control group's limit is that group's own, so a limit that other
    groups share shows their use too. The physical memory's is the process and its descendants.
    """
    return _limits(root, pid, *tree_rss(root, pid))


def free_for_pool(root: Path = ROOT, pid: int | None = None) -> int | None:
    """Bytes that may still be allocated before any limit is met, never negative; None: unknown."""
    free = [limit.free_bytes for limit in host_limits(root, pid)]
    return min((free_bytes for free_bytes in free if free_bytes is not None), default=None)


def process_rss(root: Path = ROOT, pid: int | None = None) -> int | None:
    """Resident bytes of the process alone, shared pages included; None where it cannot be read."""
    pages = read(root / "proc" / name(pid) / "statm").split()[1:2]
    resident = parse_bytes(pages[0]) if pages else None
    if resident is not None:
        return resident * os.sysconf("SC_PAGE_SIZE")
    return _ask_psutil(root, lambda: psutil.Process(pid).memory_info().rss)


def max_rss_bytes(root: Path = ROOT, pid: int | None = None) -> int | None:
    """The most resident bytes that the process ever had (VmHWM); None without /proc."""
    return parse_kib(read(root / "proc" / name(pid) / "status"), "VmHWM")


def process(budget_bytes: int | None = None, root: Path = ROOT, pid: int | None = None) -> Reading:
    """This process and its descendants against the limit that they are closest to.

    The use is what belongs to that limit: a control group's own without page cache, or resident
    memory of the process tree.

    Args:
        budget_bytes: a limit that the user sets on the tree's resident memory.
        root, pid: see `host_limit`.
    """
    tree_bytes, tree_source = tree_rss(root, pid)
    limits = _limits(root, pid, tree_bytes, tree_source)
    if budget_bytes is not None:
        source = f"a budget of {human_bytes(budget_bytes)}; use: {tree_source}"
        limits.insert(0, Limit(budget_bytes, tree_bytes, source))
    known = [limit for limit in limits if limit.bytes and limit.used_bytes is not None]
    if not known:
        return absent("process", limits[0].source, "Neither a limit nor the use could be read.")
    binding = max(known, key=lambda limit: limit.used_bytes / limit.bytes)
    others_bytes = None if tree_bytes is None else max(0, binding.used_bytes - tree_bytes)
    return Reading(
        "process", binding.used_bytes, binding.bytes, binding.source, others_bytes=others_bytes
    )


def host(root: Path = ROOT, pid: int | None = None) -> Reading:
    """The whole machine: memory that is in use and cannot be dropped, of all there is.

    Missing where a control group allows this process less than the machine has: others may fill
    the machine then while this process is far from its own limit.
    """
    text = read(root / "proc/meminfo")
    total_bytes, free_bytes = parse_kib(text, "MemTotal"), parse_kib(text, "MemAvailable")
    source = "/proc/meminfo"
    if total_bytes is None or free_bytes is None:
        source = "psutil.virtual_memory"
        asked = _ask_psutil(root, psutil and psutil.virtual_memory)
        if asked is None:
            return absent("host", source, "The machine does not say how much memory is free.")
        total_bytes, free_bytes = asked.total, asked.available
    bounds = _group_limits(root, pid, total_bytes)
    if bounds:
        why = (
            f"A control group bounds this process to {human_bytes(bounds[0].bytes)} of the "
            f"machine's {human_bytes(total_bytes)}, so that its own use is what counts."
        )
        return absent("host", bounds[0].source, why)
    used_bytes, tree_bytes = max(0, total_bytes - free_bytes), tree_rss(root, pid)[0]
    others_bytes = None if tree_bytes is None else max(0, used_bytes - tree_bytes)
    return Reading("host", used_bytes, total_bytes, source, others_bytes=others_bytes)


def tree_rss(root: Path = ROOT, pid: int | None = None) -> tuple[int | None, str]:
    """Resident bytes of the process and its descendants, and which of them were read.

    Pages that processes share count once in each, so the sum errs on the high side.
    """
    below = descendants(root, pid)
    readings = [process_rss(root, one) for one in (pid, *(below or ()))]
    known = [reading for reading in readings if reading is not None]  # a child may have ended
    what = "the process" if below is None else "the process tree"
    return (sum(known) if known else None), f"resident memory of {what}"


def descendants(root: Path = ROOT, pid: int | None = None) -> list[int] | None:
    """Numbers of the processes below this one; None where nobody can say."""
    found = _children(root, name(pid))
    if found is None:
        below = _ask_psutil(root, lambda: psutil.Process(pid).children(recursive=True))
        return None if below is None else [child.pid for child in below]
    for child in found:  # grows while it is walked
        found += [one for one in _children(root, name(child)) or () if one not in found]
    return found


def _children(root: Path, process: str) -> list[int] | None:
    """Processes that any thread of this one started; None where the kernel keeps no such list.

    psutil would look at every process of the machine, which takes long where there are many.
    """
    threads = root / "proc" / process / "task"
    try:
        lists = [threads / thread / "children" for thread in os.listdir(threads)]
    except OSError:
        return None
    found = [int(child) for one in lists for child in read(one).split() if child.isdecimal()]
    return found if found or any(one.exists() for one in lists) else None


def _limits(root, pid, tree_bytes, tree_source) -> list[Limit]:
    """`host_limits`, where the tree is known already."""
    physical_bytes = _physical_bytes(root)
    if physical_bytes is None:
        physical = Limit(None, tree_bytes, f"physical memory could not be read; use: {tree_source}")
    else:
        physical = Limit(physical_bytes, tree_bytes, f"physical memory; use: {tree_source}")
    bounds = [
        limit
        if limit.used_bytes is not None
        else Limit(limit.bytes, tree_bytes, f"{limit.source}; use: {tree_source}")
        for limit in _group_limits(root, pid, physical_bytes)
    ]
    return bounds if bounds and physical_bytes is None else [*bounds, physical]


def _group_limits(root, pid, physical_bytes) -> list[Limit]:
    """What control groups allow, smallest first, where that is less than the physical memory."""
    found = []
    for version, folder in groups.folders(root, pid):
        limit_bytes, file = groups.limit(version, folder)
        if limit_bytes is None or limit_bytes >= (physical_bytes or UNLIMITED_BYTES):
            continue  # "max", or more than there is: the physical memory comes first
        source = f"control group v{version} /{(folder / file).relative_to(root)}"
        found.append(Limit(limit_bytes, groups.used(version, folder), source))
    return sorted(found, key=lambda limit: limit.bytes)  # stable: of equals, the innermost first


def _physical_bytes(root: Path) -> int | None:
    told = parse_kib(read(root / "proc/meminfo"), "MemTotal")
    return told or _ask_psutil(root, lambda: psutil.virtual_memory().total)


def _ask_psutil(root: Path, question):
    """Its answer; None where it has none, is not installed, or another machine is asked about."""
    if psutil is None or root != ROOT:
        return None
    try:
        return question()
    except (psutil.Error, OSError):
        return None
