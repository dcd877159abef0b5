"""The energy of this machine, measured from outside of its programs: each device and the total, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zeus_core.cli.arguments import check_gpu_indices, notes_on_silent
from zeus_core.cli.text import joules, table, watts
from zeus_core.codec import encode
from zeus_core.errors import DeviceError
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.units import kilowatt_hours_from_joules, watt_hours_text

if TYPE_CHECKING:
    from zeus_core.device import Gpu
    from zeus_core.device.cpu import CpuDiscovery
    from zeus_core.monitor import ZeusMonitor


class MachineMeter:
    """A window over the chosen GPUs and all CPUs.

    Attributes:
        monitor: Measures the window.
        names: The name of each measured device: the product of a GPU, the package of a CPU.
        notes: One sentence for each thing that is not measured, and why.
        is_simulated: Whether any of the GPUs is simulated.
    """

    def __init__(self, monitor: ZeusMonitor, notes: Sequence[str] = ()) -> None:
        self.monitor: ZeusMonitor = monitor
        self.notes: Sequence[str] = notes
        self.names: Mapping[Device, str] = {device: _name(device, monitor) for device in monitor.devices}
        self.is_simulated: bool = any(gpu.is_simulated for gpu in monitor.gpus.values())

    def begin(self) -> None:
        """Open the window."""
        self.monitor.begin_window("whole", sync_execution=False)
        self._first = self.monitor.read(sync_execution=False)

    def so_far(self) -> Measurement:
        """Return the time and energy since the window was opened."""
        return self.monitor.between(self._first, self.monitor.read(sync_execution=False))

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
    return MachineMeter(monitor, notes)


def _name(device: Device, monitor: ZeusMonitor) -> str:
    if device.kind == "gpu":
        return monitor.gpus[device.index].name
    package = monitor.cpus[device.index].name
    return package if device.kind == "cpu" else f"of {package}"


def devices_to_json(measurement: Measurement, names: Mapping[Device, str]) -> list[dict[str, Any]]:
    """Convert each device of a measurement, with its name and its mean power, to a JSON object."""
    return [
        {
            **device._asdict(),
            "name": names[device],
            **encode(energy),
            "average_power_watts": energy.average_power_watts(measurement.time),
        }
        for device, energy in measurement.devices.items()
    ]


def total_to_json(measurement: Measurement) -> dict[str, Any]:
    """Convert the total of the known energies to a JSON object, with None for what was not measured.

    `is_complete` is false if the energy of a device was lost, or none was measured: the real total is higher.
    """
    total, is_complete = known_total(measurement)
    energy_joules = total.energy_joules
    return {
        "energy_joules": energy_joules,
        "uncertainty_joules": total.uncertainty_joules,
        "average_power_watts": total.average_power_watts(measurement.time),
        "energy_kilowatt_hours": None if energy_joules is None else kilowatt_hours_from_joules(energy_joules),
        "is_complete": is_complete,
    }


def summarize(
    measurement: Measurement, names: Mapping[Device, str], notes: Sequence[str], charges: Sequence[str] = ()
) -> str:
    """Format a measurement: a line for each device, the total, and what was not measured.

    Args:
        measurement: The measurement.
        names: The name of each device.
        notes: One sentence for each thing that was not measured.
        charges: A line for each amount that the energy emitted or cost.
    """
    seconds = measurement.time
    rows, losses = [], []
    for device, energy in measurement.devices.items():
        if energy.energy_joules is None:
            losses.append(f"  {device.label}  {names[device]}  not measured: {energy.lost_because}")
        else:
            rows.append((f"  {device.label}", names[device], *_cells(energy, energy.method, seconds)))
    lines = losses
    total, is_complete = known_total(measurement)
    if total.energy_joules is not None:
        rows.append(("  total" if is_complete else "  total, at least", "", *_cells(total, "", seconds)))
        lines = [table(rows, "<<><>"), *losses, f"  {watt_hours_text(total.energy_joules)}"]
    return "\n".join([*lines, *charges, *(f"  {note}" for note in notes)])


def known_total(measurement: Measurement) -> tuple[DeviceEnergy, bool]:
    """Add up the energies that are known; the total is lost if none is. Also return whether these are all energies."""
    known = [energy for energy in measurement.devices.values() if energy.energy_joules is not None]
    if not known:
        return DeviceEnergy.lost("no energy was measured"), False
    return sum(known, DeviceEnergy()), len(known) == len(measurement.devices)


def _cells(energy: DeviceEnergy, method: str, seconds: float) -> tuple[str, ...]:
    power = watts(energy.average_power_watts(seconds))
    return joules(energy.energy_joules, energy.uncertainty_joules), method, f"{power} on average"
