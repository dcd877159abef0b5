"""Watches the energy counter of a GPU while it is profiled: reads it often when an update is due."""

from __future__ import annotations

from zeus_core.attribution.updates import Knot
from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NotSupportedError
from zeus_core.ports import TimeSource

POLL_SECONDS = 0.001
"""The time between two queries of a counter whose update is due: the uncertainty of an update. Shorter ones cost more
of a core; the counters of NVIDIA GPUs are updated every 20 to 100 ms."""

# Fraction of a period after an update before which the next one is not expected, and the driver is not queried: leaves
# room for the irregularity of counters, and saves 85 % of the queries.
_NEXT_UPDATE_FRACTION = 0.85


class CounterWatch:
    """Detects the updates of the energy counter of one GPU, by polling it often when an update is due.

    For a GPU without a counter, its power is integrated instead, and each sum counts as an update.

    Args:
        gpu: The GPU.
        time_source: Times the queries.
        period_seconds: The period of its counter.
    """

    def __init__(self, gpu: Gpu, time_source: TimeSource, period_seconds: float) -> None:
        self._gpu = gpu
        self._time_source = time_source
        self._period_seconds = period_seconds
        self._has_counter = True
        self._latest: tuple[float, float] | None = None  # when the last query began, and its value
        self._not_before = 0.0
        self._updates: list[Knot] = []
        self.fault: DeviceError | None = None
        """The latest error of the driver; None without one."""

    def poll(self) -> None:
        """Check whether the counter was updated. To be called every `POLL_SECONDS`; never raises."""
        now = self._time_source.now()
        if now < self._not_before:
            return
        try:
            self._add(now, self._read_joules(now))
        except DeviceError as error:
            self.fault = error
            self._latest = None  # the profiler reports the missing updates

    def take(self) -> list[Knot]:
        """Return the updates since the last call. The last of them is returned again, as the first of the next call."""
        updates, self._updates = self._updates, self._updates[-1:]
        return updates

    def _add(self, asked_at: float, joules: float) -> None:
        before, self._latest = self._latest, (asked_at, joules)
        if not self._has_counter:
            self._updates.append(Knot(asked_at, 0.0, joules))
        elif before is not None and joules != before[1]:
            # It was updated between the beginning of the previous query and the end of this one.
            now = self._time_source.now()
            at = (before[0] + now) / 2
            self._updates.append(Knot(at, now - at, joules))
            self._not_before = before[0] + _NEXT_UPDATE_FRACTION * self._period_seconds

    def _read_joules(self, now: float) -> float:
        if self._has_counter:
            try:
                return self._gpu.read_energy_counter_joules()
            except NotSupportedError:
                self._has_counter = False
        power_watts = self._gpu.read_power_watts()
        if self._latest is None:
            return 0.0  # also after a fault: a decreasing sum voids the time in which power was unknown
        return self._latest[1] + power_watts * (now - self._latest[0])
