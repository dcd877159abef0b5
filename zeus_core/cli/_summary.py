"""The energy of a machine over some time: each device and the total, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from zeus_core.cli._text import joules, table, watts
from zeus_core.units import kilowatt_hours_from_joules

if TYPE_CHECKING:
    from zeus_core.measurement import Device, DeviceEnergy, Measurement

__all__ = ["Total", "devices_to_json", "summarize"]


@dataclass(frozen=True)
class Total:
    """The total of all devices whose energy is known; None for what was not measured.

    Attributes:
        energy_joules: The sum of their energies.
        uncertainty_joules: How far the sum can be off.
        average_power_watts: The mean power over the whole time.
        energy_kilowatt_hours: The sum of their energies once more.
        is_complete: False if a device's energy was lost, or none was measured: the real total is higher.
    """

    energy_joules: float | None
    uncertainty_joules: float | None
    average_power_watts: float | None
    energy_kilowatt_hours: float | None
    is_complete: bool

    @classmethod
    def from_measurement(cls, measurement: Measurement) -> Total:
        """Add up the known energies of a measurement."""
        known = [energy for energy in measurement.devices.values() if energy.energy_joules is not None]
        if not known:
            return cls(None, None, None, None, is_complete=False)
        energy = sum(known[1:], start=known[0])
        return cls(
            energy.energy_joules,
            energy.uncertainty_joules,
            _average_watts(energy, measurement.time),
            None if energy.energy_joules is None else kilowatt_hours_from_joules(energy.energy_joules),
            len(known) == len(measurement.devices),
        )


def devices_to_json(measurement: Measurement, names: Mapping[Device, str]) -> list[dict[str, Any]]:
    """Convert each device of a measurement, with its name and its mean power, to a JSON object."""
    return [
        {
            **device._asdict(),
            "name": names[device],
            **asdict(energy),
            "average_power_watts": _average_watts(energy, measurement.time),
        }
        for device, energy in measurement.devices.items()
    ]


def summarize(measurement: Measurement, names: Mapping[Device, str], notes: Sequence[str]) -> str:
    """Format a measurement: a line for each device, the total, and what was not measured.

    Args:
        measurement: The measurement.
        names: The name of each device.
        notes: What was not measured, a sentence each.
    """
    seconds = measurement.time
    rows = [
        (f"  {device.label}", names[device], *_cells(energy, energy.method, seconds))
        for device, energy in measurement.devices.items()
        if energy.energy_joules is not None
    ]
    total = Total.from_measurement(measurement)
    if total.energy_joules is not None:
        name = "total" if total.is_complete else "total, at least"
        rows.append((f"  {name}", "", *_cells(total, "", seconds)))
    lines = [table(rows, "<<>><>")] if rows else []
    lines += _losses(measurement, names)
    if total.energy_kilowatt_hours is not None:
        lines.append(f"  {total.energy_kilowatt_hours:.3g} kWh")
    return "\n".join([*lines, *(f"  {note}" for note in notes)])


def _cells(energy: DeviceEnergy | Total, method: str, seconds: float) -> tuple[str, ...]:
    uncertainty = "" if energy.uncertainty_joules is None else f"\u00b1{energy.uncertainty_joules:.1f}"
    return joules(energy.energy_joules), uncertainty, method, f"{watts(_average_watts(energy, seconds))} on average"


def _losses(measurement: Measurement, names: Mapping[Device, str]) -> Iterator[str]:
    for device, energy in measurement.devices.items():
        if energy.lost_because is not None:
            yield f"  {device.label}  {names[device]}  not measured: {energy.lost_because}"


def _average_watts(energy: DeviceEnergy | Total, seconds: float) -> float | None:
    return energy.energy_joules / seconds if energy.energy_joules is not None and seconds > 0 else None
