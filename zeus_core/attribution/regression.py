"""Weighted least squares of energies on the time in each column, for several variants of the columns at once. Pure.

In variant v (a lag of the power behind the load), the energy of interval j is

    y_j = x_jv b_v + e_j,    var e_j = s_v w_j,

with x_jv the seconds in each column, b_v the power of each column, and w_j the variance that is expected. With the
prior b ~ N(m, P^-1), and N_v = sum x x' / w, the estimate and its covariance are

    b_v = m + C_v sum x (y - x m) / w,    C_v = (N_v + P)^-1,    cov b_v = f s_v C_v.

s_v is the mean of what is not explained, S_v = sum (y - x b)^2 / w. Variants count by their likelihood, S_v^(-n / 2),
where f neighbours that are alike count as one: f = 1 + 2 sum_l (1 - l / (L + 1)) r_l with the autocorrelations r_l of
the residuals (Newey and West, 1987).
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SCALE_STRENGTH = 8.0  # intervals that the scale of 1 counts as
_CORRELATED = 20  # neighbours: wide enough for a few parts; a wider one makes the factor itself uncertain


class PowerRegression:
    """The power of each column, in each variant.

    Args:
        variants: How many there are.

    Attributes:
        power_watts: b, [variants, columns].
        covariance: C, [variants, columns, columns].
        scale: f s, [variants].
        weights: How likely each variant is.
        best: The number of the likeliest.
        count: The intervals.
    """

    def __init__(self, variants: int) -> None:
        self._normal: Array = np.zeros((variants, 0, 0))
        self._right: Array = np.zeros((variants, 0))
        self._squares: Array = np.zeros(variants)
        self._products = np.zeros(_CORRELATED + 1)
        self._residuals: deque[float] = deque(maxlen=_CORRELATED + 1)
        self._spread: Array = np.zeros((variants, 1, 1))  # of the residuals times the columns, if all are known
        self.power_watts: Array = np.zeros((variants, 0))
        self.covariance: Array = np.zeros((variants, 0, 0))
        self.scale: Array = np.ones(variants)
        self.weights: Array = np.full(variants, 1 / variants)
        self.best: int = 0
        self.count: int = 0

    @classmethod
    def of(cls, seconds: Array, joules: Array, variances: Array, expected: Array, precision: Array) -> PowerRegression:
        """Return the powers of intervals that are all known.

        Args:
            seconds: x, [variants, intervals, columns].
            joules: y, [intervals].
            variances: w, [intervals].
            expected: m.
            precision: P.
        """
        regression = cls(len(seconds))
        weighted = seconds / variances[:, None]
        regression._normal = weighted.swapaxes(1, 2) @ seconds
        regression._right = (weighted * joules[:, None]).sum(axis=1)
        regression._squares = np.full(len(seconds), float((joules**2 / variances).sum()))
        regression.count = len(joules)
        regression.solve(expected, precision)
        off = (joules - (seconds @ regression.power_watts[:, :, None])[:, :, 0]) / np.sqrt(variances)
        lags = range(min(_CORRELATED + 1, len(joules)))
        for lag in lags:
            regression._products[lag] = off[regression.best, lag:] @ off[regression.best, : len(joules) - lag]
        regression.solve(expected, precision)
        scores = seconds / np.sqrt(variances)[:, None] * off[:, :, None]
        for lag in lags:
            near = scores[:, lag:].swapaxes(1, 2) @ scores[:, : len(joules) - lag] * (1 - lag / len(lags))
            regression._spread = regression._spread + (near if lag == 0 else near + near.swapaxes(1, 2))
        return regression

    def energy(self, seconds: Array) -> tuple[float, float]:
        """Return the energy of some time in each column, and its standard error.

        It is at least what the residuals say that are large where a column counts most: those of intervals in which
        the power changes (C (sum x x' r^2 / w^2) C, White, 1980, with neighbours, Newey and West, 1987).
        """
        energies = self.power_watts @ seconds
        mean = float(self.weights @ energies)
        gain = self.covariance @ seconds
        variances = self.scale * (gain @ seconds)
        variances = np.maximum(variances, np.einsum("vf,vfg,vg->v", gain, self._spread, gain)) + (energies - mean) ** 2
        return mean, float(np.sqrt(max(self.weights @ variances, 0.0)))

    def _grow(self, size: int) -> None:
        """Add columns that nothing is known of."""
        more = size - self._right.shape[1]
        if more > 0:
            self._normal = np.pad(self._normal, ((0, 0), (0, more), (0, more)))
            self._right = np.pad(self._right, ((0, 0), (0, more)))

    def add(self, seconds: Array, joules: Array, variance: float, residual: float) -> None:
        """Add an interval.

        Args:
            seconds: x, [variants, columns].
            joules: y, [variants].
            variance: w.
            residual: The part of y that the likeliest variant did not expect.
        """
        self._grow(seconds.shape[1])
        weighted = seconds / variance
        self._normal += weighted[:, :, None] * seconds[:, None, :]
        self._right += weighted * joules[:, None]
        self._squares += joules**2 / variance
        self.count += 1
        self._residuals.appendleft(residual / variance**0.5)
        self._products[: len(self._residuals)] += self._residuals[0] * np.array(self._residuals)

    @property
    def alike(self) -> float:
        """How many neighbouring residuals count as one: f."""
        total = self._products[0]
        if total <= 0:
            return 1.0
        shares = 1 - np.arange(1, _CORRELATED + 1) / (_CORRELATED + 1)
        return float(max(1 + 2 * (shares * self._products[1:]).sum() / total, 1.0))

    def solve(self, expected: Array, precision: Array) -> None:
        """Find the powers.

        Args:
            expected: m.
            precision: P.
        """
        self._grow(len(expected))
        self.covariance = np.asarray(np.linalg.inv(self._normal + precision), np.float64)
        right = self._right - self._normal @ expected
        away = (self.covariance @ right[:, :, None])[:, :, 0]
        self.power_watts = expected + away
        squares = self._squares - 2 * self._right @ expected + (self._normal @ expected) @ expected
        squares = np.maximum(squares - (away * right).sum(axis=1), 0.0)  # of the prior, too
        alike = self.alike
        self.scale = alike * (_SCALE_STRENGTH + squares) / (_SCALE_STRENGTH + self.count)
        evidence = -0.5 * (_SCALE_STRENGTH + self.count) / alike * np.log(_SCALE_STRENGTH + squares)
        self.best = int(evidence.argmax())
        weights = np.exp(evidence - evidence.max())
        self.weights = weights / weights.sum()
