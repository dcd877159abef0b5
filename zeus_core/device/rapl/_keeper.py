"""Reading the counters often enough that no wrap-around is missed."""

import math
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from zeus_core._process.lock import ProcessLock
from zeus_core._validate import checked_number
from zeus_core.device.rapl._zone import RaplZone
from zeus_core.errors import DeviceError
from zeus_core.ports import MonotonicTime, TimeSource

__all__ = ["RaplKeeper"]

_JOIN_SECONDS = 1.0  # a reading takes microseconds; a longer wait would delay the end of training


class RaplKeeper:
    """Reads zones in the background, twice in the time in which the first of them could wrap around.

    That is once a minute on most machines. A reading that fails is ignored: the next measurement reports the fault. The
    thread ends with `stop`, with the process, or one interval after the keeper was garbage-collected.

    A forked process has no such thread: call `start` there too. `start` does nothing while the keeper is running, so
    it can be called before every measurement.

    Args:
        zones: The zones to read.
        max_power_watts: More than any of the zones ever draws. The default is four times the power of the largest
            processors (500 W), and a reading takes microseconds, so a generous value costs nothing.
        time_source: Paces the readings.

    Raises:
        UsageError: `max_power_watts` is not a power.
    """

    def __init__(
        self, zones: Iterable[RaplZone], max_power_watts: float = 2000.0, time_source: TimeSource | None = None
    ) -> None:
        wanted = "a power in watts above 0, such as 2000"
        checked_number("max_power_watts", max_power_watts, 0.0, math.inf, wanted, is_open=True)
        self._zones = tuple(zones)
        shortest_range_joules = min((zone.max_energy_range_joules for zone in self._zones), default=0.0)
        self.interval_seconds = shortest_range_joules / max_power_watts / 2
        self._time_source = time_source or MonotonicTime()
        self._lock = ProcessLock()
        self._process_id: int | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs in this process."""
        return self._process_id == os.getpid() and self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start reading, unless the keeper is running or has no zones."""
        with self._lock:
            if self.is_running or not self._zones:
                return
            # A new event each time: that of a parent process may be locked by a thread that does not exist here.
            self._stopped = threading.Event()
            arguments = (self._zones, self.interval_seconds, self._time_source, self._stopped, weakref.ref(self))
            self._thread = threading.Thread(target=_keep, args=arguments, name="zeus-rapl-keeper", daemon=True)
            self._process_id = os.getpid()
            self._thread.start()

    def stop(self) -> None:
        """Stop reading. Does nothing if the keeper is not running."""
        with self._lock:
            if self.is_running and self._thread is not None:
                self._stopped.set()
                if self._thread is not threading.current_thread():  # a finalizer can run in any thread
                    self._thread.join(_JOIN_SECONDS)


def _keep(
    zones: Sequence[RaplZone],
    interval_seconds: float,
    time_source: TimeSource,
    stopped: threading.Event,
    keeper: Callable[[], RaplKeeper | None],
) -> None:
    """Read until stopped, or until the keeper is garbage-collected."""
    while not stopped.is_set() and keeper() is not None:
        for zone in zones:
            with suppress(DeviceError):
                zone.read_energy_counter_microjoules()
        time_source.wait(stopped, interval_seconds)
