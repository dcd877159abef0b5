"""A background thread that calls a function periodically."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from zeus_core._process.lock import ProcessLock

__all__ = ["Sampler"]


class Sampler:
    """Calls a function periodically, in real time, in a thread that ends with the process.

    Args:
        sample: The function, which must not raise.
        period_seconds: Time between two calls.
    """

    def __init__(self, sample: Callable[[], object], period_seconds: float) -> None:
        self._sample = sample
        self._period_seconds = period_seconds
        self._stop = threading.Event()
        self._process_id: int | None = None
        self._lock = ProcessLock()

    def start(self) -> None:
        """Begin to sample. Does nothing if the thread runs. A forked child must start its own."""
        with self._lock:
            if self._process_id != os.getpid():
                self._process_id = os.getpid()
                self._stop = threading.Event()
                threading.Thread(target=self._run, args=(self._stop,), name="zeus-core sampler", daemon=True).start()

    def stop(self) -> None:
        """Stop sampling."""
        with self._lock:
            self._stop.set()
            self._process_id = None

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(self._period_seconds):
            self._sample()
