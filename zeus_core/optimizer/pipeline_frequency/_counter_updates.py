"""The updates of an energy counter: the energy between two updates is exact, if it is known when they happened.

An update is detected at the first call of the driver that shows it, and calls may take milliseconds. Counters are
updated at a fixed rate, however, so the updates around one tell when it was due. The updates themselves show how far
that can be trusted: if they are off a straight line by no more than calls can be late, nothing but the calls is
irregular.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NotSupportedError
from zeus_core.ports import TimeSource

__all__ = ["POLL_SECONDS", "CounterUpdate", "CounterWatch", "likely_updates"]

POLL_SECONDS = 0.001
"""The time between two queries of a counter whose update is due: the uncertainty of an update. Shorter ones cost more
of a core; the counters of NVIDIA GPUs are updated every 20 to 100 ms."""

# Fraction of a period after an update before which the next one is not expected, and the driver is not queried: leaves
# room for the irregularity of counters, and saves 85 % of the queries.
_NEXT_UPDATE_FRACTION = 0.85

# Updates on each side through which the line goes. More of them average out more of the calls' lateness, but cover a
# time in which the period may change.
_NEIGHBOURS = 10

_MIN_UPDATES = 5  # through fewer than these, a line tells nothing about irregularity
_EXACT_SECONDS = 1e-6  # an uncertainty that is as good as none: keeps divisions finite
_MIN_VARIANCE = 1e-9  # of the numbers of neighbouring updates: keeps divisions finite

Numbers = NDArray[np.float64]


class CounterUpdate(NamedTuple):
    """An update of an energy counter.

    Attributes:
        at_seconds: When it happened, on the monitor's clock.
        energy_joules: The value of the counter from then on.
        uncertainty_seconds: The half-width of the interval around `at_seconds` in which it happened.
    """

    at_seconds: float
    energy_joules: float
    uncertainty_seconds: float


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
        self._updates: list[CounterUpdate] = []
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

    def take(self) -> list[CounterUpdate]:
        """Return the updates since the last call. The last of them is returned again, as the first of the next call."""
        updates, self._updates = self._updates, self._updates[-1:]
        return updates

    def _add(self, asked_at: float, joules: float) -> None:
        before, self._latest = self._latest, (asked_at, joules)
        if not self._has_counter:
            self._updates.append(CounterUpdate(asked_at, joules, 0.0))
        elif before is not None and joules != before[1]:
            # It was updated between the beginning of the previous query and the end of this one.
            now = self._time_source.now()
            at_seconds = (before[0] + now) / 2
            self._updates.append(CounterUpdate(at_seconds, joules, now - at_seconds))
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


def likely_updates(updates: Sequence[CounterUpdate]) -> list[CounterUpdate]:
    """Estimate the most likely time of each update, within its uncertainty, and how far that can be off.

    Args:
        updates: The updates as they were detected, in order. Some may be missing.
    """
    uncertainties = np.array([update.uncertainty_seconds for update in updates])
    if len(updates) < _MIN_UPDATES or not uncertainties.any():
        return list(updates)
    at = np.array([update.at_seconds for update in updates])
    due = _due(at, uncertainties)
    variance_of_detection = float(np.square(uncertainties).mean()) / 3  # that of a time which may be anywhere within
    variance = float(np.square(at - due).mean())
    irregularity = 1 - min(variance_of_detection / max(variance, _EXACT_SECONDS**2), 1.0)
    times = np.clip(due + irregularity * (at - due), at - uncertainties, at + uncertainties)
    share = np.sqrt(irregularity + (1 - irregularity) / (2 * _NEIGHBOURS))
    widths = share * uncertainties
    return [
        CounterUpdate(time, update.energy_joules, width)
        for update, time, width in zip(updates, times.tolist(), widths.tolist(), strict=True)
    ]


def _due(at: Numbers, uncertainties: Numbers) -> Numbers:
    """Return when each update was due, by a line through it and its neighbours, [updates]."""
    periods = np.diff(at)
    usual_seconds = max(float(np.median(periods)), _EXACT_SECONDS)
    number = np.concatenate([[0.0], np.cumsum(np.maximum(np.round(periods / usual_seconds), 1.0))])
    own = np.arange(len(at))[:, np.newaxis]
    near = own + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)  # [updates, neighbours]
    is_there = (near >= 0) & (near < len(at))
    near = np.where(is_there, near, own)
    weights = is_there / np.square(np.maximum(uncertainties, _EXACT_SECONDS))[near]
    weights /= weights.sum(axis=1, keepdims=True)
    numbers, since = number[near] - number[own], at[near] - at[own]
    mean_number, mean_since = (weights * numbers).sum(axis=1), (weights * since).sum(axis=1)
    variance = np.maximum((weights * np.square(numbers)).sum(axis=1) - mean_number**2, _MIN_VARIANCE)
    slope = ((weights * numbers * since).sum(axis=1) - mean_number * mean_since) / variance
    due: Numbers = at + mean_since - slope * mean_number
    return due
