"""Control groups of either version: where a process sits, and what each group allows and uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from kerasrl_gpu.probes.parsing import ROOT, name, parse_bytes, parse_stat, read


def folders(root: Path = ROOT, pid: int | None = None) -> Iterator[tuple[int, Path]]:
    """(version, folder) of the process's memory group and each one above it, innermost first."""
    paths = parse_cgroup(read(root / "proc" / name(pid) / "cgroup"))
    # Ours, whoever is asked about: both the paths and the folders are as we see them.
    for version, top, point in parse_mounts(read(root / "proc/self/mountinfo")):
        if version not in paths:
            continue
        mount, names = root / point.lstrip("/"), below_mount(paths[version], top)
        for depth in range(len(names), -1, -1):
            yield version, mount.joinpath(*names[:depth])


def limit(version: int, folder: Path) -> tuple[int | None, str]:
    """(bytes, file name) of the group's own limit; memory.high throttles, so it counts too."""
    files = ("memory.limit_in_bytes",) if version == 1 else ("memory.max", "memory.high")
    limits = [(parse_bytes(read(folder / file)), file) for file in files]
    if version == 1:  # the groups above, too, where a container does not see their folders
        stat = parse_stat(read(folder / "memory.stat"))
        limits.append((stat.get("hierarchical_memory_limit"), "memory.stat"))
    known = [one for one in limits if one[0] is not None]
    return min(known, key=lambda one: one[0], default=(None, files[0]))


def used(version: int, folder: Path) -> int | None:
    """Bytes in use by the group and those below it, without what the kernel can drop."""
    total = "memory.usage_in_bytes" if version == 1 else "memory.current"
    used_bytes = parse_bytes(read(folder / total))
    if used_bytes is None:
        return None
    stat = parse_stat(read(folder / "memory.stat"))
    if version == 1:
        # Version 1 counts shared memory as cache, but nothing can drop it.
        cache_bytes = stat.get("total_cache", 0) - stat.get("total_shmem", 0)
    else:
        cache_bytes = stat.get("inactive_file", 0) + stat.get("active_file", 0)
    return max(0, used_bytes - max(0, cache_bytes))


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
    return [part for part in path.split("/") if part not in ("", ".")]


def _unescape(field: str) -> str:
    """A blank in a mount point is written \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)
