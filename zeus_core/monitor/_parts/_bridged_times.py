"""Times between two knots whose division the updates of the counter do not tell. Pure.

Where a counter has lost energy, what its classes drew before and after tells what is missing. Where it stood still, or
did not answer, and has caught up, only the sum of a long time is known, in which whole parts are hidden: their energies
are told the same way, and corrected by the sum. So a passing fault costs no more than the time that it hides.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from zeus_core.monitor._parts._amount import Amount, add_estimate, in_quanta, is_class, lose, whole_quanta
from zeus_core.monitor._parts._class_energy import ClassEnergy
from zeus_core.monitor._parts._near_model import Stretch
from zeus_core.monitor._parts._part import Part

__all__ = ["BridgedTimes"]

_MAX_HIDDEN = 16  # each of them is divided anew at each log, in 0.2 ms; what comes later teaches the regression


class BridgedTimes:
    """The times that were not counted, and those that were counted in one sum.

    Args:
        classes: Tells what classes draw.
    """

    def __init__(self, classes: ClassEnergy) -> None:
        self._classes = classes
        self._lost: list[Stretch] = []
        self._hidden: list[tuple[float, Stretch]] = []

    @property
    def counted_joules(self) -> float:
        """The energy of those that were counted."""
        return sum(joules for joules, _ in self._hidden)

    def add_lost(self, parts: Sequence[Part]) -> None:
        """Add the time that has just ended, of which nothing was counted."""
        self._lost.append(Stretch(parts, gap=self._classes.near.begin_gap()))

    def add_hidden(self, parts: Sequence[Part], energy_joules: float) -> bool:
        """Add the time that has just ended, if its energy tells less of its parts than what is near it. Tell whether.

        Args:
            parts: All of it.
            energy_joules: Its energy.
        """
        if len(self._hidden) >= _MAX_HIDDEN or not self._classes.is_better_told_by_near(parts):
            return False
        self._hidden.append((energy_joules, Stretch(parts, energy_joules, self._classes.near.begin_gap())))
        return True

    def add_to(self, amounts: dict[Hashable, Amount]) -> float:
        """Add the energy of all these times. Return how far the sum of all classes can be off by them."""
        off_joules = 0.0
        for gap, fit in zip(self._lost, self._classes.fit(self._lost), strict=True):
            for key, estimate in fit.items():
                add_estimate(amounts, key, estimate)
                off_joules += estimate.uncertainty_joules if is_class(key) else 0.0
            lose(amounts, [part for part in gap.parts if part.key not in fit])
        fits = self._classes.fit([stretch for _, stretch in self._hidden])
        for (energy_joules, _), fit in zip(self._hidden, fits, strict=True):
            of_classes = in_quanta(
                {key: estimate.energy_joules for key, estimate in fit.items() if is_class(key)}, energy_joules
            )
            for key, estimate in fit.items():
                amount = amounts.setdefault(key, Amount())
                amount.energy_joules += of_classes.get(key, whole_quanta(estimate.energy_joules))
                # What a part drew in this time says nothing of how the energy of others was divided.
                amount.uncertainty_joules = math.hypot(amount.uncertainty_joules, estimate.uncertainty_joules)
        return off_joules
