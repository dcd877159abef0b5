"""A forecast of a signal: by its source, if that publishes one, and by how it has followed the day and the weather.

The signal is a Gaussian process. Two values h hours apart have the covariance, in parts of the variance,

    k(h) = n [h = 0] + (1 - n) ((1 - d) w(h) + d c(h))

with noise n, a share d that follows the day, which changes over some weeks, and weather that forgets within t hours,

    c(h) = exp(-2 sin^2(pi h / 24) / 0.7^2 - h / 500)
    w(h) = exp(-h / t), or, if it swings (a damped oscillator of the period p, which may be infinite),
    w(h) = exp(-h / t) (cos(2 pi h / p) + sin(2 pi h / p) p / (2 pi t))

n, d, t and p are those of the largest likelihood among few: the scale of the weather comes from the history itself.
Gaps need no rule of their own, a forecast of the source is one more observation with an error, and what is expected
comes with how far it can be off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from zeus_core.electricity import Signal
from zeus_core.electricity.signal import ForecastSignal, SignalPart, mean_value

_Floats = npt.NDArray[np.float64]

_HOUR_SECONDS, _DAY_HOURS = 3600.0, 24.0
_DAY_WIDTH = 0.7  # in radians of half a day: of two hours and a half, as peaks of demand and of the sun are
_DAY_MEMORY_HOURS = 500.0
# Among these the likelihood chooses. Weather passes in half a day to a week; so do its swings, if it has any.
_MEMORIES_HOURS = (6.0, 12.0, 24.0, 48.0, 96.0, 192.0)
_PERIODS_HOURS = (math.inf, 36.0, 52.0, 72.0, 100.0, 140.0, 200.0)
_FINER_PERIODS = (0.84, 0.88, 0.92, 0.96, 1.0, 1.04, 1.08, 1.12, 1.16, 1.2)  # half of the way to the next
_NOISES = (0.002, 0.02, 0.1, 0.4)
_DAYS = (0.0, 0.1, 0.3, 0.6, 0.9)
_MEAN_VARIANCE = 4.0  # of the mean, which is not known, in variances of the signal
_LEAST_VALUES = 16  # to choose from: of two days
# Three weeks hold some passages of the longest weather. Its scale is chosen among means of three hours, once a day; the
# forecast is made of the hours of one week.
_MODEL_DAYS, _MODEL_HOURS, _USED_DAYS = 21, 3, 7
# The error of a forecast of the source until so many of its errors are known: a guess, as no source states it.
_GUESSED_ERROR_FRACTION, _LEAST_ERRORS = 0.1, 24


@dataclass(frozen=True)
class SignalCourse:
    """The values that are expected, one for each interval.

    Attributes:
        mean: The expected value.
        deviation: The standard deviation of what the value will be.
        persistence: The correlation of each departure from the mean with that of the interval before.
    """

    mean: _Floats
    deviation: _Floats
    persistence: _Floats

    @classmethod
    def certain(cls, values: _Floats) -> SignalCourse:
        """Return the course of a signal that is known ahead."""
        return cls(values, np.zeros(len(values)), np.zeros(len(values)))


@dataclass(frozen=True)
class SignalModel:
    """The scales of a signal; see the module.

    Attributes:
        memory_hours: The time over which a departure fades, t.
        period_hours: The period of its swings, p: infinite for none, and None for weather that forgets.
        noise: The share of the variance that lasts for one value, n.
        day: The share of the rest that follows the day, d.
    """

    memory_hours: float = 24.0
    period_hours: float | None = None
    noise: float = 0.02
    day: float = 0.3

    @classmethod
    def of(cls, values: _Floats, hours: float) -> SignalModel:
        """Return the most likely one for some values, so many hours apart; NaN where none is known."""
        known = np.flatnonzero(~np.isnan(values))
        if len(known) < _LEAST_VALUES or np.ptp(values[known]) <= 0:
            return cls()
        centred = values[known] - values[known].mean()
        lags = np.abs(known[:, None] - known[None])
        between = hours * np.arange(len(values), dtype=float)

        def likelihood(model: SignalModel) -> float:
            covariance = model.covariance(between)
            covariance[0] += model.noise
            triangle = np.linalg.cholesky((covariance + _MEAN_VARIANCE)[lags])
            whitened = np.linalg.solve(triangle, centred)
            # With the variance that is most likely, from which the likelihood depends on no unit.
            return float(-np.log(np.diag(triangle)).sum() - len(known) / 2 * math.log(float(whitened @ whitened)))

        weathers = [(memory, period) for memory in _MEMORIES_HOURS for period in (None, *_PERIODS_HOURS)]
        best = cls()
        for _ in range(2):  # one after the other, as each depends little on the other
            best = max(
                (cls(*weather, best.noise, best.day) for weather in weathers if _can_swing(*weather)), key=likelihood
            )
            shares = [(noise, day) for noise in _NOISES for day in _DAYS]
            best = max((cls(best.memory_hours, best.period_hours, *pair) for pair in shares), key=likelihood)
        if best.period_hours is not None and math.isfinite(best.period_hours):  # its phase must be right in days
            scales = [(memory, period) for memory in (1, 2, 4) for period in _FINER_PERIODS]
            best = max(
                (
                    replace(best, memory_hours=best.memory_hours * memory, period_hours=best.period_hours * period)
                    for memory, period in scales
                ),
                key=likelihood,
            )
        return best

    def covariance(self, hours: _Floats) -> _Floats:
        """Return the covariance of two values so far apart, without their noise; the variance is 1."""
        hours = np.abs(hours)
        weather = np.exp(-hours / self.memory_hours)
        if self.period_hours == math.inf:
            weather = weather * (1 + hours / self.memory_hours)
        elif self.period_hours is not None:
            turns = math.tau / self.period_hours
            weather = weather * (np.cos(turns * hours) + np.sin(turns * hours) / (turns * self.memory_hours))
        day = np.exp(-2 * (np.sin(math.pi * hours / _DAY_HOURS) / _DAY_WIDTH) ** 2 - hours / _DAY_MEMORY_HOURS)
        covariance: _Floats = (1 - self.noise) * ((1 - self.day) * weather + self.day * day)
        return covariance

    def course(self, times: _Floats, values: _Floats, noises: _Floats, wanted: _Floats) -> SignalCourse:
        """Return what is expected at some times.

        Args:
            times: The times of the values that are known, at least one, in hours.
            values: These values.
            noises: How far each can be off, a standard deviation, beside the noise of the signal.
            wanted: The times, in order.
        """
        mean = values.mean()
        spread = float(values.std())
        if spread <= 0:
            return SignalCourse.certain(np.full(len(wanted), mean))
        covariance = self.covariance(times[:, None] - times[None]) + _MEAN_VARIANCE
        covariance += np.diag(self.noise + (noises / spread) ** 2)
        triangle = np.linalg.cholesky(covariance)
        whitened = np.linalg.solve(triangle, values - mean)
        variance = float(whitened @ whitened) / len(values)
        # A forecast of the source is one of the very value, its noise included.
        shared = self.covariance(times[:, None] - wanted[None]) + self.noise * (times[:, None] == wanted[None])
        known = np.linalg.solve(triangle, shared + _MEAN_VARIANCE)
        at_once = np.maximum(1 + _MEAN_VARIANCE - (known**2).sum(axis=0), 1e-9)
        later = self.covariance(np.diff(wanted)) + _MEAN_VARIANCE - (known[:, 1:] * known[:, :-1]).sum(axis=0)
        persistence = np.clip(later / np.sqrt(at_once[1:] * at_once[:-1]), 0.0, 1.0)
        return SignalCourse(
            mean + known.T @ whitened, np.sqrt(variance * at_once), np.concatenate(([0.0], persistence))
        )


def _can_swing(memory_hours: float, period_hours: float | None) -> bool:
    """Return whether a swing of that period lasts long enough to be one."""
    return period_hours is None or period_hours == math.inf or memory_hours >= period_hours / 4


class Forecaster:
    """Forecasts a signal from what is known of it at the time. The same time gives the same forecast.

    Args:
        signal: The signal.
        interval_seconds: The time between decisions.
    """

    def __init__(self, signal: Signal, interval_seconds: float) -> None:
        self._signal = signal
        # Grids change little within an hour.
        self._seconds = max(interval_seconds, _HOUR_SECONDS)
        self._model = -math.inf, SignalModel()  # with the midnight until which it is made

    def course(self, edges: Sequence[float]) -> SignalCourse:
        """Return the values in the intervals between some edges, in seconds since 1970, of which the first is now."""
        if len(edges) == 1 or self._signal.facts.is_known_ahead:
            means = [mean_value(self._signal.parts(begin, end)) for begin, end in pairwise(edges)]
            return SignalCourse.certain(np.array(means))
        (present,) = self._signal.parts(edges[0], edges[0])
        wanted: _Floats = (np.array(edges[:-1]) + np.array(edges[1:])) / 2 / _HOUR_SECONDS
        past_edges, past = self._history(edges[0], _USED_DAYS)
        foreseen, error = self._foreseen(np.array(edges), past_edges, past)
        if not present.is_stale:
            foreseen[0] = present.value
        values = np.concatenate((past, foreseen))
        errors = np.concatenate((np.zeros(len(past)), np.full(len(foreseen), error)))
        if not present.is_stale:
            errors[len(past)] = 0.0
        times = np.concatenate(((past_edges[:-1] + self._seconds / 2) / _HOUR_SECONDS, wanted))
        known = ~np.isnan(values)
        if not known.any():
            return SignalCourse.certain(np.full(len(wanted), present.value))
        course = self._model_at(edges[0]).course(times[known], values[known], errors[known], wanted)
        if not present.is_stale:
            course.mean[0], course.deviation[0] = present.value, 0.0
        return course

    def _foreseen(self, edges: _Floats, past_edges: _Floats, past: _Floats) -> tuple[_Floats, float]:
        """Return the forecast of the source for some intervals, NaN where there is none, and its standard error."""
        if not isinstance(self._signal, ForecastSignal):
            return np.full(len(edges) - 1, np.nan), 0.0
        now = float(edges[0])
        foreseen = _means(self._signal.forecast(now, now, float(edges[-1])), edges)
        earlier = _means(self._signal.forecast(now, float(past_edges[0]), float(past_edges[-1])), past_edges)
        errors = (earlier - past)[~np.isnan(earlier - past)]
        if len(errors) >= _LEAST_ERRORS:
            return foreseen, float(np.sqrt(np.mean(errors**2)))
        known = foreseen[~np.isnan(foreseen)]
        return foreseen, _GUESSED_ERROR_FRACTION * float(np.abs(known).mean()) if len(known) else 0.0

    def _model_at(self, now_seconds: float) -> SignalModel:
        """Return the model of the signal until the latest midnight: so it depends on the signal and the time alone."""
        day_seconds = _DAY_HOURS * _HOUR_SECONDS
        midnight = math.floor(now_seconds / day_seconds) * day_seconds
        if self._model[0] != midnight:
            _, values = self._history(midnight, _MODEL_DAYS)
            group = max(round(_MODEL_HOURS * _HOUR_SECONDS / self._seconds), 1)
            table = values[len(values) % group :].reshape(-1, group)
            known = ~np.isnan(table)
            with np.errstate(invalid="ignore"):
                means = np.where(known, table, 0.0).sum(axis=1) / known.sum(axis=1)
            self._model = midnight, SignalModel.of(means, group * self._seconds / _HOUR_SECONDS)
        return self._model[1]

    def _history(self, now_seconds: float, days: int) -> tuple[_Floats, _Floats]:
        """Return the edges of the intervals of the last days, and their means; NaN where most of the time was stale."""
        present = math.floor(now_seconds / self._seconds)
        count = round(days * _DAY_HOURS * _HOUR_SECONDS / self._seconds)
        edges = self._seconds * np.arange(present - count, present + 1, dtype=float)
        parts = self._signal.parts(float(edges[0]), float(edges[-1]))
        return edges, _means([part for part in parts if not part.is_stale], edges)


def _means(parts: Sequence[SignalPart], edges: _Floats) -> _Floats:
    """Return the means of a signal between edges, from the parts in which it is known; NaN where it mostly is not."""
    times = np.array([seconds for part in parts for seconds in (part.begin_seconds, part.end_seconds)])
    if len(times) == 0:
        return np.full(len(edges) - 1, np.nan)

    def sums(amounts: list[float]) -> _Floats:
        steps = np.column_stack((np.zeros(len(parts)), amounts)).ravel()  # nothing between the parts
        return np.diff(np.interp(edges, times, np.cumsum(steps)))

    known = sums([part.seconds for part in parts])
    with np.errstate(invalid="ignore", divide="ignore"):
        means = sums([part.seconds * part.value for part in parts]) / known
    return np.where(known > np.diff(edges) / 2, means, np.nan)
