"""Metrics for Prometheus, by a port that it asks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeus_core.adapters import install_command
from zeus_core.device.remote.client import DaemonConnection
from zeus_core.errors import UsageError, ZeusError
from zeus_core.exporter.jobs import LABELS, JobTotals
from zeus_core.exporter.totals import DeviceState, DeviceTotals
from zeus_core.measurement import Kind
from zeus_core.process.sampler import Sampler
from zeus_core.settings.ledger import seen_ledgers
from zeus_core.ports.run_identity import user_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from zeus_core.exporter.jobs import JobTotal


_PERIOD_SECONDS = 5.0  # below the usual 15 s of a scrape


def check_prometheus_client() -> None:
    """Raise `UsageError` with the pip command if the library is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(f"prometheus_client is not installed: {install_command('prometheus')}") from error


@contextmanager
def serve(totals: DeviceTotals, address: str, port: int) -> Iterator[int]:
    """Answer Prometheus within a block, and yield the port.

    Args:
        totals: The totals; also read every 5 s, so that a fault costs the energy of no more than that.
        address: The address to listen at.
        port: The port; 0 for any free one.

    Raises:
        UsageError: The port or the address cannot be used.
    """
    import prometheus_client

    try:
        server, thread = prometheus_client.start_http_server(port, address, _registry(totals))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"port {port} of {address} cannot be used: {error}; choose another one, or --port 0 for any that is free"
        ) from error
    sampler = Sampler(totals.refresh, _PERIOD_SECONDS, name="zeus-core exporter")
    sampler.start()
    try:
        yield int(server.server_port)
    finally:
        sampler.stop()
        server.shutdown()
        server.server_close()
        thread.join()


def _registry(totals: DeviceTotals) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(Collector(totals))
    return registry


_HERTZ_PER_MHZ = 1_000_000
_GPU_LABELS = ("gpu", "gpu_uuid", "gpu_name", "hostname")  # as the exporters of Kepler and NVIDIA call them, or nearly
_CPU_LABELS = ("package", "cpu_name", "hostname")


@dataclass(frozen=True)
class ExportedMetric:
    """One metric.

    Attributes:
        name: Its name, as Prometheus shows it.
        kind: The kind of device.
        help: One sentence about it.
        value: Its value for a device; None if that is not known now.
    """

    name: str
    kind: Kind
    help: str
    value: Callable[[DeviceState], float | None]

    @property
    def is_counter(self) -> bool:
        """Whether it never falls."""
        return self.name.endswith("_total")

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        return _GPU_LABELS if self.kind == "gpu" else _CPU_LABELS


def _energy(state: DeviceState) -> float:
    return state.energy_joules


def _unmeasured(state: DeviceState) -> float:
    return state.unmeasured_seconds


METRICS = (
    ExportedMetric("zeus_gpu_energy_joules_total", "gpu", "Energy of the GPU since the exporter began.", _energy),
    ExportedMetric(
        "zeus_gpu_energy_unmeasured_seconds_total", "gpu", "Time without a known energy of the GPU.", _unmeasured
    ),
    ExportedMetric("zeus_gpu_power_watts", "gpu", "Power of the GPU now.", lambda state: state.power_watts),
    ExportedMetric("zeus_gpu_power_limit_watts", "gpu", "Power limit in force.", lambda state: state.limit_watts),
    ExportedMetric(
        "zeus_gpu_sm_clock_hertz",
        "gpu",
        "SM clock now.",
        lambda state: None if state.sm_clock_mhz is None else state.sm_clock_mhz * _HERTZ_PER_MHZ,
    ),
    ExportedMetric(
        "zeus_gpu_utilization_ratio",
        "gpu",
        "Share of the latest second or so in which the GPU computed.",
        lambda state: state.utilization,
    ),
    ExportedMetric(
        "zeus_cpu_energy_joules_total", "cpu", "Energy of the CPU package since the exporter began.", _energy
    ),
    ExportedMetric(
        "zeus_cpu_energy_unmeasured_seconds_total", "cpu", "Time without a known energy of the package.", _unmeasured
    ),
    ExportedMetric("zeus_dram_energy_joules_total", "dram", "Energy of the memory of the package.", _energy),
)


def labels_of(state: DeviceState) -> list[str]:
    """Return the labels of a device, but the name of the machine."""
    index = str(state.device.index)
    return [index, state.uuid, state.name] if state.device.kind == "gpu" else [index, state.name]


class Collector:
    """Reads the devices whenever Prometheus asks. For `CollectorRegistry.register`."""

    def __init__(self, totals: DeviceTotals) -> None:
        self._totals = totals
        self._hostname = socket.gethostname()
        self._machine = MachineMetrics(totals.jobs)

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, each with a sample of every device whose value is known."""
        return [*self._metrics(self._totals.refresh()), *self._machine.collect()]

    def describe(self) -> Iterable[Metric]:
        """Return no metric: to register must not read devices."""
        return []

    def _metrics(self, states: list[DeviceState]) -> Iterator[Any]:
        for metric in METRICS:
            found = _new_family(metric.name, metric.help, metric.labels)
            for state in states:
                value = metric.value(state) if state.device.kind == metric.kind else None
                if value is not None:
                    found.add_metric([*labels_of(state), self._hostname], value)
            if found.samples:
                yield found


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
            family = _new_family(metric, sentence, [*LABELS, "hostname"])
            for values, total in jobs:
                family.add_metric([*values, self._hostname], _value(metric, total))
            if family.samples:
                yield family
        samples = self._samples()
        for metric, (sentence, labels) in DAEMON_METRICS.items():
            family = _new_family(metric, sentence, [*labels, "hostname"])
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


def _new_family(name: str, sentence: str, labels: Sequence[str]) -> Any:
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
