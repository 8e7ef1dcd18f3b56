"""The card as NVIDIA's driver sees it: everybody's use of it, through nvidia-ml-py."""

from __future__ import annotations

import os
from pathlib import Path

from kerasrl_gpu.probes import host
from kerasrl_gpu.probes.parsing import ROOT
from kerasrl_gpu.probes.readings import Reading, absent

try:
    import pynvml
except ImportError:  # no NVIDIA card is asked then
    pynvml = None

VISIBLE = "CUDA_VISIBLE_DEVICES"


class NoCard(LookupError):
    """There is no card to ask, for the reason that the message says."""


class Card:
    """Probe of the first card that CUDA shows this process, or of its MIG instance.

    What the driver reserves for itself is part of neither number. A number in CUDA_VISIBLE_DEVICES
    is taken in the driver's order, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID, and always
    where the cards are alike.

    Args:
        root: where /proc is looked up for the processes that are ours.
    """

    def __init__(self, root: Path = ROOT):
        self._root, self._handle, self._ready_in = root, None, None

    def __call__(self) -> Reading:
        """What is in use on the card, and what of it is other processes'."""
        source = "NVML"
        if pynvml is None:
            why = "nvidia-ml-py is not installed; `pip install nvidia-ml-py`."
            return absent("card", source, why)
        try:
            handle = self._find()
            source = f"NVML, {_text(pynvml.nvmlDeviceGetName(handle))}"
            used_bytes, limit_bytes = memory(handle)
            ours_bytes = self._ours(handle)
        except NoCard as reason:
            return absent("card", source, str(reason))
        except pynvml.NVMLError as error:
            self._handle = self._ready_in = None  # a driver that was reloaded is asked afresh
            return absent("card", source, f"The driver cannot be asked: {error}.")
        others_bytes = None if ours_bytes is None else max(0, used_bytes - ours_bytes)
        return Reading("card", used_bytes, limit_bytes, source, others_bytes=others_bytes)

    def _find(self):
        """The card's handle, kept from reading to reading: asking for it takes milliseconds."""
        if self._ready_in != os.getpid():  # a fork does not inherit the driver
            pynvml.nvmlInit()
            self._handle, self._ready_in = None, os.getpid()
        if self._handle is None:
            self._handle = find(os.environ.get(VISIBLE))
        return self._handle

    def _ours(self, handle) -> int | None:
        """Bytes of this process and its descendants; None where the list does not name us.

        In a container the driver may list the numbers that processes have outside, or none.
        """
        try:
            listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except pynvml.NVMLError:
            return None
        family = {os.getpid(), *(host.descendants(self._root) or ())}
        ours = [one.usedGpuMemory for one in listed if one.pid in family]
        return sum(ours) if ours and None not in ours else None


def find(visible: str | None):
    """The handle of the first card, or MIG instance, that CUDA shows.

    Args:
        visible: CUDA_VISIBLE_DEVICES: numbers or UUIDs, which may be cut short; None shows all.

    Raises:
        NoCard: there is none, or it is hidden.
        pynvml.NVMLError: the driver does not answer.
    """
    first = "0" if visible is None else visible.split(",")[0].strip()
    if first in ("", "-1", "NoDevFiles"):
        raise NoCard(f"{VISIBLE}={visible!r} hides every card.")
    count = pynvml.nvmlDeviceGetCount()
    if first.isdecimal():
        if int(first) < count:
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(first))
            return next(_instances(handle), handle)
    elif first.startswith("MIG-"):
        for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(count)):
            for instance in _instances(handle):
                if _text(pynvml.nvmlDeviceGetUUID(instance)).startswith(first):
                    return instance
    else:
        for handle in map(pynvml.nvmlDeviceGetHandleByIndex, range(count)):
            if _text(pynvml.nvmlDeviceGetUUID(handle)).startswith(first):
                return next(_instances(handle), handle)
    asked = "is there" if visible is None else f"is {VISIBLE}={visible!r}"
    raise NoCard(f"None of the {count} cards that the driver knows {asked}.")


def memory(handle) -> tuple[int, int]:
    """(used, limit) of a card or an instance, bytes, what the driver reserves left out."""
    try:
        told = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        return told.used, told.total - told.reserved
    except (pynvml.NVMLError, AttributeError):  # an old driver counts it as used
        told = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return told.used, told.total


def _instances(handle):
    """The MIG instances of a card, in CUDA's order; none where it is not divided."""
    try:
        divided = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) if divided else 0
    except pynvml.NVMLError:  # a card that cannot be divided
        return
    for index in range(count):
        try:
            yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError:  # places may stand empty
            continue


def _text(value) -> str:
    """Old releases answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value
