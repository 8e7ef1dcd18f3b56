"""How figures are written for people."""

from __future__ import annotations


def human_bytes(nbytes: float, digits: int = 2) -> str:
    """Bytes in the largest unit that gives at least 1: 1536 is "1.50 KiB"."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while round(abs(value), digits) >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} B" if units[0] == "B" else f"{value:,.{digits}f} {units[0]}"
