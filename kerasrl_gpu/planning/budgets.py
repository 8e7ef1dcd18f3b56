"""A budget as a user writes it, and the bytes that it leaves to a run."""

from __future__ import annotations

import math
import numbers
import re
from fractions import Fraction
from typing import NamedTuple

from kerasrl_gpu.errors import ArgumentError

AUTO = "auto"  # a size that the budget decides

_UNITS = {
    **{"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
    **{"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40},
}
_FITS = "a share such as '70%', an amount such as '6GiB' or '500MB', or a whole number of bytes"


class Budget(NamedTuple):
    """What may be used: one of the two is None.

    Attributes:
        share: of the device's limit, above 0 and at most 1.
        bytes: of this run.
    """

    share: float | None
    bytes: int | None


def parse(budget) -> Budget | None:
    """A budget from text or a number.

    Args:
        budget: "70%", "6GiB", "500MB", a whole number of bytes, or None.

    Returns:
        None for None: no budget.

    Raises:
        ArgumentError: anything else, a share outside 0 to 100 %, nothing or less.
    """
    if budget is None or isinstance(budget, Budget):
        return budget
    if isinstance(budget, str):
        return _of_text(budget)
    if isinstance(budget, bool) or not isinstance(budget, numbers.Integral):
        raise ArgumentError(f"budget={budget!r} is no budget; pass {_FITS}.")
    return Budget(None, _positive(budget, int(budget)))


def available(
    budget: Budget | None, limit_bytes: int | None, used_bytes: int | None, held_bytes: int = 0
) -> int | None:
    """Bytes that a run may take in all, what it holds already included.

    A share means that use of the device may rise to that share of its limit:

        limit * share - used + held

    An amount is this run's own. Neither gets more than is free: limit - used + held.

    Args:
        budget: see `parse`; None spends what is free.
        limit_bytes: of the device, or the smallest limit on the host; None: unknown.
        used_bytes: what counts against that limit now, this run's share included; None: unknown.
        held_bytes: this run's share of it.

    Returns:
        bytes, never below zero; None where neither a limit nor an amount is known.

    Raises:
        ArgumentError: a share of a limit that nobody knows.
    """
    known = limit_bytes is not None and used_bytes is not None
    if budget is not None and budget.share is not None and not known:
        raise ArgumentError(
            f"a budget of {budget.share:.0%} is a share of the device's limit, which it does not "
            "tell; pass an amount, such as '6GiB'."
        )
    if not known:
        return None if budget is None else budget.bytes
    free = limit_bytes - used_bytes + held_bytes
    if budget is None:
        wanted = free
    elif budget.share is not None:
        wanted = math.floor(limit_bytes * budget.share) - used_bytes + held_bytes
    else:
        wanted = budget.bytes
    return max(0, min(wanted, free))


def _of_text(text: str) -> Budget:
    found = re.fullmatch(
        r"\s*([+-]?\d+(?:_\d+)*(?:\.\d+)?)\s*(%|[a-z]*)\s*", text, re.IGNORECASE | re.ASCII
    )
    if found is None:
        raise ArgumentError(f"budget={text!r} is no budget; pass {_FITS}.")
    number, unit = Fraction(found[1].replace("_", "")), found[2].upper()
    if unit == "%":
        if not 0 < number <= 100:
            raise ArgumentError(
                f"budget={text!r}: a share of the device lies above 0 % and at most at 100 %; "
                "pass '70%', say."
            )
        return Budget(float(number / 100), None)
    if unit not in ("", *_UNITS):
        raise ArgumentError(
            f"budget={text!r}: {found[2]!r} is no unit of bytes; pass one of %, B, kB, MB, GB, TB "
            "(thousands), KiB, MiB, GiB, TiB (1,024s)."
        )
    return Budget(None, _positive(text, math.floor(number * _UNITS.get(unit, 1))))


def _positive(given, count: int) -> int:
    if count < 1:
        raise ArgumentError(f"budget={given!r} leaves no byte to the run; pass {_FITS}.")
    if count <= 100:
        raise ArgumentError(
            f"budget={given!r} is {count} B, which nothing fits into; pass '{count}%' or "
            f"'{count}MiB', say."
        )
    return count
