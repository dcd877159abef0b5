"""Frozen values that measuring yields."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from zeus_core.errors import UsageError

__all__ = ["Measurement", "Method", "finite_number", "worst_method"]

Method = Literal["counted", "integrated", "estimated", "lost"]
"""How an energy was obtained, best first: a difference of two counter readings; an integral over time-stamped power
readings; one power reading times the elapsed time; not at all."""

_METHODS_BEST_FIRST: tuple[Method, ...] = get_args(Method)


def worst_method(methods: Sequence[Method]) -> Method:
    """The worst of some methods; of none at all, that nothing was lost."""
    return max(methods, key=_METHODS_BEST_FIRST.index, default="counted")


_Energies = Mapping[int, float | None]


@dataclass(frozen=True)
class Measurement:
    """What one window measured. The first five attributes carry their published names.

    Energies are in joules, by index. None in place of an energy says that it was lost, and in place of all energies of
    a kind that this kind was not measured: what was not measured is never 0.

    Attributes:
        time: Elapsed seconds.
        gpu_energy: Energy of each GPU.
        cpu_energy: Energy of each CPU package.
        dram_energy: Energy of the DRAM of each CPU package.
        gpu_method: How each GPU's energy was obtained.
        gpu_uncertainty_joules: How far each GPU's energy can be off: the half-width of the interval that holds the
            true energy.
        cpu_method: How each CPU package's energy was obtained.
        cpu_uncertainty_joules: How far each CPU package's energy can be off.
        dram_method: How each DRAM's energy was obtained.
        dram_uncertainty_joules: How far each DRAM's energy can be off.
        lost_because: Why an energy was lost, by what was measured: "GPU 0", "CPU 1".
    """

    time: float
    gpu_energy: _Energies
    cpu_energy: _Energies | None = None
    dram_energy: _Energies | None = None
    gpu_method: Mapping[int, Method] = field(default_factory=dict)
    gpu_uncertainty_joules: _Energies = field(default_factory=dict)
    cpu_method: Mapping[int, Method] | None = None
    cpu_uncertainty_joules: _Energies | None = None
    dram_method: Mapping[int, Method] | None = None
    dram_uncertainty_joules: _Energies | None = None
    lost_because: Mapping[str, str] = field(default_factory=dict)

    @property
    def total_energy(self) -> float | None:
        """Joules of all GPUs together; None if any of them was lost."""
        return _sum_or_none(self.gpu_energy)

    @property
    def total_uncertainty_joules(self) -> float | None:
        """How far `total_energy` can be off; None if any GPU's energy was lost."""
        return _sum_or_none(self.gpu_uncertainty_joules)

    @property
    def node_energy_joules(self) -> float | None:
        """Joules of the GPUs, the CPU packages and, where the hardware tells it apart, their DRAM.

        None if the CPUs were not measured, or any part was lost: a sum of the rest would not be the node's.
        """
        if self.cpu_energy is None:
            return None
        parts = [_sum_or_none(energies) for energies in (self.gpu_energy, self.cpu_energy, self.dram_energy or {})]
        return _sum_or_none(dict(enumerate(parts)))

    @property
    def average_power_watts(self) -> float | None:
        """Mean power of all GPUs together; None if any of them was lost or no time has passed."""
        total_energy = self.total_energy
        return total_energy / self.time if total_energy is not None and self.time > 0 else None

    def __add__(self, other: Measurement) -> Measurement:
        """Two windows that do not overlap, as one: seconds, joules and uncertainties add; the worse method stays.

        Raises:
            UsageError: The windows measured different devices.
        """
        return self._combined(other, 1.0)

    def __radd__(self, other: int) -> Measurement:
        """What `sum` starts with."""
        return self

    def __sub__(self, other: Measurement) -> Measurement:
        """A window without another that lies in it: seconds and joules are the difference, uncertainties still add.

        Raises:
            UsageError: The windows measured different devices.
        """
        return self._combined(other, -1.0)

    def _combined(self, other: Measurement, sign: float) -> Measurement:
        return Measurement(
            time=self.time + sign * other.time,
            gpu_energy=_combine(self.gpu_energy, other.gpu_energy, sign),
            cpu_energy=_combine_optional(self.cpu_energy, other.cpu_energy, sign),
            dram_energy=_combine_optional(self.dram_energy, other.dram_energy, sign),
            gpu_method=_worse(self.gpu_method, other.gpu_method),
            gpu_uncertainty_joules=_combine(self.gpu_uncertainty_joules, other.gpu_uncertainty_joules),
            cpu_method=_worse_optional(self.cpu_method, other.cpu_method),
            cpu_uncertainty_joules=_combine_optional(self.cpu_uncertainty_joules, other.cpu_uncertainty_joules),
            dram_method=_worse_optional(self.dram_method, other.dram_method),
            dram_uncertainty_joules=_combine_optional(self.dram_uncertainty_joules, other.dram_uncertainty_joules),
            lost_because={**other.lost_because, **self.lost_because},
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
                time=_positive(fields["time"]),
                gpu_energy=_energies(fields["gpu_energy"]),
                gpu_method=_methods(fields["gpu_method"]),
                gpu_uncertainty_joules=_uncertainties(fields["gpu_uncertainty_joules"]),
                lost_because={str(part): str(reason) for part, reason in fields["lost_because"].items()},
                **{name: _optional(_energies, fields[name]) for name in _OPTIONAL_ENERGIES},
                **{name: _optional(_uncertainties, fields[name]) for name in _OPTIONAL_UNCERTAINTIES},
                **{name: _optional(_methods, fields[name]) for name in _OPTIONAL_METHODS},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(f"this is not a measurement: {error!r}") from error


_OPTIONAL_ENERGIES = ("cpu_energy", "dram_energy")
_OPTIONAL_UNCERTAINTIES = ("cpu_uncertainty_joules", "dram_uncertainty_joules")
_OPTIONAL_METHODS = ("cpu_method", "dram_method")


def finite_number(value: object) -> float:
    """A number read from a file; `UsageError` for anything else, NaN and infinity included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"{value!r} is not a finite number")
    return float(value)


def _positive(value: object) -> float:
    number = finite_number(value)
    if number < 0:
        raise UsageError(f"{value!r} is not at least 0")
    return number


def _energies(values: Mapping[str, object]) -> dict[int, float | None]:
    # A difference of two measurements may be less than nothing, by no more than its uncertainty.
    return {int(index): None if value is None else finite_number(value) for index, value in values.items()}


def _uncertainties(values: Mapping[str, object]) -> dict[int, float | None]:
    return {int(index): None if value is None else _positive(value) for index, value in values.items()}


def _methods(names: Mapping[str, object]) -> dict[int, Method]:
    return {int(index): _method(name) for index, name in names.items()}


def _method(name: object) -> Method:
    for method in _METHODS_BEST_FIRST:
        if name == method:
            return method
    raise UsageError(f"{name!r} is not one of {', '.join(_METHODS_BEST_FIRST)}")


def _optional(read: Callable[[Mapping[str, object]], Any], values: Mapping[str, object] | None) -> Any:
    return None if values is None else read(values)


def _sum_or_none(energies: _Energies) -> float | None:
    total = 0.0
    for energy in energies.values():
        if energy is None:
            return None
        total += energy
    return total


def _combine(first: _Energies, second: _Energies, sign: float = 1.0) -> dict[int, float | None]:
    if first.keys() != second.keys():
        raise UsageError(
            f"measurements of different devices cannot be combined: {sorted(first)} and {sorted(second)}; "
            "take windows of one monitor"
        )
    combined: dict[int, float | None] = {}
    for index, energy in first.items():
        other = second[index]
        combined[index] = None if energy is None or other is None else energy + sign * other
    return combined


def _combine_optional(first: _Energies | None, second: _Energies | None, sign: float = 1.0) -> _Energies | None:
    return None if first is None or second is None else _combine(first, second, sign)


def _worse(first: Mapping[int, Method], second: Mapping[int, Method]) -> dict[int, Method]:
    return {index: worst_method([method, second[index]]) for index, method in first.items()}


def _worse_optional(
    first: Mapping[int, Method] | None, second: Mapping[int, Method] | None
) -> Mapping[int, Method] | None:
    return None if first is None or second is None else _worse(first, second)
