"""Host and control-group limits, on made-up machines and on this one."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import GIB, MIB, V1_MOUNT, V1_UNLIMITED, V2_MOUNT, machine, v1, v2

from kerasrl_gpu import probes


def test_v2_takes_the_group_and_leaves_the_page_cache_out(tmp_path):
    # 3 GiB in use, 1 + 0.5 GiB of it file pages:  3 - 1.5 = 1.5 GiB (memory.current alone: 3)
    group = v2(4 * GIB, used=3 * GIB, inactive=GIB, active=GIB // 2)
    limit = probes.host_limit(machine(tmp_path, "0::/job\n", V2_MOUNT, {"job": group}))
    assert (limit.bytes, limit.used_bytes) == (4 * GIB, 3 * GIB // 2)
    assert limit.free_bytes == 5 * GIB // 2
    assert limit.source == "control group v2 /sys/fs/cgroup/job/memory.max"


def test_v1_takes_the_group_and_counts_shared_memory(tmp_path):
    # 3 GiB in use, 2 GiB "cache" of which 0.5 GiB is shared memory: 3 - (2 - 0.5) = 1.5 GiB
    group = v1(4 * GIB, used=3 * GIB, cache=2 * GIB, shmem=GIB // 2)
    cgroup = "7:cpu,cpuacct:/elsewhere\n4:memory:/job\n"
    limit = probes.host_limit(machine(tmp_path, cgroup, V1_MOUNT, {"memory/job": group}))
    assert (limit.bytes, limit.used_bytes) == (4 * GIB, 3 * GIB // 2)
    assert limit.source == "control group v1 /sys/fs/cgroup/memory/job/memory.limit_in_bytes"


def test_an_ancestor_with_less_wins_and_its_use_counts(tmp_path):
    groups = {
        "a": v2(2 * GIB, used=GIB),
        "a/b": v2("max", used=GIB // 2),
        "a/b/c": v2(3 * GIB, used=GIB // 4),
    }
    root = machine(tmp_path, "0::/a/b/c\n", V2_MOUNT, groups)
    assert [limit.bytes // GIB for limit in probes.host_limits(root)] == [2, 3, 64]
    assert probes.host_limit(root).used_bytes == GIB
    assert probes.free_for_pool(root) == GIB


def test_the_pool_gets_what_every_limit_leaves(tmp_path):
    # The group's own limit is the smaller (4 < 8), but its neighbours filled the one above:
    #   4 - 1 = 3 GiB and 8 - 7.5 = 0.5 GiB, so 0.5 GiB.
    groups = {"a": v2(8 * GIB, used=15 * GIB // 2), "a/b": v2(4 * GIB, used=GIB)}
    root = machine(tmp_path, "0::/a/b\n", V2_MOUNT, groups)
    assert probes.host_limit(root).bytes == 4 * GIB
    assert probes.free_for_pool(root) == GIB // 2


def test_free_is_never_negative(tmp_path):
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": v2("max", used=2 * GIB, high=GIB)})
    assert probes.free_for_pool(root) == 0


def test_high_below_max_counts(tmp_path):
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": v2(4 * GIB, high=3 * GIB)})
    limit = probes.host_limit(root)
    assert limit.bytes == 3 * GIB
    assert limit.source.endswith("/a/memory.high")


@pytest.mark.parametrize("text", ["max", V1_UNLIMITED, str(64 * GIB), "", "-1", "garbage", "٣"])
def test_what_is_no_limit_leaves_the_physical_memory(tmp_path, text):
    for name, cgroup, mount, group in [
        ("v2", "0::/a\n", V2_MOUNT, {"a": v2(text)}),
        ("v1", "4:memory:/a\n", V1_MOUNT, {"memory/a": v1(text)}),
    ]:
        limit = probes.host_limit(machine(tmp_path / name, cgroup, mount, group))
        assert (limit.bytes, limit.used_bytes) == (64 * GIB, GIB)
        assert limit.source.startswith("physical memory; use: resident memory")


def test_hybrid_reads_both_hierarchies(tmp_path):
    cgroup = "4:memory:/old\n1:name=systemd:/x\n0::/new\n"
    unified = V2_MOUNT.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
    groups = {"memory/old": v1(4 * GIB, used=GIB)}
    root = machine(tmp_path / "v1", cgroup, V1_MOUNT + unified, groups)
    assert probes.host_limit(root).bytes == 4 * GIB
    groups["unified/new"] = v2(3 * GIB)
    root = machine(tmp_path / "both", cgroup, V1_MOUNT + unified, groups)
    assert probes.host_limit(root).bytes == 3 * GIB


@pytest.mark.parametrize("path", ["/", "/../..", "/../other"])
def test_a_namespaced_path_is_read_at_the_mount_point(tmp_path, path):
    root = machine(tmp_path, f"0::{path}\n", V2_MOUNT, {".": v2(2 * GIB, used=GIB)})
    assert probes.host_limit(root).bytes == 2 * GIB


def test_a_container_that_sees_only_its_own_v1_group(tmp_path):
    # The path is the one outside; the mount shows /docker/abc as its root, and not the 1 GiB above.
    mount = V1_MOUNT.replace(" / /sys", " /docker/abc /sys")
    groups = {"memory": v1(2 * GIB, above=GIB), "memory/sub": v1(3 * GIB, used=5)}
    root = machine(tmp_path, "4:memory:/docker/abc/sub\n", mount, groups)
    limits = probes.host_limits(root)
    assert [limit.bytes // GIB for limit in limits] == [1, 3, 64]
    assert limits[0].source == "control group v1 /sys/fs/cgroup/memory/memory.stat"


def test_another_containers_v1_path_falls_back_to_the_mount_point(tmp_path):
    mount = V1_MOUNT.replace(" / /sys", " /docker/abc /sys")
    root = machine(tmp_path, "4:memory:/docker/xyz\n", mount, {"memory": v1(2 * GIB)})
    assert probes.host_limit(root).bytes == 2 * GIB


def test_a_group_without_its_use_takes_the_processs(tmp_path):
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": {"memory.max": str(2 * GIB)}})
    limit = probes.host_limit(root)
    assert (limit.bytes, limit.used_bytes) == (2 * GIB, GIB)
    assert limit.source.endswith("/a/memory.max; use: resident memory of the process")


def test_use_below_the_page_cache_is_zero(tmp_path):
    # Both files are read one after the other, so the second may already be larger.
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": v2(2 * GIB, used=5, inactive=9)})
    assert probes.host_limit(root).used_bytes == 0


def test_an_empty_machine_is_a_value(tmp_path):
    limit = probes.host_limit(tmp_path)
    assert (limit.bytes, limit.used_bytes, limit.free_bytes) == (None, None, None)
    assert limit.source.startswith("physical memory could not be read")
    assert probes.free_for_pool(tmp_path) is None
    assert probes.process_rss(tmp_path) is None
    assert probes.max_rss_bytes(tmp_path) is None


def test_a_group_is_enough_where_the_physical_memory_is_unknown(tmp_path):
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": v2(2 * GIB)})
    (root / "proc/meminfo").unlink()
    assert [limit.bytes for limit in probes.host_limits(root)] == [2 * GIB]


def used_fraction(limit):
    return limit.used_bytes / limit.bytes


def test_busy_host_with_a_quiet_group_is_calm(tmp_path):
    # The whole host is taken (MemFree 1 MiB of 64 GiB); the group uses 12 % of what it may.
    groups = {".": {}, "job": v2(50 * GIB, used=6 * GIB)}
    root = machine(tmp_path, "0::/job\n", V2_MOUNT, groups)
    assert used_fraction(probes.host_limit(root)) == pytest.approx(0.12)
    assert probes.free_for_pool(root) == 44 * GIB


def test_free_host_with_a_full_group_is_not(tmp_path):
    # A host of 1 TiB; the container may have 90 GiB and holds 89. The process itself holds 1 GiB.
    groups = {"job": v2(90 * GIB, used=89 * GIB)}
    root = machine(tmp_path, "0::/job\n", V2_MOUNT, groups, total_bytes=1024 * GIB)
    assert used_fraction(probes.host_limit(root)) > 0.98
    assert probes.free_for_pool(root) == GIB


def test_another_process_is_asked_about_by_its_number(tmp_path):
    groups = {"a": v2(2 * GIB), "b": v2(3 * GIB)}
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, groups)
    (root / "proc/42").mkdir()
    (root / "proc/42/cgroup").write_text("0::/b\n")
    assert probes.host_limit(root, pid=42).bytes == 3 * GIB


def test_a_path_that_leaves_the_mount_is_not_followed():
    assert probes.below_mount("/../other", "/") == []
    assert probes.below_mount("/docker/xyz/sub", "/docker/abc") == []
    assert probes.below_mount("/docker/abc/sub", "/docker/abc") == ["sub"]


def test_bytes_that_are_no_text_spoil_nothing_else(tmp_path):
    root = machine(tmp_path, "0::/a\n", "", {"a": v2(2 * GIB)})
    other = b"31 23 0:9 / /mnt/\xff rw - ext4 /dev/sda rw\n"
    (root / "proc/self/mountinfo").write_bytes(other + V2_MOUNT.encode())
    assert probes.host_limit(root).bytes == 2 * GIB


def test_a_blank_in_a_mount_point_is_unescaped():
    text = r"30 23 0:26 / /a\040b rw - cgroup2 none rw" + "\nshort line\n- - -\n"
    assert probes.parse_mounts(text) == [(2, "/", "/a b")]


@given(st.text(max_size=60))
def test_no_text_makes_a_parser_raise(text):
    probes.parse_bytes(text)
    probes.parse_kib(text, "MemTotal")
    probes.parse_stat(text)
    probes.parse_cgroup(text)
    probes.parse_mounts(text)
    probes.below_mount(text, "/a")


NAMES = st.lists(st.sampled_from(["a", "b", "c.slice"]), max_size=4)


@given(above=NAMES, below=NAMES)
def test_a_mount_and_what_is_below_it_make_the_path(above, below):
    path = "/" + "/".join(above + below)
    assert probes.below_mount(path, "/" + "/".join(above)) == below


def test_this_machine():
    limit = probes.host_limit()
    assert limit.used_bytes > 0
    assert limit.bytes > 64 * MIB
    assert limit.source
    assert 0 <= probes.free_for_pool() <= limit.free_bytes
    assert MIB < probes.process_rss() < limit.bytes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc is Linux's")
def test_the_peak_is_remembered():
    before = probes.process_rss()
    block = b"x" * (64 * MIB)  # not bytearray(n), whose pages nobody has touched
    assert probes.process_rss() > before + 60 * MIB
    del block
    assert probes.max_rss_bytes() > before + 60 * MIB


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="/proc is Linux's")
def test_without_psutil_the_numbers_are_the_same(monkeypatch):
    limits, rss = probes.host_limits(), probes.process_rss()
    monkeypatch.setattr(probes.host, "psutil", None)
    assert [limit.bytes for limit in probes.host_limits()] == [limit.bytes for limit in limits]
    assert probes.process_rss() == pytest.approx(rss, abs=8 * MIB)


def test_descendants_count_against_the_physical_memory(child):
    before = probes.host.tree_rss(probes.ROOT, os.getpid())[0]
    child.hold(48 * MIB)
    assert probes.host.tree_rss(probes.ROOT, os.getpid())[0] > before + 40 * MIB


def test_a_dead_process_is_a_value(child):
    child.process.kill()
    child.process.wait()
    assert probes.process_rss(pid=child.process.pid) is None
    assert probes.host_limit(pid=child.process.pid).bytes > 0


def test_importing_the_probes_loads_no_framework():
    code = (
        "import sys, kerasrl_gpu.probes\n"
        "print(sorted({'keras', 'rl', 'tensorflow', 'jax', 'torch'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


CHILD = """
import sys
blocks = []
print("ready", flush=True)
for line in sys.stdin:
    count, path = line.rstrip().split(" ", 1)
    block = b"x" * int(count)  # not bytearray(n), whose pages nobody has touched
    if path == "-":
        blocks.append(block)
    else:
        with open(path, "wb") as file:
            file.write(block)
    del block
    print("done", flush=True)
"""


class Child:
    """A process that takes memory, or fills the page cache, when told to; it ends with us."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.process.stdout.readline()

    def hold(self, count):
        self._tell(count, "-")

    def write(self, path, count):
        self._tell(count, path)

    def _tell(self, count, path):
        self.process.stdin.write(f"{count} {path}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture
def child():
    child = Child()
    yield child
    child.process.kill()
    child.process.communicate()


def make_group(own, version):
    """A new control group below the folder `own`, with a limit of 96 MiB; OSError if it cannot."""
    folder = Path(tempfile.mkdtemp(prefix="kerasrl-gpu-test-", dir=own))
    file = folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")
    try:
        if not file.exists():
            raise OSError(f"{own} hands no memory limit down")
        file.write_text(str(96 * MIB))
    except OSError:
        folder.rmdir()
        raise
    return folder


@pytest.fixture
def real_group():
    """(version, folder) of a control group below this process's own, so that it evades nothing."""
    reasons = ["this process sees no memory control group"]
    own = {}
    for version, folder in probes.groups.folders():
        own.setdefault(version, folder)  # the innermost comes first
    for version, folder in own.items():
        try:
            made = make_group(folder, version)
        except OSError as error:
            reasons.append(str(error))
            continue
        yield version, made
        made.rmdir()
        return
    pytest.skip(f"no control group can be made here: {reasons[-1]}")


def test_a_real_control_group(real_group, child, tmp_path):
    version, folder = real_group
    (folder / "cgroup.procs").write_text(str(child.process.pid))
    child.hold(24 * MIB)
    child.write(tmp_path / "file", 16 * MIB)  # into the page cache, which is no pressure
    calm = probes.host_limit(pid=child.process.pid)
    assert calm.bytes == 96 * MIB
    assert calm.source.startswith(f"control group v{version} {folder}/")
    assert 24 * MIB <= calm.used_bytes < 36 * MIB
    child.hold(56 * MIB)
    full = probes.host_limit(pid=child.process.pid)
    assert 80 * MIB <= full.used_bytes <= full.bytes
    assert probes.free_for_pool(pid=child.process.pid) <= 16 * MIB
