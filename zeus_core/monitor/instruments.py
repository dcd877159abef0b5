"""All that a monitor measures, read as one and turned into a `Measurement`."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import NamedTuple

from zeus_core.clock import Clock
from zeus_core.device import Cpu, Gpu
from zeus_core.monitor.cpu_energy import CpuReading, dram_between, package_between, read_cpu
from zeus_core.monitor.energy import DeviceEnergy
from zeus_core.monitor.meter import Reading, make_meter
from zeus_core.monitor.sampler import Sampler
from zeus_core.monitor.together import Together
from zeus_core.records import Measurement, Method

__all__ = ["Edges", "Instruments"]

_PRECISE_PERIOD_SECONDS = 0.004
_SAMPLING_PERIOD_SECONDS = 0.05

_logger = logging.getLogger(__name__)


class Edges(NamedTuple):
    """What all devices said at one edge of a window."""

    at: float
    gpus: list[Reading]
    cpus: list[CpuReading]


class Instruments:
    """The meters of some GPUs and CPU packages.

    Args:
        gpus: By index.
        cpus: By index.
        clock: Times the readings.
        precise: Sample the GPUs all the time, to know when their counters step.

    Raises:
        UsageError: `precise`, with a GPU that cannot be sampled so.
    """

    def __init__(self, gpus: Mapping[int, Gpu], cpus: Mapping[int, Cpu], clock: Clock, precise: bool) -> None:
        self._clock = clock
        self._cpus = cpus
        self._meters = {index: make_meter(gpu, clock, precise) for index, gpu in gpus.items()}
        self._read_gpus = [meter.read for meter in self._meters.values()]
        self._together = Together()
        self._samples_always = precise
        sampled = [meter.read for meter in self._meters.values() if meter.needs_sampling]
        period_seconds = _PRECISE_PERIOD_SECONDS if precise else _SAMPLING_PERIOD_SECONDS
        self._sampler = Sampler(lambda: [read() for read in sampled], period_seconds) if sampled else None
        if self._sampler is not None:
            weakref.finalize(self, self._sampler.stop)
            if precise:
                self._sampler.start()

    def read(self) -> Edges:
        """Read all devices, close together. Never raises."""
        at = self._clock.now()
        gpus = self._together.call(self._read_gpus)
        return Edges(at, gpus, [read_cpu(cpu) for cpu in self._cpus.values()] if self._cpus else [])

    def begin_sampling(self) -> None:
        """A window is about to be opened."""
        if self._sampler is not None:
            self._sampler.start()

    def end_sampling(self) -> None:
        """The last window was closed."""
        if self._sampler is not None and not self._samples_always:
            self._sampler.stop()

    def between(self, begin: Edges, end: Edges) -> Measurement:
        """What was measured from one edge to another."""
        seconds = end.at - begin.at
        gpus = {
            index: meter.between(first, second)
            for (index, meter), first, second in zip(self._meters.items(), begin.gpus, end.gpus, strict=True)
        }
        reasons = _reasons("GPU", gpus)
        if not self._cpus:
            return Measurement(
                time=seconds,
                gpu_energy=_energies(gpus),
                gpu_method=_methods(gpus),
                gpu_uncertainty_joules=_uncertainties(gpus),
                lost_because=reasons,
            )
        pairs = list(zip(self._cpus.items(), begin.cpus, end.cpus, strict=True))
        packages = {index: package_between(first, second, seconds) for (index, _), first, second in pairs}
        drams = {index: dram_between(first, second, seconds) for (index, cpu), first, second in pairs if cpu.has_dram}
        return Measurement(
            time=seconds,
            gpu_energy=_energies(gpus),
            gpu_method=_methods(gpus),
            gpu_uncertainty_joules=_uncertainties(gpus),
            cpu_energy=_energies(packages),
            cpu_method=_methods(packages),
            cpu_uncertainty_joules=_uncertainties(packages),
            dram_energy=_energies(drams) if drams else None,
            dram_method=_methods(drams) if drams else None,
            dram_uncertainty_joules=_uncertainties(drams) if drams else None,
            lost_because={**reasons, **_reasons("CPU", packages)},
        )


def _energies(energies: Mapping[int, DeviceEnergy]) -> dict[int, float | None]:
    return {index: energy.energy_joules for index, energy in energies.items()}


def _methods(energies: Mapping[int, DeviceEnergy]) -> dict[int, Method]:
    return {index: energy.method for index, energy in energies.items()}


def _uncertainties(energies: Mapping[int, DeviceEnergy]) -> dict[int, float | None]:
    return {index: energy.uncertainty_joules for index, energy in energies.items()}


def _reasons(kind: str, energies: Mapping[int, DeviceEnergy]) -> dict[str, str]:
    return {f"{kind} {index}": energy.lost_because for index, energy in energies.items() if energy.lost_because}
