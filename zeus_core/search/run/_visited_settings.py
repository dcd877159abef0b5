"""Steps at several settings compared although the work, or the load of the machine, drifts meanwhile. Pure.

A visit is a block of steps at one setting. The logarithm of its mean duration, or of its mean power, is

    y = level(part) + curve(x) + walk(its steps) + error,    x = log(original setting / setting).

The level of each part of a run (one process) is free: only visits of one part are compared. The curve is 0 at the
original setting and smooth, so that visits of neighbouring settings bear out each other. The drift is a random walk:
visits say less about each other, the more steps lie between them. Its rate is not known: none, with a probability
of one half, or any of a grid, each weighted by its marginal likelihood. Where visits that lie around each other agree,
intervals stay those of the scatter of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zeus_core.search.comparison import POWER_CV, STANDARD_ERRORS, student_quantile
from zeus_core.search.trial import Visit

_Array = NDArray[np.float64]

# Of the curve over x: the standard deviation of its slope at the original setting, and of the change of the slope from
# x to x + 1. Simulated boards have slopes of time of 0 to 0.5 there and up to 2 at their lowest limit, where they bend
# most (four presets, 2026-11-26). Steeper curves cost little: the prior is wide beside what blocks measure.
_SLOPE, _BEND = 1.0, 2.0

_UNKNOWN = 3.0  # the logarithm of the level of a part
_LEAST_ERROR = 1e-4  # of a visit without scatter
_RATES = (0.0, *(10.0**power for power in np.arange(-2.75, 0.3, 0.25)))  # of the walk: its deviation over all steps
_NO_DRIFT = 0.5

# Loads jump, where a walk does not: with 1.0, 8 of about 520 trainings under loads that change claimed a wrong saving,
# and 2 with 1.3 (searches for the run in benchmarks/changing_load.py, 24 seeds, 2026-11-26).
_JUMPS = 1.3

# A visit whose steps scatter by more than this many standard errors beyond the median one saw the load change: the part
# of its variance beyond that does not average out. Its mean may be off by twice that. Without, 12 to 25 % of savings
# were wrong where the load was higher for a while (the same runs).
_UNEVEN, _UNEVEN_VARIANCE = 3.0, 4.0

_CERTAIN, _LEAST_DRIFT = 0.95, 0.03  # to say that the work has changed
_MAX_VISITS = 100  # of the first and of the latest ones: solving is cubic


class VisitedSettings:
    """Time and power at the settings that a run visited, over those at its original one.

    Args:
        visits: The visits, in order; at least two.
        original: The original setting.
        is_own: Whether the curve is that of this part of the run, as its own visits show it. Those of earlier parts
            then only show how much the steps scatter and drift.
        is_ordered: Whether neighbouring settings are alike. Else the curve is another number at each.
    """

    def __init__(self, visits: Sequence[Visit], original: int, *, is_own: bool, is_ordered: bool = True) -> None:
        self._curve = _curve if is_ordered else _effects
        visits = [*visits[:_MAX_VISITS], *visits[_MAX_VISITS:][-_MAX_VISITS:]]
        self._trials = [visit.trial for visit in visits]
        self._original = original
        begins = np.array([float(visit.run_steps - visit.trial.steps) for visit in visits])
        steps = np.array([float(visit.trial.steps) for visit in visits])
        middles, span = begins + steps / 2, max(float((begins + steps).max() - begins.min()), 1.0)
        self._places = self._place_of([trial.setting for trial in self._trials])
        # The mean of a walk over one visit has a third of the variance of its steps, beyond that until its begin.
        walk = (np.minimum.outer(middles, middles) - begins.min()) / span
        np.fill_diagonal(walk, (begins - begins.min() + steps / 3) / span)
        owns = np.array([visit.is_own for visit in visits])
        parts = np.equal.outer(owns, owns)
        self._walk, self._levels = walk * parts, _UNKNOWN**2 * parts
        self._shown = owns if is_own else np.ones_like(owns)
        self._curves = self._curve(self._places, self._places) * (parts if is_own else 1.0)
        step_variance = np.array(
            [(trial.step_seconds_deviation / trial.seconds_per_step) ** 2 for trial in self._trials]
        )
        usual, freedoms = float(np.median(step_variance)), np.maximum(steps - 1, 1)
        is_uneven = step_variance > usual * (1 + _UNEVEN * np.sqrt(2 / freedoms))
        excess = np.where(is_uneven, step_variance - usual, 0.0)
        pooled = float(freedoms @ (step_variance - excess) / freedoms.sum())
        pooled *= (student_quantile(int(freedoms.sum())) / STANDARD_ERRORS) ** 2
        self._time_variance = pooled / steps + _UNEVEN_VARIANCE * excess
        shares = [
            (trial.measurement.total_uncertainty_joules or 0.0) / (trial.measurement.total_energy or math.inf)
            for trial in self._trials
        ]
        self._power_variance = POWER_CV**2 / steps + (np.array(shares) / STANDARD_ERRORS) ** 2

    @cached_property
    def _times(self) -> _Fit:
        return self._fit([trial.seconds_per_step for trial in self._trials], self._time_variance, _NO_DRIFT)

    @cached_property
    def _powers(self) -> _Fit:
        watts = [trial.joules_per_step / trial.seconds_per_step for trial in self._trials]
        # Power does not drift where time certainly does not.
        return self._fit(watts, self._power_variance, max(1 - self._times.drift, _NO_DRIFT))

    @property
    def has_drifted(self) -> bool:
        """Whether the work, or the load of the machine, has certainly changed meanwhile, by more than a little."""
        return any(fit.drift > _CERTAIN and fit.rate > _LEAST_DRIFT for fit in (self._times, self._powers))

    def slowdown(self, shares: Mapping[int, float]) -> tuple[float, float]:
        """Return the duration of a step over that at the original setting, and how far it can be off.

        Args:
            shares: The settings, with the shares of the steps.
        """
        return self._factor(self._times, shares)

    def power(self, shares: Mapping[int, float]) -> tuple[float, float]:
        """Return the same of the mean power."""
        return self._factor(self._powers, shares)

    def _factor(self, fit: _Fit, shares: Mapping[int, float]) -> tuple[float, float]:
        """Return the sum of share * exp(curve), and how far it can be off, to first order."""
        places, parts = self._place_of(list(shares)), np.array(list(shares.values())) / sum(shares.values())
        covariance = self._shown[:, None] * self._curve(self._places, places)
        expected = fit.means(covariance)
        factor = float(parts @ np.exp(expected))
        weights = parts * np.exp(expected) / factor
        middle, error = fit.effect(covariance @ weights, float(weights @ self._curve(places, places) @ weights))
        factor *= math.exp(middle - float(weights @ expected))
        return factor, factor * error

    def _place_of(self, settings: Sequence[int]) -> _Array:
        return np.log(self._original / np.array(settings, dtype=float))

    def _fit(self, values: Sequence[float], variances: _Array, no_drift: float) -> _Fit:
        errors = np.diag(np.maximum(variances, _LEAST_ERROR**2))
        known = self._curves + errors + self._levels
        logs = np.log(values)
        return _Fit(logs - logs.mean(), known, self._walk, no_drift)


class _Fit:
    """The posterior of one quantity: a mixture of normal distributions, one for each rate of the drift.

    Args:
        values: The logarithm of the quantity in each visit.
        known: Their covariance without a drift.
        walk: Their covariance by a walk whose rate is 1.
        no_drift: The probability that there is none, before the values are known.
    """

    def __init__(self, values: _Array, known: _Array, walk: _Array, no_drift: float) -> None:
        rates = np.array(_RATES)
        covariances = known + np.square(rates)[:, None, None] * walk
        self._inverses = np.linalg.inv(covariances)
        self._values = values
        prior = np.where(rates == 0, no_drift, (1 - no_drift) / (len(rates) - 1))
        misfit = np.einsum("i,hij,j->h", values, self._inverses, values)
        log_posterior = np.log(prior) - 0.5 * (misfit + np.linalg.slogdet(covariances)[1])
        weights = np.exp(log_posterior - log_posterior.max())
        self._weights = weights / weights.sum()
        self._widening = np.where(rates == 0, 1.0, _JUMPS)
        self.drift: float = float(1 - self._weights[0])
        """The probability that there is one."""
        self.rate: float = float(self._weights @ rates)
        """Its expected deviation from the first step to the last."""

    def means(self, covariances: _Array) -> _Array:
        """Return the means of several things, by the covariance of each with the values."""
        return np.asarray(self._weights @ (self._values @ (self._inverses @ covariances)))

    def effect(self, covariance: _Array, variance: float) -> tuple[float, float]:
        """Return the median of something, and the half-width of an interval around it that holds at least 95 %.

        Args:
            covariance: Its covariance with each value, before these are known.
            variance: Its variance.
        """
        gains = self._inverses @ covariance
        means = gains @ self._values
        deviations = np.sqrt(np.maximum(variance - gains @ covariance, _LEAST_ERROR**2)) * self._widening
        low, middle, high = (self._quantile(means, deviations, share) for share in (0.025, 0.5, 0.975))
        return middle, max(high - middle, middle - low)

    def _quantile(self, means: _Array, deviations: _Array, share: float) -> float:
        """Return the value below which so much of the mixture lies."""
        lowest, highest = float((means - 5 * deviations).min()), float((means + 5 * deviations).max())
        for _ in range(40):
            middle = (lowest + highest) / 2
            ends = ((middle - means) / deviations / math.sqrt(2)).tolist()
            below = sum(weight * (1 + math.erf(end)) / 2 for weight, end in zip(self._weights, ends, strict=True))
            lowest, highest = (middle, highest) if below < share else (lowest, middle)
        return middle


def _effects(some: _Array, others: _Array) -> _Array:
    """Return the covariance of effects that have nothing to do with each other; that of the original setting is 0."""
    return np.asarray(_SLOPE**2 * np.equal.outer(some, others) * (some != 0)[:, None])


def _curve(some: _Array, others: _Array) -> _Array:
    """Return the covariance of the curve at some places and others: a line, and an integrated walk."""
    near, far = np.minimum.outer(some, others), np.maximum.outer(some, others)
    return np.asarray(_SLOPE**2 * np.outer(some, others) + _BEND**2 * near**2 * (3 * far - near) / 6)
