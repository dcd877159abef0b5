"""When to read a counter whose updates are known, or to be found. Pure.

A read after an update shows the energy at that update, and a read just before the next one shows it too. Where the
counter may be read less often than it is updated, reads are saved for the times when the load changes: one before the
next update and one after it, so that no more than one period lies between the knots around an edge.
"""

from __future__ import annotations

import math
import random

from zeus_core.attribution.update_grid import UpdateGrid

GUARD = 1.3
"""Times the reach of an update: mistaking one for the next is worse than passing over it."""

_WATCH_FRACTION = 1 / 12  # of the period: the time between two reads of the watch that finds the phase
_WATCH_READS = 15  # of one watch: one update at least is among them
_MAX_BURST_READS = 40
_BEYOND_FRACTION = 0.02  # of the period: a jitter of real boards
_SHARP_FRACTION = 0.03  # of the period: updates known less closely are looked for more often
_PAIRS_OF_EACH, _PAIRS_OF_SOME = 0.6, 0.4  # the share that looks for the phase, where each update is read, or some
# Where only some updates are read: the time from one to the next, in reads at the usual rate, 0.12 s. A counter that
# stands still for 0.3 s is then read twice in that time. A third of the reads remains for the edges of parts.
_READS_TO_NEXT = 1.8
_MIN_EDGE_READS = 3  # those allowed, for an edge to get two of them
_EACH_UPDATE = 1.3  # reads for an update, from which on each one is read
_MOST = 1.1  # times the usual rate, for a while
_MARGIN_SECONDS = 1e-3  # a thread wakes no more precisely


class ReadPlan:
    """Plans the reads of one counter.

    Args:
        period_seconds: The nominal time between two updates.
        reads_per_second: How often the counter may be read, about.
        seed: The seed of the times of the reads, which must not be in step with the load.
    """

    def __init__(self, period_seconds: float, reads_per_second: float, seed: int) -> None:
        self._nominal_seconds = period_seconds
        self._random = random.Random(seed)
        self._reads_per_second = reads_per_second
        self._is_watching = True
        self._allowed_at = -math.inf
        self._allowance = float(_MAX_BURST_READS)
        self._planned_at = -math.inf
        self._changed_at = -math.inf  # the change of the load that was planned for last
        self._sought_at: float | None = None  # the time of an update that was looked for just before, or near it

    def next_read_at(self, now: float, changed_at: float, grid: UpdateGrid | None) -> float:
        """Return when to read next: as planned, or just before the update that follows a change of the load.

        Args:
            now: This moment.
            changed_at: When the load changed last.
            grid: The updates; None while they are not known.
        """
        if grid is not None and changed_at > self._changed_at and self._is_sparse(grid):
            self._changed_at = changed_at
            if self._allowance + self._earned(now) >= _MIN_EDGE_READS:
                number = grid.number_near(now)
                number += now >= grid.at(number) - GUARD * grid.reach_seconds(number)  # it may have happened
                before = 2 * grid.at(number) - _after(grid, number)
                self._planned_at, self._sought_at = max(before, now), grid.at(number)
        return self._planned_at

    def follow(self, now: float, grid: UpdateGrid | None, last: int, is_same: bool, calls: int) -> None:
        """Plan the next read after one that has ended now.

        Args:
            now: This moment.
            grid: The updates; None while they are not known.
            last: The number of the latest update that was seen.
            is_same: Whether the read has shown the same as the one before.
            calls: How many calls of the driver it took; more than one where the counter shows nothing new.
        """
        self._allowance = min(self._allowance + self._earned(now), _MAX_BURST_READS) - calls
        self._allowed_at = now
        if calls > 1:
            self._sought_at = None
            self._planned_at = now + calls / self._reads_per_second * self._random.uniform(0.6, 1.4)
            return
        at = self._watch_at(now) if grid is None else max(self._known_at(now, grid, last, is_same), now)
        allowed_at = now + (1 - self._allowance) / (_MOST * self._reads_per_second)
        if at < allowed_at and self._allowance < 1:
            at = allowed_at
            if grid is not None:
                self._sought_at = None  # else a read between two updates would show nothing new
                at = _after(grid, grid.number_near(allowed_at) + 1)
        self._planned_at = at

    def _earned(self, now: float) -> float:
        return _MOST * self._reads_per_second * (now - self._allowed_at)

    def _is_sparse(self, grid: UpdateGrid) -> bool:
        """Whether not each update can be read."""
        return self._reads_per_second * grid.period_seconds <= _EACH_UPDATE

    def _watch_at(self, now: float) -> float:
        if not 1 <= self._allowance < _WATCH_READS:
            self._is_watching = self._allowance >= 1
        if self._is_watching:
            return now + self._nominal_seconds * _WATCH_FRACTION
        return now + self._random.uniform(1.2, 2.8) / self._reads_per_second  # saves up for the next watch

    def _known_at(self, now: float, grid: UpdateGrid, last: int, is_same: bool) -> float:
        period = grid.period_seconds
        sought_at, self._sought_at = self._sought_at, None
        if sought_at is not None and grid.at(last) < sought_at - period / 2:
            at = _after(grid, grid.number_near(sought_at))
            if at > now:
                return at
        number = max(last, math.floor((now - _after(grid, last)) / period) + last)
        if number > last and is_same:  # the counter seems to stand still
            return _after(grid, number + 1)
        is_sparse = self._is_sparse(grid)
        updates = _READS_TO_NEXT / (self._reads_per_second * period) * self._random.uniform(0.75, 1.25)
        skipped = max(1, round(updates)) if is_sparse else 1
        while skipped > 1 and grid.reach_seconds(number + skipped) > period / 4:
            skipped -= 1  # else the update could be taken for another
        number += skipped
        reach = grid.reach_seconds(number)
        pairs = _PAIRS_OF_SOME if is_sparse else _PAIRS_OF_EACH
        if reach < _SHARP_FRACTION * period and self._random.random() >= pairs:
            return _after(grid, number)
        self._sought_at = grid.at(number)
        # Whether it has happened by then shows the phase. Some of these reads look beyond the jitter that is known.
        width = 0.6 * reach if self._random.random() < 0.7 else reach + _BEYOND_FRACTION * period
        return self._sought_at + width * self._random.uniform(-1.0, 1.0)


def _after(grid: UpdateGrid, number: int) -> float:
    """Return when an update has surely happened."""
    return grid.at(number) + GUARD * grid.reach_seconds(number) + _MARGIN_SECONDS
