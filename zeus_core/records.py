"""Frozen values that measuring yields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from zeus_core.errors import UsageError

__all__ = ["Measurement", "Method"]

Method = Literal["counted", "integrated", "estimated", "lost"]
"""How an energy was obtained, best first: a difference of two counter readings; an integral over time-stamped power
readings; one power reading times the elapsed time; not at all."""

_METHODS_BEST_FIRST: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Measurement:
    """What one window measured. The first five attributes carry their published names.

    Attributes:
        time: Elapsed seconds.
        gpu_energy: Joules of each GPU, by index. None where the measurement was lost: not measured is not zero.
        cpu_energy: Joules of each CPU package, by index; None where no CPU was measured.
        dram_energy: Joules of the DRAM beside each CPU package, by index; None where no DRAM was measured.
        gpu_method: How each GPU's energy was obtained, by index.
        gpu_uncertainty_joules: How far each GPU's energy can be off, by index: the half-width of the interval that
            holds the true energy. None where the measurement was lost.
        cpu_uncertainty_joules: The same for each CPU package; None where no CPU was measured.
    """

    time: float
    gpu_energy: Mapping[int, float | None]
    cpu_energy: Mapping[int, float | None] | None = None
    dram_energy: Mapping[int, float | None] | None = None
    gpu_method: Mapping[int, Method] = field(default_factory=dict)
    gpu_uncertainty_joules: Mapping[int, float | None] = field(default_factory=dict)
    cpu_uncertainty_joules: Mapping[int, float | None] | None = None

    @property
    def total_energy(self) -> float | None:
        """Joules of all GPUs together; None if any of them was lost."""
        return _sum_or_none(self.gpu_energy)

    @property
    def average_power_watts(self) -> float | None:
        """Mean power of all GPUs together; None if any of them was lost or no time has passed."""
        total_energy = self.total_energy
        return total_energy / self.time if total_energy is not None and self.time > 0 else None

    def __add__(self, other: Measurement) -> Measurement:
        """The sum of two windows that do not overlap: seconds, joules and uncertainties add; the worse method stays."""
        return Measurement(
            time=self.time + other.time,
            gpu_energy=_add(self.gpu_energy, other.gpu_energy),
            cpu_energy=_add_optional(self.cpu_energy, other.cpu_energy),
            dram_energy=_add_optional(self.dram_energy, other.dram_energy),
            gpu_method={
                index: _worse(method, other.gpu_method[index])
                for index, method in self.gpu_method.items()
                if index in other.gpu_method
            },
            gpu_uncertainty_joules=_add(self.gpu_uncertainty_joules, other.gpu_uncertainty_joules),
            cpu_uncertainty_joules=_add_optional(self.cpu_uncertainty_joules, other.cpu_uncertainty_joules),
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `from_json` reads back."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Measurement:
        """Read what `to_json` wrote, after it went through JSON (which turns indices into strings).

        Raises:
            UsageError: A field is missing or holds what no measurement holds.
        """
        try:
            return cls(
                time=_finite(fields["time"]),
                gpu_energy=_energies(fields["gpu_energy"]),
                cpu_energy=_optional_energies(fields["cpu_energy"]),
                dram_energy=_optional_energies(fields["dram_energy"]),
                gpu_method={int(index): _method(name) for index, name in fields["gpu_method"].items()},
                gpu_uncertainty_joules=_energies(fields["gpu_uncertainty_joules"]),
                cpu_uncertainty_joules=_optional_energies(fields["cpu_uncertainty_joules"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(f"this is not a measurement: {error!r}") from error


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise UsageError(f"{value!r} is not a finite number of at least 0")
    return float(value)


def _energies(values: Mapping[str, object]) -> dict[int, float | None]:
    return {int(index): None if value is None else _finite(value) for index, value in values.items()}


def _optional_energies(values: Mapping[str, object] | None) -> dict[int, float | None] | None:
    return None if values is None else _energies(values)


def _method(name: object) -> Method:
    for method in _METHODS_BEST_FIRST:
        if name == method:
            return method
    raise UsageError(f"{name!r} is not one of {', '.join(_METHODS_BEST_FIRST)}")


def _sum_or_none(energies: Mapping[int, float | None]) -> float | None:
    total = 0.0
    for energy in energies.values():
        if energy is None:
            return None
        total += energy
    return total


def _add(first: Mapping[int, float | None], second: Mapping[int, float | None]) -> dict[int, float | None]:
    if first.keys() != second.keys():
        raise UsageError(
            f"measurements of different devices cannot be added: {sorted(first)} and {sorted(second)}; "
            "add windows of one monitor"
        )
    return {index: _sum_or_none({0: first[index], 1: second[index]}) for index in first}


def _add_optional(
    first: Mapping[int, float | None] | None, second: Mapping[int, float | None] | None
) -> dict[int, float | None] | None:
    return None if first is None or second is None else _add(first, second)


def _worse(first: Method, second: Method) -> Method:
    return max(first, second, key=_METHODS_BEST_FIRST.index)
