"""Metrics of a machine beside those of its devices: its jobs, what its daemon knows, and what dead jobs have left."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from zeus_core.device.remote.client import DaemonConnection
from zeus_core.errors import ZeusError
from zeus_core.exporter.jobs import LABELS, JobTotals
from zeus_core.ports.run_identity import user_name
from zeus_core.settings.ledger import seen_ledgers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeus_core.exporter.jobs import JobTotal

JOB_METRICS = {
    "zeus_job_energy_joules_total": "Energy of GPUs while processes of the job were on them.",
    "zeus_job_gpu_seconds_total": "Time of GPUs with processes of the job.",
    "zeus_job_idle_gpu_seconds_total": "The part of it in which they computed for less than 5 %.",
    "zeus_job_gpus": "GPUs with processes of the job now.",
}
"""The metrics of jobs, each with a sentence."""

DAEMON_METRICS = {
    "zeus_daemon_up": ("Whether the daemon answers this exporter.", ()),
    "zeus_daemon_events_total": ("Lines of the audit log since the daemon began.", ("event",)),
    "zeus_gpu_held_setting": (
        "Setting (W, MHz) that a process holds by the daemon.",
        ("gpu_uuid", "knob", "user", "job_id"),
    ),
    "zeus_gpu_residue": ("Setting that a process which has ended has left.", ("gpu_uuid", "knob")),
}
"""The metrics of the daemon and the ledger, each with a sentence and its labels beside `hostname`."""


class MachineMetrics:
    """Reads jobs, the daemon and the ledger whenever the devices are read.

    Args:
        jobs: The totals of jobs; None to name no job and no user.
    """

    def __init__(self, jobs: JobTotals | None) -> None:
        self._jobs = jobs
        self._hostname = socket.gethostname()
        self._daemon = DaemonConnection()

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics that have a sample."""
        jobs = () if self._jobs is None else self._jobs.exported()
        for metric, sentence in JOB_METRICS.items():
            family = new_family(metric, sentence, [*LABELS, "hostname"])
            for values, total in jobs:
                family.add_metric([*values, self._hostname], _value(metric, total))
            if family.samples:
                yield family
        samples = self._samples()
        for metric, (sentence, labels) in DAEMON_METRICS.items():
            family = new_family(metric, sentence, [*labels, "hostname"])
            for known, value in samples.get(metric, ()):
                family.add_metric([*known, self._hostname], value)
            if family.samples:
                yield family

    def _samples(self) -> dict[str, list[tuple[Sequence[str], float]]]:
        residue = {
            (entry.device_uuid, entry.knob)
            for ledger in seen_ledgers()
            for entry in ledger.entries()
            if entry.failure is not None or ledger.is_stale(entry)
        }
        samples: dict[str, list[tuple[Sequence[str], float]]] = {
            "zeus_gpu_residue": [(key, 1.0) for key in sorted(residue)]
        }
        try:
            answer = self._daemon.ask("list")
        except ZeusError:  # there is none, or it does not serve this user
            return {**samples, "zeus_daemon_up": [((), 0.0)]}
        held: list[tuple[Sequence[str], float]] = [
            ((lease["device"], lease["knob"], *self._holder(lease)), float(lease["value"]))
            for lease in answer["leases"]
            if lease["value"] is not None
        ]
        counts = sorted(answer.get("events", {}).items())
        events: list[tuple[Sequence[str], float]] = [((event,), float(count)) for event, count in counts]
        samples |= {"zeus_daemon_up": [((), 1.0)], "zeus_daemon_events_total": events, "zeus_gpu_held_setting": held}
        return samples

    def _holder(self, lease: Mapping[str, Any]) -> tuple[str, str]:
        return ("", "") if self._jobs is None else (user_name(lease["uid"]), lease["job"])


def new_family(name: str, sentence: str, labels: Sequence[str]) -> Any:
    """Make a family of metrics without a sample: a counter if its name ends in _total, else a gauge."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    is_counter = name.endswith("_total")
    return (CounterMetricFamily if is_counter else GaugeMetricFamily)(
        name.removesuffix("_total"), sentence, labels=labels
    )


def _value(metric: str, total: JobTotal) -> float:
    if metric == "zeus_job_energy_joules_total":
        return total.energy.energy_joules or 0.0
    if metric == "zeus_job_gpu_seconds_total":
        return total.gpu_seconds
    return total.idle_seconds if metric == "zeus_job_idle_gpu_seconds_total" else total.gpus
