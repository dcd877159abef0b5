"""Calls of a method in the background, each after the seconds that the one before has returned."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from zeus_core.ports import TimeSource
from zeus_core.ports.background import RepeatingTime
from zeus_core.process.sampler import Sampler

MIN_WAIT_SECONDS = 0.0005
"""The shortest time between two calls."""


class RepeatedCall:
    """Calls a method, each time after the seconds that it returns, from `start` until `stop` or its object is gone.

    Args:
        time_source: Times the calls.
        method: The method, which must not raise.
    """

    def __init__(self, time_source: TimeSource, method: weakref.WeakMethod[Callable[[], float]]) -> None:
        self._method = method
        self._wait_seconds = math.inf  # while it is not called
        self._woken = threading.Event()
        self._sampler = Sampler(self._call, 0.0, lambda _stop, _period: self._sleep(), "zeus-core counter")
        self._planned: list[Callable[[], None]] = []  # cancels the next call, in virtual time
        self._repeats = time_source if isinstance(time_source, RepeatingTime) else None

    def start(self) -> None:
        """Begin to call it, if it is not called in this process."""
        if self._repeats is None:
            if not self._sampler.is_running:
                self._wait_seconds, self._woken = 0.0, threading.Event()
                self._sampler.start()
        elif self._wait_seconds == math.inf:
            self._wait_seconds = 0.0
            self._planned.append(self._repeats.repeatedly(self._act, MIN_WAIT_SECONDS))

    def stop(self) -> None:
        """Call it no more. A call under way ends later."""
        self._wait_seconds = math.inf
        self._cancel()
        if self._sampler.is_running:  # else the event may be locked by a thread of a parent process
            self._sampler.stop()
            self._woken.set()

    def wake(self) -> None:
        """Call it at once, and then after the seconds that it returns."""
        if self._sampler.is_running:
            self._woken.set()
        elif self._repeats is not None and self._cancel():
            self._planned.append(self._repeats.repeatedly(self._act, MIN_WAIT_SECONDS))

    def _cancel(self) -> bool:
        """Cancel the next call in virtual time; return whether there was one, as several threads may."""
        with suppress(IndexError):
            self._planned.pop()()
            return True
        return False

    def _call(self) -> None:
        method = self._method()
        if method is None:
            self.stop()
            return
        wait_seconds = method()
        if self._wait_seconds < math.inf:  # else it was stopped meanwhile
            self._wait_seconds = wait_seconds

    def _sleep(self) -> None:
        woken = self._woken  # of this thread: `start` makes another one
        woken.wait(min(self._wait_seconds, 1.0))
        woken.clear()

    def _act(self) -> None:
        if self._repeats is not None and self._cancel():  # else another thread has stopped it meanwhile
            self._call()
            if self._wait_seconds < math.inf:
                self._planned.append(self._repeats.repeatedly(self._act, self._wait_seconds))
