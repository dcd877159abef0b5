"""Metrics of OpenTelemetry, by its semantic conventions for hardware."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from zeus_core.adapters import install_command
from zeus_core.errors import UsageError
from zeus_core.exporter.serving import METRICS, ExportedMetric, labels_of
from zeus_core.exporter.totals import DeviceState, DeviceTotals
from zeus_core.monitor import ZeusMonitor
from zeus_core.validate import checked_instance, checked_object

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

_COLLECTION_SECONDS = 0.1  # in which a reader asks all instruments: devices are read once for all
# https://opentelemetry.io/docs/specs/semconv/hardware/ ("Development" as of 1.38)
_TYPES = {"gpu": "gpu", "cpu": "cpu", "dram": "memory"}


def export_to_opentelemetry(monitor: ZeusMonitor | None = None, meter_provider: MeterProvider | None = None) -> None:
    """Export the energy and power of the monitored devices, as `hw.energy` (J) and `hw.power` (W).

    Attributes are `hw.id` (the UUID), `hw.type` and `hw.name`. The metrics of `zeus-core exporter` for devices are
    exported too, under their names and labels. Devices are read when the provider's readers ask, in their threads:
    training never waits for it. Nothing is exported unless this is called.

        from zeus_core.exporter import export_to_opentelemetry

        export_to_opentelemetry()  # with the provider that the program has set up

    Args:
        monitor: Says which devices, and reads them. Pass a callback's `monitor`; a new `ZeusMonitor()` if None,
            which is of this rank's own GPU under a launcher of several ranks.
        meter_provider: Where to; the global provider if None.

    Raises:
        UsageError: An argument is wrong, or OpenTelemetry is not installed; the message names it.
        DeviceError: There is no device, and `monitor` is None.
    """
    try:
        from opentelemetry import metrics
    except ModuleNotFoundError as error:
        raise UsageError(f"opentelemetry is not installed: {install_command('otel')}") from error
    if monitor is not None:
        checked_instance("monitor", monitor, ZeusMonitor, "ZeusMonitor()")
    provider = metrics.get_meter_provider() if meter_provider is None else meter_provider
    checked_object("meter_provider", provider, "get_meter", "a MeterProvider of opentelemetry.sdk.metrics")
    totals = DeviceTotals(ZeusMonitor() if monitor is None else monitor)
    meter = provider.get_meter("zeus_core")
    energy = _observed(totals, lambda state: state.energy_joules, _conventional)
    power = _observed(totals, lambda state: state.power_watts, _conventional)
    meter.create_observable_counter("hw.energy", [energy], "J", "Energy consumed by the component.")
    meter.create_observable_gauge("hw.power", [power], "W", "Power consumed by the component.")
    hostname = socket.gethostname()
    for metric in METRICS:

        def attributes(state: DeviceState, metric: ExportedMetric = metric) -> dict[str, str] | None:
            is_its = state.device.kind == metric.kind
            return dict(zip(metric.labels, [*labels_of(state), hostname], strict=True)) if is_its else None

        create = meter.create_observable_counter if metric.is_counter else meter.create_observable_gauge
        create(metric.name, [_observed(totals, metric.value, attributes)], "", metric.help)  # the name has the unit


def _conventional(state: DeviceState) -> dict[str, str]:
    return {"hw.id": state.uuid, "hw.type": _TYPES[state.device.kind], "hw.name": state.name}


def _observed(
    totals: DeviceTotals,
    value: Callable[[DeviceState], float | None],
    attributes: Callable[[DeviceState], dict[str, str] | None],
) -> Callable[[object], Iterator[Any]]:
    """Return a callback of an instrument, which observes the devices that have attributes."""

    def observe(options: object) -> Iterator[Any]:
        from opentelemetry.metrics import Observation

        for state in totals.refresh(_COLLECTION_SECONDS):
            known, labels = value(state), attributes(state)
            if known is not None and labels is not None:
                yield Observation(known, labels)

    return observe
