"""The power of classes of short times, from the updates of an energy counter that come less often. Pure.

Between two updates the energy is E_j = h_j p + noise, with h_j the seconds of each class between them, and p the power
of each. Many intervals at different places of the work tell p, as long as the work is not in step with the updates.
Not known are how late all updates are seen together, by some milliseconds, and with which lag the power follows the
work: what explains the energies best counts, and what explains them about as well adds to the uncertainty.

`zeus_core.monitor._parts`, which divides the energy of activities while training goes on, lets the power differ near
the edges of each part, and so knows less of parts that are shorter than an interval.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zeus_core.errors import UsageError
from zeus_core.monitor._parts._part import Estimate
from zeus_core.tracing._facts import Update

__all__ = ["ClassPower", "Key", "Stretch"]

Key = tuple[str, ...]
"""A class: the names of what is under way."""

_Array = npt.NDArray[np.float64]

_LAGS_SECONDS = (0.0, 0.005, 0.01, 0.02, 0.04)  # boards follow their load within 1 to 50 ms
_SHIFTS = np.linspace(-1.0, 1.0, 9)  # times how late updates can be seen
_MIN_SHIFT_SECONDS = 0.002
_PRIOR = 0.5  # of the mean power: how far a class may be off it before anything is known
_FIRST_NOISE = 0.02  # of the energy of an interval, before anything is known
_LEAST_NOISE = 1e-4  # in units of the first: energies that fit exactly do not say that the power is known exactly
_QUANTILE = 2.6  # standard errors: those of a few dozen intervals are themselves estimates
_MODEL_FRACTION = 0.01  # of the energy of a class, on top: its power is not quite the same each time


@dataclass(frozen=True)
class Stretch:
    """A time of one class, until the next one begins.

    Attributes:
        begin: Its beginning, in seconds of the trace of the counter.
        key: Its class.
    """

    begin: float
    key: Key


class ClassPower:
    """The power of each class.

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
        self._numbers = {key: number for number, key in enumerate({stretch.key: None for stretch in stretches})}
        self._peak_watts = peak_watts
        times = np.array([[first.at, last.at] for first, last in intervals])
        joules = np.array([last.energy_joules - first.energy_joules for first, last in intervals])
        widths = [update.half_width_seconds for interval in intervals for update in interval]
        late = max(_MIN_SHIFT_SECONDS, float(np.median(widths)))
        fits = [
            _Fit.of(work.between(times + shift * late), joules, peak_watts)
            for work in (_Work(stretches, end, self._numbers, lag) for lag in _LAGS_SECONDS)
            for shift in _SHIFTS
        ]
        squares = np.array([fit.squares for fit in fits])
        freedom = max(len(joules) - len(self._numbers) - 2, 1)
        noise = max(float(squares.min()) / freedom, _LEAST_NOISE)
        weights = np.exp(-0.5 * (squares - squares.min()) / noise)
        self._weights = weights / weights.sum()
        self._powers = np.array([fit.power for fit in fits])
        self._covariances = np.array([noise * fit.covariance for fit in fits])

    def watts(self, key: Key) -> float:
        """Return the power of a class."""
        watts = float(self._weights @ self._powers[:, self._numbers[key]])
        return min(max(watts, 0.0), self._peak_watts)

    def energy(self, seconds: Mapping[Key, float]) -> Estimate:
        """Return the energy of some time of each of some classes together."""
        times = np.zeros(len(self._numbers))
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


class _Work:
    """The seconds of each class up to any moment, as a power that follows the work with a lag sees them."""

    def __init__(self, stretches: Sequence[Stretch], end: float, numbers: dict[Key, int], lag_seconds: float) -> None:
        self._moments = np.array([*(stretch.begin for stretch in stretches), end])
        self._classes = np.array([*(numbers[stretch.key] for stretch in stretches), numbers[stretches[-1].key]])
        self._lag = lag_seconds
        durations = np.diff(self._moments)
        counted = np.zeros((len(self._moments), len(numbers)))
        counted[np.arange(1, len(self._moments)), self._classes[:-1]] = durations
        self._counted = counted.cumsum(axis=0)
        self._followed = self._follow(durations, len(numbers))  # the share of each class in the power, at each moment

    def _follow(self, durations: _Array, size: int) -> _Array:
        followed = np.zeros((len(durations) + 1, size))
        followed[0, self._classes[0]] = 1.0
        kept = np.zeros_like(durations) if self._lag == 0 else np.exp(-durations / self._lag)
        for number, share in enumerate(kept):
            followed[number + 1] = share * followed[number]
            followed[number + 1, self._classes[number]] += 1 - share
        return followed

    def between(self, times: _Array) -> _Array:
        """Return the seconds of each class in each interval."""
        up_to = self._up_to(times.ravel()).reshape(*times.shape, -1)
        seconds: _Array = up_to[:, 1] - up_to[:, 0]
        return seconds

    def _up_to(self, moments: _Array) -> _Array:
        moments = np.clip(moments, self._moments[0], self._moments[-1])
        place = np.clip(np.searchsorted(self._moments, moments, side="right") - 1, 0, len(self._moments) - 2)
        since = moments - self._moments[place]
        rows = np.arange(len(moments))
        seconds: _Array = self._counted[place].copy()
        seconds[rows, self._classes[place]] += since
        if self._lag > 0:
            share = np.exp(-since / self._lag)[:, None]
            followed = share * self._followed[place]
            followed[rows, self._classes[place]] += 1 - share[:, 0]
            seconds -= self._lag * followed
        return seconds


@dataclass(frozen=True)
class _Fit:
    """The power of each class with one shift and one lag."""

    power: _Array
    covariance: _Array
    """In units of the noise of an interval."""
    squares: float
    """The squares of all that is not explained, in the same."""

    @classmethod
    def of(cls, seconds: _Array, joules: _Array, peak_watts: float) -> _Fit:
        lengths = np.maximum(seconds.sum(axis=1), 1e-9)
        mean_watts = float(joules.sum() / lengths.sum())
        weight = 1 / np.maximum(_FIRST_NOISE * mean_watts * np.sqrt(lengths * lengths.mean()), 1e-9)
        rows, right = seconds * weight[:, None], (joules - mean_watts * lengths) * weight
        precision = (_PRIOR * max(mean_watts, peak_watts - mean_watts)) ** -2
        covariance = np.linalg.inv(rows.T @ rows + precision * np.eye(seconds.shape[1]))
        away = covariance @ rows.T @ right
        left = right - rows @ away
        return cls(mean_watts + away, covariance, float(left @ left + precision * away @ away))
