"""A clock whose waits take no real time."""

import threading

__all__ = ["VirtualClock"]


class VirtualClock:
    """A `Clock` that moves only when someone waits on it or advances it."""

    def __init__(self, start_seconds: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._now_seconds = start_seconds

    def now(self) -> float:
        """The present virtual time, in seconds."""
        with self._lock:
            return self._now_seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once."""
        with self._lock:
            self._now_seconds += max(seconds, 0.0)

    def wait(self, event: threading.Event, timeout_seconds: float) -> None:
        """Pass `timeout_seconds` at once, or none if `event` is set."""
        if not event.is_set():
            self.advance(timeout_seconds)
