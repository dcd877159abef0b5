"""Readings of the counters, often enough that no wrap-around is missed."""

import math
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial

from zeus_core.device.rapl._rapl_cpu import RaplZone
from zeus_core.errors import DeviceError
from zeus_core.ports import TimeSource
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.process.sampler import Sampler
from zeus_core.validate import checked_number

RAPL_MAX_WATTS = 2000.0
"""More than any zone draws: four times the power of the largest processors (500 W)."""


class RaplKeeper:
    """Reads zones in the background, twice in the time in which the first of them could wrap around.

    It reads once a minute on most machines. A reading that fails is ignored: the next measurement reports the fault.
    The thread ends with `stop`, with the process, and when the keeper is garbage-collected.

    A forked process has no such thread: call `start` there too. `start` does nothing while the keeper is running, so
    it can be called before every measurement.

    Args:
        zones: The zones to read.
        max_power_watts: More than any of the zones ever draws. A reading takes microseconds, so a generous value costs
            nothing.
        time_source: Paces the readings.

    Raises:
        UsageError: `max_power_watts` is not a power.
    """

    def __init__(
        self, zones: Iterable[RaplZone], max_power_watts: float = RAPL_MAX_WATTS, time_source: TimeSource | None = None
    ) -> None:
        wanted = "a power in watts above 0, such as 2000"
        checked_number("max_power_watts", max_power_watts, 0.0, math.inf, wanted, is_open=True)
        self._zones = tuple(zones)
        shortest_range_joules = min((zone.max_energy_range_joules for zone in self._zones), default=0.0)
        self.interval_seconds: float = shortest_range_joules / max_power_watts / 2
        wait = (time_source or MonotonicTime()).wait
        self._sampler = Sampler(partial(_read, self._zones), self.interval_seconds, wait, name="zeus-core RAPL keeper")
        weakref.finalize(self, self._sampler.stop)

    @property
    def is_running(self) -> bool:
        """Whether the thread runs in this process."""
        return self._sampler.is_running

    def start(self) -> None:
        """Start reading, unless the keeper is running or has no zones."""
        if self._zones:
            self._sampler.start()

    def stop(self) -> None:
        """Stop reading. Does nothing if the keeper is not running."""
        self._sampler.stop()


def _read(zones: Sequence[RaplZone]) -> None:
    for zone in zones:
        with suppress(DeviceError):
            zone.read_energy_counter_microjoules()
