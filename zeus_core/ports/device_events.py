"""The device-events port: points in the work of a device, and when the device reached them.

A device runs behind the program that feeds it: only the device knows when an instruction begins and ends. An event is
put into its queue without waiting, and queried later, from a background thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zeus_core.ports.time_source import TimeSource


class DeviceEvent(Protocol):
    """A point in the work of a device."""

    def wait(self) -> None:
        """Block the calling thread, and no other, until the device has reached it."""
        ...

    def seconds(self) -> float | None:
        """Return when the device reached it, in seconds of the monitor's time source; None until then. Never blocks."""
        ...


DeviceEvents = Callable[[], DeviceEvent]
"""Makes an event at the current point of the calling thread. Never blocks, and never waits for the device."""


class HostEvents:
    """Events of a synchronous device such as a CPU: each is reached at the present time.

    Args:
        time_source: The monitor's time source.
    """

    def __init__(self, time_source: TimeSource) -> None:
        self._time_source = time_source

    def __call__(self) -> DeviceEvent:
        """Make an event at the present time."""
        return _PastEvent(self._time_source.now())


class _PastEvent:
    __slots__ = ("_seconds",)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def wait(self) -> None:
        pass

    def seconds(self) -> float:
        return self._seconds


class LostEvent:
    """A point at which no event could be made."""

    def wait(self) -> None:
        """Do not wait."""

    def seconds(self) -> None:
        """Return None: its time is unknown."""
        return
