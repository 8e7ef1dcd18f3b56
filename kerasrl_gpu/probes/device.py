"""The framework's allocator on the device that pools lie on."""

from __future__ import annotations

from kerasrl_gpu.probes.readings import Reading, absent


def device() -> Reading:
    """Bytes that arrays take on the device, not those that its allocator keeps for later.

    A caching allocator holds on to what it once got, often all of the card from the first second,
    so the driver's figure says nothing about this process; its own allocator does.

    Raises:
        BackendError, ImportError: no backend that this package runs on can be loaded.
    """
    from kerasrl_gpu import engine  # loads the backend

    if engine.on_cpu():
        why = "The device is a CPU, whose memory is the host's."
        return absent("device", engine.device(), why)
    told = engine.device_memory()
    if told is None:
        why = f"{engine.device()} does not say what its allocator holds."
        return absent("device", engine.device(), why)
    limit_bytes, used_bytes, peak_bytes = told
    source = f"the allocator of {engine.NAME} on {engine.device()}"
    return Reading("device", used_bytes, limit_bytes, source, peak_bytes=peak_bytes)
