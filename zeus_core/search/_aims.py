"""The aim of each selector, as a search sees it: the cost of each setting, and whether it may be chosen at all."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zeus_core.search._curves import Array
from zeus_core.search.belief import Curves
from zeus_core.search.objectives import Objective, OptimumSelector, PowerLimitMeasurement, longest_factor

_MAX_ASKED_CURVES = 40  # of a user's own cost, which is computed for one setting after another
_MIN_FINITE_SHARE = 0.5  # of the curves, for a setting to be chosen by a cost that is infinite for some
_NUDGE = 0.01  # of time and power, for the sensitivity of a cost


@dataclass(frozen=True)
class Prospects:
    """The estimated cost at each setting.

    Attributes:
        costs: Relative cost: differences are fractions of the cost. One row for each curve, a column for each setting.
        weights: The probability of each curve.
        seconds_exponent: Change of the relative cost with the logarithm of the time, at each setting.
        watts_exponent: The same for the power.
        keeps: Whether each setting may be chosen.
        will_keep: The probability, for each curve, that it may be chosen after it was measured too.
    """

    costs: Array
    weights: Array
    seconds_exponent: Array
    watts_exponent: Array
    keeps: NDArray[np.bool_]
    will_keep: Array

    @property
    def are_open(self) -> bool:
        """Whether every setting may be chosen, with any measurements."""
        return bool((self.will_keep == 1).all())

    @property
    def expected_costs(self) -> Array:
        """The expected relative cost at each setting."""
        return np.asarray(self.weights @ self.costs)


@dataclass(frozen=True)
class LeastCost:
    """The lowest cost."""

    objective: Objective

    def prospects(self, curves: Curves, stderr: float) -> Prospects:
        """Return the estimated cost at each setting of the estimated curves, whatever the next trial's error."""
        heaviest = slice(None) if self.objective.takes_arrays else slice(_MAX_ASKED_CURVES)
        weights = curves.weights[heaviest] / curves.weights[heaviest].sum()
        log_seconds, log_watts = curves.log_seconds[heaviest], curves.log_watts[heaviest]
        costs = self._costs(curves.settings, log_seconds, log_watts)
        nudged = (
            self._costs(curves.settings, log_seconds + _NUDGE, log_watts),
            self._costs(curves.settings, log_seconds, log_watts + _NUDGE),
        )
        finite = np.isfinite(costs) & np.isfinite(nudged[0]) & np.isfinite(nudged[1])
        keeps = weights @ finite >= _MIN_FINITE_SHARE
        keeps[0] = True
        if not finite.any():
            raise ValueError("no setting has a finite cost")
        if (costs[finite] > 0).all() and all((one[finite] > 0).all() for one in nudged):
            relative = [np.log(np.where(finite, one, 1.0)) for one in (costs, *nudged)]
        else:
            scale = float(np.median(np.abs(costs[finite]))) or 1.0
            relative = [np.where(finite, one, 0.0) / scale for one in (costs, *nudged)]
        worst = float(relative[0][finite].max())
        exponents = [weights @ np.where(finite, (one - relative[0]) / _NUDGE, 0.0) for one in relative[1:]]
        filled = np.where(finite, relative[0], worst)
        return Prospects(filled, weights, exponents[0], exponents[1], keeps, finite.astype(float))

    def depends_on_setting(self, settings: tuple[int, ...], joules: float, seconds: float) -> bool:
        """Return whether settings of equal energy and time differ in cost."""
        measurements = [PowerLimitMeasurement(setting, joules, seconds) for setting in settings]
        return len({self.objective.cost(one, measurements[0]) for one in measurements}) > 1

    def _costs(self, settings: tuple[int, ...], log_seconds: Array, log_watts: Array) -> Array:
        seconds: Any = np.exp(log_seconds)
        joules: Any = seconds * np.exp(log_watts)
        if self.objective.takes_arrays:
            baseline = PowerLimitMeasurement(settings[0], joules[:, :1], seconds[:, :1])  # of all curves at once
            all_settings: Any = np.array(settings)
            all_costs = self.objective.cost(PowerLimitMeasurement(all_settings, joules, seconds), baseline)
            return np.broadcast_to(all_costs, seconds.shape)
        costs = np.empty(seconds.shape)
        for row, (curve_joules, curve_seconds) in enumerate(zip(joules.tolist(), seconds.tolist(), strict=True)):
            baseline = PowerLimitMeasurement(settings[0], curve_joules[0], curve_seconds[0])
            for column, setting in enumerate(settings):
                measurement = PowerLimitMeasurement(setting, curve_joules[column], curve_seconds[column])
                costs[row, column] = self.objective.cost(measurement, baseline)
        return costs


@dataclass(frozen=True)
class LeastEnergyWithin:
    """The least energy among the settings that keep a slowdown bound with some probability."""

    factor: float
    confidence: float

    def prospects(self, curves: Curves, stderr: float) -> Prospects:
        """Return the estimated energy at each setting; `stderr` is the relative error of the next trial's time."""
        slowdown = curves.log_seconds - curves.log_seconds[:, :1]
        ones, zeros = np.ones(len(curves.settings)), np.zeros(len(curves.settings))
        deviation = np.sqrt(curves.difference_variance(0, ones, zeros)) + 1e-9
        room = math.log(self.factor) - slowdown
        keeps = curves.weights @ normal_probability(room / deviation)
        margin = NormalDist().inv_cdf(self.confidence) * stderr
        will_keep = normal_probability((room - margin) / deviation)
        keeps[0] = will_keep[:, 0] = 1.0
        return Prospects(
            curves.log_seconds + curves.log_watts, curves.weights, ones, ones, keeps >= self.confidence, will_keep
        )


Aim: TypeAlias = LeastCost | LeastEnergyWithin


def aim_for(selector: OptimumSelector, confidence: float) -> Aim | None:
    """Return the aim of a selector; None if only the selector itself can tell."""
    factor = longest_factor(selector)
    if factor is not None:
        return LeastEnergyWithin(factor, 0.5 if selector.bound_factor is None else confidence)
    return None if selector.objective is None else LeastCost(selector.objective)


def best_place(selector: OptimumSelector, costs: Array, keeps: NDArray[np.bool_], tried: Collection[int] = (0,)) -> int:
    """Return the place of the best setting.

    Args:
        selector: The rule. If it prefers the lowest setting, that costs no more than any higher one that was tried.
        costs: The expected cost at each setting, which is the energy where time is bound.
        keeps: Whether each setting may be chosen, as the original one may.
        tried: The places that were tried, with 0 for the original one.
    """
    if selector.prefers_lowest:
        is_tried = np.isin(np.arange(len(costs)), list(tried))
        least = np.minimum.accumulate(np.where(is_tried, costs, np.inf))
        return int(np.flatnonzero(keeps & (costs <= least))[-1])
    return int(np.where(keeps, costs, np.inf).argmin())


def normal_probability(deviations: Array) -> Array:
    """Return the probability that a standard normal variable is lower (Abramowitz and Stegun 26.2.17; within 1e-7)."""
    x = np.abs(deviations)
    t = 1 / (1 + 0.2316419 * x)
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    upper = np.exp(-0.5 * np.minimum(x, 38.0) ** 2) / math.sqrt(2 * math.pi) * series
    return np.asarray(np.where(deviations >= 0, 1 - upper, upper))
