"""The search for the best allocation: branch and bound over the duration of the slowest rank.

A plan is bounded by its work and by its duration. More time makes the work cheaper, never dearer. So no plan whose
slowest rank ends between two times costs less than the cheapest work within the later one, and the rate for the
earlier one. Intervals are split, the one with the lowest bound first, until none can hold a plan that is noticeably
cheaper than the best one known.

For one duration the relaxation leaves some units over. They are spent by dynamic programming over the batches that cost
hardly more than the relaxation says (`_combining.py`): over all devices if they are few, so that the plan is the best
one, and otherwise over some of them, which leaves a gap of a few hundredths of a percent.
"""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeus_core.mixed.allocation._allocation_problem import AllocationProblem, Relaxed
from zeus_core.mixed.allocation._combining import combine, count_costs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]
    _Units = NDArray[np.int64]

_FIRST_INTERVALS = 32
_FIRST_PLANS = 3  # at the most promising of these, so that a bound is enough for most intervals
_MAX_EXACT = 32  # devices; for more it takes over a second to show that a plan is the best one
_EXACT, _CLOSE = 1e-7, 2e-4  # gaps at which the search ends: for few devices, for many
_NEAR, _MAX_LOOKS = 8e-4, 40  # for many, if it has not ended after so many times of combining batches
# Where the gap cannot be closed, the search ends by the CPU seconds that it takes, counted in its steps: so the plan is
# the same on each machine. Least squares over 159 random mixes of 12 to 64 devices of two models on one core
# (2026-11-26); a thousand devices take 2 ms an interval. In 45 such mixes 8 s have found no plan that is 1e-6 cheaper:
# `benchmarks/allocation.py` compares again.
_MAX_SECONDS, _MAX_SECONDS_PER_DEVICE = 0.7, 0.002
_INTERVAL_SECONDS, _INTERVAL_SECONDS_PER_DEVICE = 2.5e-4, 2e-6
_LOOK_SECONDS, _LOOK_SECONDS_PER_COST, _COMBINATION_SECONDS = 6e-4, 6e-9, 5e-8


class Solution(NamedTuple):
    """An allocation.

    Attributes:
        units: The units of each device.
        options: The place of the option of each device.
        bound: No allocation costs less.
    """

    units: _Units
    options: _Units
    bound: float


def solve(problem: AllocationProblem, shortest_seconds: float, longest_seconds: float) -> Solution:
    """Return the best allocation whose slowest rank takes no longer than a time, as far as it was found, and a bound.

    Args:
        problem: The problem.
        shortest_seconds: The shortest possible duration.
        longest_seconds: The longest accepted duration, not below the shortest one.
    """
    search = _Search(problem)
    search.run(shortest_seconds, max(shortest_seconds, min(longest_seconds, problem.longest_seconds)))
    return Solution(search.units, search.options, search.bound)


class _Interval(NamedTuple):
    """Durations above `low`, up to `high`."""

    bound: float
    number: int  # orders intervals with equal bounds
    low: float
    high: float
    relaxed: Relaxed


class _Found(NamedTuple):
    """The result of the search within a duration.

    Attributes:
        is_complete: Whether no plan in the interval is cheaper.
        makespan: When the slowest rank of the plan is done; None if no plan was found.
        work: Its cost without the rate.
    """

    is_complete: bool
    makespan: float | None = None
    work: float = 0.0


class _Search:
    def __init__(self, problem: AllocationProblem) -> None:
        self._problem = problem
        self._is_small = problem.devices <= _MAX_EXACT
        self._interval_seconds = _INTERVAL_SECONDS + _INTERVAL_SECONDS_PER_DEVICE * problem.devices
        self._look_seconds = _LOOK_SECONDS + _LOOK_SECONDS_PER_COST * count_costs(problem)
        self._seconds_remaining = _MAX_SECONDS + _MAX_SECONDS_PER_DEVICE * problem.devices
        self._tolerance = _EXACT if self._is_small else _CLOSE
        self._open: list[_Interval] = []
        self._numbers = 0
        self._looks = 0
        self._least_closed = math.inf  # bound of the intervals that nothing more can be learned of
        self.cost = math.inf
        self.units = self.options = np.zeros(0, np.int64)

    def run(self, shortest: float, longest: float) -> None:
        """Search all durations between two."""
        ends = np.geomspace(shortest, longest, _FIRST_INTERVALS + 1) if longest > shortest else np.array([shortest])
        ends[0], ends[-1] = shortest, longest
        for low, high in zip([shortest, *ends[:-1].tolist()], ends.tolist(), strict=True):
            self._add(low, high, -math.inf)
        promising = sorted(self._open, key=lambda one: one.relaxed.cost + self._problem.rate * one.high)
        for interval in promising[:_FIRST_PLANS]:
            self._look(interval, self._is_small)
        while self._open:
            if self.cost - self.bound <= self._tolerance * self.cost or self._seconds_remaining < 0.0:
                return
            self._narrow(heapq.heappop(self._open))

    @property
    def bound(self) -> float:
        """No allocation costs less."""
        first = self._open[0].bound if self._open else math.inf
        return min(first, self._least_closed, self.cost)

    def _add(self, low: float, high: float, least_work: float) -> None:
        relaxed = self._problem.relaxed(high)
        self._seconds_remaining -= self._interval_seconds
        bound = max(relaxed.cost, least_work) + self._problem.rate * low
        if bound < self.cost:
            self._numbers += 1
            heapq.heappush(self._open, _Interval(bound, self._numbers, low, high, relaxed))

    def _narrow(self, interval: _Interval) -> None:
        """Split an interval, or look for the best plan at its end."""
        bound, _, low, high, _ = interval
        slack = self._problem.rate * (high - low)
        if slack > (self.cost - bound) / 2:
            self._split(interval)
            return
        found = self._look(interval, self._is_small or slack <= self._tolerance * self.cost)
        if found.is_complete:
            earlier = math.nextafter(found.makespan, 0.0) if found.makespan is not None else low
            if earlier > low:
                self._add(low, earlier, found.work)
        elif slack > self._tolerance * self.cost / 2:
            self._split(interval)
        else:
            self._least_closed = min(self._least_closed, bound)

    def _split(self, interval: _Interval) -> None:
        bound, _, low, high, _ = interval
        middle, least_work = low + (high - low) / 2, bound - self._problem.rate * low
        if low < middle < high:
            self._add(low, middle, least_work)
            self._add(middle, high, least_work)
        else:
            self._least_closed = min(self._least_closed, bound)

    def _look(self, interval: _Interval, is_thorough: bool) -> _Found:
        """Look for the best plan that ends within the end of an interval, and keep it if it is the best so far."""
        self._looks += is_thorough
        if self._looks > _MAX_LOOKS and not self._is_small:
            self._tolerance = _NEAR
        spare = self.cost - interval.relaxed.cost - self._problem.rate * interval.low
        combined = combine(self._problem, interval.relaxed, interval.high, spare, is_thorough)
        self._seconds_remaining -= self._look_seconds + _COMBINATION_SECONDS * combined.combinations
        if combined.units is None:
            return _Found(combined.is_complete)
        costs, options = self._problem.best_options(combined.units, interval.high)
        makespan = self._problem.makespan(combined.units, options)
        work = float(costs.sum())
        if work + self._problem.rate * makespan < self.cost:
            self.cost = work + self._problem.rate * makespan
            self.units, self.options = combined.units, options
        return _Found(combined.is_complete, makespan, work)
