"""The background port: work done outside the training thread."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from zeus_core.ports.time_source import TimeSource
from zeus_core.process.sampler import Sampler


class Background(Protocol):
    """Runs actions outside the training thread. These must not raise."""

    def soon(self, action: Callable[[], object]) -> None:
        """Run an action once all earlier ones are done. Returns at once."""
        ...

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
        """Run an action periodically, until the returned function is called."""
        ...


class ThreadBackground:
    """Daemon threads: one for queued actions, which ends with this object, and one for each repeated action."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._actions.put, None).atexit = False

    def soon(self, action: Callable[[], object]) -> None:
        """Run an action once all earlier ones are done."""
        self._actions.put(action)
        if self._thread is None or not self._thread.is_alive():  # as in a forked child
            thread = threading.Thread(target=_run, args=(self._actions,), name="zeus-core background", daemon=True)
            thread.start()
            self._thread = thread

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
        """Run an action periodically, until the returned function is called."""
        sampler = Sampler(action, period_seconds)
        sampler.start()
        return sampler.stop


@runtime_checkable
class RepeatingTime(Protocol):
    """A time source that runs repeated actions itself, such as virtual time."""

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
        """Run an action periodically, until the returned function is called."""
        ...


def repeatedly(time_source: TimeSource, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
    """Run an action periodically in the background, until the returned function is called. It must not raise."""
    if isinstance(time_source, RepeatingTime):
        return time_source.repeatedly(action, period_seconds)
    return ThreadBackground().repeatedly(action, period_seconds)


def _run(actions: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (action := actions.get()) is not None:
        action()
        del action  # it may refer to the owner of this thread
