"""Points in the work of a device, and when it came to them.

A device runs behind the program that feeds it: when an instruction begins and ends is known to the device alone. A mark
is put into its queue of work without waiting, and asked later, from a background thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zeus_core.clock import Clock

__all__ = ["HostMarks", "LostMark", "Mark", "MarkMaker"]


class Mark(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Block the calling thread, not the others, until the device has come to it."""
        ...

    def seconds(self) -> float | None:
        """When the device came to it, in seconds of the monitor's clock; None until then. Never blocks."""
        ...


MarkMaker = Callable[[], Mark]
"""Marks the point the calling thread has come to. Never blocks, and never waits for the device."""


class HostMarks:
    """Marks of a device that does its work while it is told to, as a CPU does: each is of the present time.

    Args:
        clock: The monitor's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __call__(self) -> Mark:
        """A mark of the present time."""
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
        """It is not known when that was."""
        return
