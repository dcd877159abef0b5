"""A background thread that reads now and then."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from zeus_core._process.lock import ProcessLock

__all__ = ["Sampler"]


class Sampler:
    """Calls a function every so many seconds of real time, while it is wanted, in a thread that dies with the process.

    Args:
        sample: What to call; it must not raise.
        period_seconds: Time between two calls.
    """

    def __init__(self, sample: Callable[[], object], period_seconds: float) -> None:
        self._sample = sample
        self._period_seconds = period_seconds
        self._stop = threading.Event()
        self._process_id: int | None = None
        self._lock = ProcessLock()

    def start(self) -> None:
        """Sample from now on. Nothing happens if that is so already; a forked child starts a thread of its own."""
        with self._lock:
            if self._process_id != os.getpid():
                self._process_id = os.getpid()
                self._stop = threading.Event()
                threading.Thread(target=self._run, args=(self._stop,), name="zeus-core sampler", daemon=True).start()

    def stop(self) -> None:
        """Sample no more."""
        with self._lock:
            self._stop.set()
            self._process_id = None

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._period_seconds):
            self._sample()
