"""Whether a run keeps its slowdown bound: what it has used up so far, and what is expected of the steps to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zeus_core.search._aims import normal_probability
from zeus_core.search._curves import Array
from zeus_core.search.belief import Curves

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
        original_steps_left: Those to come that are planned at the original setting, whichever is chosen.
    """

    steps: int
    steps_left: int
    seconds: Mapping[int, float]
    original_steps_left: int = 0

    @property
    def total_seconds(self) -> float:
        """The time that the steps so far took."""
        return sum(self.seconds.values())

    def surely_keeps(self, slowdowns: Array, factor: float) -> NDArray[np.bool_]:
        """Return, by setting, whether the run keeps a bound if all steps to come are there, as slow as can be.

        Args:
            slowdowns: The highest slowdown that is possible at each setting.
            factor: The bound.
        """
        original = sum(seconds / float(slowdowns[place]) for place, seconds in self.seconds.items())
        left = original * self.steps_left / self.steps
        return np.asarray(factor * (original + left) >= self.total_seconds + left * slowdowns)

    def keeps(self, curves: Curves, factor: float) -> Array:
        """Return the probability, by setting, that the run keeps a bound if the steps to come are at that setting.

        Steps that are planned at the original setting are there.
        """
        slowdown = np.exp(curves.log_seconds - curves.log_seconds[:, :1])
        original = np.sum([seconds / slowdown[:, place] for place, seconds in self.seconds.items()], axis=0)
        left = float(curves.weights @ original) * self.steps_left / self.steps  # seconds at the original setting
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
        deviation = np.sqrt(np.maximum(variance, 0.0)) + _TINY * self.total_seconds
        return np.asarray(curves.weights @ normal_probability(spare / deviation))
