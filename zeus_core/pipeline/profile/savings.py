"""The energy that a plan saves in an iteration: predicted, measured, and compared with its error. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean

from zeus_core.pipeline.profile.iterations import Iteration

__all__ = ["Saving", "SavingWatch"]

# Comparisons whose mean is taken as the energy of an iteration with the plan: more of them are more certain, and notice
# later that a plan no longer saves.
_RECENT_WINDOWS = 5

# Comparisons after which a saving that is still within its error may be none.
_MIN_WINDOWS = 3

# Error of the measured saving, as a fraction of the predicted one, below which the measurement would show the latter.
_MAX_ERROR_FRACTION = 0.5


@dataclass(frozen=True)
class Saving:
    """Energy saved in an iteration, over all GPUs.

    Attributes:
        joules: The energy; negative if more is used.
        uncertainty_joules: How far it can be off.
    """

    joules: float
    uncertainty_joules: float

    @property
    def is_certain(self) -> bool:
        """Whether energy is saved for certain."""
        return self.joules > self.uncertainty_joules

    @property
    def is_loss(self) -> bool:
        """Whether energy is lost for certain."""
        return self.joules < -self.uncertainty_joules

    def __str__(self) -> str:
        known = f"{self.uncertainty_joules:.1f}" if math.isfinite(self.uncertainty_joules) else "?"
        return f"{self.joules:.1f} ± {known} J per iteration"


class SavingWatch:
    """Compares the energy of iterations with a plan with that at the original clocks.

    Args:
        predicted: The predicted saving of the plan; None if that is unknown.
    """

    def __init__(self, predicted: Saving | None) -> None:
        self._predicted = predicted
        self._measured: deque[Iteration] = deque(maxlen=_RECENT_WINDOWS)

    def add(self, measured: Iteration) -> None:
        """Add the iterations of a comparison."""
        if measured.energy_joules is not None:
            self._measured.append(measured)

    def saving(self, baseline: Iteration) -> Saving | None:
        """Return the measured saving; None before the first comparison, or where energy was lost.

        Args:
            baseline: An iteration at the original clocks.
        """
        energies = [measured.energy_joules for measured in self._measured if measured.energy_joules is not None]
        if baseline.energy_joules is None or not energies:
            return None
        error = math.hypot(*(measured.uncertainty_joules for measured in self._measured)) / len(energies)
        return Saving(baseline.energy_joules - fmean(energies), math.hypot(error, baseline.uncertainty_joules))

    def is_doubtful(self, baseline: Iteration) -> bool:
        """Return whether the plan costs energy, or whether a measurement that would show its saving shows none."""
        saving = self.saving(baseline)
        if saving is None or saving.is_certain:
            return False
        expected = self._predicted.joules if self._predicted is not None else 0.0
        is_precise = saving.uncertainty_joules < _MAX_ERROR_FRACTION * expected
        return saving.is_loss or (is_precise and len(self._measured) >= _MIN_WINDOWS)
