"""Which point, and why: the least memory among those that are as good as the fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kerasrl_gpu.errors import ArgumentError
from kerasrl_gpu.tuning.points import Point
from kerasrl_gpu.units import human_bytes

PLATEAU = 0.03  # of the best samples/s; less than that is no difference
_ALIKE = 0.02  # of the largest peak; less than that is no saving
_UNSTEADY = 1.5  # times from p10 to p90


class Reading(NamedTuple):
    """What is known of one point.

    Attributes:
        point: which.
        samples_per_s: the median; None where it was not run.
        p10: 10th percentile, samples/s.
        p90: 90th percentile, samples/s.
        peak_bytes: measured, or the upper bound that kept it from being run.
        skipped: why it cannot be chosen, or None.
    """

    point: Point
    samples_per_s: float | None
    p10: float | None
    p90: float | None
    peak_bytes: int
    skipped: str | None = None


class Choice(NamedTuple):
    """The point that was chosen.

    Attributes:
        point: which.
        reason: a sentence for the user.
        curve: every reading that led to it.
    """

    point: Point
    reason: str
    curve: list[Reading]

    def __str__(self) -> str:
        """The table that `curve.table` makes."""
        from kerasrl_gpu.tuning import curve  # which takes its readings from here

        return curve.text(self)


def choose(readings: Iterable[Reading], plateau: float = PLATEAU) -> Choice:
    """The point with the least peak bytes among those within `plateau` of the most samples/s.

    Peaks that differ by less than 2 % are alike. Of those the smallest batch is taken, and of that
    what is executed most plainly: in the largest parts, and with the most updates in a call.

    Args:
        readings: what was measured and what was skipped.
        plateau: fraction of the best samples/s that counts as no difference.

    Raises:
        ArgumentError: none of them was measured.
    """
    curve = sorted(readings, key=lambda reading: reading.point)
    left = [reading for reading in curve if reading.skipped is None]
    if not left:
        raise ArgumentError(
            f"none of the {len(curve)} points was measured, so there is nothing to choose from; "
            f"raise the budget, or pass smaller points."
        )
    best = max(left, key=lambda reading: reading.samples_per_s)
    level = [each for each in left if each.samples_per_s >= (1 - plateau) * best.samples_per_s]
    alike_bytes = _ALIKE * max(each.peak_bytes for each in level)
    least_bytes = min(each.peak_bytes for each in level) + alike_bytes
    lean = [each.point for each in level if each.peak_bytes <= least_bytes]
    plainest = min(lean, key=lambda point: (point.batch, -point.micro_batch, -point.fused))
    chosen = next(each for each in level if each.point == plainest)
    words = [_verdict(chosen, best, curve, plateau), *_untried(curve), *_doubts(chosen)]
    return Choice(chosen.point, "; ".join(words) + ".", curve)


def name(point: Point, among: Sequence[Point]) -> str:
    """What tells `point` from the others, as arguments: "micro_batch=128, updates_per_call=8".

    The batch is named where it differs between them; it is then computed in one piece.
    """
    free = len({other.batch for other in among}) > 1
    words = [f"batch_size={point.batch}" if free else f"micro_batch={point.micro_batch}"]
    if len({other.fused for other in among}) > 1:
        words.append(f"updates_per_call={point.fused}")
    return ", ".join(words)


def _verdict(chosen, best, curve, plateau) -> str:
    among = [reading.point for reading in curve]
    words = f"{name(chosen.point, among)}: {chosen.samples_per_s:,.0f} samples/s"
    if chosen == best:
        timed = sum(reading.samples_per_s is not None for reading in curve)
        return f"{words}, the best of {timed}" if timed > 1 else f"{words}, the only one tried"
    saved = best.peak_bytes - chosen.peak_bytes
    alike = saved <= _ALIKE * best.peak_bytes
    why = ", which takes as much memory" if alike else f" with {human_bytes(saved)} less"
    return (
        f"{words}, within {100 * plateau:g} % of the best "
        f"({best.samples_per_s:,.0f} at {name(best.point, among)}){why}"
    )


def _doubts(chosen):
    """A clause where the machine was too busy for a difference of a few percent to be seen."""
    varied = chosen.p90 / chosen.p10
    if varied > _UNSTEADY:
        yield f"its samples/s varied by a factor of {varied:.1f}, so tune again on an idle machine"


def _untried(curve):
    """One clause about what did not fit, the smallest of it standing for the rest."""
    untried = [reading for reading in curve if reading.samples_per_s is None]
    if untried:
        first = min(untried, key=lambda reading: (reading.peak_bytes, reading.point))
        # No number of fused updates: what it needs goes by the rows.
        alike = [each.point for each in curve if each.point.fused == first.point.fused]
        label = name(first.point, alike)
        rest = f", nor were {len(untried) - 1} more" if len(untried) > 1 else ""
        yield f"{label} {first.skipped} and was not tried{rest}"
