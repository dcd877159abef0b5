"""Time and power at all settings, estimated from trials: a weighted mixture of curves, corrected by their residuals.

Each shape of the prior (`_prior.py`) predicts the time and power at every setting. Trials raise the weight of the
shapes they agree with. The truth differs from every shape by a random, smooth residual, which grows with the slowdown,
as the model is worst far below the draw; and by a rough one, as single settings of real boards scatter. Both are
Gaussian, so that conditioning on trials is linear algebra on a few numbers. How fast the smooth one grows differs from
board to board: each shape may count twice, as one that fits well and as one that does not. The constants were picked
among some hundred sets, for the least regret of about four trials on a grid of 5 W; with a smooth residual of length
0.4 and a rough one of 0.008 it is a quarter higher. Each GPU model was left out of its own prior, and the regret was
confirmed on noise that had no part in the choice (`benchmarks/search_replay.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zeus_core.kinds import Kind
from zeus_core.search._curves import Array, CurveShapes
from zeus_core.search._observation import Observation
from zeus_core.search._prior import CurvePrior
from zeus_core.search._residual import Residual

Knob = Literal["power limit", "clock"]
"""The kind of setting: a power limit in watts, or a locked SM clock in MHz."""

# Demands (power at the full clock over the original limit) that any shape may meet. Those of the measured sweeps lie
# between 0.3 and 1.7, around 0.95.
_DEMANDS = np.exp(np.linspace(math.log(0.25), math.log(1.8), 40))
_USUAL_DEMAND, _DEMAND_DEVIATION = 0.95, 0.35

_MAX_SHAPES = 400  # that the first trial leaves; 1200 give the same regret, three times as slowly
_MAX_CURVES = 300
_MIN_WEIGHT = 3e-3  # of the heaviest

# Standard deviations, relative.
_ROUGH = 0.006
_SMOOTH_LENGTH, _ROUGH_LENGTH = 0.25, 0.1  # in logarithms of the setting
_UNKNOWN = 10.0  # how long a step takes is not in the prior
_DRAW_OFFSET = 0.04  # of the draw, as the shapes and demands are a finite number

# A draw beyond this share of the original limit was not measured under it, or not on the GPUs it applies to.
_MAX_DRAW = 1.2


@dataclass(frozen=True)
class Misfit:
    """How far the truth is from the shapes: relative standard deviations of the smooth residual.

    Attributes:
        seconds: That of time, without a slowdown.
        seconds_growths: Its increase for a slowdown by a factor of e. Each shape counts once for each of them.
        watts: That of power.
    """

    seconds: float
    seconds_growths: tuple[float, ...]
    watts: float


# Fits of A40 are off by 0.2 at 100 W, those of most V100 by much less, and the trials tell which it is. With the other
# one, the regret of ZeusCost on a grid of 5 W is 0.31 % instead of 0.30 % (benchmarks/search_replay.py).
LEARNT_MISFIT = Misfit(0.005, (0.03, 0.3), 0.025)
# Before a bound on a whole run relies on a good fit, it would have to be surer of it: with the one above, a run of
# 18,000 was 1.7 % beyond its bound, and with this one none was by more than 0.8 % (benchmarks/search_run.py).
ASSUMED_MISFIT = Misfit(0.008, (0.2,), 0.02)


@dataclass(frozen=True)
class Curves:
    """The estimate after some trials, at all settings.

    Attributes:
        settings: The settings; the first one is the original.
        weights: The probability of each curve; they add up to 1.
        log_seconds: Logarithm of the duration of a step, one row for each curve and one column for each setting.
        log_watts: Logarithm of the mean power of all GPUs together.
        residuals: How far the truth can be off, of time and of power.
    """

    settings: tuple[int, ...]
    weights: Array
    log_seconds: Array
    log_watts: Array
    residuals: tuple[Residual, Residual]

    def mean(self, values: Array) -> Array:
        """Return the expectation over the curves of values with one row for each curve."""
        return np.asarray(self.weights @ values)

    def difference_variance(self, point: int, seconds_exponent: Array, watts_exponent: Array) -> Array:
        """Return the variance of log(seconds^a watts^b) at each setting less that at one of them.

        Args:
            point: The column of that one.
            seconds_exponent: a, at each setting.
            watts_exponent: b, at each setting.
        """
        count = len(self.settings)
        total = np.zeros(self.log_seconds.shape)
        for residual, exponent in zip(self.residuals, (seconds_exponent, watts_exponent), strict=True):
            own, shared = residual.variance()[:, :count], residual.covariance(point)[:, :count]
            total += exponent**2 * own + exponent[point] ** 2 * own[:, [point]]
            total -= 2 * exponent * exponent[point] * shared
        return np.maximum(total, 0.0)

    def covariance(self, values: Array, weights: Array, seconds_exponent: Array, watts_exponent: Array) -> Array:
        """Return the covariance of values that change like log(seconds^a watts^b), between settings.

        Args:
            values: One row for each of the heaviest curves, and one column for each setting.
            weights: The probability of each of these curves.
            seconds_exponent: a, at each setting.
            watts_exponent: b, at each setting.
        """
        apart = values - weights @ values
        total = (weights[:, None] * apart).T @ apart
        for residual, exponent in zip(self.residuals, (seconds_exponent, watts_exponent), strict=True):
            total += np.outer(exponent, exponent) * residual.mean_covariance(weights, len(self.settings))
        return np.asarray(total)

    def slowdown_variances(self, point: int, variances: Array) -> tuple[float, Array]:
        """Return the variance of the logarithm of the slowdown at one setting, now and after another measurement.

        Args:
            point: The column of that one.
            variances: Those that the logarithm of the duration of a step may have in the measurement.

        Returns:
            The variance now, and that after it: one row for each of these variances, one column for each setting.
        """
        ones = np.ones(len(self.settings))
        known = self.covariance(self.log_seconds, self.weights, ones, 0 * ones)
        toward = known[point] - known[0]
        now = max(float(toward[point] - toward[0]), 0.0)
        return now, np.maximum(now - toward**2 / (np.diag(known) + variances[:, None]), 0.0)

    def slowdown_covariance(self, point: int) -> Array:
        """Return the covariance of the logarithm of the slowdown at each setting with that at one of them."""
        count, time = len(self.settings), self.residuals[0]
        at_point, at_original = time.covariance(point)[:, :count], time.covariance(0)[:, :count]
        return np.asarray(at_point - at_original - at_point[:, [0]] + at_original[:, [0]])


class Belief:
    """Estimates the time and power of a step at each setting of a knob.

    Args:
        settings: The settings, the original one first.
        prior: The shapes of curves.
        kind: The kind of setting.
        misfit: How far the truth is from the shapes.
        sampled: How many curves to draw from those that the first trial leaves; if None, the heaviest are taken.
    """

    def __init__(
        self, settings: tuple[int, ...], prior: CurvePrior, kind: Kind, misfit: Misfit, sampled: int | None = None
    ) -> None:
        self._settings = settings
        self._prior = prior
        self._is_limit = kind.binds_power
        self._misfit = misfit
        self._sampled = sampled
        self._start: tuple[tuple[float, float], CurveShapes, Array, tuple[Array, Array]] | None = None

    def after(self, observations: Sequence[Observation], seconds_errors: Array | None = None) -> Curves:
        """Return the estimate after some trials, of which the first one is at the original setting.

        Args:
            observations: The trials.
            seconds_errors: The covariance of the errors of `log_seconds`, if those of two trials are not independent.
                All trials must lie within the settings then.
        """
        baseline = observations[0]
        original = self._settings[0]
        inside = [one for one in observations if self._settings[-1] <= one.setting <= original]
        points = (*self._settings, *sorted({one.setting for one in inside} - set(self._settings)))
        observed = [points.index(one.setting) for one in inside]
        shapes, log_weights, (log_seconds, log_watts) = self._shapes(baseline)
        if len(points) > len(self._settings):
            log_seconds, log_watts = self._predicted(shapes, np.array(points) / original)
        growths = np.tile(self._misfit.seconds_growths, len(log_weights))[:, None]
        log_weights, log_seconds, log_watts = (
            np.repeat(values, len(self._misfit.seconds_growths), axis=0)
            for values in (log_weights, log_seconds, log_watts)
        )
        level = self._level(baseline)
        distance = np.abs(np.subtract.outer(np.log(points), np.log(points)))
        scaled = math.sqrt(3) * distance / _SMOOTH_LENGTH
        smooth = (1 + scaled) * np.exp(-scaled)  # once differentiable (Matern, 3/2)
        rough = _ROUGH**2 * np.exp(-0.5 * (distance / _ROUGH_LENGTH) ** 2)
        slowdown = np.abs(log_seconds - log_seconds[:, :1])

        def conditioned(amplitudes: Array, offset: float, residuals: Array, errors: Array) -> Residual:
            return Residual(amplitudes, smooth, rough + offset**2, observed, residuals, errors)

        seconds_residuals = np.array([one.log_seconds for one in inside]) - log_seconds[:, observed]
        watts_residuals = np.log([one.watts_per_gpu for one in inside]) - level - log_watts[:, observed]
        seconds = conditioned(
            self._misfit.seconds + growths * slowdown,
            _UNKNOWN,
            seconds_residuals,
            _independent([one.seconds_stderr for one in inside]) if seconds_errors is None else seconds_errors,
        )
        watts = conditioned(
            np.full(slowdown.shape, self._misfit.watts),
            self._offset(baseline),
            watts_residuals,
            _independent([one.watts_stderr for one in inside]),
        )
        log_weights = log_weights + seconds.log_likelihood + watts.log_likelihood
        kept = _heaviest(log_weights, _MAX_CURVES, _MIN_WEIGHT)
        seconds.rows(kept)
        watts.rows(kept)
        count = len(self._settings)
        weights = np.exp(log_weights[kept] - log_weights[kept].max())
        return Curves(
            self._settings,
            weights / weights.sum(),
            (log_seconds[kept] + seconds.mean)[:, :count],
            (log_watts[kept] + watts.mean)[:, :count] + level + math.log(baseline.gpus),
            (seconds, watts),
        )

    def _knows_level(self, baseline: Observation) -> bool:
        """Whether the draw can be compared with the original limit."""
        return self._is_limit and baseline.watts_per_gpu <= _MAX_DRAW * self._settings[0]

    def _level(self, baseline: Observation) -> float:
        return math.log(self._settings[0]) if self._is_limit else 0.0

    def _offset(self, baseline: Observation) -> float:
        return _DRAW_OFFSET if self._knows_level(baseline) else _UNKNOWN

    def _predicted(self, shapes: CurveShapes, fractions: Array) -> tuple[Array, Array]:
        return shapes.under_limits(fractions) if self._is_limit else shapes.at_clocks(fractions)

    def _shapes(self, baseline: Observation) -> tuple[CurveShapes, Array, tuple[Array, Array]]:
        """Return the shapes that the draw at the original setting leaves, their weights, and their curves."""
        draw = baseline.watts_per_gpu, baseline.watts_stderr
        if self._start is None or self._start[0] != draw:
            demands = _DEMANDS if self._knows_level(baseline) else _DEMANDS[::5]
            shapes, all_weights, log_draws = every_kind(self._prior, tuple(demands))
            misfit = math.log(baseline.watts_per_gpu) - self._level(baseline) - log_draws
            variance = self._offset(baseline) ** 2 + self._misfit.watts**2 + _ROUGH**2 + baseline.watts_stderr**2
            left = all_weights - 0.5 * misfit**2 / variance
            if self._sampled is None:
                kept = _heaviest(left, _MAX_SHAPES, 0.0)
                log_weights = all_weights[kept]
            else:
                kept = _sample(left, self._sampled)
                log_weights = all_weights[kept] - left[kept]
            shapes = shapes.of_rows(kept)
            curves = self._predicted(shapes, np.array(self._settings) / self._settings[0])
            self._start = draw, shapes, log_weights, curves
        return self._start[1:]


@lru_cache(maxsize=8)
def every_kind(prior: CurvePrior, demands: tuple[float, ...] = tuple(_DEMANDS)) -> tuple[CurveShapes, Array, Array]:
    """Return every shape with every demand, the logarithm of its weight, and that of its draw at the original."""
    log_demands = np.log(demands)
    usual = np.exp(-0.5 * ((log_demands - math.log(_USUAL_DEMAND)) / _DEMAND_DEVIATION) ** 2)
    shapes = CurveShapes(prior.parameters, np.tile(demands, (len(prior.sources), 1)))
    log_weights = np.log(np.outer(prior.weights, usual / usual.sum()).ravel())
    return shapes, log_weights, shapes.under_limits(np.ones(1))[1][:, 0]


def _independent(stderrs: list[float]) -> Array:
    return np.diag(np.array(stderrs) ** 2)


def _sample(log_weights: Array, count: int) -> NDArray[np.int_]:
    """Return rows in proportion to their weights, at equal distances of the cumulated weight."""
    cumulated = np.cumsum(np.exp(log_weights - log_weights.max()))
    return np.asarray(np.searchsorted(cumulated, (np.arange(count) + 0.5) / count * cumulated[-1]))


def _heaviest(log_weights: Array, count: int, min_share: float) -> NDArray[np.int_]:
    """Return the rows of the greatest weights, the heaviest first."""
    order = np.argsort(-log_weights, kind="stable")[:count]
    return np.asarray(order[np.exp(log_weights[order] - log_weights.max()) >= min_share])
