"""Detecting the steps of an energy counter: the energy between two steps is exact."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NotSupportedError
from zeus_core.ports import TimeSource

__all__ = ["POLL_SECONDS", "CounterStep", "CounterWatch"]

POLL_SECONDS = 0.001
_NEXT_STEP = 0.85  # of a period: before that no step is expected, and the driver is not queried


class CounterStep(NamedTuple):
    """A step of an energy counter.

    Attributes:
        at_seconds: When it happened, on the monitor's clock.
        energy_joules: The value of the counter from then on.
        half_width_seconds: The maximum error of `at_seconds`.
    """

    at_seconds: float
    energy_joules: float
    half_width_seconds: float


class CounterWatch:
    """Finds the steps of the energy counter of one GPU, by polling it often when a step is due.

    For a GPU without a counter, its power is integrated instead, and each sum counts as a step.

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
        self._steps: list[CounterStep] = []
        self.fault: DeviceError | None = None
        """What the driver has said last, if it has refused."""

    def poll(self) -> None:
        """Check whether the counter has stepped. To be called every `POLL_SECONDS`; never raises."""
        now = self._time_source.now()
        if now < self._not_before:
            return
        try:
            self._add(now, self._read_joules(now))
        except DeviceError as error:
            self.fault = error
            self._latest = None  # without steps, whoever needs them reports it

    def take(self) -> list[CounterStep]:
        """The steps since the last call. The last of them is returned again, as the first of the next call."""
        steps, self._steps = self._steps, self._steps[-1:]
        return steps

    def _add(self, asked_at: float, joules: float) -> None:
        before, self._latest = self._latest, (asked_at, joules)
        if not self._has_counter:
            self._steps.append(CounterStep(asked_at, joules, 0.0))
        elif before is not None and joules != before[1]:
            # It stepped between the beginning of the previous query and the end of this one.
            now = self._time_source.now()
            at_seconds = (before[0] + now) / 2
            self._steps.append(CounterStep(at_seconds, joules, now - at_seconds))
            self._not_before = before[0] + _NEXT_STEP * self._period_seconds

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
