"""Energies of classes and spans as whole multiples of 2^-10 J, so that sums of them are exact. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from zeus_core.attribution.timeline import Part

__all__ = ["Amount", "in_quanta", "is_class", "lose", "whole_quanta"]

_QUANTUM_JOULES = 2.0**-10


@dataclass
class Amount:
    """Energy of one class.

    Attributes:
        energy_joules: The energy, as far as it is known; a whole multiple of 2^-10 J.
        uncertainty_joules: How far that can be off.
        lost_seconds: The time whose energy is not known.
        is_estimated: Whether some of it was not counted, but estimated.
    """

    energy_joules: float = 0.0
    uncertainty_joules: float = 0.0
    lost_seconds: float = 0.0
    is_estimated: bool = False


def whole_quanta(energy_joules: float) -> float:
    """Return the nearest multiple of 2^-10 J."""
    return round(energy_joules / _QUANTUM_JOULES) * _QUANTUM_JOULES


def in_quanta(divided: Mapping[Hashable, float], total_joules: float) -> dict[Hashable, float]:
    """Return the energies of some classes as multiples of 2^-10 J, so that they add up to their total."""
    rounded = {key: whole_quanta(joules) for key, joules in divided.items()}
    largest = max(rounded, key=lambda key: rounded[key])
    rounded[largest] += total_joules - sum(rounded.values())
    return rounded


def is_class(key: Hashable) -> bool:
    """Whether it is a class, not a span, whose energy is part of that of its class."""
    return not isinstance(key, int)


def lose(amounts: dict[Hashable, Amount], parts: Iterable[Part]) -> None:
    """Note that the energy of some parts is not known."""
    for part in parts:
        for key in part.keys:
            amounts.setdefault(key, Amount()).lost_seconds += part.seconds
