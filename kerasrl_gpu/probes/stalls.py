"""Time that is lost waiting for memory: the kernel's pressure stall information."""

from __future__ import annotations

import re
from pathlib import Path

from kerasrl_gpu.probes import groups
from kerasrl_gpu.probes.parsing import ROOT, read
from kerasrl_gpu.probes.readings import Reading, absent

MACHINE = "proc/pressure/memory"


def stalls(root: Path = ROOT) -> Reading:
    """Share of the last 10 s in which everything in this process's group waited for memory.

    Where no group tells, the machine's: all that is not idle waits then, this process with it, so
    neighbours alone cannot raise it while this process computes.
    """
    files = [folder / "memory.pressure" for version, folder in groups.folders(root) if version == 2]
    for file in [*files[:1], root / MACHINE]:
        share = parse_pressure(read(file))
        if share is not None:
            return Reading("stalls", None, None, f"/{file.relative_to(root)}", share=share)
    return absent("stalls", f"/{MACHINE}", "The kernel does not measure who waits for memory.")


def parse_pressure(text: str) -> float | None:
    """`avg10` of the line `full avg10=1.50 avg60=...`, as a share; None where there is none."""
    found = re.search(r"^full avg10=(\d+(?:\.\d+)?) ", text, re.MULTILINE | re.ASCII)
    return float(found[1]) / 100 if found else None
