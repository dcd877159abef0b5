"""The energy of a whole job: what all ranks measured, with each device counted once."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from zeus_core.measurement import Measurement, Method, worst_method
from zeus_core.monitor._windows import ZeusMonitor
from zeus_core.ports import World

__all__ = ["JobEnergy", "JobMeasurement", "add_up", "job_report", "measure_job"]


@dataclass(frozen=True)
class JobEnergy:
    """The energy of one device of a job.

    Attributes:
        energy_joules: The energy; None if it was lost.
        method: How it was obtained.
        uncertainty_joules: How far it can be off; None if it was lost.
        rank: The rank that counted the device.
        index: The device's index on that rank.
    """

    energy_joules: float | None
    method: Method
    uncertainty_joules: float | None
    rank: int
    index: int = 0


@dataclass(frozen=True)
class JobMeasurement:
    """What all ranks of a job measured in the same window.

    Attributes:
        seconds: The longest of the ranks' windows.
        gpus: The energy of each GPU, by UUID.
        cpus: The energy of each CPU package, by node (known by its boot) and index: "node-3f1c22aa CPU 1".
        drams: The energy of each package's DRAM, likewise: "node-3f1c22aa DRAM 1".
    """

    seconds: float
    gpus: Mapping[str, JobEnergy]
    cpus: Mapping[str, JobEnergy]
    drams: Mapping[str, JobEnergy]

    @property
    def total_energy_joules(self) -> float | None:
        """Energy of all GPUs; None if any was lost."""
        return _sum([it.energy_joules for it in self.gpus.values()])

    @property
    def total_uncertainty_joules(self) -> float | None:
        """How far `total_energy_joules` can be off; None if any GPU was lost."""
        return _sum([it.uncertainty_joules for it in self.gpus.values()])

    @property
    def job_energy_joules(self) -> float | None:
        """Energy of GPUs, CPU packages and DRAM; None if no CPU was measured or any part was lost."""
        parts = [*self.gpus.values(), *self.cpus.values(), *self.drams.values()]
        return _sum([it.energy_joules for it in parts]) if self.cpus else None

    @property
    def method(self) -> Method:
        """The worst way in which a GPU's energy was obtained."""
        return worst_method([it.method for it in self.gpus.values()])

    def to_measurement(self) -> Measurement:
        """The same as if one monitor had measured every device of the job.

        Devices keep their indices where these tell them apart, as on one machine where each rank measures another GPU.
        Else they are numbered in the order of the ranks. Why an energy was lost is not told.
        """
        return Measurement(
            self.seconds,
            **_fields("gpu", self.gpus),
            **(_fields("cpu", self.cpus) if self.cpus else {}),
            **(_fields("dram", self.drams) if self.drams else {}),
        )


def measure_job(measurement: Measurement, monitor: ZeusMonitor, world: World) -> JobMeasurement:
    """Add up what all ranks measured: a collective call, which every rank must make.

    However many ranks see a device, it is counted once: by the lowest rank that measured it and did not lose it.

    Args:
        measurement: This rank's window; the same window on each.
        monitor: What measured it.
        world: The ranks.

    Returns:
        The same value on every rank.

    Raises:
        WorldError: A rank did not answer in time.
    """
    return add_up(world.gather(job_report(measurement, monitor)))


def add_up(reports: Sequence[Mapping[str, Any]]) -> JobMeasurement:
    """What all ranks measured, from the `job_report` of each, by rank."""
    return JobMeasurement(
        seconds=max(report["seconds"] for report in reports),
        gpus=_count_once(reports, "gpus"),
        cpus=_count_once(reports, "cpus"),
        drams=_count_once(reports, "drams"),
    )


def job_report(measurement: Measurement, monitor: ZeusMonitor) -> dict[str, Any]:
    """What this rank measured, in JSON's types and by names that are the same on all ranks."""
    node = _node()
    cpu_parts = (measurement.cpu_energy, measurement.cpu_method, measurement.cpu_uncertainty_joules)
    dram_parts = (measurement.dram_energy, measurement.dram_method, measurement.dram_uncertainty_joules)
    gpu_parts = (measurement.gpu_energy, measurement.gpu_method, measurement.gpu_uncertainty_joules)
    uuids = {index: gpu.uuid for index, gpu in monitor.gpus.items()}
    return {
        "seconds": measurement.time,
        "gpus": _named(gpu_parts, lambda index: uuids[index]),
        "cpus": _named(cpu_parts, lambda index: f"{node} CPU {index}"),
        "drams": _named(dram_parts, lambda index: f"{node} DRAM {index}"),
    }


@cache
def _node() -> str:
    """This machine's name, and what tells it from others of that name: containers choose their names themselves."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    except OSError:
        return platform.node()
    return f"node-{boot}"


def _named(parts: tuple[Any, Any, Any], name: Callable[[int], str]) -> dict[str, list[Any]]:
    energies, methods, uncertainties = (part or {} for part in parts)
    return {name(index): [energies[index], methods[index], uncertainties[index], index] for index in energies}


def _count_once(reports: Sequence[Mapping[str, Any]], kind: str) -> dict[str, JobEnergy]:
    counted: dict[str, JobEnergy] = {}
    for rank, report in enumerate(reports):
        for device, (energy_joules, method, uncertainty_joules, index) in report[kind].items():
            if device not in counted or counted[device].energy_joules is None:
                counted[device] = JobEnergy(energy_joules, method, uncertainty_joules, rank, index)
    return counted


def _fields(kind: str, energies: Mapping[str, JobEnergy]) -> dict[str, Any]:
    """The fields of a `Measurement` for one kind of device."""
    by_index = {it.index: it for it in energies.values()}
    if len(by_index) < len(energies):
        by_index = dict(enumerate(energies.values()))
    return {
        f"{kind}_energy": {index: it.energy_joules for index, it in by_index.items()},
        f"{kind}_method": {index: it.method for index, it in by_index.items()},
        f"{kind}_uncertainty_joules": {index: it.uncertainty_joules for index, it in by_index.items()},
    }


def _sum(values: list[float | None]) -> float | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
