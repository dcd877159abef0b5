"""Hulls of few slopes just below the given ones: a frontier of these takes much less time, and is a lower bound.

The slopes of a coarse hull are multiples of one unit, so the flow of the frontier walk rises by at least that unit, and
there are few breakpoints: some thousands where all measured slopes make a hundred thousand. Between its corners a
coarse hull is the highest of the lines with these slopes that are nowhere above the hull.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import Indices, Numbers

__all__ = ["coarse_hulls"]

_NOISE = 1e-10  # of a time: corners that are closer are one
_LEAST_UNIT = 1e-9  # of the steepest slope: finer units save nothing
_EXACT_LEVELS = 8  # multiples of the unit up to twice this are all slopes; above, one in 2, 4, 8 ... of them


def coarse_hulls(
    hulls: Sequence[Sequence[CostedOption]], counts: Indices, error_joules: float
) -> tuple[list[tuple[CostedOption, ...]], float]:
    """Return hulls from the first to the last time of each, at most so far below all together, and their unit in watts.

    Args:
        hulls: The lower hull of each kind. [kinds]
        counts: The number of instructions of each kind. [kinds]
        error_joules: The largest sum of the differences of all instructions, wherever on its hull each is.
    """
    steepest = max((_slopes(hull).max(initial=0.0) for hull in hulls), default=0.0)
    # A power of two, so that sums of its multiples are exact.
    unit_watts = 2.0 ** math.ceil(math.log2(steepest)) if steepest > 0.0 else 0.0
    while unit_watts > _LEAST_UNIT * steepest:
        found = [_coarse(hull, _levels(unit_watts, steepest)) for hull in hulls]
        if counts @ np.array([_difference(*pair) for pair in zip(hulls, found, strict=True)]) <= error_joules:
            return found, unit_watts
        unit_watts /= 2
    return [tuple(hull) for hull in hulls], 0.0


def _levels(unit_watts: float, steepest: float) -> Numbers:
    """Return the slopes, falling to 0; the first is at least the steepest of the hulls."""
    multiples, step = [0], 1
    while multiples[-1] * unit_watts < steepest:
        step *= 2 if multiples[-1] >= 2 * _EXACT_LEVELS * step else 1
        multiples.append(multiples[-1] + step)
    return unit_watts * np.array(multiples[::-1], np.float64)


def _coarse(hull: Sequence[CostedOption], levels: Numbers) -> tuple[CostedOption, ...]:
    times, costs = _corners(hull)
    slopes = _slopes(hull)
    touched = np.searchsorted(-slopes, -levels, side="right")  # the corner at which a line of each slope touches
    at_zero = costs[touched] + levels * times[touched]
    # Where each line meets the next; lines that touch the same corner meet there.
    meets = np.diff(at_zero) / np.diff(levels)
    is_corner = (meets > times[0]) & (meets < times[-1]) & (np.diff(meets, append=np.inf) > _NOISE * times[-1])
    corners = meets[is_corner], (at_zero[:-1] - levels[:-1] * meets)[is_corner]
    inner = [CostedOption(None, *pair) for pair in zip(*(of.tolist() for of in corners), strict=True)]
    return (hull[0], *inner, hull[-1]) if len(hull) > 1 else tuple(hull)


def _difference(hull: Sequence[CostedOption], coarse: Sequence[CostedOption]) -> float:
    """Return the most that a coarse hull is below a hull: that is at one of its own corners."""
    times, costs = _corners(coarse)
    return float((np.interp(times, *_corners(hull)) - costs).max())


def _corners(hull: Sequence[CostedOption]) -> tuple[Numbers, Numbers]:
    return np.array([corner.time_seconds for corner in hull]), np.array([corner.cost_joules for corner in hull])


def _slopes(hull: Sequence[CostedOption]) -> Numbers:
    """Return the cost saved per time from each corner to the next, falling."""
    times, costs = _corners(hull)
    slopes: Numbers = -np.diff(costs) / np.diff(times)
    return slopes
