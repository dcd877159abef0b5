"""Energies of classes and spans as whole multiples of 2^-10 J, so that sums of them are exact. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from zeus_core.attribution.timeline import Estimate, Part

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


def add_expected(
    amounts: dict[Hashable, Amount], parts: Sequence[Part], estimates: Sequence[Estimate], joules: float | None
) -> dict[Hashable, float]:
    """Add what some parts likely draw, in proportion to that if their energy is known.

    Args:
        amounts: Where to.
        parts: All parts of some time.
        estimates: The likely energy of each part.
        joules: Their energy as it was counted; None if it was not.

    Returns:
        How far what was added to each class and span can be off, in joules.
    """
    total = sum(estimate.energy_joules for estimate in estimates)
    added: dict[Hashable, float] = {}
    off: dict[Hashable, float] = {}
    for part, estimate in zip(parts, estimates, strict=True):
        part_joules, off_joules = estimate
        if joules is not None:
            share = part_joules / total if total > 0 else 0.0
            part_joules, off_joules = share * joules, min(share, 1 - share) * joules
        for key in part.keys:
            added[key] = added.get(key, 0.0) + part_joules
            off[key] = off.get(key, 0.0) + off_joules
    if joules is not None and added:
        added |= in_quanta({key: of_class for key, of_class in added.items() if is_class(key)}, joules)
    for key, of_key in added.items():
        amount = amounts.setdefault(key, Amount())
        amount.energy_joules += whole_quanta(of_key)
        amount.uncertainty_joules += off[key]
    return off


def revise(
    amounts: Mapping[Hashable, Amount],
    classes: Sequence[Hashable],
    estimates: Mapping[Hashable, Estimate],
    most_joules: Mapping[Hashable, float],
) -> None:
    """Divide the energy of some classes once more, by estimates; the least certain one gets the rest.

    Args:
        amounts: The energies; their sum stays.
        classes: Those to divide.
        estimates: The likely energy of each class.
        most_joules: The most that each can have drawn.
    """
    left = sum(amounts[key].energy_joules - whole_quanta(estimates[key].energy_joules) for key in classes)
    for key in sorted(classes, key=lambda key: -amounts[key].uncertainty_joules):
        joules = whole_quanta(estimates[key].energy_joules)
        given = whole_quanta(min(max(left, -joules), max(most_joules[key] - joules, 0.0)))
        amounts[key].energy_joules = joules + given
        amounts[key].uncertainty_joules += abs(given)
        left -= given
