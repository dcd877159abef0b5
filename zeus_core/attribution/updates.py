"""The moments at which an energy counter is updated, from few reads of it. Pure.

A read that shows a new value says that an update happened between the begin of the read before and the end of this
one; such a bracket may be as wide as a period. But all brackets hold updates of one grid (`update_grid`), whose times
are soon known within a millisecond, and the energy at each update, a *knot*, is exact: only the division of energy
between two knots is not known.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.attribution.read_plan import GUARD, ReadPlan
from zeus_core.attribution.update_grid import PERIOD_TOLERANCE, Bracket, UpdateGrid

STILL_PERIODS = 1.6
"""A counter that shows the same for longer stands still: no jitter is so large; a driver may skip an update."""

_REMEMBERED_UPDATES = 48  # enough for a period within 0.1 %; a phase that drifts is followed within some seconds
_NARROW_FRACTION = 0.35  # of the period: a bracket that begins a grid
_MAX_JITTER_FRACTION = 0.12  # of the period: beyond, the grid says no more than the brackets alone
_FEW_UPDATES = 8  # by then, the phase is known as well as it will be for a while
_FIT_EVERY = 4  # brackets
_MAX_GAP_READS = 3.0  # the time of so many without a knot: then one that is known less closely is better than none
_EXACT_SECONDS = 1e-6  # as good as none: keeps divisions finite
_MAX_UNCLEAR = 6  # values in succession that cannot be matched with one update


class Knot(NamedTuple):
    """A moment at which the energy is exactly known.

    Attributes:
        at: The moment, as far as it is known.
        half_width_seconds: How far it can be off.
        energy_joules: The counter.
        still_seconds: How long the counter was seen to stand still before it showed that; of a sample of the power, how
            long nothing was read before it.
    """

    at: float
    half_width_seconds: float
    energy_joules: float
    still_seconds: float = 0.0


class _Change(NamedTuple):
    """A value of the counter, and when the update that it is as of happened."""

    low: float
    high: float
    begin: float
    energy_joules: float
    still_seconds: float
    was_seen: bool
    """Whether a read a period before, or less, showed another value."""
    stood_seconds: float = 0.0
    """How long it was shown from then on."""


class CounterUpdates:
    """Follows the updates of one counter.

    Args:
        period_seconds: The nominal time between two updates.
        reads_per_second: How often the counter may be read, about.
        seed: The seed of the times of the reads, which must not be in step with the load.
    """

    is_of_power = False
    uncertainty_joules: float = 0.0

    def __init__(self, period_seconds: float, reads_per_second: float = 16.0, seed: int = 0) -> None:
        self._nominal_seconds = period_seconds
        self._plan = ReadPlan(period_seconds, reads_per_second, seed)
        self._reads_per_second = reads_per_second
        self._grid: UpdateGrid | None = None  # None while it is not known
        self._brackets: deque[Bracket] = deque(maxlen=_REMEMBERED_UPDATES)
        self._unfitted = 0
        self._unclear = 0
        self._is_unclear = False  # of which update the latest change is
        self._known_until = -math.inf  # the moment of the latest knot
        self._last_begin: float | None = None
        self._last_joules = self._earlier_joules = self._shown_since = math.nan
        self._is_same = False
        self._changes: deque[_Change] = deque()
        self._latest_knot: int | None = None
        self._still_seconds = 0.0  # before changes that made no knot

    @property
    def period_seconds(self) -> float:
        """The time between two updates, as far as it is known."""
        return self._nominal_seconds if self._grid is None else self._grid.period_seconds

    @property
    def is_known(self) -> bool:
        """Whether the updates are known more closely than by single reads."""
        return self._grid is not None and len(self._brackets) >= _FEW_UPDATES

    @property
    def half_width_seconds(self) -> float:
        """How far all knots can be off together, in the same direction."""
        if self._grid is None:
            return self.period_seconds / 2
        return self._grid.common_seconds

    def add(self, begin: float, end: float, energy_joules: float) -> None:
        """Note a read of the counter, which was made between two moments."""
        if self._last_begin is not None and begin <= self._last_begin:
            return  # of another thread, which was overtaken
        last_begin, self._last_begin = self._last_begin, begin
        self._is_same = energy_joules == self._last_joules
        if self._is_same:
            self._see_still(begin)
            return
        is_back, is_nonsense = energy_joules < self._last_joules, self._is_nonsense(energy_joules)
        self._earlier_joules, self._last_joules = self._last_joules, energy_joules
        if is_nonsense:  # or the first value after that, which the counter may have shown before: not at an update
            self._shown_since = end
            return
        still_seconds = 0.0 if last_begin is None else last_begin - self._shown_since
        self._shown_since = end
        longest = (1 + PERIOD_TOLERANCE) * self.period_seconds
        was_seen = last_begin is None or last_begin >= begin - longest
        low = begin - longest if last_begin is None else max(last_begin, begin - longest)
        self._changes.append(_Change(low, end, begin, energy_joules, still_seconds, was_seen))
        if last_begin is not None and not is_back:
            self._learn(low, end)

    def _is_nonsense(self, energy_joules: float) -> bool:
        """Whether a value is not of an update since the latest read, as far as the two before it show.

        A counter that has begun again shows the energy at an update once it shows any.
        """
        if energy_joules < self._last_joules:
            return energy_joules == 0 or energy_joules >= self._earlier_joules  # back from nonsense that was too high
        return self._last_joules < self._earlier_joules <= energy_joules  # back from nonsense that was too low

    def _see_still(self, begin: float) -> None:
        """Note that the counter shows the same as before: the latest update is later than it could have been so far."""
        if self._changes:
            self._changes[-1] = self._changes[-1]._replace(stood_seconds=begin - self._shown_since)
        low = begin - (1 + PERIOD_TOLERANCE) * self.period_seconds
        if self._is_unclear and self._changes and self._changes[-1].low < low < self._changes[-1].high:
            self._changes[-1] = change = self._changes[-1]._replace(low=low)
            self._learn(change.low, change.high)

    def knots_before(self, moment: float) -> list[Knot]:
        """Return the knots of the reads before a moment, each once. Later reads make them surer."""
        knots = []
        while self._changes and self._changes[0].begin < moment:
            change = self._changes.popleft()
            self._still_seconds = max(self._still_seconds, change.still_seconds)
            knot = self._knot(change)
            if knot is not None:
                knots.append(knot._replace(still_seconds=self._still_seconds))
                self._still_seconds = 0.0
        return knots

    @property
    def newest(self) -> Knot | None:
        """The latest change, as far as its moment is known; None if `knots_before` has returned it."""
        if not self._changes:
            return None
        change, grid = self._changes[-1], self._grid
        at = (change.low + change.high) / 2
        if grid is not None:
            at = min(max(grid.at(grid.number_near(change.high - grid.period_seconds / 2)), change.low), change.high)
        return Knot(at, self.half_width_seconds, change.energy_joules)

    def next_read_at(self, now: float, changed_at: float) -> float:
        """Return when to read next, given when the load changed last."""
        return self._plan.next_read_at(now, changed_at, self._grid)

    def stands_still(self, now: float, energy_joules: float) -> bool:
        """Whether the counter has shown the same for too long, given what it shows now."""
        longest = (1 + PERIOD_TOLERANCE) * self.period_seconds
        return energy_joules == self._last_joules and now - self._shown_since > longest

    def plan_read(self, now: float, calls: int) -> None:
        """Plan the next read after one that has ended now, and took so many calls of the driver."""
        number = self._brackets[-1].number if self._brackets else 0
        self._plan.follow(now, self._grid, number, self._is_same, calls)

    def _knot(self, change: _Change) -> Knot | None:
        if change.stood_seconds > STILL_PERIODS * self.period_seconds and not change.was_seen:
            return None  # it may have stood still for long when it was first seen
        low, high = change.low, change.high
        if self._grid is not None:
            number = self._number(self._grid, low, high, self._latest_knot)
            is_soon_known = self._changes and high - self._known_until < _MAX_GAP_READS / self._reads_per_second
            if number is None and is_soon_known:
                return None
            self._known_until = high
            if number is not None:
                self._latest_knot = number
                at, reach = self._grid.at(number), self._grid.reach_seconds(number)
                if max(low, at - reach) <= min(high, at + reach):  # else the update was out of step
                    low, high = max(low, at - reach), min(high, at + reach)
        return Knot((low + high) / 2, (high - low) / 2, change.energy_joules)

    def _number(self, grid: UpdateGrid, low: float, high: float, latest: int | None) -> int | None:
        """Return the number of the latest update in a bracket; None if it could be one of two.

        Args:
            grid: The grid.
            low: The begin of the bracket.
            high: The end of the bracket.
            latest: The number of an update that was seen before.
        """
        near = grid.number_near(high)
        reach = GUARD * grid.reach_seconds(near)
        numbers = [number for number in range(near - 2, near + 2) if latest is None or number > latest]
        inside = [number for number in numbers if grid.at(number) - reach <= high and grid.at(number) + reach >= low]
        surely = [number for number in inside if grid.at(number) + reach <= high]
        if surely:
            inside = [number for number in inside if number >= surely[-1]]
        if not inside:
            return min(numbers, key=lambda number: max(low - grid.at(number), grid.at(number) - high), default=None)
        return inside[0] if len(inside) == 1 else None

    def _learn(self, low: float, high: float) -> None:
        self._is_unclear = False
        if self._grid is None:
            if high - low <= _NARROW_FRACTION * self._nominal_seconds:
                self._brackets.clear()
                self._brackets.append(Bracket(0, low, high))
                self._grid = UpdateGrid(self._brackets, self._nominal_seconds)
                self._unclear, self._latest_knot = 0, None
            return
        number = self._number(self._grid, low, high, self._brackets[-1].number)
        self._unclear = 0 if number is not None else self._unclear + 1
        self._is_unclear = number is None
        if number is not None:
            at, slack = self._grid.at(number), self._grid.slack_seconds(number)
            self._brackets.append(Bracket(number, low, high))
            self._unfitted += 1
            if at - slack < low or at + slack > high or self._unfitted >= _FIT_EVERY:  # it rules out some lines
                self._grid = UpdateGrid(self._brackets, self._nominal_seconds, self._grid)
                self._unfitted = 0
        nominal, period = self._nominal_seconds, self._grid.period_seconds
        is_wild = self._grid.jitter_seconds > _MAX_JITTER_FRACTION * nominal
        if self._unclear > _MAX_UNCLEAR or is_wild or abs(period - nominal) > PERIOD_TOLERANCE * nominal:
            self._grid = None


def likely_knots(knots: Sequence[Knot]) -> list[Knot]:
    """Return the likeliest moment of each update within its bracket, by the grid of those around it.

    As far as updates are off their grid, what was seen of each counts.

    Args:
        knots: Updates as they were seen, in order: each somewhere within its half-width. Some may be missing.
    """
    if len(knots) < _FEW_UPDATES or not any(knot.half_width_seconds for knot in knots):
        return list(knots)
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(knots)]
    period = max(statistics.median(gaps), _EXACT_SECONDS)
    numbers = list(itertools.accumulate((max(round(gap / period), 1) for gap in gaps), initial=0))
    brackets = [
        Bracket(number, knot.at - knot.half_width_seconds, knot.at + knot.half_width_seconds)
        for number, knot in zip(numbers, knots, strict=True)
    ]
    likely = []
    for first in range(0, len(knots), _REMEMBERED_UPDATES):
        some = slice(max(min(first, len(knots) - _REMEMBERED_UPDATES), 0), first + _REMEMBERED_UPDATES)
        grid = UpdateGrid(brackets[some], period)
        for number, knot in itertools.islice(zip(numbers, knots, strict=True), first, first + _REMEMBERED_UPDATES):
            width = knot.half_width_seconds
            seen = min(grid.off_seconds / max(width, _EXACT_SECONDS), 1.0)
            at = min(max(grid.at(number), knot.at - width), knot.at + width)
            half_width = min(width, grid.slack_seconds(number) + grid.off_seconds)
            likely.append(knot._replace(at=at + seen * (knot.at - at), half_width_seconds=half_width))
    return likely
