"""The clock of one GPU, set beside training and put back in any case."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from functools import partial

from zeus_core.clock import Clock
from zeus_core.device import Gpu
from zeus_core.errors import NotSupportedError, PermissionDeniedError
from zeus_core.exit_guard import ExitGuard
from zeus_core.knobs import ClockKnob
from zeus_core.optimizer.pipeline_frequency.background import Background
from zeus_core.optimizer.pipeline_frequency.marks import Mark

__all__ = ["ClockSetter"]


class ClockSetter:
    """Sets the clock when the GPU has come to a mark, and calls the driver for changes only.

    What was found is put back at the latest when nobody holds the setter any more, or the process ends.

    Args:
        gpu: The GPU.
        clock: Times the driver.
        background: Where the driver is called.
        found_mhz: See `ClockKnob`.

    Raises:
        UsageError: The GPU does not support `found_mhz`.
        DeviceError: Its clocks cannot be read.
    """

    def __init__(self, gpu: Gpu, clock: Clock, background: Background, found_mhz: int | None) -> None:
        self._knob = ClockKnob(gpu, found_mhz)
        self._name = gpu.name
        self._clock = clock
        self._background = background
        self._guard = ExitGuard(self._knob.restore)
        weakref.finalize(self, self._knob.restore)
        self._requests: deque[tuple[int | None, Mark]] = deque()
        self._lock = threading.RLock()  # re-entrant for signal handlers
        self._requested_mhz: int | None = None  # None for the clock found
        self._set_mhz: int | None = None
        self.fault: Exception | None = None
        """What the driver has said in the background, if it has refused."""

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """What can be set, highest first."""
        return self._knob.settings

    def set_now(self, clock_mhz: int | None) -> float:
        """Set the clock, or release it for None, on this thread. Returns how long the driver took, in seconds.

        Raises:
            DeviceError: The driver refuses.
        """
        begin_seconds = self._clock.now()
        self._requests = deque()  # what was requested before is void, also what is being waited for
        self._requested_mhz = clock_mhz
        self.guard()
        self._set(clock_mhz)
        return self._clock.now() - begin_seconds

    def request(self, clock_mhz: int | None, when: Mark) -> None:
        """Set the clock, or release it for None, in the background, once the GPU has come to a mark."""
        if clock_mhz != self._requested_mhz and self.fault is None:
            self._requested_mhz = clock_mhz
            self._requests.append((clock_mhz, when))
            self._background.soon(partial(self._serve, self._requests))

    def guard(self) -> None:
        """See to it that the clock is put back if the process ends, also where signals are handled anew since."""
        self._guard.arm()

    def permission_problem(self) -> str | None:
        """Why this process cannot set clocks; None if it can. Tries it, at the highest clock.

        Raises:
            DeviceError: The driver refuses for another reason.
        """
        if len(self.clocks_mhz) < 2:
            return f"{self._name} has no SM clocks to choose from"
        try:
            self.set_now(self.clocks_mhz[0])
            self.set_now(None)
        except (PermissionDeniedError, NotSupportedError) as error:
            return str(error)
        return None

    def put_back(self) -> bool:
        """Put back what was found, for good. Never raises; False where the driver refuses: calling again may help."""
        self._requests = deque()
        is_put_back = self._knob.restore()
        if is_put_back:
            self._guard.disarm()
        return is_put_back

    def _serve(self, requests: deque[tuple[int | None, Mark]]) -> None:
        """Runs in the background, once for each request."""
        clock_mhz, when = requests.popleft()
        try:
            when.wait()
            is_overtaken = bool(requests) and requests[0][1].seconds() is not None
            with self._lock:  # what is void stays void: `set_now` cannot come in between
                if requests is self._requests and not is_overtaken:
                    self._set(clock_mhz)
        except Exception as error:
            self.fault = error

    def _set(self, clock_mhz: int | None) -> None:
        with self._lock:
            if clock_mhz == self._set_mhz:
                return
            if clock_mhz is None:
                self._knob.release()
            else:
                self._knob.apply(clock_mhz)
            self._set_mhz = clock_mhz
