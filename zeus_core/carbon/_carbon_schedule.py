"""The cheapest way to do some steps until a deadline, for a known course of the intensity or price of electricity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zeus_core.carbon.operating_points import TrainingPoint, lower_hull
from zeus_core.units import kilowatt_hours_from_joules

# The schedule may end before the deadline, which saves idle power. So many ends are tried, and as many near the best.
_ENDS = 12

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SignalInterval:
    """A time in which the signal is expected to stay the same.

    Attributes:
        seconds: Its duration.
        value: The expected value of the signal.
    """

    seconds: float
    value: float


@dataclass(frozen=True)
class WorkSchedule:
    """How fast to train in each interval.

    Attributes:
        steps_per_second: The mean speed in each interval, up to that in which the work ends.
        amount: Emissions, or cost, of all, a pause before the end included.
        is_possible: Whether the steps can be done by the deadline. If not, the schedule is the quickest.
    """

    steps_per_second: tuple[float, ...]
    amount: float
    is_possible: bool


def cheapest_schedule(
    points: Sequence[TrainingPoint], intervals: Sequence[SignalInterval], steps: float
) -> WorkSchedule:
    """Find the schedule that emits or costs least.

    In each interval, going from a point of the hull to the next quicker one buys steps at a price. The cheapest of all
    these offers are taken until the steps are done: this is the optimum, as the offers of an interval become dearer.
    Where a price is below 0, electricity is taken to be free: wasting it is no aim.

    The cost grows as (intervals x points) log (intervals x points), times the number of ends that are tried.

    Args:
        points: At least one that trains.
        intervals: From now to the deadline.
        steps: The steps left, not necessarily whole.
    """
    hull = lower_hull(points)
    seconds = np.array([interval.seconds for interval in intervals], dtype=float)
    values = np.maximum([interval.value for interval in intervals], 0.0) if intervals else np.zeros(0)
    quickest, slowest = hull[-1].steps_per_second, hull[0].steps_per_second
    ends = np.cumsum(seconds)
    first = int(np.searchsorted(ends, steps / quickest * (1 - 1e-12)))
    if first >= len(seconds):
        return WorkSchedule((quickest,) * len(intervals), float("inf"), is_possible=False)
    last = int(np.searchsorted(ends, steps / slowest)) if slowest > 0 else len(seconds)
    last = min(last, len(seconds) - 1)
    offers = _Offers(hull, values)
    schedules: dict[int, WorkSchedule] = {}
    for spacing in (max(1, (last - first) // _ENDS), 1):
        middle = min(schedules, key=lambda end: schedules[end].amount, default=None)
        span = (first, last) if middle is None else (max(first, middle - _ENDS // 2), min(last, middle + _ENDS // 2))
        for end in {*range(span[0], span[1] + 1, spacing), span[1]} - schedules.keys():
            schedules[end] = offers.taken(seconds[: end + 1], steps)
    return min(schedules.values(), key=lambda schedule: schedule.amount)


class _Offers:
    """The prices at which steps can be bought: one for each interval and each point of the hull but the slowest."""

    def __init__(self, hull: Sequence[TrainingPoint], values: _Floats) -> None:
        speeds = np.array([point.steps_per_second for point in hull])
        watts = np.array([point.power_watts for point in hull])
        self._slowest_speed, self._slowest_watts = speeds[0], watts[0]
        self._speeds = np.diff(speeds)
        self._values = values
        self._prices = np.multiply.outer(values, np.diff(watts) / self._speeds)  # (intervals, points - 1)

    def taken(self, seconds: _Floats, steps: float) -> WorkSchedule:
        """Take the cheapest offers of the first intervals, which last so long."""
        count = len(seconds)
        values, prices = self._values[:count], self._prices[:count].ravel()
        order = np.argsort(prices, kind="stable")  # of equal prices the earlier one: what is done is done
        offered = np.multiply.outer(seconds, self._speeds).ravel()
        wanted = steps - float(self._slowest_speed * seconds.sum())
        if wanted <= 0:  # the work ends before the last interval does, at the slowest point
            seconds = _cut(seconds, steps / self._slowest_speed)
            bought = np.zeros_like(offered)
        else:
            before = np.concatenate(([0.0], np.cumsum(offered[order])))[:-1]
            bought = np.zeros_like(offered)
            bought[order] = np.clip(wanted - before, 0.0, offered[order])
        amount = float(values @ seconds) * self._slowest_watts + float(bought @ prices)
        per_interval = bought.reshape(count, len(self._speeds)).sum(axis=1)
        speeds = self._slowest_speed + np.divide(per_interval, seconds, out=np.zeros(count), where=seconds > 0)
        speeds_of_all = tuple(float(speed) for speed in speeds)
        return WorkSchedule(speeds_of_all, kilowatt_hours_from_joules(amount), is_possible=True)


def _cut(seconds: _Floats, total: float) -> _Floats:
    """Shorten the last intervals so that all together last no longer than a total."""
    before = np.concatenate(([0.0], np.cumsum(seconds)))[:-1]
    cut: _Floats = np.clip(total - before, 0.0, seconds)
    return cut
