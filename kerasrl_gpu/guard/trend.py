"""How fast a reading grows, told from noise and from single steps."""

from __future__ import annotations

import math

_LEAST = 4  # readings; of fewer nothing can be told
_MOST = 32  # that are kept, since every pair of them is compared
_CERTAINTY = 3.0  # standard deviations; noise goes beyond them about once in 700 times


def added(points: tuple, now_s: float, fraction: float, growing_s: float) -> tuple:
    """`points` with one more, without those older than `growing_s`; the last few stay at any age.

    Args:
        points: (seconds, fraction), in the order of time. Those that come too fast are left out.
    """
    if not points or now_s - points[-1][0] >= growing_s / _MOST:
        points = (*points, (now_s, fraction))
    young = sum(now_s - at_s <= growing_s for at_s, _ in points)
    return points[-max(young, _LEAST) :]


def growth(points: tuple, growing_s: float) -> float:
    """How fast the points grow at least, beyond doubt; 0 where that cannot be told.

    The lower confidence limit of the Theil-Sen slope: of noise, and of one step, half of the pairs
    do not grow, and the limit is about 0 or below it; of a ramp it is the ramp's slope.

    Args:
        points: see `added`.
        growing_s: they have to span a third of it: what compiles grows fast, too, and then stops.

    Returns:
        fraction a second.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
    """
    count = len(points)
    if count < _LEAST or points[-1][0] - points[0][0] < growing_s / 3:
        return 0.0
    slopes = sorted(
        (later - earlier) / (end_s - start_s)
        for index, (start_s, earlier) in enumerate(points)
        for end_s, later in points[index + 1 :]
    )
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)  # of Kendall's score
    return slopes[max(0, int((len(slopes) - _CERTAINTY * deviation) / 2))]
