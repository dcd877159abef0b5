"""Sums of one class of parts, or of one span, and hard bounds of its energy. Pure."""

from __future__ import annotations

import math

import numpy as np

from zeus_core.monitor._parts._part import Estimate
from zeus_core.monitor._parts._power_columns import padded

__all__ = ["ClassSums"]

_FREE, _LOCKED = 0.6, 0.9  # mean resultant lengths of the places where parts begin
# That of random places exceeds the root of this over their number in exp(-5) of all cases (Rayleigh). 7 of them reached
# .74 by chance: +-124 J of 922 were stated instead of 4, where the energy was off by .6 J.
_CHANCE = 5.0


class ClassSums:
    """The times, hard bounds and edges of a class or span.

    Args:
        columns: How many columns the regression has.
        peak_watts: The most that can be drawn.
    """

    def __init__(self, columns: int, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self.seconds = 0.0
        self.alone = 0  # intervals of this class only
        self.min_joules = self.max_joules = 0.0
        self.edges = np.zeros(columns)  # how much power crosses its edges if the knots are late
        self.late = np.zeros(columns)  # the same, times how late they can be
        self.visits, self.turn = 0, 0j  # where in an interval it begins

    def grow(self, columns: int) -> None:
        """Add columns."""
        self.edges, self.late = padded(self.edges, columns), padded(self.late, columns)

    @property
    def locked_fraction(self) -> float:
        """How far parts are in step with the updates: then the counter hardly tells how energy is divided."""
        free = max(_FREE, math.sqrt(_CHANCE / max(self.visits, 1)))
        if free >= _LOCKED:
            return 0.0
        concentration = abs(self.turn) / self.visits
        return min(max((concentration - free) / (_LOCKED - free), 0.0), 1.0)

    def bound(
        self, energy_joules: float, share: float, seconds: float, others_seconds: float, slack_seconds: float
    ) -> None:
        """Add what an interval proves of the energy of this class.

        Args:
            energy_joules: The energy of the interval.
            share: The likely share of this class in it.
            seconds: The time of this class.
            others_seconds: The time of others.
            slack_seconds: How far the ends of the interval can be off.
        """
        if share == 1:
            self.min_joules += energy_joules
            self.max_joules += energy_joules
            return
        slack = self._peak_watts * slack_seconds
        self.min_joules += max(0.0, energy_joules - self._peak_watts * others_seconds - slack)
        self.max_joules += min(energy_joules, self._peak_watts * seconds + slack)

    def bounded(self, energy: float, width: float) -> Estimate:
        """Cut an interval by what is proven of a class; widen it where its parts are in step with the updates."""
        low, high = max(energy - width, self.min_joules), min(energy + width, self.max_joules)
        locked = self.locked_fraction
        low, high = low + locked * (self.min_joules - low), high + locked * (self.max_joules - high)
        if low > high:
            low, high = self.min_joules, self.max_joules
        energy = min(max(energy, low), high, self._peak_watts * self.seconds)
        return Estimate(energy, float(max(high - energy, energy - low)))
