"""The address space, where `ulimit -v` or a batch system limits it."""

from __future__ import annotations

from pathlib import Path

from kerasrl_gpu.probes.parsing import ROOT, parse_kib, read
from kerasrl_gpu.probes.readings import Reading, absent

try:
    import resource
except ImportError:  # Windows has none
    resource = None


def address_space(root: Path = ROOT) -> Reading:
    """Mapped addresses of this process against RLIMIT_AS; an allocation beyond it fails at once."""
    source = "RLIMIT_AS; use: VmSize in /proc/self/status"
    limit = None if resource is None else resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit is None or limit == resource.RLIM_INFINITY:
        return absent("address space", source, "The address space is not limited.")
    status = read(root / "proc/self/status")
    used_bytes, peak_bytes = parse_kib(status, "VmSize"), parse_kib(status, "VmPeak")
    if used_bytes is None:
        return absent("address space", source, "/proc/self/status does not say what is mapped.")
    return Reading("address space", used_bytes, limit, source, peak_bytes=peak_bytes)
