"""The time port: everything that needs the time takes it from an injected `TimeSource`."""

import threading
import time
from typing import Protocol


class TimeSource(Protocol):
    """A monotonic source of seconds that can also be waited on.

    `zeus_core.testing.VirtualTime` is the implementation for tests: its waits take no real time.
    """

    def now(self) -> float:
        """Return the seconds since an arbitrary fixed point; they never go backwards."""
        ...

    def wait(self, event: threading.Event, timeout_seconds: float) -> None:
        """Return once `event` is set or `timeout_seconds` have passed by this time source, whichever comes first."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return once `seconds` have passed by this time source; at once if they are not positive."""
        ...


class MonotonicTime:
    """The operating system's monotonic clock, shared by all processes of the machine."""

    now: "staticmethod[[], float]" = staticmethod(time.monotonic)
    """Return the seconds since an arbitrary point, undisturbed by changes of the wall clock."""

    def wait(self, event: threading.Event, timeout_seconds: float) -> None:
        """Block the calling thread, releasing the interpreter lock."""
        event.wait(max(timeout_seconds, 0.0))

    def sleep(self, seconds: float) -> None:
        """Block the calling thread, releasing the interpreter lock."""
        # Not by an event: Ctrl-C within its wait may end as a RuntimeError ("release unlocked lock").
        time.sleep(max(seconds, 0.0))


def clock_seconds(time_source: TimeSource) -> float:
    """Return the date and time in seconds since 1970 (Unix time), by the clock of the machine unless virtual.

    A clock can be set at any moment, also back: measure durations by `TimeSource.now`.
    """
    return float(getattr(time_source, "clock_seconds", time.time)())  # virtual time has a clock of its own
