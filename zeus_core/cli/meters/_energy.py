"""`zeus-core energy`: the energy of the machine from now on."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from typing import TYPE_CHECKING, Any

from zeus_core._documents import JsonFormat
from zeus_core.cli.arguments import add_gpus, add_period, seconds
from zeus_core.cli.metering import devices_to_json, summarize, total_to_json
from zeus_core.cli.meters._display import make_display, ticks
from zeus_core.cli.text import joules, write
from zeus_core.errors import NoDeviceError
from zeus_core.measurement import DeviceEnergy, Measurement
from zeus_core.units import duration_text

if TYPE_CHECKING:
    from zeus_core.cli.metering import MachineMeter

SUMMARY = "Measure the energy of GPUs and CPUs until Ctrl-C"

_FORMAT = JsonFormat("zeus-core energy", 1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    add_period(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, instead of text")
    parser.add_argument("--seconds", type=seconds, default=math.inf, metavar="S", help="end after this time")


def execute(arguments: argparse.Namespace) -> int:
    """Measure until Ctrl-C or for the given time, and show the running total meanwhile."""
    from zeus_core.cli.metering import open_meter

    meter = open_meter(arguments.gpus)
    if not meter.names:
        raise NoDeviceError("; ".join(["there is nothing to measure", *meter.notes]))
    meter.begin()
    with contextlib.suppress(KeyboardInterrupt):
        _watch(meter, arguments.period, arguments.seconds, arguments.json)
    measurement = meter.end()
    if arguments.json:
        write(json.dumps(_FORMAT.document(_fields(meter, measurement)), indent=2), sys.stdout)
        return 0
    write(f"energy of {duration_text(measurement.time)}", sys.stdout)
    write(summarize(measurement, meter.names, meter.notes), sys.stdout)
    return 0


def _fields(meter: MachineMeter, measurement: Measurement) -> dict[str, Any]:
    return {
        "duration_seconds": measurement.time,
        "is_simulated": meter.is_simulated,
        "devices": devices_to_json(measurement, meter.names),
        "total": total_to_json(measurement),
        "notes": list(meter.notes),
    }


def _watch(meter: MachineMeter, period_seconds: float, duration_seconds: float, is_hidden: bool) -> None:
    """Show the sum of the energies so far, from each reading to the next one."""
    names = [f"{device.label}: {name}" for device, name in meter.names.items()]
    so_far: Measurement | None = None
    latest = meter.monitor.read()
    with make_display(names, "energy", is_hidden) as display:
        for elapsed_seconds in ticks(meter.monitor.time_source, period_seconds, 1, duration_seconds):
            before, latest = latest, meter.monitor.read()
            part = meter.monitor.between(before, latest)
            so_far = part if so_far is None else so_far + part
            energies = [*so_far.devices.values(), sum(so_far.devices.values(), DeviceEnergy())]
            display.show(elapsed_seconds, [joules(energy.energy_joules) for energy in energies])
