"""Readings: what devices say at one moment, such as the edge of a window."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core.device import Cpu, Gpu
from zeus_core.errors import DeviceError, NotSupportedError
from zeus_core.ports import TimeSource

__all__ = ["CpuEdge", "GpuEdge", "Reading", "RunningEnergy", "read_cpu", "read_gpu"]


class RunningEnergy(NamedTuple):
    """The energy up to a moment, since an arbitrary one, and how far it can be off, in joules."""

    energy_joules: float
    uncertainty_joules: float


class GpuEdge(NamedTuple):
    """Readings of one GPU at one moment.

    Attributes:
        at: The moment, in seconds of the monitor's time source.
        counter_joules: The energy counter; None if the GPU has none.
        power_watts: The power at that moment; None if it could not be read.
        fault: Why nothing could be read; None if all went well.
        running: The integral of power up to then; None if nothing is integrated.
        pending: The energy that the counter did not show yet; None if that is not known. See `align`.
    """

    at: float
    counter_joules: float | None
    power_watts: float | None
    fault: str | None = None
    running: RunningEnergy | None = None
    pending: RunningEnergy | None = None


class CpuEdge(NamedTuple):
    """Readings of one CPU package at one moment; `fault` says why there are none."""

    package_joules: float | None
    dram_joules: float | None
    fault: str | None = None


class Reading(NamedTuple):
    """Readings of all devices of a monitor at one moment. Pass two of them to `ZeusMonitor.between`."""

    at: float
    gpus: list[GpuEdge]
    cpus: list[CpuEdge]

    @property
    def has_fault(self) -> bool:
        """Whether a GPU could not be read."""
        return any(edge.fault is not None for edge in self.gpus)


def read_gpu(gpu: Gpu, has_counter: bool, time_source: TimeSource) -> GpuEdge:
    """Read the counter, if there is one, and the power of a GPU: two driver calls. A fault is part of the answer."""
    at = time_source.now()
    counter_joules = None
    if has_counter:
        try:
            counter_joules = gpu.read_energy_counter_joules()
        except DeviceError as error:
            return GpuEdge(at, None, None, str(error))
    try:
        return GpuEdge(at, counter_joules, gpu.read_power_watts())
    except NotSupportedError:
        return GpuEdge(at, counter_joules, None)
    except DeviceError as error:
        # The counter alone is enough.
        return GpuEdge(at, counter_joules, None, None if has_counter else str(error))


def read_cpu(cpu: Cpu) -> CpuEdge:
    """Read the counters of a CPU package. A fault is part of the answer."""
    try:
        return CpuEdge(*cpu.read_energy_counters_joules())
    except DeviceError as error:
        return CpuEdge(None, None, str(error))
