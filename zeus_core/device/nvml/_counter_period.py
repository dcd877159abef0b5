"""The update period of an energy counter, measured by watching the counter for a moment.

Drivers do not report it, and it differs between products: 20 ms on V100, mostly 100 ms on later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from threading import Event

from zeus_core.ports.time_source import MonotonicTime, TimeSource

_MAX_WATCH_SECONDS = 0.25  # two updates of the slowest known counter (100 ms); more would delay the first window
_POLL_SECONDS = 0.001  # a twentieth of the shortest known period; a reading takes 0.05 ms or more
_ENOUGH_UPDATES = 7  # the error of two edges, 2 ms, over six periods of 20 ms is 2 %
_NOMINAL_SECONDS = (0.01, 0.02, 0.025, 0.05, 0.1, 0.2)  # a measurement near one of these is taken for it
_NEAR_FRACTION = 0.15  # covers polling errors, and keeps 20 and 25 ms apart


def watch_counter_period_seconds(
    read_counter_joules: Callable[[], float], time_source: TimeSource | None = None
) -> float | None:
    """Measure the time between two updates of a counter; None if it is not updated twice in a quarter of a second.

    Args:
        read_counter_joules: Reads the counter. Its errors are passed on.
        time_source: Source of the times of the readings; real time by default.
    """
    time_source = time_source or MonotonicTime()
    begin, latest_joules = time_source.now(), read_counter_joules()
    updates_at: list[float] = []
    while len(updates_at) < _ENOUGH_UPDATES and time_source.now() - begin < _MAX_WATCH_SECONDS:
        time_source.wait(Event(), _POLL_SECONDS)
        counter_joules = read_counter_joules()
        if counter_joules != latest_joules:
            latest_joules = counter_joules
            updates_at.append(time_source.now())
    if len(updates_at) < 2:
        return None
    # A busy machine may let an update pass between two polls: an interval of two periods is none of one.
    intervals_seconds = sorted(later - earlier for earlier, later in pairwise(updates_at))
    median_seconds = intervals_seconds[(len(intervals_seconds) - 1) // 2]
    single_seconds = [seconds for seconds in intervals_seconds if seconds < 1.5 * median_seconds]
    return _nominal(sum(single_seconds) / len(single_seconds))


def _nominal(seconds: float) -> float:
    nearest = min(_NOMINAL_SECONDS, key=lambda nominal: abs(nominal - seconds))
    return nearest if abs(nearest - seconds) <= _NEAR_FRACTION * nearest else seconds
