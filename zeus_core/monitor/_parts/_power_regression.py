"""A Bayesian regression of what intervals tell on the time in each column, for several kinds of loads and lags. Pure.

The surprises of the filter are independent of each other if a kind and lag are true: joules = seconds b + noise. So the
power b of all columns is found by weighted least squares, and how likely they are under each kind and lag decides
between these. How large all variances are is not known before: their common scale has an inverse gamma distribution.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

import numpy as np

from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, Column, padded
from zeus_core.monitor._parts._power_filter import Surprise
from zeus_core.monitor._parts._power_kinds import KINDS
from zeus_core.monitor._parts._power_state import Affine

__all__ = ["FINE", "MIN_WATTS", "PowerRegression"]

MIN_WATTS = 1e-3
"""The least mean power: a sensor may show nothing but 0 W, and the prior of a power far below this is singular."""

_PHASE_STDERR = 0.4  # of the mean power: how far a tenth of a step may differ from the mean of the steps
_EDGE_STDERR = 0.12  # of the mean power: how far the power near an edge may differ; beyond that, the lags tell
_TEMPER = 0.75  # of the evidence: bursts and the unknown jitter of knots make more of it than there is
_SCALE_STRENGTH = 8.0  # intervals that the scale of 1 counts as
_UNLIKELY = 1e-6  # times the likeliest kind: then it is not followed any more
_MIN_INTERVALS_TO_DROP = 48
_BETWEEN = 4  # lags from one of those that are tried to the next: the likeliest one may lie between them
_SOLVE_EVERY = 16  # intervals of several classes
_FIRST_SOLVED = (4, 8)  # of them, while they are few


def _between(is_smooth: bool) -> Array:
    """Return the weights that interpolate a function of the lag from its values at those that are tried."""
    count = len(LAGS_SECONDS)
    weights = np.zeros(((count - 1) * _BETWEEN + 1, count))
    for row, place in zip(weights, np.arange(len(weights)) / _BETWEEN, strict=True):
        below = min(int(place), count - 2)
        part = place - below
        row[below : below + 2] = 1 - part, part
        if is_smooth:  # the mean of the slopes on both sides counts at each of them
            for at, bend in ((below, part * (1 - part) ** 2), (below + 1, (1 - part) * part**2)):
                if 0 < at < count - 1:
                    row[at - 1 : at + 2] -= 0.5 * bend * np.array([1.0, -2.0, 1.0])
    return weights


FINE = _between(is_smooth=False)
"""Interpolates energies between the lags that are tried."""
_SMOOTH = _between(is_smooth=True)  # for evidence, which has its maximum between them


class PowerRegression:
    """The power in each column, with each kind of load and each lag.

    Args:
        peak_watts: The most that can be drawn.

    Attributes:
        power_watts: b.
        covariance: The covariance of b.
        scale: That of all variances.
        weights: How likely each kind is, with each of the lags of `FINE`.
        count: The energies that were told so far, of intervals and by samples of the power.
        best: The numbers of the likeliest kind and lag.
    """

    def __init__(self, peak_watts: float) -> None:
        shape = len(KINDS), len(LAGS_SECONDS)
        self._peak_watts = peak_watts
        self._normal = np.zeros((*shape, 0, 0))
        self._right = np.zeros((*shape, 0))
        self._squares, self._log_variances = np.zeros(shape), np.zeros(shape)
        self._mixed = self._unsolved = 0  # intervals of several classes
        self.count = 0
        self.power_watts: Array = np.zeros((*shape, 0))
        self.covariance: Array = np.zeros((*shape, 0, 0))
        self.scale: Array = np.ones(shape)
        self.weights: Array = np.full((len(KINDS), len(FINE)), 1 / (len(KINDS) * len(FINE)))
        self.best = 0, 0

    @property
    def is_due(self) -> bool:
        """Whether enough has been added to solve it anew."""
        return self._unsolved >= _SOLVE_EVERY or (self._unsolved > 0 and self._mixed in _FIRST_SOLVED)

    @property
    def is_stale(self) -> bool:
        """Whether the solution does not know all that was added."""
        return self._unsolved > 0 or self.covariance.shape[-1] < self.power_watts.shape[-1]

    def grow(self, columns: Mapping[Column, int], mean_watts: float) -> None:
        """Add columns, whose power is the mean until it is known."""
        size, before = len(columns), self.power_watts.shape[-1]
        if size == before:
            return
        self._normal = padded(self._normal, size, axes=2)
        self._right = padded(self._right, size)
        self.power_watts = padded(self.power_watts, size)
        new = [number for column, number in columns.items() if number >= before and not column.is_edge]
        self.power_watts[..., new] = mean_watts

    def add(self, surprise: Surprise, is_mixed: bool) -> None:
        """Take in what an interval has told, of one class or several (`is_mixed`)."""
        joules, seconds, variance = surprise
        weighted = seconds / variance[..., None]
        self._normal += weighted[..., :, None] * seconds[..., None, :]
        self._right += weighted * joules[..., None]
        self._squares += joules**2 / variance
        self._log_variances += np.log(variance)
        self.count += 1
        self._mixed += is_mixed
        self._unsolved += is_mixed

    def joules(self, seconds: Array) -> float | None:
        """Return the energy of some time, with each lag, by the likeliest kind and lag; None if nothing is known."""
        if self.covariance.shape[-1] == 0:
            return None
        return float(seconds[self.best[1]] @ self.power_watts[self.best])

    def energy(self, affine: Affine) -> tuple[Array, Array]:
        """Return an energy and its variance, for each kind and lag."""
        joules = affine.joules + (affine.seconds * self.power_watts).sum(axis=-1)
        of_power = np.einsum("...f,...fg,...g", affine.seconds, self.covariance, affine.seconds)
        return joules, self.scale * (affine.variance + of_power)

    def deviation_watts(self, matrix: Array) -> float:
        """Return the standard deviation of a power whose variance is b Q b, beyond what scatter of b makes of it."""
        size = self.covariance.shape[-1]
        known, power, covariance = matrix[:size, :size], self.power_watts[self.best][:size], self.covariance[self.best]
        scatter = self.scale[self.best] * covariance @ self._normal[self.best][:size, :size] @ covariance
        return math.sqrt(max(float(power @ known @ power - (known * scatter).sum()), 0.0))

    def solve(self, columns: Mapping[Column, int], mean_watts: float) -> None:
        """Find the power in all columns, and how likely the kinds and lags are."""
        self._unsolved = 0
        if self.power_watts.shape[-1] == 0:
            return
        prior, expected = self._prior(columns, mean_watts)
        normal: Array = self._normal + prior
        self.covariance = np.asarray(np.linalg.inv(normal), dtype=np.float64)
        self.power_watts = (self.covariance @ (self._right + prior @ expected)[..., None])[..., 0]
        away = self.power_watts - expected
        of_power = self._normal @ self.power_watts[..., None]
        squares = self._squares - 2 * (self.power_watts * self._right).sum(axis=-1)
        squares += (self.power_watts * of_power[..., 0]).sum(axis=-1) + ((away @ prior) * away).sum(axis=-1)
        squares = np.maximum(squares, 0.0)
        strength = _SCALE_STRENGTH + self.count
        self.scale = (_SCALE_STRENGTH + squares) / strength
        evidence = -0.5 * (
            self._log_variances + np.linalg.slogdet(normal)[1] + strength * np.log1p(squares / _SCALE_STRENGTH)
        )
        self.best = divmod(int(evidence.argmax()), len(LAGS_SECONDS))
        smooth = evidence @ _SMOOTH.T
        self.weights = np.exp(_TEMPER * (smooth - smooth.max()))
        self.weights /= self.weights.sum()

    def likely_kinds(self) -> Array | None:
        """Return which kinds are still likely; None if all are."""
        of_kinds = self.weights.sum(axis=1)
        is_likely: Array = of_kinds > _UNLIKELY * of_kinds.max()
        return None if self.count < _MIN_INTERVALS_TO_DROP or is_likely.all() else is_likely

    def keep(self, is_kept: Array) -> None:
        """Drop all kinds but some."""
        self.best = int(is_kept[: self.best[0]].sum()), self.best[1]
        for name in ("_normal", "_right", "_squares", "_log_variances", "power_watts", "covariance", "scale"):
            setattr(self, name, getattr(self, name)[is_kept])
        self.weights = self.weights[is_kept] / self.weights[is_kept].sum()

    def _prior(self, columns: Mapping[Column, int], mean_watts: float) -> tuple[Array, Array]:
        """Return the precision and the expected power before anything is known."""
        mean_watts = max(mean_watts, MIN_WATTS)
        size = len(columns)
        precision, expected = np.zeros((size, size)), np.zeros(size)
        of_class: dict[Hashable, list[int]] = {}
        for column, number in columns.items():
            if column.is_edge:
                precision[number, number] = (_EDGE_STDERR * mean_watts) ** -2
            else:
                of_class.setdefault(column.key, []).append(number)
                expected[number] = mean_watts
        phase = (_PHASE_STDERR * mean_watts) ** 2
        level = max(mean_watts, self._peak_watts - mean_watts) ** 2
        for numbers in of_class.values():
            count = len(numbers)
            block = (np.eye(count) - np.ones((count, count)) * level / (phase + count * level)) / phase
            precision[np.ix_(numbers, numbers)] = block
        return precision, expected
