"""A time source whose waits take no real time."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from zeus_core.validate import checked_number


@dataclass(eq=False)
class _Repeated:
    action: Callable[[], object]
    period_seconds: float
    due_seconds: float
    is_running: bool = False  # in some thread


_due_seconds = attrgetter("due_seconds")


class VirtualTime:
    """A `TimeSource` that moves only when someone waits on it or advances it, in any thread.

    Its clock, the source of dates, shows as many seconds since 1970 until it is set.

    Args:
        start_seconds: The time at the beginning.
    """

    def __init__(self, start_seconds: float = 1000.0) -> None:
        self._lock = threading.Lock()
        self._now_seconds = checked_number("start_seconds", start_seconds, -math.inf, math.inf, "a finite number")
        self._repeated: list[_Repeated] = []
        self._clock_ahead_seconds = 0.0

    def now(self) -> float:
        """Return the present virtual time, in seconds."""
        return self._now_seconds

    def clock_seconds(self) -> float:
        """Return what the clock shows, in seconds since 1970 (Unix time)."""
        return self._now_seconds + self._clock_ahead_seconds

    def set_clock(self, seconds: float) -> None:
        """Set the clock, in seconds since 1970, as an administrator may at any moment; time itself goes on."""
        self._clock_ahead_seconds = (
            checked_number("seconds", seconds, -math.inf, math.inf, "seconds since 1970") - self._now_seconds
        )

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once; repeated actions are run on the way."""
        self._advance(seconds, threading.Event())

    def _advance(self, seconds: float, stopped: threading.Event) -> None:
        """Let `seconds` pass at once, or fewer if an action on the way sets an event."""
        until_seconds = self.now() + max(seconds, 0.0)
        while (due := self._take_due(until_seconds)) is not None:
            try:
                due.action()
            finally:
                due.is_running = False
            if stopped.is_set():
                return
        self._move(until_seconds)

    def _take_due(self, until_seconds: float) -> _Repeated | None:
        """Move to the next repeated action before a time, and return it; None if there is none.

        Only one of several threads that let time pass at once gets it. While an action runs in one thread, others pass
        it over: a background thread does not repeat an action either before it has ended.
        """
        with self._lock:
            waiting = [repeated for repeated in self._repeated if not repeated.is_running]
            due = min(waiting, key=_due_seconds, default=None)
            if due is None or due.due_seconds >= until_seconds:
                return None
            self._now_seconds = max(self._now_seconds, due.due_seconds)
            due.due_seconds += due.period_seconds
            due.is_running = True
            return due

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
        """Run an action every `period_seconds` of virtual time, until the returned function is called."""
        repeated = _Repeated(action, period_seconds, self.now() + period_seconds)
        with self._lock:
            self._repeated.append(repeated)

        def stop() -> None:
            with self._lock:
                self._repeated = [other for other in self._repeated if other is not repeated]

        return stop

    def wait(self, event: threading.Event, timeout_seconds: float) -> None:
        """Pass `timeout_seconds` at once, or fewer if `event` is set before or by an action on the way."""
        if not event.is_set():
            self._advance(timeout_seconds, event)

    def sleep(self, seconds: float) -> None:
        """Pass `seconds` at once."""
        self._advance(seconds, threading.Event())

    def _move(self, until_seconds: float) -> None:
        with self._lock:
            self._now_seconds = max(self._now_seconds, until_seconds)


class VirtualBackground:
    """A `Background` in virtual time: queued actions are run at once, and take no time.

    Args:
        time_source: The virtual time.
    """

    def __init__(self, time_source: VirtualTime) -> None:
        self._time_source = time_source

    def soon(self, action: Callable[[], object]) -> None:
        """Run an action at once."""
        action()

    def later(self, action: Callable[[], object], seconds: float) -> None:
        """Run an action after `seconds` of virtual time."""

        def once() -> None:
            stop()
            action()

        stop = self._time_source.repeatedly(once, seconds)

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]:
        """Run an action every `period_seconds` of virtual time, until the returned function is called."""
        return self._time_source.repeatedly(action, period_seconds)
