"""A method that is called again and again in the background, each time after the seconds that it has returned."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from zeus_core._process.sampler import Sampler
from zeus_core.ports import TimeSource

__all__ = ["MIN_WAIT_SECONDS", "repeatedly"]

MIN_WAIT_SECONDS = 0.0005
"""The shortest time between two calls."""


def repeatedly(time_source: TimeSource, method: weakref.WeakMethod[Callable[[], float]]) -> Callable[[], None]:
    """Call a method again and again, after the seconds that it returns, until the returned function is called."""

    def call() -> float:
        bound = method()
        return bound() if bound is not None else math.inf

    if isinstance(time_source, _Repeats):
        return _repeatedly_in(time_source, call)
    wait_seconds = 0.0

    def sample() -> None:
        nonlocal wait_seconds
        wait_seconds = call()
        if wait_seconds == math.inf:
            sampler.stop()

    sampler = Sampler(sample, 0.0, lambda stop, _: stop.wait(min(wait_seconds, 1.0)), "zeus-core counter")
    sampler.start()
    return sampler.stop


@runtime_checkable
class _Repeats(Protocol):
    """A time source that runs repeated actions itself, such as virtual time."""

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]: ...


def _repeatedly_in(time_source: _Repeats, call: Callable[[], float]) -> Callable[[], None]:
    stops: list[Callable[[], None]] = []

    def act() -> None:
        if not stops:  # another thread has stopped it meanwhile
            return
        stops.pop()()
        wait_seconds = call()
        if wait_seconds < math.inf:
            stops.append(time_source.repeatedly(act, wait_seconds))

    stops.append(time_source.repeatedly(act, MIN_WAIT_SECONDS))

    def stop() -> None:
        if stops:
            stops.pop()()

    return stop
