"""The energy of a CPU package and its DRAM between two edges."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core.device import Cpu
from zeus_core.errors import DeviceError
from zeus_core.monitor._counted_energy import DeviceEnergy, lost

__all__ = ["CpuReading", "dram_between", "package_between", "read_cpu"]

_COUNTER_PERIOD_SECONDS = 0.001  # RAPL counters are updated about every millisecond (Intel SDM, volume 3B, 15.10)


class CpuReading(NamedTuple):
    """What one CPU package said at one edge; `fault` says why it said nothing."""

    package_joules: float | None
    dram_joules: float | None
    fault: str | None = None


def read_cpu(cpu: Cpu) -> CpuReading:
    """Read the counters of a package. A fault is part of the answer."""
    try:
        return CpuReading(*cpu.read_energy_counters_joules())
    except DeviceError as error:
        return CpuReading(None, None, str(error))


def package_between(begin: CpuReading, end: CpuReading, elapsed_seconds: float) -> DeviceEnergy:
    """The energy of the package."""
    return _between(begin.package_joules, end.package_joules, begin.fault or end.fault, elapsed_seconds)


def dram_between(begin: CpuReading, end: CpuReading, elapsed_seconds: float) -> DeviceEnergy:
    """The energy of its DRAM."""
    return _between(begin.dram_joules, end.dram_joules, begin.fault or end.fault, elapsed_seconds)


def _between(begin: float | None, end: float | None, fault: str | None, elapsed_seconds: float) -> DeviceEnergy:
    if begin is None or end is None:
        return lost(fault or "the counter could not be read")
    energy_joules = end - begin
    edges_joules = 2 * energy_joules * _COUNTER_PERIOD_SECONDS / max(elapsed_seconds, _COUNTER_PERIOD_SECONDS)
    return DeviceEnergy(energy_joules, "counted", edges_joules)
