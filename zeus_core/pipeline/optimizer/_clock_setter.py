"""The clock of one GPU, set in the background and always restored."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Protocol, runtime_checkable

from zeus_core.device import Gpu
from zeus_core.errors import DeviceHeldError, NotSupportedError, PermissionDeniedError
from zeus_core.ports import Background, DeviceEvent, TimeSource
from zeus_core.process.deadline import held
from zeus_core.process.restore_registry import restore_registry
from zeus_core.settings.clock_knob import SmClockKnob
from zeus_core.settings.holders import KnobUser
from zeus_core.settings.restoration import used_by

# Calls of the driver whose median is taken as its latency: a stall in seven of them does not move it.
_RECENT_CALLS = 15
_USER = KnobUser("the PipelineFrequencyOptimizer of this process", lambda: False, compares=True)


@runtime_checkable
class _Delays(Protocol):
    """A background that runs actions later itself, such as in virtual time."""

    def later(self, action: Callable[[], object], seconds: float) -> None: ...


@dataclass(frozen=True)
class _Request:
    """A clock, to be set some time after the GPU reaches a device event. Requests are numbered in their order."""

    number: int
    clock_mhz: int | None
    when: DeviceEvent
    delay_seconds: float

    def seconds_left(self, now: float) -> float | None:
        """Return the time until it is due; None if the GPU has not reached the event."""
        begin_seconds = self.when.seconds()
        return None if begin_seconds is None else begin_seconds + self.delay_seconds - now


class ClockSetter:
    """Sets the clock when the GPU reaches a device event, and calls the driver for changes only.

    The original clock is restored at the latest when the setter is garbage-collected or the process ends.

    Args:
        gpu: The GPU.
        time_source: Times the calls of the driver.
        background: Where the driver is called.
        original_mhz: See `SmClockKnob`.

    Raises:
        UsageError: The GPU does not support `original_mhz`.
        DeviceError: Its clocks cannot be read.
    """

    def __init__(self, gpu: Gpu, time_source: TimeSource, background: Background, original_mhz: int | None) -> None:
        self._knob = used_by(_USER, SmClockKnob(gpu, original_mhz))
        self._name = gpu.name
        self._time_source = time_source
        self._background = background
        self._requests: deque[_Request] = deque()
        self._count = 0  # of requests
        self._latest_served = 0
        self._call_seconds: deque[float] = deque(maxlen=_RECENT_CALLS)
        self._lock = threading.RLock()  # re-entrant for signal handlers
        self._requested_mhz: int | None = None  # None for the original clock
        self._set_mhz: int | None = None
        self.fault: Exception | None = None
        """The error the driver raised in the background; None if there was none."""

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """The clocks that can be set, highest first."""
        return self._knob.settings

    @property
    def latency_seconds(self) -> float:
        """How long the driver takes to set a clock: the median of its recent calls, 0.0 before the first."""
        return median(tuple(self._call_seconds) or (0.0,))

    def set_now(self, clock_mhz: int | None) -> float:
        """Set the clock, or the original one for None, on this thread.

        Returns:
            How long the driver took, in seconds.

        Raises:
            DeviceError: The driver refuses.
        """
        begin_seconds = self._time_source.now()
        self._requests = deque()  # voids all earlier requests, also the one being waited for
        self._requested_mhz = clock_mhz
        self.guard()
        self._set(clock_mhz)
        return self._time_source.now() - begin_seconds

    def request(self, clock_mhz: int | None, when: DeviceEvent, delay_seconds: float = 0.0) -> None:
        """Set the clock in the background.

        Args:
            clock_mhz: The clock; None for the original one.
            when: A point in the work of the GPU.
            delay_seconds: How long after it the driver is called.
        """
        if clock_mhz != self._requested_mhz and self.fault is None:
            self._requested_mhz = clock_mhz
            self._count += 1
            self._requests.append(_Request(self._count, clock_mhz, when, delay_seconds))
            self._background.soon(partial(self._serve, self._requests))

    def guard(self) -> None:
        """Ensure that the clock is restored when the process ends, even if signal handlers have changed since."""
        restore_registry.catch_signals()

    def permission_problem(self) -> str | None:
        """Return why this process cannot set clocks, or None if it can. Tries to set the highest clock.

        Raises:
            DeviceError: The driver refuses for another reason.
        """
        if len(self.clocks_mhz) < 2:
            return f"{self._name} has no SM clocks to choose from"
        try:
            self.set_now(self.clocks_mhz[0])
            self.set_now(None)
        except (PermissionDeniedError, DeviceHeldError, NotSupportedError) as error:
            return str(error)
        return None

    def restore(self) -> bool:
        """Restore the original clock, for good. Never raises; False if the driver refuses: calling again may help."""
        self._requests = deque()
        return self._knob.restore()

    def _serve(self, requests: deque[_Request]) -> None:
        """Runs in the background, once for each request."""
        request = requests.popleft()
        try:
            request.when.wait()
            seconds_left = request.seconds_left(self._time_source.now()) or 0.0
        except Exception as error:  # the device has failed: what was requested for now, such as no clock, is set now
            self.fault = error
            seconds_left = 0.0
            if request.clock_mhz is not None:
                return
        set_clock = partial(self._set_requested, requests, request)
        if seconds_left > 0 and isinstance(self._background, _Delays):
            self._background.later(set_clock, seconds_left)
            return
        if seconds_left > 0:  # at most an instruction: nothing that follows is due earlier
            self._time_source.sleep(seconds_left)
        set_clock()

    def _set_requested(self, requests: deque[_Request], request: _Request) -> None:
        """Set a requested clock, unless it was voided or a later one is due. Runs in the background."""
        try:
            left = requests[0].seconds_left(self._time_source.now()) if requests else None
            is_overtaken = (left is not None and left <= 0) or request.number < self._latest_served
            with self._lock:  # `set_now` cannot void the request in between
                if requests is self._requests and not is_overtaken:
                    self._latest_served = request.number
                    self._set(request.clock_mhz)
        except Exception as error:
            self.fault = error

    def _set(self, clock_mhz: int | None) -> None:
        with held(self._lock):
            if clock_mhz == self._set_mhz:
                return
            begin_seconds = self._time_source.now()
            if clock_mhz is None:
                self._knob.restore_for_now()
            else:
                self._knob.apply(clock_mhz)
            self._set_mhz = clock_mhz
            self._call_seconds.append(self._time_source.now() - begin_seconds)
