"""The clock of one GPU, set in the background and always restored."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial

from zeus_core._process.restore import restore_registry
from zeus_core.device import Gpu
from zeus_core.errors import DeviceHeldError, NotSupportedError, PermissionDeniedError
from zeus_core.knobs import SmClockKnob
from zeus_core.ports import Background, DeviceEvent, TimeSource

__all__ = ["ClockSetter"]


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
        self._knob = SmClockKnob(gpu, original_mhz)
        self._name = gpu.name
        self._time_source = time_source
        self._background = background
        self._requests: deque[tuple[int | None, DeviceEvent]] = deque()
        self._lock = threading.RLock()  # re-entrant for signal handlers
        self._requested_mhz: int | None = None  # None for the original clock
        self._set_mhz: int | None = None
        self.fault: Exception | None = None
        """The error the driver raised in the background; None if there was none."""

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """The clocks that can be set, highest first."""
        return self._knob.settings

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

    def request(self, clock_mhz: int | None, when: DeviceEvent) -> None:
        """Set the clock, or the original one for None, in the background, once the GPU reaches a device event."""
        if clock_mhz != self._requested_mhz and self.fault is None:
            self._requested_mhz = clock_mhz
            self._requests.append((clock_mhz, when))
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

    def _serve(self, requests: deque[tuple[int | None, DeviceEvent]]) -> None:
        """Runs in the background, once for each request."""
        clock_mhz, when = requests.popleft()
        try:
            when.wait()
            is_overtaken = bool(requests) and requests[0][1].seconds() is not None
            with self._lock:  # `set_now` cannot void the request in between
                if requests is self._requests and not is_overtaken:
                    self._set(clock_mhz)
        except Exception as error:
            self.fault = error

    def _set(self, clock_mhz: int | None) -> None:
        with self._lock:
            if clock_mhz == self._set_mhz:
                return
            if clock_mhz is None:
                self._knob.restore_for_now()
            else:
                self._knob.apply(clock_mhz)
            self._set_mhz = clock_mhz
