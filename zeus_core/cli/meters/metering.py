"""Measure the energy of this machine from outside of the programs that run on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import check_gpu_indices, notes_on_silent
from zeus_core.errors import DeviceError

if TYPE_CHECKING:
    from zeus_core.device import CpuDiscovery, Gpu
    from zeus_core.measurement import Device, Measurement
    from zeus_core.monitor import ZeusMonitor


@dataclass(frozen=True)
class MachineMeter:
    """A window over the chosen GPUs and all CPUs.

    Attributes:
        monitor: Measures the window.
        names: The name of each measured device: the product of a GPU, the package of a CPU.
        notes: One sentence for each thing that is not measured, and why.
    """

    monitor: ZeusMonitor
    names: Mapping[Device, str]
    notes: tuple[str, ...]

    @property
    def is_simulated(self) -> bool:
        """Whether any of the GPUs is simulated."""
        return any(gpu.is_simulated for gpu in self.monitor.gpus.values())

    def begin(self) -> None:
        """Open the window."""
        self.monitor.begin_window("whole", sync_execution=False)

    def end(self) -> Measurement:
        """Close the window."""
        return self.monitor.end_window("whole", sync_execution=False)


def open_meter(indices: Sequence[int] | None, cpus: CpuDiscovery | None = None) -> MachineMeter:
    """Prepare to measure. Devices that cannot be measured are in the notes.

    Args:
        indices: GPUs to measure; all visible ones if None.
        cpus: The machine's CPU packages; those of `discover_cpus` if None.

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
    # Without indices, a monitor under a launcher would measure the devices of one rank alone.
    gpu_indices = check_gpu_indices(indices, gpus) if gpus else []
    if indices is None:
        notes.extend(notes_on_silent(gpus))
    monitor = ZeusMonitor(gpu_indices, [cpu.index for cpu in cpus.cpus], gpus=gpus, cpus=cpus)
    names = {device: _name(device, monitor) for device in monitor.devices}
    return MachineMeter(monitor, names, tuple(notes))


def _name(device: Device, monitor: ZeusMonitor) -> str:
    if device.kind == "gpu":
        return monitor.gpus[device.index].name
    package = monitor.cpus[device.index].name
    return package if device.kind == "cpu" else f"of {package}"
