"""Readings of the host, its groups, stalls, disk and address space; probes that fail."""

import os
import resource
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import GIB, MIB, V1_MOUNT, V1_UNLIMITED, V2_MOUNT, child, machine, v1, v2

from kerasrl_gpu import engine, probes
from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.probes import Reading, address, device, disk, host, stalls

PRESSURE = "some avg10=40.00 avg60=1.00 avg300=1.00 total=5\nfull avg10={} avg60=9.00 total=3\n"


# What a reading is -------------------------------------------------------------------------------


def test_a_fraction_is_of_the_limit_or_of_the_time():
    assert Reading("host", 3, 4, "a test").fraction == 0.75
    assert Reading("stalls", None, None, "a test", share=0.5).fraction == 0.5
    for used, limit in [(None, 4), (3, None), (3, 0)]:
        assert Reading("host", used, limit, "a test").fraction is None


def test_a_probe_that_fails_or_says_nothing_is_a_reading():
    def card():
        raise OSError("fell off the bus.")

    good = Reading("host", 1, 2, "a test")
    failed, empty, fine = probes.read([partial(card), lambda: None, lambda: good])
    assert failed == Reading(
        "card", None, None, "probe", missing="The probe failed: OSError: fell off the bus."
    )
    assert empty.missing == "The probe returned NoneType; a probe returns a probes.Reading."
    assert fine is good


@given(
    answers=st.lists(
        st.sampled_from([ValueError("x"), MemoryError(), RecursionError(), None, 3, "text", (1, 2)])
    )
)
def test_every_probe_has_one_reading_whatever_it_does(answers):
    def answer(value):
        if isinstance(value, Exception):
            raise value
        return value

    found = probes.read([partial(answer, value) for value in answers])
    assert len(found) == len(answers)
    assert all(one.name == "answer" and one.missing and one.fraction is None for one in found)


def test_an_interrupt_passes():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        probes.read([stop])


# The process against the smallest limit ----------------------------------------------------------


def test_the_limit_that_is_closest_binds_and_says_so(tmp_path):
    # own group 1 / 4 = 25 %, the one above 7 / 8 = 88 %, the machine 1 / 64: the one above binds,
    # though it is the larger limit; of its 7 GiB this process has 1.
    groups = {"a": v2(8 * GIB, used=7 * GIB), "a/b": v2(4 * GIB, used=GIB)}
    root = machine(tmp_path, "0::/a/b\n", V2_MOUNT, groups)
    assert host.process(None, root) == Reading(
        "process",
        7 * GIB,
        8 * GIB,
        "control group v2 /sys/fs/cgroup/a/memory.max",
        others_bytes=6 * GIB,
    )


@pytest.mark.parametrize(
    ("cgroup", "mount", "groups", "limit", "source"),
    [
        ("0::/a\n", V2_MOUNT, {"a": v2(2 * GIB, GIB)}, 2, "v2 /sys/fs/cgroup/a/memory.max"),
        (
            *("4:memory:/a\n", V1_MOUNT, {"memory/a": v1(2 * GIB, GIB)}, 2),
            "v1 /sys/fs/cgroup/memory/a/memory.limit_in_bytes",
        ),
        ("0::/a\n", V2_MOUNT, {"a": v2("max", GIB)}, 64, "physical memory; use: resident"),
        ("4:memory:/a\n", V1_MOUNT, {"memory/a": v1(V1_UNLIMITED)}, 64, "physical memory"),
        ("0::/a\n", V2_MOUNT, {"a": v2(65 * GIB, GIB)}, 64, "physical memory"),
        ("0::/a\n", V2_MOUNT, {}, 64, "physical memory"),
        ("", "", {}, 64, "physical memory"),
    ],
    ids=["v2", "v1", "v2 max", "v1 unlimited", "above RAM", "no folder", "no groups"],
)
def test_each_kind_of_tree_has_its_limit(tmp_path, cgroup, mount, groups, limit, source):
    found = host.process(None, machine(tmp_path, cgroup, mount, groups))
    assert (found.used_bytes, found.limit_bytes, found.others_bytes) == (GIB, limit * GIB, 0)
    assert source in found.source


def test_page_cache_is_no_use(tmp_path):
    # 3 GiB in use, 2 of them file pages
    group = v2(4 * GIB, used=3 * GIB, inactive=GIB, active=GIB)
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": group}, rss_bytes=MIB)
    assert host.process(None, root).fraction == 0.25


def test_a_tree_that_cannot_be_read_is_missing(tmp_path):
    (tmp_path / "proc/self/cgroup").mkdir(parents=True)  # a folder cannot be read as a file
    found = host.process(None, tmp_path)
    assert found.missing == "Neither a limit nor the use could be read."
    assert (found.used_bytes, found.limit_bytes) == (None, None)


def test_a_budget_is_a_limit_on_the_tree_alone(tmp_path):
    # group 3 / 4 = 75 %; the process has 1 GiB: of a budget of 1.25 GiB 80 %, of 2 GiB 50 %
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": v2(4 * GIB, used=3 * GIB)})
    tight, wide = host.process(5 * GIB // 4, root), host.process(2 * GIB, root)
    assert (tight.used_bytes, tight.fraction) == (GIB, 0.8)
    assert tight.source.startswith("a budget of 1.25 GiB; use: resident memory of the process")
    assert (wide.used_bytes, wide.fraction) == (3 * GIB, 0.75)


def test_descendants_count_of_every_thread_and_generation(tmp_path):
    root = machine(tmp_path)
    child(root, 20, thread="7")
    child(root, 30, thread="8", rss_bytes=2 * GIB)
    child(root, 21, parent="20", rss_bytes=4 * GIB)
    assert sorted(host.descendants(root)) == [20, 21, 30]
    assert host.tree_rss(root) == (8 * GIB, "resident memory of the process tree")
    assert host.process(None, root).used_bytes == 8 * GIB


def test_the_kernels_lists_and_psutil_name_the_same_children():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        psutil = pytest.importorskip("psutil")
        theirs = [one.pid for one in psutil.Process().children(recursive=True)]
        assert process.pid in host.descendants()
        assert sorted(host.descendants()) == sorted(theirs)
        process.communicate(b"\n")


# The whole machine -------------------------------------------------------------------------------


def test_a_machine_says_what_others_take(tmp_path):
    # 64 in all, 16 free: 48 in use, of which 1 is ours
    root = machine(tmp_path, free_bytes=16 * GIB)
    assert host.host(root) == Reading(
        "host", 48 * GIB, 64 * GIB, "/proc/meminfo", others_bytes=47 * GIB
    )


def test_a_busy_host_is_no_matter_to_a_process_with_a_limit_of_its_own(tmp_path):
    # the machine has 1 GiB left; the group uses 12 % of what it may
    groups = {"a": v2(50 * GIB, used=6 * GIB)}
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, groups, free_bytes=GIB)
    busy = host.host(root)
    assert busy.fraction is None
    assert "bounds this process to 50.00 GiB of the machine's 64.00 GiB" in busy.missing
    assert host.process(None, root).fraction == pytest.approx(0.12)
    # a group that allows as much as there is bounds nothing
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": v2(64 * GIB)}, free_bytes=GIB)
    assert host.host(root).fraction == 63 / 64


def test_a_full_group_on_a_free_host_is_seen(tmp_path):
    groups = {"a": v2(50 * GIB, used=49 * GIB)}
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, groups, free_bytes=60 * GIB)
    assert host.process(None, root).fraction == 0.98


def test_a_kernel_that_does_not_say_what_is_free(tmp_path):
    assert "does not say how much memory is free" in host.host(machine(tmp_path)).missing


# Stalls ------------------------------------------------------------------------------------------


def test_the_groups_stalls_come_before_the_machines(tmp_path):
    group = v2(GIB) | {"memory.pressure": PRESSURE.format("12.50")}
    root = machine(tmp_path, "0::/a\n", V2_MOUNT, {"a": group})
    (root / "proc/pressure").mkdir()
    (root / "proc/pressure/memory").write_text(PRESSURE.format("3.00"))
    assert stalls.stalls(root).source == "/sys/fs/cgroup/a/memory.pressure"
    assert stalls.stalls(root).share == 0.125
    (root / "sys/fs/cgroup/a/memory.pressure").unlink()
    assert stalls.stalls(root).source == "/proc/pressure/memory"
    assert stalls.stalls(root).fraction == 0.03
    (root / "proc/pressure/memory").unlink()
    assert "does not measure" in stalls.stalls(root).missing


@given(st.text(max_size=60))
def test_no_text_makes_the_stalls_raise(text):
    stalls.parse_pressure(text)


@given(st.integers(0, 10_000))
def test_what_the_kernel_writes_is_a_share(hundredths):
    text = PRESSURE.format(f"{hundredths / 100:.2f}")
    assert stalls.parse_pressure(text) == pytest.approx(hundredths / 10_000)


# Disk and address space --------------------------------------------------------------------------


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path, monkeypatch):
    # 100 in all, 60 used, 35 free: 5 are the administrator's, so 60 of 95 is how full it is
    usage = SimpleNamespace(total=100, used=60, free=35)
    monkeypatch.setattr(disk.shutil, "disk_usage", {tmp_path: usage}.get)
    found = disk.disk(tmp_path / "runs" / "1")
    assert found == Reading("disk", 60, 95, f"the file system of {tmp_path}")


def test_a_relative_path_is_one_from_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = disk.disk("runs/1")
    assert found.source == f"the file system of {tmp_path}"
    assert 0 < found.fraction <= 1


def test_a_disk_that_cannot_be_asked(tmp_path, monkeypatch):
    def fails(folder):
        raise PermissionError("not yours")

    monkeypatch.setattr(disk.shutil, "disk_usage", fails)
    assert disk.disk(tmp_path).missing == "It cannot be asked: not yours."


def test_the_address_space_where_it_is_limited(tmp_path, monkeypatch):
    (tmp_path / "proc/self").mkdir(parents=True)
    status = f"VmPeak:\t {3 * 1024} kB\nVmSize:\t {2 * 1024} kB\n"
    (tmp_path / "proc/self/status").write_text(status)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (8 * MIB, resource.RLIM_INFINITY))
    found = address.address_space(tmp_path)
    assert (found.used_bytes, found.peak_bytes, found.fraction) == (2 * MIB, 3 * MIB, 0.25)
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY,) * 2)
    assert address.address_space(tmp_path).missing == "The address space is not limited."


def test_a_real_limit_on_the_address_space():
    code = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({4 * GIB}, {4 * GIB}))\n"
        "from kerasrl_gpu.probes import address\n"
        "before = address.address_space()\n"
        f"held = bytearray({GIB})\n"
        "after = address.address_space()\n"
        "print(after.limit_bytes, after.used_bytes - before.used_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    limit, grown = map(int, done.stdout.split())
    assert limit == 4 * GIB
    assert grown == pytest.approx(GIB, rel=0.01)


# The framework's allocator -----------------------------------------------------------------------


@pytest.mark.skipif("not engine.on_cpu()")
def test_a_cpu_has_no_allocator_of_its_own():
    assert device.device().missing == "The device is a CPU, whose memory is the host's."
    assert engine.device_memory() is None
    assert engine.devices()


def test_a_devices_allocator_tells_use_and_peak(monkeypatch):
    monkeypatch.setattr(engine, "on_cpu", lambda: False)
    monkeypatch.setattr(engine, "device", lambda: "GPU:0")
    monkeypatch.setattr(engine, "device_memory", lambda: (8, 2, 6))
    found = device.device()
    assert (found.limit_bytes, found.used_bytes, found.peak_bytes) == (8, 2, 6)
    assert found.source == f"the allocator of {engine.NAME} on GPU:0"
    monkeypatch.setattr(engine, "device_memory", lambda: None)
    assert device.device().missing == "GPU:0 does not say what its allocator holds."


def test_what_each_framework_is_asked(monkeypatch, backend):
    if backend == "jax":
        from kerasrl_gpu.engine.jax import arrays

        stats = {"bytes_limit": 8, "bytes_in_use": 2, "peak_bytes_in_use": 6, "pool_bytes": 8}
        gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
        monkeypatch.setattr(arrays, "_default_device", lambda: gpu)
        assert arrays.device_memory() == (8, 2, 6)
        del stats["bytes_limit"]
        assert arrays.device_memory() is None
        return
    from kerasrl_gpu.engine.tensorflow import arrays

    name = arrays.device()
    # TensorFlow gives every CPU device this number, which stands for no limit; a GPU's is real
    assert arrays._limit_bytes(name) == 256 * MIB
    assert arrays._limit_bytes("no such device") is None
    monkeypatch.setattr(arrays, "device", lambda: "GPU:0")
    monkeypatch.setattr(arrays, "_limit_bytes", {"GPU:0": 8}.get)
    told = {"GPU:0": {"current": 2, "peak": 6}}
    monkeypatch.setattr(arrays.tf.config.experimental, "get_memory_info", told.get)
    assert arrays.device_memory() == (8, 2, 6)


# All of them -------------------------------------------------------------------------------------


def test_there_is_a_reading_of_everything_and_no_disk_unasked(tmp_path):
    names = [one.name for one in probes.read(probes.auto())]
    assert names == ["device", "card", "process", "host", "address space", "stalls"]
    assert probes.read(probes.auto(tmp_path))[-1].name == "disk"


def test_a_budget_that_is_none():
    for wrong in (0, -1, 1.5, "1GiB", float("nan")):
        with pytest.raises(ArgumentError, match="budget_bytes="):
            probes.auto(budget_bytes=wrong)
    assert probes.auto(budget_bytes=1)


def test_a_machine_of_which_nothing_is_known_has_readings_all_the_same(tmp_path):
    found = {one.name: one for one in probes.read(probes.auto(tmp_path, root=tmp_path / "none"))}
    assert all(found[name].missing for name in ("process", "host", "stalls"))


def test_without_psutil_and_nvidia_ml_py_the_rest_is_read():
    code = (
        "import sys\n"
        "sys.modules['psutil'] = sys.modules['pynvml'] = None\n"
        "from kerasrl_gpu import probes\n"
        "for one in probes.read(probes.auto('.')[1:]):\n"
        "    print(one.name, one.missing is None, one.missing)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "card False nvidia-ml-py is not installed" in done.stdout
    if os.path.exists("/proc/self/statm"):
        assert "process True" in done.stdout
    assert "disk True" in done.stdout


def test_reading_everything_is_quick(tmp_path):
    every = probes.auto(tmp_path)
    probes.read(every)
    taken_s = []
    for _ in range(5):
        began = time.perf_counter()
        probes.read(every)
        taken_s.append(time.perf_counter() - began)
    assert min(taken_s) < 0.02  # some 2 ms where nothing else runs
