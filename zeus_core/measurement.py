"""The record of energy: what one device took (`DeviceEnergy`), and what all devices took (`Measurement`).

Every part of this package that measures, adds up, shows or stores energy uses these two records.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.units import duration_text, energy_text, rows_html

__all__ = ["Device", "DeviceEnergy", "DeviceKind", "Measurement", "Method"]

DeviceKind = Literal["gpu", "cpu", "dram"]
"""A GPU, a CPU package, or the memory attached to a CPU package."""

Method = Literal["counted", "integrated", "estimated", "lost"]
"""How an energy was obtained, best first: a difference of two counter readings; an integral over time-stamped power
readings; one power reading times the elapsed time; not at all."""

_METHODS_BEST_FIRST: tuple[Method, ...] = get_args(Method)


class Device(NamedTuple):
    """The name of one device in a `Measurement`.

    Attributes:
        kind: The kind of device.
        index: Its number among the devices of its kind, for people. Ranks may number the same device differently.
        uuid: The device's identity among its kind, the same on all ranks: the UUID of a GPU; the machine and the
            package of a CPU and its DRAM.
    """

    kind: DeviceKind
    index: int  # type: ignore[assignment]  # hides the method `index` of tuples, which nobody needs
    uuid: str

    @property
    def label(self) -> str:
        """The name for people: "GPU 0"."""
        return f"{self.kind.upper()} {self.index}"


@dataclass(frozen=True, slots=True)
class DeviceEnergy:
    """The energy that one device took between two points in time.

    Attributes:
        energy_joules: The energy; None if it was lost. An energy that was not measured is never 0.
        uncertainty_joules: How far the energy can be off: the half-width of the interval that holds the true energy.
            None if the energy was lost.
        method: How the energy was obtained.
        lost_because: Why the energy was lost; None if it was not.
    """

    energy_joules: float | None = 0.0
    uncertainty_joules: float | None = 0.0
    method: Method = "counted"
    lost_because: str | None = None

    @classmethod
    def lost(cls, reason: str) -> DeviceEnergy:
        """Make an energy that could not be measured."""
        return cls(None, None, "lost", reason)

    def average_power_watts(self, seconds: float) -> float | None:
        """Compute the mean power over the time of the energy; None if it was lost or no time has passed."""
        return self.energy_joules / seconds if self.energy_joules is not None and seconds > 0 else None

    def __add__(self, other: DeviceEnergy) -> DeviceEnergy:
        """Add the energy of another time or device: the uncertainties add, the worse method stays."""
        return self._combined(other, 1.0)

    def __sub__(self, other: DeviceEnergy) -> DeviceEnergy:
        """Subtract the energy of a time that lies within: the uncertainties still add, the worse method stays."""
        return self._combined(other, -1.0)

    def _combined(self, other: DeviceEnergy, sign: float) -> DeviceEnergy:
        if self.energy_joules is None or other.energy_joules is None:
            return self if self.energy_joules is None else other
        return DeviceEnergy(
            self.energy_joules + sign * other.energy_joules,
            (self.uncertainty_joules or 0.0) + (other.uncertainty_joules or 0.0),
            self.method
            if self.method == other.method
            else max(self.method, other.method, key=_METHODS_BEST_FIRST.index),
        )


@dataclass(frozen=True)
class Measurement:
    """The time and energy of one window.

    Energies are in joules, by index. None in place of an energy means that it was lost; None in place of all energies
    of a kind means that this kind was not measured.

        >>> first = Measurement.from_energies(10.0, {0: 2500.0, 1: 2400.0}, uncertainty_joules=15.0)
        >>> both = first + first
        >>> both.time, both.total_energy, both.total_uncertainty_joules
        (20.0, 9800.0, 60.0)

    Attributes:
        time: Elapsed seconds.
        devices: The energy of each measured device.
    """

    time: float
    devices: Mapping[Device, DeviceEnergy]

    @classmethod
    def from_energies(
        cls,
        time: float,
        gpu_energy: Mapping[int, float | None],
        cpu_energy: Mapping[int, float | None] | None = None,
        dram_energy: Mapping[int, float | None] | None = None,
        uncertainty_joules: float = 0.0,
    ) -> Measurement:
        """Make a measurement from plain numbers, as tests and simulations need it.

        Args:
            time: Elapsed seconds.
            gpu_energy: Joules of each GPU, by index; None for a lost energy.
            cpu_energy: Joules of each CPU package; None if CPUs were not measured.
            dram_energy: Joules of the DRAM of each CPU package; None if it was not measured.
            uncertainty_joules: How far each energy can be off.
        """
        kinds: dict[DeviceKind, Mapping[int, float | None]] = {
            "gpu": gpu_energy,
            "cpu": {} if cpu_energy is None else cpu_energy,
            "dram": {} if dram_energy is None else dram_energy,
        }
        return cls(
            time,
            {
                Device(kind, index, f"{kind}-{index}"): DeviceEnergy.lost("not given")
                if joules is None
                else DeviceEnergy(joules, uncertainty_joules)
                for kind, energies in kinds.items()
                for index, joules in energies.items()
            },
        )

    @classmethod
    def from_ranks(cls, measurements: Iterable[Measurement]) -> Measurement:
        """Combine the measurements of the same window on all ranks of a job, as if one monitor had taken them.

        A device that several ranks measured counts once: by the lowest rank that did not lose it. Devices keep their
        indices where these distinguish them; otherwise they are numbered in the order of the ranks.

        Args:
            measurements: One for each rank, at least one. The result takes as long as the longest.
        """
        time, counted = 0.0, dict[tuple[DeviceKind, str], tuple[Device, DeviceEnergy]]()
        for measurement in measurements:
            time = max(time, measurement.time)
            for device, energy in measurement.devices.items():
                identity = device.kind, device.uuid
                if identity not in counted or counted[identity][1].energy_joules is None:
                    counted[identity] = device, energy
        return cls(time, _with_unique_indices(counted.values()))

    def of(self, kind: DeviceKind) -> dict[int, DeviceEnergy]:
        """Return the energy of each device of a kind, by index: `measurement.of("gpu")[0].method`."""
        return {device.index: energy for device, energy in self.devices.items() if device.kind == kind}

    @property
    def gpu_energy(self) -> dict[int, float | None]:
        """The energy of each GPU."""
        return {index: energy.energy_joules for index, energy in self.of("gpu").items()}

    @property
    def cpu_energy(self) -> dict[int, float | None] | None:
        """The energy of each CPU package."""
        return {index: energy.energy_joules for index, energy in self.of("cpu").items()} or None

    @property
    def dram_energy(self) -> dict[int, float | None] | None:
        """The energy of the DRAM of each CPU package."""
        return {index: energy.energy_joules for index, energy in self.of("dram").items()} or None

    @property
    def soc_energy(self) -> None:
        """None, for programs written for the `zeus` package: parts of a system on a chip are GPUs and CPUs here."""
        return None

    @property
    def lost_because(self) -> dict[str, str]:
        """Why energies were lost, by the label of the device: `{"GPU 0": "..."}`."""
        return {
            device.label: energy.lost_because
            for device, energy in self.devices.items()
            if energy.lost_because is not None
        }

    @property
    def total_energy(self) -> float | None:
        """The energy of all GPUs together; None if any of them was lost."""
        return self._sum("gpu").energy_joules

    @property
    def total_uncertainty_joules(self) -> float | None:
        """How far `total_energy` can be off; None if the energy of any GPU was lost."""
        return self._sum("gpu").uncertainty_joules

    @property
    def node_energy_joules(self) -> float | None:
        """The energy of the GPUs, the CPU packages and, where the hardware counts it apart, their DRAM.

        None if the CPUs were not measured, or any part was lost: a sum of the rest would not be the node's.
        """
        return None if not self.of("cpu") else self._sum("gpu", "cpu", "dram").energy_joules

    @property
    def average_power_watts(self) -> float | None:
        """The mean power of all GPUs together; None if any of them was lost or no time has passed."""
        return self._sum("gpu").average_power_watts(self.time)

    def _repr_html_(self) -> str | None:
        rows = {"time": duration_text(self.time)}
        for device, energy in self.devices.items():
            known = energy_text(energy.energy_joules or 0.0, energy.uncertainty_joules)
            lost = energy.energy_joules is None
            rows[device.label] = f"not measured: {energy.lost_because}" if lost else f"{known}, {energy.method}"
        return rows_html(rows)

    def __add__(self, other: Measurement) -> Measurement:
        """Add a window that does not overlap with this one; see `DeviceEnergy`.

        Raises:
            UsageError: The windows measured different devices.
        """
        return self._combined(other, operator.add)

    def __radd__(self, other: int) -> Measurement:
        """Return this measurement: `sum` adds the first one to 0."""
        return self

    def __sub__(self, other: Measurement) -> Measurement:
        """Subtract a window that lies within this one; see `DeviceEnergy`.

        Raises:
            UsageError: The windows measured different devices.
        """
        return self._combined(other, operator.sub)

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object, which `from_json` reads."""
        fields: dict[str, Any] = encode(self)
        return fields

    @classmethod
    def from_json(cls, fields: Any) -> Measurement:
        """Read what `to_json` wrote.

        Raises:
            UsageError: It is something else; the message names the field.
        """
        measurement = decode(cls, fields)
        uncertainties = {
            f"devices[{device.label}].uncertainty_joules": energy.uncertainty_joules or 0.0
            for device, energy in measurement.devices.items()
        }
        for name, value in {"time": measurement.time, **uncertainties}.items():
            if value < 0:
                raise UsageError(f"Measurement.{name} is {value}; it must be at least 0")
        return measurement

    def _sum(self, *kinds: DeviceKind) -> DeviceEnergy:
        return sum((energy for kind in kinds for energy in self.of(kind).values()), DeviceEnergy())

    def _combined(self, other: Measurement, combine: Callable[[Any, Any], Any]) -> Measurement:
        if self.devices.keys() != other.devices.keys():
            labels = [sorted(device.label for device in part.devices) for part in (self, other)]
            if labels[0] == labels[1]:  # devices of the same numbers on two machines
                labels = [sorted(f"{device.label} {device.uuid}" for device in part.devices) for part in (self, other)]
            first, second = map(", ".join, labels)
            raise UsageError(
                f"measurements of different devices cannot be combined: ({first}) and ({second}); "
                "take windows of one monitor on one machine"
            )
        energies = {device: combine(energy, other.devices[device]) for device, energy in self.devices.items()}
        return Measurement(combine(self.time, other.time), energies)


def _with_unique_indices(energies: Iterable[tuple[Device, DeviceEnergy]]) -> dict[Device, DeviceEnergy]:
    """Number the devices of a kind anew if two of them have the same index."""
    parts = list(energies)
    numbered: dict[Device, DeviceEnergy] = {}
    for kind in get_args(DeviceKind):
        of_kind = [part for part in parts if part[0].kind == kind]
        is_clear = len({device.index for device, _ in of_kind}) == len(of_kind)
        for number, (device, energy) in enumerate(of_kind):
            numbered[device if is_clear else device._replace(index=number)] = energy
    return numbered
