"""Times between two knots whose division the updates of the counter do not tell. Pure.

Where a counter has lost energy, what its classes drew before and after tells what is missing. Where it stood still, or
did not answer, and has caught up, only the sum of a long time is known, in which whole parts are hidden: their energies
are told the same way, and corrected by the sum. So a passing fault costs no more than the time that it hides.

Whether a counter that stood still has caught up is told by the same, each time anew: by the power after it too.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from zeus_core.monitor._parts._amount import Amount, in_quanta, is_class, lose, whole_quanta
from zeus_core.monitor._parts._class_energy import ClassEnergy
from zeus_core.monitor._parts._near_model import Stretch
from zeus_core.monitor._parts._near_power import Gap
from zeus_core.monitor._parts._part import Estimate, Part
from zeus_core.monitor._parts._power_samples import Sampled

__all__ = ["BridgedTimes", "has_lost"]

_LOST = 0.6  # of what the model tells of the time that a counter stood still: if that is missing, it has lost all of it
_MAX_HIDDEN = 16  # each of them is divided anew at each log, in 0.2 ms; what comes later teaches the regression


class _Hidden(NamedTuple):
    """A time that was counted in one sum, unless the counter stood still and has lost some."""

    parts: Sequence[Part]
    energy_joules: float
    still_seconds: float
    gap: Gap

    def has_lost(self, told: Mapping[Hashable, Estimate]) -> bool:
        told_joules = sum(estimate.energy_joules for key, estimate in told.items() if is_class(key))
        return has_lost(self.energy_joules, self.still_seconds, self.parts, told_joules)


def has_lost(energy_joules: float, still_seconds: float, parts: Iterable[Part], told_joules: float) -> bool:
    """Tell whether a counter that stood still has not caught up.

    Args:
        energy_joules: By how much it has grown.
        still_seconds: How long it stood still.
        parts: All of the time.
        told_joules: The energy of that time by a model.
    """
    still_fraction = min(still_seconds / sum(part.seconds for part in parts), 1.0)
    return energy_joules < (1 - _LOST * still_fraction) * told_joules


class BridgedTimes:
    """The times that were not counted, and those that were counted in one sum.

    Args:
        classes: Tells what classes draw.
    """

    def __init__(self, classes: ClassEnergy) -> None:
        self._classes = classes
        self._lost: list[Stretch] = []
        self._hidden: list[_Hidden] = []

    @property
    def counted_joules(self) -> float:
        """The energy of those that were counted."""
        return sum(hidden.energy_joules for hidden in self._hidden)

    def add_lost(self, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> None:
        """Add the time that has just ended, of which nothing was counted.

        Args:
            parts: All of it.
            sampled: The energies that samples of the power tell of each.
        """
        self._lost.append(Stretch(parts, gap=self._classes.begin_gap(sampled)))

    def add_hidden(
        self, parts: Sequence[Part], sampled: Sequence[Sampled | None], energy_joules: float, still_seconds: float
    ) -> bool:
        """Add the time that has just ended, if its energy tells less of its parts than what is near it. Tell whether.

        Args:
            parts: All of it.
            sampled: The energies that samples of the power tell of each.
            energy_joules: Its energy, unless the counter has lost some.
            still_seconds: How long the counter stood still in it; 0 if it did not.
        """
        is_anything_known = self._classes.total_seconds > 0
        does_near_tell = is_anything_known if still_seconds else self._classes.is_better_told_by_near(parts, sampled)
        if len(self._hidden) >= _MAX_HIDDEN or not does_near_tell:
            return False
        self._hidden.append(_Hidden(parts, energy_joules, still_seconds, self._classes.begin_gap(sampled)))
        return True

    def add_to(self, amounts: dict[Hashable, Amount]) -> float:
        """Add the energy of all these times. Return how far the sum of all classes can be off by them."""
        off_joules = 0.0
        lost = self._lost[:]
        counted: list[tuple[float, Stretch]] = []
        told = self._classes.fit([Stretch(hidden.parts, gap=hidden.gap) for hidden in self._hidden])
        for hidden, fit in zip(self._hidden, told, strict=True):
            if hidden.still_seconds and hidden.has_lost(fit):
                lost.append(Stretch(hidden.parts, gap=hidden.gap))
            else:
                counted.append((hidden.energy_joules, Stretch(hidden.parts, hidden.energy_joules, hidden.gap)))
        for gap, fit in zip(lost, self._classes.fit(lost), strict=True):
            for key, (energy_joules, uncertainty_joules) in fit.items():
                _add(amounts.setdefault(key, Amount()), whole_quanta(energy_joules), uncertainty_joules)
                amounts[key].is_estimated = True
            off_joules += math.hypot(*(estimate.uncertainty_joules for key, estimate in fit.items() if is_class(key)))
            lose(amounts, [part for part in gap.parts if part.key not in fit])
        fits = self._classes.fit([stretch for _, stretch in counted])
        for (energy_joules, _), fit in zip(counted, fits, strict=True):
            of_classes = in_quanta(
                {key: estimate.energy_joules for key, estimate in fit.items() if is_class(key)}, energy_joules
            )
            for key, estimate in fit.items():
                joules = of_classes.get(key, whole_quanta(estimate.energy_joules))
                _add(amounts.setdefault(key, Amount()), joules, estimate.uncertainty_joules)
        return off_joules


def _add(amount: Amount, energy_joules: float, uncertainty_joules: float) -> None:
    """Add some energy: what parts drew in such a time says nothing of how the energy of others was divided."""
    amount.energy_joules += energy_joules
    amount.uncertainty_joules = math.hypot(amount.uncertainty_joules, uncertainty_joules)
