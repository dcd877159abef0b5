"""The difference of the truth from a shape of curve: Gaussian, conditioned on the observed points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from zeus_core.search._curves import Array


class Residual:
    """The difference of the truth from each shape, at all points, once some points were observed.

    Args:
        amplitudes: Standard deviation of the smooth residual, one row for each shape and one column for each point.
        smooth: Correlation of the smooth residual between points.
        rough: Covariance of the rough residual, and of the unknown level, between points.
        observed: The columns of the observed points.
        residuals: The observed value less the shape's, one row for each shape.
        errors: The covariance of the errors of the observed values.
    """

    def __init__(
        self, amplitudes: Array, smooth: Array, rough: Array, observed: list[int], residuals: Array, errors: Array
    ) -> None:
        self._amplitudes, self._smooth, self._rough = amplitudes, smooth, rough
        seen = amplitudes[:, observed]
        between = np.ix_(observed, observed)
        among = seen[:, :, None] * seen[:, None, :] * smooth[between] + rough[between] + errors
        precision = np.linalg.inv(among)
        self._cross = amplitudes[:, :, None] * seen[:, None, :] * smooth[:, observed] + rough[:, observed]
        self._gain = self._cross @ precision
        self.mean = np.einsum("spo,so->sp", self._gain, residuals)
        """The expected residual, one row for each shape and one column for each point."""
        misfit = np.einsum("so,sop,sp->s", residuals, precision, residuals)
        self.log_likelihood = -0.5 * (misfit - np.linalg.slogdet(precision)[1])
        """How well each shape explains the observed values."""

    def covariance(self, point: int) -> Array:
        """Return the covariance of the residual at every point with that at one."""
        amplitudes = self._amplitudes
        prior = amplitudes * amplitudes[:, [point]] * self._smooth[point] + self._rough[point]
        return np.asarray(prior - np.einsum("spo,so->sp", self._gain, self._cross[:, point]))

    def variance(self) -> Array:
        """Return the variance of the residual at every point."""
        prior = self._amplitudes**2 + np.diag(self._rough)
        return np.asarray(prior - np.einsum("spo,spo->sp", self._gain, self._cross))

    def mean_covariance(self, weights: Array, count: int) -> Array:
        """Return the covariance of the residual between the first points, averaged over the first shapes."""
        amplitudes, gain, cross = (
            values[: len(weights), :count] for values in (self._amplitudes, self._gain, self._cross)
        )
        prior = (weights[:, None] * amplitudes).T @ amplitudes * self._smooth[:count, :count] + self._rough[
            :count, :count
        ]
        return np.asarray(prior - np.einsum("s,spo,sqo->pq", weights, gain, cross, optimize=True))

    def rows(self, kept: NDArray[np.int_]) -> None:
        """Keep some shapes."""
        for name in ("_amplitudes", "_cross", "_gain", "mean"):
            setattr(self, name, getattr(self, name)[kept])
