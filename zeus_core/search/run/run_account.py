"""Whether a run keeps its slowdown bound: what it has used up so far, and what is expected of the steps to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from zeus_core.search._aims import normal_probability
from zeus_core.search._curves import Array
from zeus_core.search.belief import Curves

Spare = tuple[Array | float, Array | float]
"""Seconds that are left below a bound, and their variance."""

_TINY = 1e-9  # of the time so far: what the rounding of sums leaves


@dataclass(frozen=True)
class RunAccount:
    """How far a run has come.

    The steps of a run do different work. So the duration that they would have had at the original setting is what they
    took, over the slowdown at their setting: the very steps are compared, and only the slowdowns are uncertain.

    Attributes:
        steps: The steps so far.
        steps_left: The steps to come.
        seconds: The time they took, by the place of their setting among all; the original one is 0.
        seconds_to_come: The expected duration of a step to come at the original setting; None for that of those so far.
        original_steps_left: Those to come that are planned at the original setting, whichever is chosen.
        left_error: Relative standard error of the time to come, where it is not known how much of this work is left.
    """

    steps: int
    steps_left: int
    seconds: Mapping[int, float]
    seconds_to_come: float | None = None
    original_steps_left: int = 0
    left_error: float = 0.0

    @property
    def total_seconds(self) -> float:
        """The time that the steps so far took."""
        return sum(self.seconds.values())

    def left_seconds(self, original_seconds: float) -> float:
        """Return the time of the steps to come at the original setting, by that of the steps so far."""
        seconds = original_seconds / self.steps if self.seconds_to_come is None else self.seconds_to_come
        return seconds * self.steps_left

    def original_seconds(self, curves: Curves) -> float:
        """Return the expected time of the whole run at the original setting."""
        slowdown = np.exp(curves.log_seconds - curves.log_seconds[:, :1])
        original = np.sum([seconds / slowdown[:, place] for place, seconds in self.seconds.items()], axis=0)
        so_far = float(curves.weights @ original)
        return so_far + self.left_seconds(so_far)

    def keeps(self, curves: Curves, factor: float, others: Spare = (0.0, 0.0)) -> Array:
        """Return the probability, by setting, that the run keeps a bound if the steps to come are at that setting.

        Steps that are planned at the original setting are there.

        Args:
            curves: The estimated curves.
            factor: The bound.
            others: The seconds that the other activities of the run leave below the bound, and their variance.
        """
        spare, variance = self.spare(curves, factor)
        deviation = np.sqrt(np.maximum(variance + others[1], 0.0)) + _TINY * self.total_seconds
        return np.asarray(curves.weights @ normal_probability((spare + others[0]) / deviation))

    def spare(self, curves: Curves, factor: float) -> tuple[Array, Array]:
        """Return the seconds below a bound if the steps to come are at a setting, and their variance.

        With an original time O of the steps so far, which took T, and L of those to come, at a slowdown f(s), they are
        factor (O + L) - T - L f(s). Both have one row for each curve, and one column for each setting.
        """
        slowdown = np.exp(curves.log_seconds - curves.log_seconds[:, :1])
        original = np.sum([seconds / slowdown[:, place] for place, seconds in self.seconds.items()], axis=0)
        left = self.left_seconds(float(curves.weights @ original))
        at_original = left * min(self.original_steps_left / max(self.steps_left, 1), 1.0)
        toward = (at_original - left) * slowdown
        spare = factor * (original + left)[:, None] - self.total_seconds - at_original + toward
        visited = [place for place in self.seconds if place > 0]
        toward_visited = [-factor * self.seconds[place] / slowdown[:, place] for place in visited]
        ones = np.ones(len(curves.settings))
        variance = toward**2 * curves.difference_variance(0, ones, 0 * ones)
        for place, sensitivity in zip(visited, toward_visited, strict=True):
            covariance = curves.slowdown_covariance(place)
            variance += 2 * toward * sensitivity[:, None] * covariance
            for other, others_sensitivity in zip(visited, toward_visited, strict=True):
                variance += (sensitivity * others_sensitivity * covariance[:, other])[:, None]
        if self.left_error:
            variance += (self.left_error * (factor * left - at_original + toward)) ** 2
        return spare, variance
