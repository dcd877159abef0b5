"""The clock port: everything that needs time asks an injected clock."""

import threading
import time
from typing import Protocol

__all__ = ["MonotonicTime", "TimeSource"]


class TimeSource(Protocol):
    """A monotonic source of seconds that can also be waited on.

    `zeus_core.testing.VirtualTime` is the implementation for tests: its waits take no real time.
    """

    def now(self) -> float:
        """Seconds since an arbitrary fixed point; never goes backwards."""
        ...

    def wait(self, event: threading.Event, timeout_seconds: float) -> None:
        """Return once `event` is set or `timeout_seconds` have passed on this clock, whichever comes first."""
        ...


class MonotonicTime:
    """The operating system's monotonic clock, shared by all processes of the machine."""

    def now(self) -> float:
        """Seconds since boot, undisturbed by changes of the wall clock."""
        return time.monotonic()

    def wait(self, event: threading.Event, timeout_seconds: float) -> None:
        """Block the calling thread, releasing the interpreter lock."""
        event.wait(max(timeout_seconds, 0.0))
