"""What a callback can know to be wrong before the first step."""

import os

from kerasrl_gpu.errors import ArgumentError


def check_interval(interval, unit: str) -> int:
    """`interval` as an int of at least 1, also from a whole float such as 1e4.

    Raises:
        ArgumentError: it is no whole number, or below 1.
    """
    try:
        whole = int(interval)
        fits = whole == interval and whole >= 1
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ArgumentError(
            f"interval={interval!r} is not a number of {unit}. "
            f"Pass a whole number from 1 upwards, such as interval=10_000."
        )
    return whole


def check_folder(filepath: str) -> None:
    """Raise ArgumentError unless a file can be put at `filepath`.

    Its folder has to be there, and it must not be a folder itself.
    """
    folder = os.path.dirname(filepath) or "."
    if not os.path.isdir(folder):
        raise ArgumentError(
            f"filepath={filepath!r} lies in the folder {folder!r}, which does not exist. "
            f"Make it first: os.makedirs({folder!r}, exist_ok=True)."
        )
    if os.path.isdir(filepath):
        name = os.path.join(filepath, "NAME")
        raise ArgumentError(
            f"filepath={filepath!r} is a folder. Pass a file in it, such as filepath={name!r}."
        )
