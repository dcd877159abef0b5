"""The energy of a run: each device, the total, and both as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zeus_core.cli._text import joules, table, watts
from zeus_core.units import kilowatt_hours_from_joules

__all__ = ["MeasuredDevice", "Total", "device_to_json", "summarize", "total_of"]


@dataclass(frozen=True)
class MeasuredDevice:
    """What one device used.

    Attributes:
        kind: "gpu", "cpu" or "dram".
        index: Among its kind.
        name: Of the product, or of the package.
        uuid: Of a GPU; None for others.
        energy_joules: None if it was lost.
        method: "counted", "integrated", "estimated" or "lost".
        uncertainty_joules: How far the energy can be off; None if that is not known.
        lost_because: Why there is no energy.
    """

    kind: str
    index: int
    name: str
    uuid: str | None
    energy_joules: float | None
    method: str
    uncertainty_joules: float | None
    lost_because: str | None

    @property
    def label(self) -> str:
        """What to call it in a column: "GPU 0"."""
        return f"{self.kind.upper()} {self.index}"


@dataclass(frozen=True)
class Total:
    """Of all devices whose energy is known; what is None was not measured.

    Attributes:
        energy_joules: Their sum.
        uncertainty_joules: How far it can be off, as far as known.
        average_power_watts: Over the whole time.
        energy_kilowatt_hours: The energy once more.
        is_complete: False if a device's energy was lost, or none was measured: the real total is higher.
    """

    energy_joules: float | None
    uncertainty_joules: float | None
    average_power_watts: float | None
    energy_kilowatt_hours: float | None
    is_complete: bool


def total_of(devices: Sequence[MeasuredDevice], seconds: float) -> Total:
    """Add up."""
    known = [device.energy_joules for device in devices if device.energy_joules is not None]
    if not known:
        return Total(None, None, None, None, is_complete=False)
    energy_joules = sum(known)
    uncertainty_joules = sum(device.uncertainty_joules or 0.0 for device in devices)
    average_power_watts = energy_joules / seconds if seconds > 0 else None
    hours = kilowatt_hours_from_joules(energy_joules)
    return Total(energy_joules, uncertainty_joules, average_power_watts, hours, len(known) == len(devices))


def device_to_json(device: MeasuredDevice, seconds: float) -> dict[str, Any]:
    """The fields of a device, and its mean power."""
    return {**asdict(device), "average_power_watts": _average_watts(device, seconds)}


def summarize(devices: Sequence[MeasuredDevice], seconds: float, notes: Sequence[str]) -> str:
    """The text: a line per device, the total, and what was not measured."""
    rows = [_row(device, seconds) for device in devices if device.energy_joules is not None]
    total = total_of(devices, seconds)
    if total.energy_joules is not None:
        name = "total" if total.is_complete else "total, at least"
        rows.append((f"  {name}", "", *_numbers(total.energy_joules, total.uncertainty_joules, "", seconds)))
    lines = [table(rows, "<<>><>")] if rows else []
    lines += _losses(devices)
    if total.energy_kilowatt_hours is not None:
        lines.append(f"  {total.energy_kilowatt_hours:.3g} kWh")
    return "\n".join([*lines, *(f"  {note}" for note in notes)])


def _row(device: MeasuredDevice, seconds: float) -> tuple[str, ...]:
    numbers = _numbers(device.energy_joules, device.uncertainty_joules, device.method, seconds)
    return (f"  {device.label}", device.name, *numbers)


def _numbers(
    energy_joules: float | None, uncertainty_joules: float | None, method: str, seconds: float
) -> tuple[str, ...]:
    uncertainty = "" if uncertainty_joules is None else f"\u00b1{uncertainty_joules:.1f}"
    average_watts = energy_joules / seconds if energy_joules is not None and seconds > 0 else None
    return joules(energy_joules), uncertainty, method, f"{watts(average_watts)} on average"


def _losses(devices: Sequence[MeasuredDevice]) -> Iterator[str]:
    for device in devices:
        if device.energy_joules is None:
            yield f"  {device.label}  {device.name}  not measured: {device.lost_because}"


def _average_watts(device: MeasuredDevice, seconds: float) -> float | None:
    return device.energy_joules / seconds if device.energy_joules is not None and seconds > 0 else None
