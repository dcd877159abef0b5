"""The search for clocks to measure: few, where the curve of energy over time bends, and none too low to save energy.

Rules:

- First, clocks in equal steps down from the highest, as long as some instruction of the pipeline takes less energy at a
  lower clock, or none runs slower (as where the power limit keeps the GPUs below these clocks). A wider step follows,
  for instructions with time to spare: they save no more than the power of waiting, which is little, and smooth.
- Then, between two neighbouring clocks, the one in the middle: where it could improve the curve most, until nowhere it
  could by more than a small fraction of the cost of an iteration.

That improvement is bounded: energy over time is convex as far as it matters, so the curve lies below the chord of two
neighbours, and above the lines through them and their own neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["ClockSearch", "MeasuredPoint"]

# First steps down, as a fraction of the highest clock: coarse enough to reach the lowest useful clock in about six, as
# later clocks go where the curve bends most.
_STEP_FRACTION = 0.07

# The step that follows where energy no longer falls, and how many of them: instructions with time to spare may use such
# clocks, but save little there.
_WIDE_STEP_FRACTION = 0.15
_MAX_WIDE_STEPS = 1

_MIN_CHANGE_FRACTION = 0.005  # of energy, or of time: less may be noise, as energies are measured to 1 %

# Improvement, as a fraction of the cost of an iteration, that is worth another clock: less than the error of energies.
_MIN_GAIN_FRACTION = 0.004


class MeasuredPoint(NamedTuple):
    """Measurement of one kind of instruction of one stage at a clock.

    Attributes:
        time_seconds: Duration.
        energy_joules: Energy.
        cost_joules: Energy above that of waiting as long.
    """

    time_seconds: float
    energy_joules: float
    cost_joules: float


Points = Mapping[object, MeasuredPoint]


class ClockSearch:
    """Proposes clocks, and receives the measurements at them. Deterministic: the same answers give the same proposals.

    Args:
        clocks_mhz: The clocks that all GPUs of the pipelines support.
        max_clocks: The maximum number of clocks to propose, including the highest.
    """

    def __init__(self, clocks_mhz: Sequence[int], max_clocks: int) -> None:
        self._clocks = sorted(clocks_mhz, reverse=True)
        self._max_clocks = max_clocks
        self._measured: dict[int, Points] = {}
        self._wide_steps_left = _MAX_WIDE_STEPS

    def ask(self) -> int | None:
        """Return the next clock to measure; None when enough is known."""
        if len(self._measured) >= min(self._max_clocks, len(self._clocks)):
            return None
        if not self._measured:
            return self._clocks[0]
        return self._next_rung() or self._middle()

    def tell(self, clock_mhz: int, points: Points) -> None:
        """Report the measurements at a clock, by rank, stage and kind; those that failed are left out."""
        if len(self._measured) > 1 and clock_mhz < min(self._measured) and not self._still_falls():
            self._wide_steps_left -= 1
        self._measured[clock_mhz] = points

    def _next_rung(self) -> int | None:
        lowest = min(self._measured)
        if lowest == self._clocks[-1]:
            return None
        step = _STEP_FRACTION
        if len(self._measured) > 1 and not self._still_falls():
            if self._wide_steps_left == 0:
                return None
            step = _WIDE_STEP_FRACTION
        return self._nearest(lowest - step * self._clocks[0], below=lowest)

    def _still_falls(self) -> bool:
        """Return whether some kind took less energy at the lowest clock than at the one before, or none took longer."""
        lowest, before = (self._measured[clock] for clock in sorted(self._measured)[:2])
        pairs = [(point, before[name]) for name, point in lowest.items() if name in before]
        saves = any(point.energy_joules < (1 - _MIN_CHANGE_FRACTION) * other.energy_joules for point, other in pairs)
        return saves or all(
            point.time_seconds < (1 + _MIN_CHANGE_FRACTION) * other.time_seconds for point, other in pairs
        )

    def _middle(self) -> int | None:
        measured = sorted(self._measured, reverse=True)
        whole = sum(point.cost_joules for point in self._measured[measured[0]].values())
        gains = [
            (self._max_gain(measured, number), self._nearest((upper + lower) / 2, below=upper))
            for number, (upper, lower) in enumerate(pairwise(measured))
        ]
        possible = [(gain, clock) for gain, clock in gains if clock is not None and clock not in self._measured]
        gain, clock = max(possible, default=(0.0, None))
        return clock if gain > _MIN_GAIN_FRACTION * whole else None

    def _max_gain(self, measured: Sequence[int], number: int) -> float:
        """Return by how many joules costs between two neighbours can lie below their chord, over all kinds."""
        around = [self._measured[clock] for clock in measured[max(number - 1, 0) : number + 3]]
        position = min(number, 1)
        names = [name for name in around[0] if all(name in points for points in around)]
        return sum(_depth([points[name] for points in around], position) for name in names)

    def _nearest(self, target_mhz: float, below: int) -> int | None:
        lower = [clock for clock in self._clocks if clock < below]
        return min(lower, key=lambda clock: abs(clock - target_mhz), default=None)


def _depth(points: Sequence[MeasuredPoint], position: int) -> float:
    """Return how far below the chord from `position` to the next point a convex curve through all points can lie."""
    left, right = points[position], points[position + 1]
    width = right.time_seconds - left.time_seconds
    if width <= 0:
        return 0.0
    chord = (right.cost_joules - left.cost_joules) / width
    after = _slope(right, points[position + 2]) if position + 2 < len(points) else 0.0
    # Nothing is known above the highest clock: assume that the curve bends there as it does below.
    before = _slope(points[position - 1], left) if position > 0 else 2 * chord - after
    if not before < chord < after:
        return 0.0
    # Where the lines from both sides meet.
    share = (after - chord) / (after - before)
    return (chord - before) * share * width


def _slope(first: MeasuredPoint, second: MeasuredPoint) -> float:
    width = second.time_seconds - first.time_seconds
    return (second.cost_joules - first.cost_joules) / width if width > 0 else 0.0
