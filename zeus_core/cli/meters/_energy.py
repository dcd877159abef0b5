"""`zeus-core energy`: the energy of the machine from now on."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import add_gpus, add_period, seconds
from zeus_core.cli.meters._display import make_display, ticks
from zeus_core.cli.meters.energy_totals import summarize
from zeus_core.cli.text import joules, write
from zeus_core.errors import NoDeviceError
from zeus_core.measurement import DeviceEnergy, Measurement

if TYPE_CHECKING:
    from zeus_core.cli.meters.metering import MachineMeter

SUMMARY = "Measure the energy of GPUs and CPUs until Ctrl-C"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    add_period(parser)
    parser.add_argument("--seconds", type=seconds, default=math.inf, metavar="S", help="end after this time")


def execute(arguments: argparse.Namespace) -> int:
    """Measure until Ctrl-C or for the given time, and show the running total meanwhile."""
    from zeus_core.cli.meters.metering import open_meter

    meter = open_meter(arguments.gpus)
    if not meter.names:
        raise NoDeviceError("; ".join(["there is nothing to measure", *meter.notes]))
    meter.begin("whole")
    with contextlib.suppress(KeyboardInterrupt):
        _watch(meter, arguments.period, arguments.seconds)
    measurement = meter.end("whole")
    write(f"energy of {measurement.time:.2f} s", sys.stdout)
    write(summarize(measurement, meter.names, meter.notes), sys.stdout)
    return 0


def _watch(meter: MachineMeter, period_seconds: float, duration_seconds: float) -> None:
    """Show the sum of the windows so far, one window for each period."""
    names = [f"{device.label}: {name}" for device, name in meter.names.items()]
    so_far: Measurement | None = None
    meter.begin("part")
    with make_display(names, "energy") as display:
        for elapsed_seconds in ticks(meter.monitor.time_source, period_seconds, 1, duration_seconds):
            part = meter.end("part")
            meter.begin("part")
            so_far = part if so_far is None else so_far + part
            energies = [*so_far.devices.values(), sum(so_far.devices.values(), DeviceEnergy())]
            display.show(elapsed_seconds, [joules(energy.energy_joules) for energy in energies])
