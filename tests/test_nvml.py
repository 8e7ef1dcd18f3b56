"""The card as the driver sees it, through a pynvml that stands for NVIDIA's library."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from trees import GIB, MIB, child, machine

from kerasrl_gpu import probes
from kerasrl_gpu.probes import nvml

TOTAL, RESERVED, USED = 80 * GIB, GIB // 2, 20 * GIB


class Slice:
    """A card, or an instance of one: what the driver knows of it.

    Attributes:
        processes: {pid: bytes, or None where the driver does not tell}.
        instances: of a card in MIG mode, None standing for an empty place; () for one that can be
            divided and is not, None for one that cannot.
    """

    def __init__(self, uuid, used=USED, total=TOTAL, reserved=RESERVED, instances=None):
        self.uuid, self.used, self.total, self.reserved = uuid, used, total, reserved
        self.processes, self.instances = {os.getpid(): 5 * GIB, 1: 3 * GIB}, instances


class Driver:
    """Stands for the module `pynvml`: the functions that are called, with its errors and bytes."""

    class NVMLError(Exception):
        pass

    nvmlMemory_v2 = 0x02000028
    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, *cards, version=2):
        self.cards, self.version = cards, version
        self.inits = self.lookups = 0
        self.lost = None

    def nvmlInit(self):
        self.inits += 1
        if self.lost:
            raise self.NVMLError(self.lost)

    def nvmlDeviceGetCount(self):
        self.lookups += 1
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle):
        return handle.uuid.encode()  # as old releases do

    def nvmlDeviceGetName(self, handle):
        return f"card {handle.uuid}"

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        if self.lost:
            raise self.NVMLError(self.lost)
        if version is None:  # counts what is reserved as used
            return SimpleNamespace(total=handle.total, used=handle.used + handle.reserved)
        if self.version < 2:
            raise self.NVMLError("Function Not Found")
        return SimpleNamespace(total=handle.total, used=handle.used, reserved=handle.reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        if handle.processes is None:
            raise self.NVMLError("Insufficient Permissions")
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.processes.items()
        ]

    def nvmlDeviceGetMigMode(self, handle):
        if handle.instances is None:
            raise self.NVMLError("Not Supported")
        return [int(bool(handle.instances))] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return len(handle.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if handle.instances[index] is None:
            raise self.NVMLError("Not Found")
        return handle.instances[index]


@pytest.fixture
def driver(monkeypatch):
    """A function that puts cards into the machine and returns the driver."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*cards, **options):
        made = Driver(*cards, **options)
        monkeypatch.setattr(nvml, "pynvml", made)
        return made

    return install


def uuid_of(reading):
    return reading.source.removeprefix("NVML, card ")


# What is read ------------------------------------------------------------------------------------


def test_what_is_reserved_is_neither_used_nor_there(driver):
    # 80 - 0.5 GiB may be used, 20 are; 5 of them by this process, so that 15 are others', the 3 of
    # process 1 and the 12 that the list does not show
    driver(Slice("GPU-a"))
    found = nvml.Card()()
    assert (found.used_bytes, found.limit_bytes) == (20 * GIB, 80 * GIB - GIB // 2)
    assert found.others_bytes == 15 * GIB
    assert found.source == "NVML, card GPU-a"


def test_an_old_driver_is_asked_the_old_way(driver):
    driver(Slice("GPU-a"), version=1)
    found = nvml.Card()()
    assert (found.used_bytes, found.limit_bytes) == (20 * GIB + GIB // 2, 80 * GIB)


def test_an_old_nvidia_ml_py_is_asked_the_old_way(driver, monkeypatch):
    driver(Slice("GPU-a"))
    monkeypatch.delattr(Driver, "nvmlMemory_v2")
    assert nvml.Card()().limit_bytes == 80 * GIB


def test_children_are_no_others(driver, tmp_path):
    card = Slice("GPU-a")
    card.processes[4711] = 2 * GIB
    driver(card)
    child(machine(tmp_path), 4711)
    assert nvml.Card(tmp_path)().others_bytes == 13 * GIB


@pytest.mark.parametrize(
    "processes",
    [{1: 3 * GIB}, {}, None, {os.getpid(): None, 1: MIB}],
    ids=["other numbers", "none", "forbidden", "no bytes"],
)
def test_a_list_without_this_process_says_nothing_of_others(driver, processes):
    card = Slice("GPU-a")
    card.processes = processes
    driver(card)
    found = nvml.Card()()
    assert found.others_bytes is None
    assert found.used_bytes == 20 * GIB


# Which card --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [
        (None, "GPU-aa"),
        ("0", "GPU-aa"),
        ("1", "GPU-ab"),
        ("1,0", "GPU-ab"),
        (" 1 , 0", "GPU-ab"),
        ("GPU-ab", "GPU-ab"),
        ("GPU-a", "GPU-aa"),  # cut short, as CUDA takes it
        ("GPU-ab,GPU-aa", "GPU-ab"),
    ],
)
def test_the_first_card_that_cuda_shows_is_read(driver, monkeypatch, visible, uuid):
    driver(Slice("GPU-aa"), Slice("GPU-ab"))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert uuid_of(nvml.Card()()) == uuid


@pytest.mark.parametrize(
    ("visible", "sentence"),
    [
        ("", "CUDA_VISIBLE_DEVICES='' hides every card."),
        ("-1", "CUDA_VISIBLE_DEVICES='-1' hides every card."),
        ("2", "None of the 2 cards that the driver knows is CUDA_VISIBLE_DEVICES='2'."),
        ("GPU-c", "None of the 2 cards that the driver knows is CUDA_VISIBLE_DEVICES='GPU-c'."),
        ("MIG-c", "None of the 2 cards that the driver knows is CUDA_VISIBLE_DEVICES='MIG-c'."),
        ("?", "None of the 2 cards that the driver knows is CUDA_VISIBLE_DEVICES='?'."),
    ],
)
def test_a_card_that_is_hidden_or_not_there(driver, monkeypatch, visible, sentence):
    driver(Slice("GPU-aa"), Slice("GPU-ab"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert nvml.Card()().missing == sentence


def test_a_driver_without_cards(driver):
    driver()
    assert nvml.Card()().missing == "None of the 0 cards that the driver knows is there."


def divided():
    """A card of two instances behind an empty place."""
    parts = [Slice(f"MIG-{name}", used=GIB, total=10 * GIB, reserved=0) for name in "pq"]
    return Slice("GPU-aa", instances=(None, *parts))


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [(None, "MIG-p"), ("0", "MIG-p"), ("GPU-aa", "MIG-p"), ("MIG-q", "MIG-q"), ("1", "GPU-ab")],
)
def test_of_a_divided_card_the_instance_is_read(driver, monkeypatch, visible, uuid):
    driver(divided(), Slice("GPU-ab", instances=()))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = nvml.Card()()
    assert uuid_of(found) == uuid
    assert found.limit_bytes == (10 * GIB if uuid.startswith("MIG") else 80 * GIB - GIB // 2)


# A driver that comes and goes --------------------------------------------------------------------


def test_the_driver_is_started_and_the_card_found_once(driver):
    made = driver(Slice("GPU-a"))
    card = nvml.Card()
    for _ in range(3):
        card()
    assert (made.inits, made.lookups) == (1, 1)


def test_a_forked_process_starts_the_driver_itself(driver, monkeypatch):
    made = driver(Slice("GPU-a"))
    card = nvml.Card()
    card()
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    card()
    assert (made.inits, made.lookups) == (2, 2)


def test_a_driver_that_fails_is_a_value_and_is_asked_again(driver):
    made = driver(Slice("GPU-a"))
    card = nvml.Card()
    made.lost = "Driver Not Loaded"
    assert card().missing == "The driver cannot be asked: Driver Not Loaded."
    made.lost = None
    assert card().used_bytes == 20 * GIB
    made.lost = "GPU is lost"
    assert card().missing == "The driver cannot be asked: GPU is lost."
    made.lost = None
    assert card().used_bytes == 20 * GIB
    assert made.inits == 3


def test_without_nvidia_ml_py(monkeypatch):
    monkeypatch.setattr(nvml, "pynvml", None)
    assert "pip install nvidia-ml-py" in nvml.Card()().missing


@pytest.mark.gpu
def test_a_real_card_sees_what_a_pool_takes():
    code = (
        "from kerasrl_gpu import engine, probes, set_memory_growth\n"
        "set_memory_growth()\n"
        "engine.to_host(engine.zeros((1,), 'float32')[0])\n"
        "def look():\n"
        "    return {one.name: one for one in probes.read(probes.auto())}\n"
        "before = look()\n"
        "held = engine.zeros((2**30,), 'uint8')\n"
        "engine.to_host(held[0])\n"
        "after = look()\n"
        "for name in ('device', 'card'):\n"
        "    print(after[name].used_bytes - before[name].used_bytes, after[name].fraction)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    device, card = ([float(word) for word in line.split()] for line in done.stdout.splitlines())
    assert device[0] == pytest.approx(GIB, rel=0.01)
    assert card[0] >= GIB * 0.9
    assert 0 < device[1] < 1
    assert 0 < card[1] < 1


def test_this_machines_driver_is_asked_without_an_error():
    assert probes.read([nvml.Card()])[0].name == "card"
