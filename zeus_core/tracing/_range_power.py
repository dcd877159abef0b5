"""The power of classes of short times, from the updates of an energy counter that come less often. Pure.

Between two updates the energy is E_j = h_j p + noise, with h_j the seconds of each class between them, and p the power
of each; where stretches of a class differ in duration, with further columns (`_range_columns.py`). Many intervals at
different places of the work tell p, as long as the work is not in step with the updates. Not known are how late all
updates are seen together, by some milliseconds, and with which lag the power follows the work: what explains the
energies best counts, and what explains them about as well adds to the uncertainty.

`zeus_core.monitor._parts`, which divides the energy of activities while training goes on, lets the power differ near
the edges of each part, and so knows less of parts that are shorter than an interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zeus_core.attribution.timeline import Estimate
from zeus_core.errors import UsageError
from zeus_core.tracing._facts import Update
from zeus_core.tracing._range_columns import Array, Columns, Key, Stretch

__all__ = ["ClassPower"]

_LAGS_SECONDS = (0.0, 0.005, 0.01, 0.02, 0.04)  # boards follow their load within 1 to 50 ms
_SHIFTS = np.linspace(-1.0, 1.0, 9)  # times how late updates can be seen
_MIN_SHIFT_SECONDS = 0.002
_PRIOR = 0.5  # of the mean power: how far a class may be off it before anything is known
_FIRST_NOISE = 0.02  # of the energy of an interval, before anything is known
_LEAST_NOISE = 1e-4  # in units of the first: energies that fit exactly do not say that the power is known exactly
_ROUNDS = 2  # of estimating the noise: the second changes it by some percent
_QUANTILE = 2.6  # standard errors: those of a few dozen intervals are themselves estimates
_MODEL_FRACTION = 0.01  # of the energy of a class, on top: its power is not quite the same each time


class ClassPower:
    """The mean power of each class.

    Args:
        updates: The updates of a counter.
        stretches: The classes in time, which follow each other without gaps.
        end: Where the last of them ends.
        peak_watts: The most that the device can draw.

    Raises:
        UsageError: Fewer than two updates lie in that time.
    """

    def __init__(self, updates: Sequence[Update], stretches: Sequence[Stretch], end: float, peak_watts: float) -> None:
        intervals = _sound_intervals(updates, stretches[0].begin, end, peak_watts)
        if not intervals:
            raise UsageError(f"of the {end - stretches[0].begin:.3g} s of ranges, the energy trace holds no updates")
        columns = Columns(stretches, end)
        self._numbers, self._size = columns.numbers, columns.size
        self._peak_watts = peak_watts
        times = np.array([[first.at, last.at] for first, last in intervals])
        joules = np.array([last.energy_joules - first.energy_joules for first, last in intervals])
        widths = [update.half_width_seconds for interval in intervals for update in interval]
        late = max(_MIN_SHIFT_SECONDS, float(np.median(widths)))
        problems = [
            _Problem.of(between(times + shift * late), joules, len(self._numbers), peak_watts)
            for between in map(columns.following, _LAGS_SECONDS)
            for shift in _SHIFTS
        ]
        noise = 1.0
        fits = [problem.fit(noise) for problem in problems]
        for _ in range(_ROUNDS):
            best = min(fits, key=lambda fit: fit.squares)
            noise = max(noise * best.squares / max(len(joules) - best.parameters - 2, 1.0), _LEAST_NOISE)
            fits = [problem.fit(noise) for problem in problems]
        squares = np.array([fit.squares for fit in fits])
        weights = np.exp(-0.5 * (squares - squares.min()))
        self._weights = weights / weights.sum()
        self._powers = np.array([fit.power for fit in fits])
        self._covariances = np.array([fit.covariance for fit in fits])

    def watts(self, key: Key) -> float:
        """Return the power of a class."""
        watts = float(self._weights @ self._powers[:, self._numbers[key]])
        return min(max(watts, 0.0), self._peak_watts)

    def energy(self, seconds: Mapping[Key, float]) -> Estimate:
        """Return the energy of some time of each of some classes together."""
        times = np.zeros(self._size)
        for key, some in seconds.items():
            times[self._numbers[key]] = some
        joules = sum(self.watts(key) * some for key, some in seconds.items())
        told = self._powers @ times
        mean = float(self._weights @ told)
        variances = np.einsum("c,fcd,d->f", times, self._covariances, times) + (told - mean) ** 2
        off = _QUANTILE * float(np.sqrt(self._weights @ variances)) + _MODEL_FRACTION * joules
        return Estimate(joules, min(off, max(joules, self._peak_watts * float(times.sum()) - joules)))


def _sound_intervals(
    updates: Sequence[Update], begin: float, end: float, peak_watts: float
) -> list[tuple[Update, Update]]:
    """Return the intervals between two updates within some time, without those of a counter that has failed."""
    inside = [update for update in updates if begin <= update.at <= end]
    return [
        (first, last)
        for first, last in itertools.pairwise(inside)
        if last.at > first.at
        and 0
        <= last.energy_joules - first.energy_joules
        <= peak_watts * (last.at - first.at + first.half_width_seconds + last.half_width_seconds)
    ]


@dataclass(frozen=True)
class _Fit:
    """The power of each column with one shift and one lag."""

    power: Array
    covariance: Array
    squares: float
    """The squares of all that is not explained, in units of the noise."""
    parameters: float
    """How many powers the energies have told, rather than what was expected."""


@dataclass(frozen=True)
class _Problem:
    """The equations of the powers with one shift and one lag, in units of the first noise.

    Attributes:
        gram: The products of the columns with each other.
        right: The products of the columns with the energies, without that of the mean power.
        squares: The sum of the squares of these energies.
        expected: The power of each column before anything is known.
        precision: How sure that is: one over its variance.
    """

    gram: Array
    right: Array
    squares: float
    expected: Array
    precision: float

    @classmethod
    def of(cls, columns: Array, joules: Array, classes: int, peak_watts: float) -> _Problem:
        lengths = np.maximum(columns[:, :classes].sum(axis=1), 1e-9)
        mean_watts = float(joules.sum() / lengths.sum())
        weight = 1 / np.maximum(_FIRST_NOISE * mean_watts * np.sqrt(lengths * lengths.mean()), 1e-9)
        rows, right = columns * weight[:, None], (joules - mean_watts * lengths) * weight
        expected = np.where(np.arange(columns.shape[1]) < classes, mean_watts, 0.0)
        precision = (_PRIOR * max(mean_watts, peak_watts - mean_watts)) ** -2
        return cls(rows.T @ rows, rows.T @ right, float(right @ right), expected, precision)

    def fit(self, noise: float) -> _Fit:
        """Solve them, with some noise of the energies."""
        told = self.gram / noise
        covariance = np.linalg.inv(told + self.precision * np.eye(len(self.expected))).astype(float)
        away = covariance @ self.right / noise
        left = max(float(self.squares - 2 * away @ self.right + away @ self.gram @ away), 0.0)
        parameters = float(np.sum(covariance * told))
        return _Fit(self.expected + away, covariance, float(left / noise + self.precision * away @ away), parameters)
