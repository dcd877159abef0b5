"""Options: the ways to run an instruction, as measured and as the planner weighs them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.validate import checked_number, shown

MAX_CLOCK_MHZ = 10_000  # above any GPU: such a number is a clock in kHz or Hz
# Sums and slopes of larger numbers, or slopes over shorter times, overflow: a plan would hold infinities and NaN.
MAX_QUANTITY = 1e9  # seconds, joules or watts of one instruction on one GPU
_MIN_SECONDS = 1e-9
_NOISE = 1e-10  # of a time: 10^6 times the rounding of a float, and 10^6 times less than clocks differ by
_STANDARD_ERRORS = 2.0  # about 95 % confidence; fewer keep options that are faster by chance, more drop real ones


@dataclass(frozen=True)
class MeasuredOption:
    """The time and energy of an instruction at one clock, on one GPU.

    Attributes:
        clock_mhz: SM clock; None for work of a fixed kind that runs at any clock.
        time_seconds: Duration, above 0.
        energy_joules: Energy of one GPU over this duration, at least 0.
        time_stderr_seconds: Standard error of `time_seconds`; 0 if unknown.
        energy_stderr_joules: Standard error of `energy_joules`; 0 if unknown.

    Raises:
        UsageError: A number is out of its range, NaN included.
    """

    clock_mhz: int | None
    time_seconds: float
    energy_joules: float
    time_stderr_seconds: float = 0.0
    energy_stderr_joules: float = 0.0

    def __post_init__(self) -> None:
        """Check all values."""
        _check_clock(self.clock_mhz)
        wanted = f"a number of seconds above 0, from {_MIN_SECONDS:g} to {MAX_QUANTITY:g}"
        time_seconds = checked_number("time", self.time_seconds, _MIN_SECONDS, MAX_QUANTITY, wanted)
        object.__setattr__(self, "time_seconds", time_seconds)
        for name in ("energy_joules", "time_stderr_seconds", "energy_stderr_joules"):
            wanted = f"a finite number, at least 0, up to {MAX_QUANTITY:g}"
            object.__setattr__(self, name, checked_number(name, getattr(self, name), 0.0, MAX_QUANTITY, wanted))


def _check_clock(clock_mhz: object) -> None:
    if clock_mhz is None:
        return
    if isinstance(clock_mhz, bool) or not isinstance(clock_mhz, int):
        raise UsageError(
            f"frequency is {shown(clock_mhz)}, a {type(clock_mhz).__name__}; it must be an int, such as 1410"
        )
    if not 0 < clock_mhz < MAX_CLOCK_MHZ:
        raise UsageError(
            f"frequency is {shown(clock_mhz)}; no device supports that: it must be whole MHz, such as 1410"
        )


class CostedOption(NamedTuple):
    """An option as the planner weighs it.

    Attributes:
        clock_mhz: SM clock; None if the clock stays as it is.
        time_seconds: Duration.
        cost_joules: Effective cost: energy above that of blocking as long, summed over the GPUs of the stage.
    """

    clock_mhz: int | None
    time_seconds: float
    cost_joules: float


def pareto_options(cost_joules: Mapping[MeasuredOption, float]) -> tuple[CostedOption, ...]:
    """Return the options that no other option beats in both time and effective cost, the fastest first.

    With standard errors, an option that costs more must be faster by more than two standard errors: a smaller gain may
    be chance. The fastest option as measured is always kept, so that noise does not change the shortest iteration.

    Args:
        cost_joules: The effective cost of each measured option of an instruction.
    """
    cheapest_first = sorted(cost_joules, key=lambda option: (cost_joules[option], option.time_seconds))
    kept = [cheapest_first[0]]
    for option in cheapest_first[1:]:
        stderr_seconds = math.hypot(option.time_stderr_seconds, kept[-1].time_stderr_seconds)
        if option.time_seconds < kept[-1].time_seconds - _STANDARD_ERRORS * stderr_seconds:
            kept.append(option)
    fastest = min(cost_joules, key=lambda option: (option.time_seconds, cost_joules[option]))
    if fastest.time_seconds < kept[-1].time_seconds:
        kept.append(fastest)
    return tuple(CostedOption(option.clock_mhz, option.time_seconds, cost_joules[option]) for option in reversed(kept))


def lower_hull(options: Sequence[CostedOption]) -> tuple[CostedOption, ...]:
    """Return the corners of the lower convex hull of time and cost.

    Times that differ by the noise of floats alone, such as 0.3 and 0.1 + 0.2, count as one: the slope between them says
    nothing, and would leave little precision for the others. The corner then has the time of the faster option and the
    cost of the cheaper one, so that the hull stays below all options.

    Args:
        options: The result of `pareto_options`: times rise, costs fall.

    Returns:
        Some of them, from the fastest to the cheapest; the slopes between neighbours strictly rise towards 0.
    """
    hull: list[CostedOption] = []
    for option in options:
        if hull and option.time_seconds - hull[-1].time_seconds <= _NOISE * option.time_seconds:
            option = option._replace(time_seconds=hull.pop().time_seconds)
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return tuple(hull)


def _slope(first: CostedOption, second: CostedOption) -> float:
    return (second.cost_joules - first.cost_joules) / (second.time_seconds - first.time_seconds)
