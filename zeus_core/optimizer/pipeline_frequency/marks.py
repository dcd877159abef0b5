"""Points in the work of a device, and when the device reached them.

A device runs behind the program that feeds it: only the device knows when an instruction begins and ends. A mark is put
into its queue without waiting, and queried later, from a background thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zeus_core.clock import Clock

__all__ = ["HostMarks", "LostMark", "Mark", "MarkMaker"]


class Mark(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Block the calling thread, and no other, until the device has reached it."""
        ...

    def seconds(self) -> float | None:
        """When the device reached it, in seconds of the monitor's clock; None until then. Never blocks."""
        ...


MarkMaker = Callable[[], Mark]
"""Marks the current point of the calling thread. Never blocks, and never waits for the device."""


class HostMarks:
    """Marks for a synchronous device such as a CPU: each is at the present time.

    Args:
        clock: The monitor's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self) -> Mark:
        """A mark at the present time."""
        return _PastMark(self._clock.now())


class _PastMark:
    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> None:
        pass

    def seconds(self) -> float:
        return self._seconds


class LostMark:
    """A point that could not be marked."""

    def wait(self) -> None:
        """Do not wait."""

    def seconds(self) -> None:
        """Its time is unknown."""
        return
