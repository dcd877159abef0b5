"""`zeus-core energy`: the energy of the machine from now on."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from typing import TYPE_CHECKING

from zeus_core.cli._arguments import add_gpus, add_period, seconds
from zeus_core.cli._display import make_display
from zeus_core.cli._schedule import ticks
from zeus_core.cli._summary import MeasuredDevice, summarize, total_of
from zeus_core.cli._text import joules, write
from zeus_core.errors import NoDeviceError

if TYPE_CHECKING:
    from zeus_core.cli._metering import MachineMeter

__all__ = ["SUMMARY", "add_arguments", "execute"]

SUMMARY = "Measure the energy of GPUs and CPUs until Ctrl-C"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    add_period(parser)
    parser.add_argument("--seconds", type=seconds, default=math.inf, metavar="S", help="end after this time")


def execute(arguments: argparse.Namespace) -> int:
    """Measure until Ctrl-C, which is a good end, or for so long; show the running total meanwhile."""
    from zeus_core.cli._metering import open_meter

    meter = open_meter(arguments.gpus)
    names = _find_names(meter)
    meter.begin("whole")
    with contextlib.suppress(KeyboardInterrupt):
        _watch(meter, names, arguments.period, arguments.seconds)
    measurement = meter.end("whole")
    write(f"energy of {measurement.time:.2f} s", sys.stdout)
    write(summarize(meter.device_energies(measurement), measurement.time, meter.notes), sys.stdout)
    return 0


def _find_names(meter: MachineMeter) -> list[str]:
    """The devices a window measures."""
    meter.begin("first look")
    devices = meter.device_energies(meter.end("first look"))
    if not devices:
        raise NoDeviceError("; ".join(["there is nothing to measure", *meter.notes]))
    return [f"{device.label}: {device.name}" for device in devices]


def _watch(meter: MachineMeter, names: list[str], period_seconds: float, duration_seconds: float) -> None:
    """Show the sum of the windows so far, one window a period."""
    meter.begin("part")
    so_far = None
    with make_display(names, "energy") as display:
        for elapsed_seconds in ticks(meter.monitor.time_source, period_seconds, 1, duration_seconds):
            part = meter.end("part")
            meter.begin("part")
            so_far = part if so_far is None else so_far + part
            display.show(elapsed_seconds, _values(meter.device_energies(so_far), elapsed_seconds))


def _values(devices: list[MeasuredDevice], elapsed_seconds: float) -> list[str]:
    total = total_of(devices, elapsed_seconds)
    return [
        *(joules(device.energy_joules) for device in devices),
        joules(total.energy_joules if total.is_complete else None),
    ]
