"""`zeus-core devices`: list the GPUs and CPUs."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from zeus_core.cli.text import NOT_MEASURED, readable, table, write
from zeus_core.errors import DeviceError
from zeus_core.units import number_text

if TYPE_CHECKING:
    from zeus_core.device import Gpu

SUMMARY = "List the GPUs and CPUs, their power limits and clocks"


@dataclass(frozen=True)
class GpuRow:
    """A GPU as listed. None stands for a value that the GPU does not report."""

    index: int
    name: str
    uuid: str
    is_simulated: bool
    power_watts: float | None
    temperature_celsius: float | None
    power_limit_watts: float | None
    default_power_limit_watts: float | None
    lowest_power_limit_watts: float | None
    highest_power_limit_watts: float | None
    enforced_power_limit_watts: float | None
    has_energy_counter: bool
    lowest_sm_clock_mhz: int | None
    highest_sm_clock_mhz: int | None
    remarks: list[str]


@dataclass(frozen=True)
class CpuRow:
    """A CPU package as listed."""

    index: int
    name: str
    has_dram: bool
    remarks: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")


def execute(arguments: argparse.Namespace) -> int:
    """Print the list. The exit code is 1 if it is empty."""
    gpus, no_gpus_because = _list_gpus()
    cpus, no_cpus_because = _list_cpus()
    if arguments.json:
        listing = {
            "format": "zeus-core devices",
            "version": 1,
            "gpus": [asdict(row) for row in gpus],
            "gpus_unavailable_because": no_gpus_because,
            "cpus": [asdict(row) for row in cpus],
            "cpus_unavailable_because": no_cpus_because,
        }
        write(json.dumps(listing, indent=2), sys.stdout)
    else:
        write(_gpu_table(gpus) if gpus else f"No GPUs: {no_gpus_because}", sys.stdout)
        for row in gpus:
            for remark in row.remarks:
                write(f"GPU {row.index}: {remark}", sys.stdout)
        write("\n".join(_cpu_lines(cpus)) if cpus else f"No CPUs: {no_cpus_because}", sys.stdout)
    return 0 if gpus or cpus else 1


def _list_gpus() -> tuple[list[GpuRow], str | None]:
    from zeus_core.cli.doctor.gpus import gpu_remarks
    from zeus_core.device import discover_gpus

    try:
        gpus = discover_gpus()
        rows = zip(range(len(gpus)), gpus, gpu_remarks(gpus), strict=True)
        return [_row(*row) for row in rows], None
    except DeviceError as error:
        return [], str(error)


def _list_cpus() -> tuple[list[CpuRow], str | None]:
    from zeus_core.cli.doctor.rapl import still_cpus
    from zeus_core.device import discover_cpus

    discovery = discover_cpus()
    still = still_cpus(discovery.cpus)
    rows = [CpuRow(cpu.index, cpu.name, cpu.has_dram, _remarks(cpu.index, still)) for cpu in discovery.cpus]
    return rows, discovery.unavailable_because


def _remarks(index: int, still: list[str]) -> list[str]:
    names = [name for name in still if name in (f"CPU {index}", f"DRAM {index}")]
    return [f"the counter of {name} stands still: its energy is lost" for name in names]


def _row(index: int, gpu: Gpu, remarks: list[str]) -> GpuRow:
    from zeus_core.device.gpu import read_temperature_celsius

    limits = readable(gpu.read_power_limit_range_watts)
    clocks = readable(gpu.read_supported_sm_clocks_mhz)
    return GpuRow(
        index=index,
        name=gpu.name,
        uuid=gpu.uuid,
        is_simulated=gpu.is_simulated,
        power_watts=readable(gpu.read_power_watts),
        temperature_celsius=read_temperature_celsius(gpu),
        power_limit_watts=readable(gpu.read_power_limit_watts),
        default_power_limit_watts=readable(gpu.read_default_power_limit_watts),
        lowest_power_limit_watts=limits.lowest_watts if limits else None,
        highest_power_limit_watts=limits.highest_watts if limits else None,
        enforced_power_limit_watts=readable(gpu.read_enforced_power_limit_watts),
        has_energy_counter=readable(gpu.read_energy_counter_joules) is not None,
        lowest_sm_clock_mhz=min(clocks) if clocks else None,
        highest_sm_clock_mhz=max(clocks) if clocks else None,
        remarks=remarks,
    )


def _gpu_table(rows: list[GpuRow]) -> str:
    limits = ("limit", "default", "range", "enforced")
    header = ("GPU", "name", "UUID", "power", "chip", *limits, "energy counter", "SM clocks")
    cells = [
        (
            str(row.index),
            row.name,
            row.uuid,
            _number(row.power_watts, " W"),
            _number(row.temperature_celsius, " °C"),
            _number(row.power_limit_watts, " W"),
            _number(row.default_power_limit_watts, " W"),
            _span(row.lowest_power_limit_watts, row.highest_power_limit_watts, " W"),
            _number(row.enforced_power_limit_watts, " W"),
            "yes" if row.has_energy_counter else "no",
            _span(row.lowest_sm_clock_mhz, row.highest_sm_clock_mhz, " MHz"),
        )
        for row in rows
    ]
    return table([header, *cells], ">" + "<<" + ">" * 6 + "<>")


def _cpu_lines(rows: list[CpuRow]) -> list[str]:
    return [
        "; ".join([f"CPU {row.index}: {row.name}, {'with' if row.has_dram else 'without'} its DRAM", *row.remarks])
        for row in rows
    ]


def _number(value: float | None, unit: str) -> str:
    return NOT_MEASURED if value is None else f"{number_text(value)}{unit}"


def _span(lowest: float | None, highest: float | None, unit: str) -> str:
    return (
        NOT_MEASURED if lowest is None or highest is None else f"{number_text(lowest)} to {number_text(highest)}{unit}"
    )
