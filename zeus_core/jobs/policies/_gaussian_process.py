"""A Gaussian process of one variable, with values that are known and values that are only known to be higher."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_MAX_PASSES = 20  # over the censored observations; five settle two neighbours, and each pass takes microseconds
_SETTLED = 1e-3
_MIN_PRECISION = 1e-9
_DRIFTS = (0.0, 0.03, 0.1, 0.3, 0.55, 1.0)  # from less than the noise of an epoch to all of the shape
# What is seen at the batch sizes that run understates what changes at others. Set on a drift of epochs, 20 seeds, by
# benchmarks/recurring_replay.py (2026-11-26): 1 misses the change in 2 of 20 histories; 3 and 4 raise the mean regret
# over its 11 changes by 0.6 and 0.8 of 4.7 (10 seeds, with a variant of the policy).
_UNSEEN = 2.0


@dataclass(frozen=True)
class Kernel:
    """How values are related before anything was observed.

    Two values, at places x and y and of ages s and t in half-lives, have the covariance

        level^2 + deviation^2 exp(-((x - y) / length)^2 / 2) (1 - drift^2 (1 - 2^-(s - t)^2)) + own^2 [x = y]

    so that a share of drift^2 of the shape is forgotten, smoothly: half of it after a half-life.

    Attributes:
        deviation: Standard deviation of the shape.
        length: Distance over which values are alike.
        own_deviation: Standard deviation of what each place has for itself.
        slope: How much values are expected to rise per unit of the place.
        level_deviation: Standard deviation of what all values have in common.
        drift: How much the shape changes over many half-lives: not at all (0) to all of it (1).
    """

    deviation: float
    length: float
    own_deviation: float
    slope: float = 0.0
    level_deviation: float = 5.0
    drift: float = 0.0

    def covariance(self, places: Array, ages: Array) -> Array:
        """Return the covariance of values at places, each as it was at an age, in half-lives."""
        distances = (places[:, None] - places[None, :]) / self.length
        shape = self.deviation**2 * np.exp(-0.5 * distances**2)
        forgotten = self.drift**2 * (1.0 - 0.5 ** ((ages[:, None] - ages[None, :]) ** 2))
        own = self.own_deviation**2 * (distances == 0.0)
        covariance: Array = self.level_deviation**2 + shape * (1.0 - forgotten) + own
        return covariance

    def drifting(self, observations: Sequence[CensoredValue]) -> Kernel:
        """Return the kernel with the drift that is estimated from observations of several ages.

        It is twice the mean over some drifts, each weighted by the probability of the known values under it. So work
        that does not change is not explored anew, and work that moves a little is not taken to have changed altogether.
        """
        certain = [one for one in observations if not one.is_censored]
        if len({one.age for one in certain}) < 2:
            return self
        evidence = np.array([replace(self, drift=drift)._log_evidence(certain) for drift in _DRIFTS])
        weights = np.exp(evidence - evidence.max())
        return replace(self, drift=min(_UNSEEN * float(weights @ np.array(_DRIFTS) / weights.sum()), 1.0))

    def _log_evidence(self, certain: Sequence[CensoredValue]) -> float:
        """Return the logarithm of the probability density of known values, up to a constant."""
        places, ages = np.array([[one.place, one.age] for one in certain]).T
        values = np.array([one.value for one in certain]) - self.slope * places
        noise = np.diag([one.deviation**2 for one in certain])
        lower = np.linalg.cholesky(self.covariance(places, ages) + noise)
        whitened = np.linalg.solve(lower, values - values.mean())
        return float(-0.5 * whitened @ whitened - np.log(np.diag(lower)).sum())


@dataclass(frozen=True)
class CensoredValue:
    """A value at a place, or a lower bound of one.

    Attributes:
        place: Where.
        value: The value, or the bound.
        deviation: Standard deviation of its error.
        is_censored: Whether the value is only known to be higher.
        age: How long ago, in half-lives.
    """

    place: float
    value: float
    deviation: float
    is_censored: bool = False
    age: float = 0.0


def posterior(kernel: Kernel, observations: Sequence[CensoredValue], places: Array) -> tuple[Array, Array]:
    """Return the means of the values at places, and their covariance, after some observations.

    A censored observation is an expectation propagation site: a Gaussian of the mean and variance that the value has,
    given all other observations, above the bound.

    Args:
        kernel: The covariance before.
        observations: The observed values.
        places: Where the values are wanted, as they are now.
    """
    count = len(observations)
    at = np.concatenate([[one.place for one in observations], places])
    ages = np.concatenate([[one.age for one in observations], np.zeros(len(places))])
    prior = kernel.covariance(at, ages)
    values = np.array([one.value for one in observations] + [0.0] * len(places)) - kernel.slope * at
    certain = [number for number, one in enumerate(observations) if not one.is_censored]
    level = float(values[certain or range(count)].mean()) if count else 0.0
    values -= level
    noise = np.array([one.deviation for one in observations] + [math.inf] * len(places))
    censored = [number for number, one in enumerate(observations) if one.is_censored]
    precisions = 1.0 / noise**2
    precisions[censored] = 0.0
    shifts = precisions * values
    means, covariance = _after(prior, precisions, shifts)
    for _ in range(_MAX_PASSES if censored else 0):
        previous = means.copy()
        for number in censored:
            site = _site_above(
                means[number],
                covariance[number, number],
                precisions[number],
                shifts[number],
                values[number],
                noise[number],
            )
            if site is not None:
                precisions[number], shifts[number] = site
                means, covariance = _after(prior, precisions, shifts)
        if float(np.abs(means - previous).max()) < _SETTLED:
            break
    return means[count:] + level + kernel.slope * places, covariance[count:, count:]


def _after(prior: Array, precisions: Array, shifts: Array) -> tuple[Array, Array]:
    roots = np.sqrt(precisions)
    inner = np.eye(len(roots)) + roots[:, None] * prior * roots[None, :]
    covariance = prior - (prior * roots) @ np.linalg.solve(inner, roots[:, None] * prior)
    return covariance @ shifts, covariance


def _site_above(
    mean: float, variance: float, precision: float, shift: float, bound: float, deviation: float
) -> tuple[float, float] | None:
    """Return the precision and shift of the site of a bound; None if the other observations determine the value."""
    rest = 1.0 / variance - precision
    if rest <= _MIN_PRECISION:
        return None
    cavity_variance = 1.0 / rest
    cavity_mean = cavity_variance * (mean / variance - shift)
    scale = math.sqrt(cavity_variance + deviation**2)
    z = (cavity_mean - bound) / scale
    ratio = _density_over_probability(z)
    new_mean = cavity_mean + cavity_variance * ratio / scale
    new_variance = cavity_variance - cavity_variance**2 * ratio * (z + ratio) / scale**2
    new_precision = max(1.0 / max(new_variance, 1e-12) - rest, _MIN_PRECISION)
    return new_precision, new_mean * (new_precision + rest) - cavity_mean * rest


def _density_over_probability(z: float) -> float:
    """Return the normal density over the normal probability below z."""
    if z < -8.0:  # where the probability is too small to divide by
        return -z - 1.0 / z
    return math.exp(-0.5 * z * z) / (math.sqrt(0.5 * math.pi) * math.erfc(-z / math.sqrt(2.0)))
