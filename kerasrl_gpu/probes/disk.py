"""Room where checkpoints go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from kerasrl_gpu.probes.readings import Reading, absent


def disk(path) -> Reading:
    """Bytes in use on the file system of a folder, or of the nearest one above it that exists.

    The limit is what is used and what this user may still take; the share that a file system keeps
    back for its administrator counts as neither.
    """
    folder = Path(os.path.abspath(os.fspath(path)))
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    source = f"the file system of {folder}"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return absent("disk", source, f"It cannot be asked: {error}.")
    return Reading("disk", usage.used, usage.used + usage.free, source)
