"""Made-up machines: the files that the kernel would show, below a folder."""

import os

MIB = 1 << 20
GIB = 1 << 30
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
V1_UNLIMITED = "9223372036854771712"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def machine(
    root,
    cgroup="",
    mountinfo="",
    groups=None,
    total_bytes=64 * GIB,
    rss_bytes=GIB,
    free_bytes=None,
):
    """Write a machine below `root`: groups maps a folder to its files. Returns `root`."""
    available = "" if free_bytes is None else f"MemAvailable:   {free_bytes // 1024} kB\n"
    files = {
        "proc/meminfo": f"MemTotal:       {total_bytes // 1024} kB\nMemFree:        1024 kB\n"
        + available,
        "proc/self/statm": f"9999999 {rss_bytes // PAGE_BYTES} 1 1 0 1 0\n",
        "proc/self/cgroup": cgroup,
        "proc/self/mountinfo": mountinfo,
    }
    for folder, contents in (groups or {}).items():
        files |= {f"sys/fs/cgroup/{folder}/{name}": text for name, text in contents.items()}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(limit, used=0, high="max", inactive=0, active=0):
    return {
        "memory.max": f"{limit}\n",
        "memory.high": f"{high}\n",
        "memory.current": f"{used}\n",
        "memory.stat": f"anon 1\nfile 7\ninactive_file {inactive}\nactive_file {active}\n",
    }


def v1(limit, used=0, cache=0, shmem=0, above=V1_UNLIMITED):
    return {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": f"cache 1\nhierarchical_memory_limit {above}\n"
        f"total_cache {cache}\ntotal_shmem {shmem}\n",
    }


def child(root, pid, parent="self", rss_bytes=GIB, thread="7"):
    """Add a process with its resident memory, started by a thread of another one."""
    files = {
        f"proc/{parent}/task/{thread}/children": f"{pid} ",
        f"proc/{pid}/statm": f"9999999 {rss_bytes // PAGE_BYTES} 1 1 0 1 0\n",
        f"proc/{pid}/task/{pid}/children": "",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
