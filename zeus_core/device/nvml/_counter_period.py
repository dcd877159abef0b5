"""How often an energy counter steps, found out by watching it for a moment.

Drivers do not tell, and it differs between products: 20 ms on V100, mostly 100 ms later.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["watch_counter_period_seconds"]

_LONGEST_WATCH_SECONDS = 0.25
_POLL_SECONDS = 0.001
_ENOUGH_STEPS = 7
_NOMINAL_SECONDS = (0.01, 0.02, 0.025, 0.05, 0.1, 0.2)
_NEAR = 0.15  # relatively: what polling leaves unsure


def watch_counter_period_seconds(read_counter_joules: Callable[[], float]) -> float | None:
    """The time between two steps of a counter; None if it does not step twice within a quarter of a second.

    Args:
        read_counter_joules: Reads the counter; what it raises is passed on.
    """
    begin, latest_joules = time.monotonic(), read_counter_joules()
    steps_at: list[float] = []
    while len(steps_at) < _ENOUGH_STEPS and time.monotonic() - begin < _LONGEST_WATCH_SECONDS:
        time.sleep(_POLL_SECONDS)
        counter_joules = read_counter_joules()
        if counter_joules != latest_joules:
            latest_joules = counter_joules
            steps_at.append(time.monotonic())
    if len(steps_at) < 2:
        return None
    return _nominal((steps_at[-1] - steps_at[0]) / (len(steps_at) - 1))


def _nominal(seconds: float) -> float:
    nearest = min(_NOMINAL_SECONDS, key=lambda nominal: abs(nominal - seconds))
    return nearest if abs(nearest - seconds) <= _NEAR * nearest else seconds
