"""The jobs whose processes are on a GPU, and the energy of each: totals that never fall, in bounded number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from zeus_core.ports.run_identity import RunIdentity, identity_here, identity_of
from zeus_core.ports.time_source import TimeSource

LABELS = ("user", "job_id", "namespace", "pod", "project")
"""The labels that distinguish jobs. Prometheus itself sets `job`."""

Values = tuple[str, ...]
"""The values of these labels."""

MOST_JOBS = 1000
"""How many jobs of the last hour an exporter distinguishes: the energy of others is that of "other"."""

_FORGET_SECONDS = 3600.0  # after which the series of a job that has ended is exported no more
_IDLE_BELOW = 0.05  # of the utilization


def label_values(identity: RunIdentity) -> Values:
    """Return the values of `LABELS`."""
    return identity.user, identity.job, identity.namespace, identity.pod, identity.project


class GpuReading(NamedTuple):
    """The use of a GPU since the latest reading.

    Attributes:
        processes: Those on it, by `identities_on`.
        energy_joules: Its energy; None where that was lost.
        seconds: The time.
        utilization: The share of it in which it computed, as far as that is known.
    """

    processes: set[tuple[int, int]] | None
    energy_joules: float | None
    seconds: float
    utilization: float | None


@dataclass
class JobTotal:
    """A job, or all whose labels are the same, as it is exported.

    Attributes:
        gpus: The GPUs that its processes are on, of which those shared with others count in part.
        energy_joules: Its energy: that of its GPUs while its processes were on them, in equal shares with others.
        gpu_seconds: The time of its GPUs.
        idle_seconds: The part of it in which they hardly computed.
        seen_seconds: When its processes were seen last.
    """

    gpus: float = 0.0
    energy_joules: float = 0.0
    gpu_seconds: float = 0.0
    idle_seconds: float = 0.0
    seen_seconds: float = 0.0


class JobTotals:
    """Divides the energy of GPUs among the jobs whose processes are on them.

    A process that comes or goes between two readings is counted as if it had done so at one of them. In a job, a GPU
    whose driver does not say whose processes are on it, as a simulated one, counts as that of this process.

    Args:
        time_source: That of the monitor.
    """

    def __init__(self, time_source: TimeSource) -> None:
        self._time_source = time_source
        own = identity_here()
        self._own = own if own is not None and own.job else None
        self._totals: dict[Values, JobTotal] = {}

    def add(self, readings: Iterable[GpuReading]) -> None:
        """Add the time and energy of all GPUs since the latest reading."""
        gpus: dict[Values, float] = {}
        for reading in readings:
            users = self._users_of(reading.processes)
            for values in users:
                counted = self._add(values, reading, 1 / len(users))
                gpus[counted] = gpus.get(counted, 0.0) + 1 / len(users)
        for values, total in self._totals.items():
            total.gpus = gpus.get(values, 0.0)

    def exported(self) -> list[tuple[Values, JobTotal]]:
        """Return the labels of each job that was seen within the last hour, with its totals. Any thread may call it."""
        since = self._time_source.now() - _FORGET_SECONDS
        return [(values, total) for values, total in list(self._totals.items()) if total.seen_seconds >= since]

    def _users_of(self, processes: set[tuple[int, int]] | None) -> set[Values]:
        if processes is not None:
            return {label_values(identity_of(*process)) for process in processes}
        return set() if self._own is None else {label_values(self._own)}

    def _add(self, values: Values, reading: GpuReading, share: float) -> Values:
        """Add a share of a reading to a job, and return the labels that it is counted under."""
        if values not in self._totals and len(self._totals) >= MOST_JOBS:
            self._totals = dict(self.exported())
            if len(self._totals) >= MOST_JOBS:
                values = ("other",) * len(values)
        total = self._totals.setdefault(values, JobTotal())
        total.gpu_seconds += share * reading.seconds
        total.seen_seconds = self._time_source.now()
        if reading.utilization is not None and reading.utilization < _IDLE_BELOW:
            total.idle_seconds += share * reading.seconds
        total.energy_joules += max(share * (reading.energy_joules or 0.0), 0.0)
        return values
