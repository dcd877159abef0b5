"""The options of an instruction at clocks between those it was measured at. Pure.

A dozen clocks are measured of some eighty, and each gap costs a plan: an instruction with a little time to spare stays
at the higher clock. Time and power are smooth between two clocks: the time of work that depends on the clock is
proportional to its inverse, and the power to a power of it.

Where that does not hold, such as where a limit takes the clock down, a point that was measured is not on the curve
through its neighbours. Gaps next to such a point stay empty, and nothing is extrapolated.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from zeus_core.pipeline.planner.clock_options import MeasuredOption

# How far a measured time, and power, may be from the curve through its neighbours, as a fraction of it. Inside a gap a
# time is then right to 0.75 %, less than the 2 % of an iteration that are tolerated. Powers bend more, and matter less.
_MAX_TIME_DEVIATION = 0.03
_MAX_POWER_DEVIATION = 0.08

# Error inside a gap over that of the curve across two gaps at the point between them: it grows with the square of the
# width. At a kink, where a power limit begins, it is larger, and promises too little: times and energies are too high.
_GAP_ERROR_FACTOR = 0.25


def interpolated(options: Sequence[MeasuredOption], clocks_mhz: Sequence[int]) -> tuple[MeasuredOption, ...]:
    """Add options at the clocks between those of some measured options.

    Args:
        options: The options, the highest clock first.
        clocks_mhz: The clocks that can be set, highest first.

    Returns:
        All options, the highest clock first. The standard errors of those that are added hold the errors of their
        neighbours, and that of the curve.
    """
    if len(options) < 3:
        return tuple(options)
    none = _Deviation(0.0, 0.0)
    deviations = [none, *(_deviation(*options[first : first + 3]) for first in range(len(options) - 2)), none]
    rising = [-clock_mhz for clock_mhz in clocks_mhz]
    filled: list[MeasuredOption] = []
    for (upper, lower), (above, below) in zip(pairwise(options), pairwise(deviations), strict=True):
        filled.append(upper)
        deviation = _Deviation(max(above.time, below.time), max(above.power, below.power))
        if deviation.is_small:
            inside = clocks_mhz[bisect_right(rising, -_clock(upper)) : bisect_left(rising, -_clock(lower))]
            filled += [_between(upper, lower, clock_mhz, deviation) for clock_mhz in inside]
    return (*filled, options[-1])


class _Deviation(NamedTuple):
    """How far an option is from the curve through its neighbours, as fractions of its time and power."""

    time: float
    power: float

    @property
    def is_small(self) -> bool:
        return self.time <= _MAX_TIME_DEVIATION and self.power <= _MAX_POWER_DEVIATION


def _deviation(upper: MeasuredOption, option: MeasuredOption, lower: MeasuredOption) -> _Deviation:
    if min(upper.energy_joules, option.energy_joules, lower.energy_joules) <= 0:
        return _Deviation(math.inf, math.inf)
    expected = _between(upper, lower, _clock(option), _Deviation(0.0, 0.0))
    return _Deviation(abs(expected.time_seconds / option.time_seconds - 1), abs(_watts(expected) / _watts(option) - 1))


def _between(upper: MeasuredOption, lower: MeasuredOption, clock_mhz: int, deviation: _Deviation) -> MeasuredOption:
    """Return the option at a clock between two others."""
    highest, lowest = _clock(upper), _clock(lower)
    share = (1 / clock_mhz - 1 / highest) / (1 / lowest - 1 / highest)
    seconds = (1 - share) * upper.time_seconds + share * lower.time_seconds
    power_share = math.log(clock_mhz / highest) / math.log(lowest / highest)
    joules = seconds * _watts(upper) ** (1 - power_share) * _watts(lower) ** power_share
    time_error, power_error = _GAP_ERROR_FACTOR * deviation.time, _GAP_ERROR_FACTOR * deviation.power
    return MeasuredOption(
        clock_mhz,
        seconds,
        joules,
        math.hypot(max(upper.time_stderr_seconds, lower.time_stderr_seconds), time_error * seconds),
        math.hypot(max(upper.energy_stderr_joules, lower.energy_stderr_joules), (time_error + power_error) * joules),
    )


def _watts(option: MeasuredOption) -> float:
    return option.energy_joules / option.time_seconds


def _clock(option: MeasuredOption) -> int:
    assert option.clock_mhz is not None  # of a computation, as a profile checks
    return option.clock_mhz
