"""Metrics for Prometheus, by a port that it asks."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeus_core.adapters import install_command
from zeus_core.errors import UsageError
from zeus_core.exporter.machine_metrics import MachineMetrics, new_family
from zeus_core.exporter.totals import DeviceState, DeviceTotals
from zeus_core.measurement import Kind
from zeus_core.process.sampler import Sampler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric


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
            found = new_family(metric.name, metric.help, metric.labels)
            for state in states:
                value = metric.value(state) if state.device.kind == metric.kind else None
                if value is not None:
                    found.add_metric([*labels_of(state), self._hostname], value)
            if found.samples:
                yield found
