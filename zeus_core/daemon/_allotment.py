"""The share of the daemon that one user takes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Allotment"]

_BURST_SECONDS = 0.1  # of the requests that a user may make in a second, so many may come at once


class Allotment:
    """The share of the daemon that one user takes: connections, and requests per second. For all threads.

    Args:
        requests_per_second: As many are served on average.
        now: Tells the time in seconds.
    """

    def __init__(self, requests_per_second: int, now: Callable[[], float] = time.monotonic) -> None:
        self.connection_count = 0
        """How many connections the user has."""
        self._request_seconds = 1.0 / requests_per_second
        self._now = now
        self._spent_until = -1e18  # each request moves this on by its share of a second
        self._lock = threading.Lock()

    def add_connections(self, count: int) -> None:
        """Count connections that were opened, or closed, with a count below zero."""
        with self._lock:
            self.connection_count += count

    def spend(self) -> float:
        """Count a request; or return how many seconds it has to wait, after which it is to be counted."""
        with self._lock:
            now = self._now()
            ahead_seconds = self._spent_until - now
            if ahead_seconds > _BURST_SECONDS:
                return ahead_seconds - _BURST_SECONDS
            self._spent_until = (self._spent_until if ahead_seconds > 0.0 else now) + self._request_seconds
            return 0.0
