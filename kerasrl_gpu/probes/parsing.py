"""The files that the kernel answers with. What is missing or unforeseen is None, never an error."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")


def read(path: Path) -> str:
    """The file's text, or nothing where it is missing or may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return ""


def name(pid: int | None) -> str:
    """The folder of a process below /proc; None is this one."""
    return "self" if pid is None else str(pid)


def parse_bytes(text: str) -> int | None:
    """Bytes in a control-group file; None for `max`, an empty file or anything unforeseen."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() else None


def parse_kib(text: str, field: str) -> int | None:
    """Bytes of a line such as `MemTotal:  16384 kB` in /proc/meminfo or /proc/self/status."""
    found = re.search(rf"^{re.escape(field)}:\s*(\d+) kB$", text, re.MULTILINE | re.ASCII)
    return int(found[1]) * 1024 if found else None


def parse_stat(text: str) -> dict[str, int]:
    """The counters of a memory.stat file by name; lines of another form are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {
        pair[0]: value
        for pair in pairs
        if len(pair) == 2 and (value := parse_bytes(pair[1])) is not None
    }
