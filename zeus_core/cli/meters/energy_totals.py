"""The energy of a machine over some time: each device and the total, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zeus_core.cli.text import joules, table, watts
from zeus_core.codec import encode
from zeus_core.measurement import Device, DeviceEnergy, Measurement
from zeus_core.units import kilowatt_hours_from_joules, watt_hours_text


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
