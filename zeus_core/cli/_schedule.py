"""The schedule of the lines that a command prints."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

from zeus_core.ports import TimeSource

__all__ = ["ticks"]


def ticks(
    time_source: TimeSource, period_seconds: float, first: int = 0, duration_seconds: float = math.inf
) -> Iterator[float]:
    """Wait for each multiple of the period, and yield the seconds since the beginning, which is now.

    The schedule does not drift: work between two ticks does not delay the next one. A tick whose time passes during
    such work is left out.

    Args:
        time_source: Tells the time and waits.
        period_seconds: The time between two ticks.
        first: The multiple to begin with; with 0, the first tick is now.
        duration_seconds: The time of the last tick.
    """
    begin, never, position = time_source.now(), threading.Event(), first
    is_over = False
    while not is_over:
        due_seconds = min(position * period_seconds, duration_seconds)
        is_over = due_seconds == duration_seconds
        time_source.wait(never, begin + due_seconds - time_source.now())
        yield time_source.now() - begin
        position = max(position, math.floor((time_source.now() - begin) / period_seconds)) + 1
