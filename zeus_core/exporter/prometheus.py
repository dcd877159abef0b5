"""The answer to Prometheus: devices, jobs, and settings that the daemon and the ledger know of."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from zeus_core.device.remote.client import DaemonConnection
from zeus_core.errors import UsageError, ZeusError
from zeus_core.exporter.jobs import LABELS
from zeus_core.exporter.totals import DeviceState, DeviceTotals
from zeus_core.installed import install_command
from zeus_core.ports.run_identity import user_name
from zeus_core.process.sampler import Sampler
from zeus_core.settings.ledger import seen_ledgers

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PERIOD_SECONDS = 5.0  # below the usual 15 s of a scrape
_GPU_LABELS = ("gpu", "gpu_uuid", "gpu_name")  # as the exporters of Kepler and NVIDIA call them, or nearly
_CPU_LABELS = ("package", "cpu_name")
_SETTING_LABELS = ("gpu_uuid", "knob")


class ExportedMetric(NamedTuple):
    """One metric.

    Attributes:
        of: The thing it belongs to.
        sentence: One sentence about it.
        labels: Its labels beside `hostname`.
        attribute: Where a `DeviceState` or a `JobTotal` has its value.
    """

    of: Literal["gpu", "cpu", "dram", "job", "daemon"]
    sentence: str
    labels: Sequence[str]
    attribute: str = ""


def _of_gpu(attribute: str, sentence: str) -> ExportedMetric:
    return ExportedMetric("gpu", sentence, _GPU_LABELS, attribute)


def _of_job(attribute: str, sentence: str) -> ExportedMetric:
    return ExportedMetric("job", sentence, LABELS, attribute)


METRICS: Mapping[str, ExportedMetric] = {
    "zeus_gpu_energy_joules_total": _of_gpu("energy_joules", "Energy of the GPU since the exporter began."),
    "zeus_gpu_energy_unmeasured_seconds_total": _of_gpu(
        "unmeasured_seconds", "Time without a known energy of the GPU."
    ),
    "zeus_gpu_power_watts": _of_gpu("power_watts", "Power of the GPU now."),
    "zeus_gpu_power_limit_watts": _of_gpu("limit_watts", "Power limit in force."),
    "zeus_gpu_sm_clock_hertz": _of_gpu("sm_clock_hertz", "SM clock now."),
    "zeus_gpu_utilization_ratio": _of_gpu("utilization", "Share of the latest second or so in which the GPU computed."),
    "zeus_cpu_energy_joules_total": ExportedMetric(
        "cpu", "Energy of the CPU package since the exporter began.", _CPU_LABELS, "energy_joules"
    ),
    "zeus_cpu_energy_unmeasured_seconds_total": ExportedMetric(
        "cpu", "Time without a known energy of the package.", _CPU_LABELS, "unmeasured_seconds"
    ),
    "zeus_dram_energy_joules_total": ExportedMetric(
        "dram", "Energy of the memory of the package.", _CPU_LABELS, "energy_joules"
    ),
    "zeus_job_energy_joules_total": _of_job("energy_joules", "Energy of GPUs while processes of the job were on them."),
    "zeus_job_gpu_seconds_total": _of_job("gpu_seconds", "Time of GPUs with processes of the job."),
    "zeus_job_idle_gpu_seconds_total": _of_job(
        "idle_seconds", "The part of it in which they computed for less than 5 %."
    ),
    "zeus_job_gpus": _of_job("gpus", "GPUs with processes of the job now."),
    "zeus_daemon_up": ExportedMetric("daemon", "Whether the daemon answers this exporter.", ()),
    "zeus_daemon_events_total": ExportedMetric("daemon", "Lines of the audit log since the daemon began.", ("event",)),
    "zeus_gpu_held_setting": ExportedMetric(
        "daemon", "Setting (W, MHz) that a process holds by the daemon.", (*_SETTING_LABELS, "user", "job_id")
    ),
    "zeus_gpu_residue": ExportedMetric("daemon", "Setting that a process which has ended has left.", _SETTING_LABELS),
}
"""All metrics by name, in the order in which they are answered. Those whose name ends in _total never fall."""

_Samples = Iterator[tuple[str, Sequence[str], float]]
"""Names of metrics, the values of their labels beside `hostname`, and their values."""


class Collector:
    """Reads everything whenever Prometheus asks. For `CollectorRegistry.register`.

    Args:
        totals: The totals of devices; where they have no jobs, no job and no user is named.
    """

    def __init__(self, totals: DeviceTotals) -> None:
        self._totals = totals
        self._hostname = socket.gethostname()
        self._daemon = DaemonConnection()

    def collect(self) -> list[Metric]:
        """Return all metrics that have a sample. A value that is not known now has none."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, metric in METRICS.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = family(name.removesuffix("_total"), metric.sentence, labels=[*metric.labels, "hostname"])
        for name, labels, value in self._samples():
            families[name].add_metric([*labels, self._hostname], value)
        return [family for family in families.values() if family.samples]

    def describe(self) -> list[Metric]:
        """Return no metric: to register must not read devices."""
        return []

    def _samples(self) -> _Samples:
        for state in self._totals.refresh():
            yield from _values(state.device.kind, _labels_of(state), state)
        for labels, total in () if self._totals.jobs is None else self._totals.jobs.exported():
            yield from _values("job", labels, total)
        residue = {
            (entry.device_uuid, entry.knob)
            for ledger in seen_ledgers()
            for entry in ledger.entries()
            if entry.failure is not None or ledger.is_stale(entry)
        }
        yield from (("zeus_gpu_residue", labels, 1.0) for labels in sorted(residue))
        yield from self._samples_of_daemon()

    def _samples_of_daemon(self) -> _Samples:
        try:
            answer = self._daemon.ask("list")
        except ZeusError:  # there is none, or it does not serve this user
            yield "zeus_daemon_up", (), 0.0
            return
        yield "zeus_daemon_up", (), 1.0
        for event, count in sorted(answer.get("events", {}).items()):
            yield "zeus_daemon_events_total", (event,), float(count)
        for lease in answer["leases"]:
            holder = ("", "") if self._totals.jobs is None else (user_name(lease["uid"]), lease["job"])
            if lease["value"] is not None:
                yield "zeus_gpu_held_setting", (lease["device"], lease["knob"], *holder), float(lease["value"])


def _values(kind: str, labels: Sequence[str], holder: object) -> _Samples:
    for name, metric in METRICS.items():
        value: float | None = getattr(holder, metric.attribute) if metric.of == kind else None
        if value is not None:
            yield name, labels, value


def _labels_of(state: DeviceState) -> Sequence[str]:
    index = f"{state.device.index}"
    return (index, state.uuid, state.name) if state.device.kind == "gpu" else (index, state.name)


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

    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector(totals))
    try:
        server, thread = prometheus_client.start_http_server(port, address, registry)
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
