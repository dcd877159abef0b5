"""Measuring the energy of this machine from outside of what runs on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeus_core.cli._arguments import check_gpu_indices
from zeus_core.cli._summary import MeasuredDevice
from zeus_core.errors import DeviceError

if TYPE_CHECKING:
    from zeus_core.device import CpuDiscovery, Gpu
    from zeus_core.measurement import Measurement
    from zeus_core.monitor import ZeusMonitor

__all__ = ["MachineMeter", "open_meter"]


@dataclass(frozen=True)
class MachineMeter:
    """Measures windows over the chosen GPUs and all CPUs.

    Attributes:
        monitor: Does the measuring.
        notes: What is not measured, and why, a sentence each.
    """

    monitor: ZeusMonitor
    notes: tuple[str, ...]

    @property
    def is_simulated(self) -> bool:
        """Whether any of the GPUs is."""
        return any(gpu.is_simulated for gpu in self.monitor.gpus.values())

    def begin(self, name: str = "whole") -> None:
        """Open a window."""
        self.monitor.begin_window(name, sync_execution=False)

    def end(self, name: str = "whole") -> Measurement:
        """Close a window."""
        return self.monitor.end_window(name, sync_execution=False)

    def device_energies(self, measurement: Measurement) -> list[MeasuredDevice]:
        """What was measured, device by device."""
        return [
            *(self._gpu_energy(measurement, index, gpu) for index, gpu in self.monitor.gpus.items()),
            *(self._package_energy(measurement, index) for index in measurement.cpu_energy or {}),
            *(self._dram_energy(measurement, index) for index in measurement.dram_energy or {}),
        ]

    def _gpu_energy(self, measurement: Measurement, index: int, gpu: Gpu) -> MeasuredDevice:
        return MeasuredDevice(
            kind="gpu",
            index=index,
            name=gpu.name,
            uuid=gpu.uuid,
            energy_joules=measurement.gpu_energy[index],
            method=measurement.gpu_method[index],
            uncertainty_joules=measurement.gpu_uncertainty_joules[index],
            lost_because=measurement.lost_because.get(f"GPU {index}"),
        )

    def _package_energy(self, measurement: Measurement, index: int) -> MeasuredDevice:
        return MeasuredDevice(
            kind="cpu",
            index=index,
            name=self.monitor.cpus[index].name,
            uuid=None,
            energy_joules=_at(measurement.cpu_energy, index),
            method=(measurement.cpu_method or {}).get(index, "lost"),
            uncertainty_joules=_at(measurement.cpu_uncertainty_joules, index),
            lost_because=measurement.lost_because.get(f"CPU {index}"),
        )

    def _dram_energy(self, measurement: Measurement, index: int) -> MeasuredDevice:
        return MeasuredDevice(
            kind="dram",
            index=index,
            name=f"of {self.monitor.cpus[index].name}",
            uuid=None,
            energy_joules=_at(measurement.dram_energy, index),
            method=(measurement.dram_method or {}).get(index, "lost"),
            uncertainty_joules=_at(measurement.dram_uncertainty_joules, index),
            lost_because=measurement.lost_because.get(f"DRAM {index}"),
        )


def open_meter(indices: Sequence[int] | None, cpus: CpuDiscovery | None = None) -> MachineMeter:
    """Get ready to measure. Devices that cannot be measured are in the notes.

    Args:
        indices: GPUs to measure; all visible ones if None.
        cpus: The machine's CPU packages; found by `discover_cpus` if None.

    Raises:
        UsageError: There are GPUs, but none with one of these indices.
    """
    from zeus_core.device import discover_cpus, discover_gpus
    from zeus_core.monitor import ZeusMonitor

    notes: list[str] = []
    gpus: list[Gpu] = []
    try:
        gpus = discover_gpus()
    except DeviceError as error:
        notes.append(f"GPUs are not measured: {error}")
    cpus = discover_cpus() if cpus is None else cpus
    if cpus.unavailable_because:
        subject = "not all CPU energy is measured" if cpus.cpus else "CPUs are not measured"
        notes.append(f"{subject}: {cpus.unavailable_because}")
    # Indices are given in either case: of itself, a monitor measures what is one rank's own.
    gpu_indices = check_gpu_indices(indices, gpus) if gpus else []
    cpu_indices = [cpu.index for cpu in cpus.cpus]
    return MachineMeter(ZeusMonitor(gpu_indices, cpu_indices, gpus=gpus, cpus=cpus), tuple(notes))


def _at(energies: Mapping[int, float | None] | None, index: int) -> float | None:
    return (energies or {}).get(index)
