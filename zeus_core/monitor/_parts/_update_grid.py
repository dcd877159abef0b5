"""The times of the updates of a counter, fitted to when they were seen. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Bracket", "UpdateGrid"]

_PERIOD_STDERR = 0.015  # of the nominal period: how far the true one may be off
_JITTERS = 0.0005 * 2 ** np.arange(8.0)  # scales of the jitter, as fractions of the period: up to 6 %
_USUAL_JITTER = 4  # number of a scale: a larger one must be needed, 0.8 %
_NEWTON_STEPS = 6  # from the grid before, which is near
_FIT_TOLERANCE = 1.5  # of log-likelihood
_MOST_SURPRISING = 1 - 1e-12  # so that one update that is far out of step does not rule out every scale

_Array = npt.NDArray[np.float64]


class Bracket(NamedTuple):
    """Two moments between which an update happened."""

    number: int  # of the update
    low: float
    high: float


class UpdateGrid:
    """The grid phi + k T of the updates, and their jitter: a logistic regression of what was seen when.

    An update with number k had not happened at the low end of its bracket, and had at the high end:

        P(not yet at low) = f((phi + k T - low) / s),   P(happened by high) = f((high - phi - k T) / s),
        f(x) = 1 / (1 + exp(-x))

    The largest scale s that explains the brackets about as well as the best one counts: few brackets fit any grid.

    Attributes:
        period_seconds: T.
        jitter_seconds: s; nearly all updates are within three times that.
    """

    def __init__(self, brackets: Sequence[Bracket], nominal_seconds: float, previous: UpdateGrid | None = None) -> None:
        numbers, lows, highs = (np.array(column, float) for column in zip(*brackets, strict=True))
        self._last = int(numbers[-1])
        numbers -= self._last
        powers = numbers[:, None] ** np.arange(3.0)
        scales = nominal_seconds * _JITTERS[:, None]
        anchor = lows[-1]
        first_phi = (highs[-1] - lows[-1]) / 2 if previous is None else previous.at(self._last) - anchor
        phi = np.full_like(scales, first_phi)
        period = np.full_like(scales, nominal_seconds if previous is None else previous.period_seconds)
        precision = (_PERIOD_STDERR * nominal_seconds) ** -2
        variance = np.full_like(scales, ((highs - lows).min() / 4) ** 2)  # of the time of each update
        least_weight = 1e-3 / (highs - lows) ** 2  # a thousandth of that of a uniform distribution, so that it is not 0
        beyond = np.empty((2, len(scales), len(lows)))  # how far an update is before its bracket, and behind it
        for _ in range(_NEWTON_STEPS):
            at = phi + numbers * period + anchor
            np.subtract(lows, at, out=beyond[0])
            np.subtract(at, highs, out=beyond[1])
            wide = np.sqrt(scales**2 + math.pi / 8 * variance)
            early, late = surprise = _logistic(beyond / wide)
            weight = (surprise * (1 - surprise)).sum(axis=0) / (scales * wide) + least_weight
            a, b, c = (weight @ powers).T[:, :, None]
            c = c + precision
            u, v = (((early - late) / scales) @ powers[:, :2]).T[:, :, None]
            v = v + precision * (nominal_seconds - period)
            determinant = a * c - b * b
            phi_step = (c * u - b * v) / determinant
            period_step = (a * v - b * u) / determinant
            longest = np.maximum(np.abs(phi_step), np.abs(phi_step + numbers[0] * period_step))
            damping = np.minimum(1.0, 3 * wide.min(axis=1, keepdims=True) / np.maximum(longest, 1e-12))
            phi = phi + damping * phi_step
            period = period + damping * period_step
            variance = (c - 2 * numbers * b + powers[:, 2] * a) / determinant
        surprise = _logistic(beyond / scales)
        fit = np.log1p(-np.minimum(surprise, _MOST_SURPRISING)).sum(axis=(0, 2))
        fitting = np.flatnonzero(fit >= fit.max() - _FIT_TOLERANCE)
        chosen = int(max(fitting[0], min(fitting[-1], _USUAL_JITTER)))
        self.period_seconds: float = float(period[chosen, 0])
        self.jitter_seconds = float(scales[chosen, 0])
        self._origin = float(phi[chosen, 0]) + float(anchor)
        self._variance = float(c[chosen, 0] / determinant[chosen, 0])
        self._covariance = -float(b[chosen, 0] / determinant[chosen, 0])
        self._period_variance = float(a[chosen, 0] / determinant[chosen, 0])

    def number_near(self, moment: float) -> int:
        """Return the number of the update nearest to a moment."""
        return self._last + round((moment - self._origin) / self.period_seconds)

    def at(self, number: int) -> float:
        """Return the likeliest time of an update."""
        return self._origin + (number - self._last) * self.period_seconds

    def stderr_seconds(self, number: int) -> float:
        """Return the standard error of that, without the jitter."""
        distance = number - self._last
        variance = self._variance + 2 * distance * self._covariance + distance**2 * self._period_variance
        return math.sqrt(max(variance, 0.0))

    def reach_seconds(self, number: int) -> float:
        """Return how far an update can be from its likeliest time."""
        return 2 * self.stderr_seconds(number) + 3 * self.jitter_seconds


def _logistic(x: _Array) -> _Array:
    result: _Array = 0.5 + 0.5 * np.tanh(0.5 * x)
    return result
