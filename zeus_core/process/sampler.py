"""A background thread that calls a function periodically."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from zeus_core.process.lock import ProcessLock, process_id


def weakly(method: Callable[[], object]) -> Callable[[], object]:
    """Return a function that calls a method while its object is alive, and does not keep it so: for a thread."""
    alive = weakref.WeakMethod(method)
    return lambda: (method := alive()) and method()


class Sampler:
    """Calls a function periodically in a thread that ends with the process.

    Args:
        sample: The function, which must not raise.
        period_seconds: Time between two calls.
        wait: Waits for an event or a number of seconds, in real time by default.
        name: The name of the thread.
    """

    def __init__(
        self,
        sample: Callable[[], object],
        period_seconds: float,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
        name: str = "zeus-core sampler",
    ) -> None:
        self._sample = sample
        self._period_seconds = period_seconds
        self._wait = wait
        self._name = name
        self._stop = threading.Event()
        self._process_id: int | None = None
        self._lock = ProcessLock()

    @property
    def is_running(self) -> bool:
        """Whether the thread samples in this process."""
        return self._process_id == process_id()

    def start(self) -> None:
        """Begin to sample. Does nothing if the thread runs. A forked child must start its own."""
        with self._lock:
            if not self.is_running:
                # A new event each time: that of a parent process may be locked by a thread that does not exist here.
                self._stop = threading.Event()
                threading.Thread(target=self._run, args=(self._stop,), name=self._name, daemon=True).start()
                self._process_id = process_id()

    def stop(self) -> None:
        """Stop sampling. A call under way ends later; waiting for it could take as long as a driver that hangs."""
        with self._lock:
            if self.is_running:
                self._stop.set()
                self._process_id = None

    def _run(self, stop: threading.Event) -> None:
        self._wait(stop, self._period_seconds)
        while not stop.is_set():
            self._sample()
            self._wait(stop, self._period_seconds)
