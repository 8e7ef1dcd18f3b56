"""How much host memory there is, and how much of it this process already uses.

A machine's total says little inside a container: the control group that a process sits in, or any
group above it, may allow far less. What cannot be read is None or left out, never an exception.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

try:
    import psutil
except ImportError:  # then /proc is read by hand
    psutil = None

ROOT = Path("/")
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
    tree_bytes, tree_source = _tree_rss(root, pid)
    physical_bytes = _physical_bytes(root)
    if physical_bytes is None:
        physical = Limit(None, tree_bytes, f"physical memory could not be read; use: {tree_source}")
    else:
        physical = Limit(physical_bytes, tree_bytes, f"physical memory; use: {tree_source}")

    groups = []
    for version, folder in _group_folders(root, pid):
        limit_bytes, file = _group_limit(version, folder)
        if limit_bytes is None or limit_bytes >= (physical_bytes or UNLIMITED_BYTES):
            continue  # "max", or more than there is: the physical memory comes first
        used_bytes = _group_used(version, folder)
        source = f"control group v{version} /{(folder / file).relative_to(root)}"
        if used_bytes is None:
            used_bytes, source = tree_bytes, f"{source}; use: {tree_source}"
        groups.append(Limit(limit_bytes, used_bytes, source))
    groups.sort(key=lambda limit: limit.bytes)  # stable: of equals, the innermost stays first
    return groups if groups and physical_bytes is None else [*groups, physical]


def free_for_pool(root: Path = ROOT, pid: int | None = None) -> int | None:
    """Bytes that may still be allocated before any limit is met, never negative; None: unknown."""
    free = [limit.free_bytes for limit in host_limits(root, pid)]
    return min((free_bytes for free_bytes in free if free_bytes is not None), default=None)


def process_rss(root: Path = ROOT, pid: int | None = None) -> int | None:
    """Resident bytes of the process alone, shared pages included; None where it cannot be read."""
    if psutil is not None and root == ROOT:
        try:
            return psutil.Process(pid).memory_info().rss
        except (psutil.Error, OSError):
            return None
    pages = _read(root / "proc" / _name(pid) / "statm").split()[1:2]
    resident = parse_bytes(pages[0]) if pages else None
    return None if resident is None else resident * os.sysconf("SC_PAGE_SIZE")


def max_rss_bytes(root: Path = ROOT, pid: int | None = None) -> int | None:
    """The most resident bytes that the process ever had (VmHWM); None without /proc."""
    return parse_kib(_read(root / "proc" / _name(pid) / "status"), "VmHWM")


# The text of each file, read without touching anything else.


def parse_bytes(text: str) -> int | None:
    """Bytes in a control-group file; None for `max`, an empty file or anything unforeseen."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def parse_kib(text: str, field: str) -> int | None:
    """Bytes of a line such as `MemTotal:  16384 kB` in /proc/meminfo or /proc/self/status."""
    found = re.search(rf"^{re.escape(field)}:\s*(\d+) kB$", text, re.MULTILINE | re.ASCII)
    return int(found[1]) * 1024 if found else None


def parse_stat(text: str) -> dict[str, int]:
    """The counters of a memory.stat file by name; lines of another form are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {
        pair[0]: value
        for pair in pairs
        if len(pair) == 2 and (value := parse_bytes(pair[1])) is not None
    }


def parse_cgroup(text: str) -> dict[int, str]:
    """Path of the memory group in each version's hierarchy, from /proc/self/cgroup.

    A hybrid machine has both: {1: "/a", 2: "/b"}. A path may begin with `/..`: then the process
    sits outside the control-group namespace that it is looked at from.
    """
    paths = {}
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    return paths


def parse_mounts(text: str) -> list[tuple[int, str, str]]:
    """(version, group at the mount's root, mount point) of each memory hierarchy.

    From /proc/self/mountinfo, whose fourth field says which part of the hierarchy is mounted: a
    container is often shown its own group only, at a path that names the group's place outside.
    """
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        top, point = (_unescape(field) for field in fields[3:5])
        if kind[0] == "cgroup2":
            mounts.append((2, top, point))
        elif kind[0] == "cgroup" and "memory" in kind[-1].split(","):
            mounts.append((1, top, point))
    return mounts


def below_mount(path: str, top: str) -> list[str]:
    """Names that lead from a mount of the group `top` down to the group `path`.

    Empty where `path` is `top`, and where it cannot be reached from there (another container's
    path, or one that leaves the namespace): the mount point is then the nearest group to be seen.
    """
    names, above = _names(path), _names(top)
    if ".." in names or names[: len(above)] != above:
        return []
    return names[len(above) :]


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _unescape(field: str) -> str:
    """A blank in a mount point is written \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def _name(pid: int | None) -> str:
    return "self" if pid is None else str(pid)


def _read(path: Path) -> str:
    """The file's text, or nothing where it is missing or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return ""


def _group_folders(root: Path, pid: int | None) -> Iterator[tuple[int, Path]]:
    """(version, folder) of the process's memory group and each one above it, innermost first."""
    paths = parse_cgroup(_read(root / "proc" / _name(pid) / "cgroup"))
    # Ours, whoever is asked about: both the paths and the folders are as we see them.
    for version, top, point in parse_mounts(_read(root / "proc/self/mountinfo")):
        if version not in paths:
            continue
        mount, names = root / point.lstrip("/"), below_mount(paths[version], top)
        for depth in range(len(names), -1, -1):
            yield version, mount.joinpath(*names[:depth])


def _group_limit(version: int, folder: Path) -> tuple[int | None, str]:
    """(bytes, file name) of the group's own limit; memory.high throttles, so it counts too."""
    files = ("memory.limit_in_bytes",) if version == 1 else ("memory.max", "memory.high")
    limits = [(parse_bytes(_read(folder / file)), file) for file in files]
    if version == 1:  # the groups above, too, where a container does not see their folders
        stat = parse_stat(_read(folder / "memory.stat"))
        limits.append((stat.get("hierarchical_memory_limit"), "memory.stat"))
    known = [limit for limit in limits if limit[0] is not None]
    return min(known, key=lambda limit: limit[0], default=(None, files[0]))


def _group_used(version: int, folder: Path) -> int | None:
    """Bytes in use by the group and those below it, without what the kernel can drop."""
    total = "memory.usage_in_bytes" if version == 1 else "memory.current"
    used_bytes = parse_bytes(_read(folder / total))
    if used_bytes is None:
        return None
    stat = parse_stat(_read(folder / "memory.stat"))
    if version == 1:
        # Version 1 counts shared memory as cache, but nothing can drop it.
        cache_bytes = stat.get("total_cache", 0) - stat.get("total_shmem", 0)
    else:
        cache_bytes = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    return max(0, used_bytes - max(0, cache_bytes))


def _physical_bytes(root: Path) -> int | None:
    if psutil is not None and root == ROOT:
        try:
            return psutil.virtual_memory().total
        except (psutil.Error, OSError):
            return None
    return parse_kib(_read(root / "proc/meminfo"), "MemTotal")


def _tree_rss(root: Path, pid: int | None) -> tuple[int | None, str]:
    """Resident bytes of the process and its descendants, and which of them were read.

    Pages that processes share count once in each, so the sum errs on the high side.
    """
    if psutil is None or root != ROOT:
        return process_rss(root, pid), "resident memory of the process"
    try:
        children = psutil.Process(pid).children(recursive=True)
    except (psutil.Error, OSError):
        children = []
    readings = [process_rss(root, process) for process in (pid, *(child.pid for child in children))]
    known = [reading for reading in readings if reading is not None]  # a child may have ended
    return (sum(known) if known else None), "resident memory of the process tree"
