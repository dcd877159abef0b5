"""The search for clocks to measure: few, where the curve of energy over time bends, and none too low to save energy.

Rules:

- First, clocks in equal steps down from the highest, as long as some instruction of the pipeline takes less energy at a
  lower clock, or none runs much slower (as where the power limit keeps the GPUs below these clocks).
- Then in wider steps, as long as instructions with time to spare could save more than a small fraction of the cost of
  an iteration: at most what the latest step saved for each second, times the time that their ranks wait.
- Then, between two neighbouring clocks, the one in the middle: where it could improve the curve most, until nowhere it
  could by more than that fraction.

The improvement is bounded: energy over time is convex as far as it matters, so the curve lies below the chord of two
points of its lower hull, and above the lines through them and the next points of the hull.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

# First steps down, as a fraction of the highest clock: coarse enough to reach the lowest useful clock in about five, as
# later clocks go where the curve bends most, and those in between are interpolated.
_STEP_FRACTION = 0.1

# The steps that follow where energy no longer falls: the curve is smooth there.
_WIDE_STEP_FRACTION = 0.2

# The lowest clock they lead to: iterations take 3.3 times as long there. On simulated A100s, 4 ranks and 4 microbatches
# realise 98 % of the best saving with it, 93 % with half of the highest, and 100 % with the lowest: 4 iterations more.
_MIN_CLOCK_FRACTION = 0.3

_MIN_CHANGE_FRACTION = 0.005  # of energy: less may be noise, as energies are measured to 1 %

# Increase of the time, over that by which the clock falls, below which a power limit keeps the GPU below these clocks:
# 0.13 on the measured A40, whose limit holds it at 1455 of 1740 MHz. Work that hardly depends on clocks saves energy.
_LIMITED_FRACTION = 0.25

# Improvement, as a fraction of the cost of an iteration, that is worth another clock: less than the error of energies.
_MIN_GAIN_FRACTION = 0.004


class MeasuredPoint(NamedTuple):
    """Measurement of one kind of instruction of one stage at a clock.

    Attributes:
        time_seconds: Duration.
        energy_joules: Energy.
        cost_joules: Energy above that of waiting as long.
        spare_seconds: How long its rank waits at the highest clocks, for each instruction.
    """

    time_seconds: float
    energy_joules: float
    cost_joules: float
    spare_seconds: float = 0.0


Points = Mapping[object, MeasuredPoint]


class ClockSearch:
    """Proposes clocks, and receives the measurements at them. Deterministic: the same answers give the same proposals.

    Args:
        clocks_mhz: The clocks that all GPUs of the pipelines support.
        max_clocks: The maximum number of clocks to propose, including the highest.
    """

    def __init__(self, clocks_mhz: Sequence[int], max_clocks: int) -> None:
        self._clocks = sorted(clocks_mhz, reverse=True)
        self.max_clocks: int = min(max_clocks, len(self._clocks))
        """The most clocks that are proposed."""
        self._measured: dict[int, Points] = {}

    def ask(self) -> int | None:
        """Return the next clock to measure; None when enough is known."""
        if len(self._measured) >= self.max_clocks:
            return None
        if not self._measured:
            return self._clocks[0]
        return self._next_rung() or self._middle()

    def tell(self, clock_mhz: int, points: Points) -> None:
        """Report the measurements at a clock, by rank, stage and kind; those that failed are left out."""
        self._measured[clock_mhz] = points

    def _next_rung(self) -> int | None:
        lowest = min(self._measured)
        if lowest == self._clocks[-1]:
            return None
        highest = self._clocks[0]
        if len(self._measured) == 1 or self._still_falls():
            return self._nearest(lowest - _STEP_FRACTION * highest, below=lowest)
        least_mhz = _MIN_CLOCK_FRACTION * highest
        if lowest <= least_mhz or not self._saves_below():
            return None
        return self._nearest(max(lowest - _WIDE_STEP_FRACTION * highest, least_mhz), below=lowest)

    def _still_falls(self) -> bool:
        """Return whether some kind took less energy at the lowest clock than at the one before, or none took longer."""
        pairs = self._lowest_pairs()
        saves = any(point.energy_joules < (1 - _MIN_CHANGE_FRACTION) * other.energy_joules for point, other in pairs)
        lowest, before = sorted(self._measured)[:2]
        limit_factor = 1 + _LIMITED_FRACTION * (before / lowest - 1)
        return saves or all(point.time_seconds < limit_factor * other.time_seconds for point, other in pairs)

    def _saves_below(self) -> bool:
        """Return whether instructions with time to spare may save enough below the lowest clock."""
        saved = sum(max(-_slope(other, point), 0.0) * point.spare_seconds for point, other in self._lowest_pairs())
        return saved > _MIN_GAIN_FRACTION * self._whole_joules

    def _lowest_pairs(self) -> list[tuple[MeasuredPoint, MeasuredPoint]]:
        """Return the points of each kind at the lowest clock and at the one before."""
        lowest, before = (self._measured[clock] for clock in sorted(self._measured)[:2])
        return [(point, before[name]) for name, point in lowest.items() if name in before]

    @property
    def _whole_joules(self) -> float:
        return sum(point.cost_joules for point in self._measured[max(self._measured)].values())

    def _middle(self) -> int | None:
        measured = sorted(self._measured, reverse=True)
        gains = dict.fromkeys(pairwise(measured), 0.0)
        for name in self._measured[measured[0]]:
            curve = [(clock, point) for clock in measured if (point := self._measured[clock].get(name)) is not None]
            hull = _lower_hull([point for _, point in curve])
            for (upper, first), (lower, second) in pairwise(curve):
                if (upper, lower) in gains:
                    gains[upper, lower] += _depth(hull, first.time_seconds, second.time_seconds)
        choices = [(gain, self._nearest((upper + lower) / 2, below=upper)) for (upper, lower), gain in gains.items()]
        possible = [(gain, clock) for gain, clock in choices if clock is not None and clock not in self._measured]
        gain, clock = max(possible, default=(0.0, None))
        return clock if gain > _MIN_GAIN_FRACTION * self._whole_joules else None

    def _nearest(self, target_mhz: float, below: int) -> int | None:
        lower = [clock for clock in self._clocks if clock < below]
        return min(lower, key=lambda clock: abs(clock - target_mhz), default=None)


def _lower_hull(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """Return the points of the convex curve below all of them, by time."""
    hull: list[MeasuredPoint] = []
    for point in sorted(points, key=lambda point: (point.time_seconds, point.cost_joules)):
        if hull and point.time_seconds <= hull[-1].time_seconds:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _depth(hull: Sequence[MeasuredPoint], begin_seconds: float, end_seconds: float) -> float:
    """Return how far below its chords a convex curve through a hull can lie, between two times."""
    return max((_depth_below(hull, number, begin_seconds, end_seconds) for number in range(len(hull) - 1)), default=0.0)


def _depth_below(hull: Sequence[MeasuredPoint], number: int, begin_seconds: float, end_seconds: float) -> float:
    """Return the same for the chord from one point of the hull to the next."""
    left, right = hull[number], hull[number + 1]
    chord = _slope(left, right)
    after = _slope(right, hull[number + 2]) if number + 2 < len(hull) else 0.0
    # Nothing is known above the highest clock: assume that the curve bends there as it does below.
    before = _slope(hull[number - 1], left) if number > 0 else 2 * chord - after
    begin, end = max(begin_seconds, left.time_seconds), min(end_seconds, right.time_seconds)
    if begin >= end or not before < chord < after:
        return 0.0
    width = right.time_seconds - left.time_seconds
    meeting = left.time_seconds + (after - chord) / (after - before) * width  # of the lines from both sides
    at = min(max(meeting, begin), end)
    return min((chord - before) * (at - left.time_seconds), (after - chord) * (right.time_seconds - at))


def _slope(first: MeasuredPoint, second: MeasuredPoint) -> float:
    width = second.time_seconds - first.time_seconds
    return (second.cost_joules - first.cost_joules) / width if width > 0 else 0.0
