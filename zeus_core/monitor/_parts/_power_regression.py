"""A Bayesian regression of the energies of intervals on the time in each column, for several lags at once. Pure."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping

import numpy as np

from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, Column, padded

__all__ = ["FINE", "Group", "PowerRegression"]


class Group(enum.IntEnum):
    """The kind of an interval, and thus its noise."""

    ALONE = 0
    """One part."""
    TOLD = 1
    """Two parts, less what the intervals next to it tell of them."""
    MIXED = 2
    """Several parts."""


_PHASE_STDERR = 0.4  # of the mean power: how far a tenth of a step may differ from the mean of the steps
_EDGE_STDERR = 0.12  # of the mean power: how far the power near an edge may differ; beyond that, the lags tell
_TEMPER = 0.75  # of the evidence for a lag: errors of neighbouring intervals are related
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
    """The power in each column: E_j = h_j b + noise, with a noise of its own for each group of intervals.

    Args:
        peak_watts: The most that can be drawn.

    Attributes:
        power_watts: b, with each lag.
        covariance: The covariance of b, with each lag.
        noise: The noise of each group, relative to the variances that were given.
        counts: The intervals of each group.
        best: The number of the likeliest lag.
    """

    def __init__(self, peak_watts: float) -> None:
        lags = len(LAGS_SECONDS)
        self._peak_watts = peak_watts
        self._normal = np.zeros((len(Group), lags, 0, 0))
        self._right = np.zeros((len(Group), lags, 0))
        self._squares = np.zeros(len(Group))
        self._evidence = np.zeros(lags)
        self._unsolved = 0
        self.counts = np.zeros(len(Group))
        self.noise = np.ones(len(Group))
        self.power_watts = np.zeros((lags, 0))
        self.covariance = np.zeros((lags, 0, 0))
        self.best = 0

    @property
    def is_due(self) -> bool:
        """Whether enough has been added to solve it anew."""
        return self._unsolved >= _SOLVE_EVERY or self.counts[1:].sum() in _FIRST_SOLVED

    @property
    def is_stale(self) -> bool:
        """Whether the solution does not know all that was added."""
        return self._unsolved > 0 or self.covariance.shape[1] < self.power_watts.shape[1]

    @property
    def lag_weights(self) -> Array:
        """How likely each of `FINE_LAGS_SECONDS` is."""
        evidence = _SMOOTH @ self._evidence
        weights: Array = np.exp(_TEMPER * (evidence - evidence.max()))
        weights /= weights.sum()
        return weights

    def grow(self, columns: Mapping[Column, int], mean_watts: float) -> None:
        """Add columns, whose power is the mean until it is known."""
        size, before = len(columns), self.power_watts.shape[1]
        if size == before:
            return
        self._normal = padded(self._normal, size, axes=2)
        self._right = padded(self._right, size)
        self.power_watts = padded(self.power_watts, size)
        new = [number for column, number in columns.items() if number >= before and not column.is_edge]
        self.power_watts[:, new] = mean_watts

    def add(self, seconds: Array, energy_joules: float, variance: float, group: Group) -> None:
        """Take in an interval.

        Args:
            seconds: h_j, with each lag.
            energy_joules: E_j.
            variance: The variance of the energy, up to the noise of the group.
            group: Its kind.
        """
        weighted = seconds / variance
        self._normal[group] += weighted[:, :, None] * seconds[:, None, :]
        self._right[group] += weighted * energy_joules
        self._squares[group] += energy_joules**2 / variance
        self.counts[group] += 1
        self._unsolved += group is not Group.ALONE

    def joules(self, seconds: Array) -> float | None:
        """Return the energy of some time, by the likeliest lag; None if nothing is known."""
        if self.covariance.shape[1] == 0:
            return None
        return float(seconds[self.best] @ self.power_watts[self.best])

    def stderr_joules(self, seconds: Array) -> float:
        """Return the standard error of that, from the power alone."""
        of_best = seconds[self.best]
        return float(np.sqrt(max(float(of_best @ self.covariance[self.best] @ of_best), 0.0)))

    def solve(self, columns: Mapping[Column, int], mean_watts: float) -> None:
        """Find the power in all columns, with each lag."""
        self._unsolved = 0
        lags, size = self.power_watts.shape
        if size == 0:
            return
        prior, expected = self._prior(columns, mean_watts)
        self.power_watts = np.zeros((lags, size))
        self.covariance = np.zeros((lags, size, size))
        residuals, freedom = np.zeros((lags, len(Group))), np.zeros((lags, len(Group)))
        for lag in range(lags):
            normal = (self._normal[:, lag] / self.noise[:, None, None]).sum(axis=0) + prior
            right = (self._right[:, lag] / self.noise[:, None]).sum(axis=0) + prior @ expected
            covariance = np.linalg.inv(normal)
            power = covariance @ right
            self.power_watts[lag], self.covariance[lag] = power, covariance
            for group in Group:
                residuals[lag, group] = (
                    self._squares[group]
                    - 2 * power @ self._right[group, lag]
                    + power @ self._normal[group, lag] @ power
                )
                freedom[lag, group] = (covariance * self._normal[group, lag]).sum() / self.noise[group]
            away = power - expected
            self._evidence[lag] = -0.5 * (
                (residuals[lag, 1:] / self.noise[1:]).sum() + away @ prior @ away + np.linalg.slogdet(normal)[1]
            )
        self.best = int(self._evidence.argmax())
        left = np.maximum(self.counts - freedom[self.best], 0.3 * self.counts)
        seen = (np.maximum(residuals[self.best], 0.0) + 0.02) / (left + 1e-9)
        self.noise = np.clip(np.where(self.counts > 3, seen, self.noise), 1e-4, 100.0)

    def _prior(self, columns: Mapping[Column, int], mean_watts: float) -> tuple[Array, Array]:
        """Return the precision and the expected power before anything is known."""
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
