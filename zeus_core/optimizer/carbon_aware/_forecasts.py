"""Forecasts of a signal, and the one that has been right most often."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

# Grids follow the day: an error is counted up to one day ahead, and forecasts are compared over the last week.
_SCORED_DAYS_AHEAD = 1.0
_SCORED_DAYS = 7.0


class Forecast(Protocol):
    """Continues a series of values, one for each interval."""

    def predict(self, history: _Floats, count: int, intervals_per_day: int) -> _Floats | None:
        """Return the next values.

        Args:
            history: The values of the intervals until now; NaN where none is known. At least one is known.
            count: How many values to return.
            intervals_per_day: How many intervals a day has.

        Returns:
            The values, of the shape (count,); None if the history is too short.
        """
        ...


class Persistence:
    """It stays as it is. Over an hour, hard to beat."""

    def predict(self, history: _Floats, count: int, intervals_per_day: int) -> _Floats | None:
        """Return the last known value."""
        return np.full(count, history[np.flatnonzero(~np.isnan(history))[-1]])


class DailyPattern:
    """It follows the day as in the last days; a departure from that fades as fast as earlier ones did.

    The pattern is the mean of the last days at each time of day. As far as days differ from each other, such a mean is
    an accident: by so much the pattern is drawn towards the mean of all (Stein's estimator). On a grid that does not
    follow the day nothing is left of it.

    Args:
        days: So many days are averaged, or those there are, at least two.
    """

    def __init__(self, days: int = 7) -> None:
        self._days = days

    def predict(self, history: _Floats, count: int, intervals_per_day: int) -> _Floats | None:
        """Return the pattern plus what is left of the present departure."""
        days = min(self._days, len(history) // intervals_per_day)
        if days < 2:
            return None
        table = history[len(history) - days * intervals_per_day :].reshape(days, intervals_per_day)
        known = ~np.isnan(table)
        counts = known.sum(axis=0)
        if counts.min() < 2:
            return None
        means = np.where(known, table, 0.0).sum(axis=0) / counts
        residuals = np.where(known, table - means, 0.0)
        noise = float((residuals**2).sum() / (counts - 1).sum()) / days  # the variance of one of the means
        spread = float(means.var(ddof=1))
        weight = max(0.0, 1.0 - noise / spread) if spread > 0 else 0.0
        pattern = means.mean() + weight * (means - means.mean())
        departures = np.where(known, table - pattern, 0.0).ravel()
        ahead = np.arange(1, count + 1)
        departure = departures[-1] * _persistence(departures) ** ahead
        result: _Floats = np.resize(pattern, count) + departure
        return result


def best_forecast(forecasts: Sequence[Forecast], history: _Floats, intervals_per_day: int) -> tuple[Forecast, float]:
    """Return the forecast that was off least over the last week, up to a day ahead, each made of what was known then.

    Args:
        forecasts: The one to use as long as no other was better, and the others.
        history: See `Forecast.predict`.
        intervals_per_day: How many intervals a day has.

    Returns:
        The forecast, and its mean absolute error; the mean absolute departure from the mean where it was not tried.
    """
    ahead = round(_SCORED_DAYS_AHEAD * intervals_per_day)
    first = int(np.argmax(~np.isnan(history))) + 1
    oldest = max(first, len(history) - ahead - round(_SCORED_DAYS * intervals_per_day))
    # One origin in five intervals: they fall on all times of day, and neighbours have nearly the same error.
    origins = range(oldest, len(history) - ahead + 1, 5)
    errors = [_error(forecast, history, origins, ahead, intervals_per_day) for forecast in forecasts]
    number = int(np.argmin(errors))
    if math.isfinite(errors[number]):
        return forecasts[number], errors[number]
    return forecasts[0], float(np.nanmean(np.abs(history - np.nanmean(history))))


def _error(forecast: Forecast, history: _Floats, origins: range, ahead: int, intervals_per_day: int) -> float:
    """Return the mean absolute error; infinite unless the forecast could have been made half of the times."""
    errors = [
        float(np.nanmean(np.abs(predicted - history[origin : origin + ahead])))
        for origin in origins
        if not np.isnan(history[origin : origin + ahead]).all()
        and (predicted := forecast.predict(history[:origin], ahead, intervals_per_day)) is not None
    ]
    return float(np.mean(errors)) if 2 * len(errors) > len(origins) else math.inf


def _persistence(departures: _Floats) -> float:
    """Return the share of a departure that is left one interval later."""
    before, after = departures[:-1], departures[1:]
    squares = float(before @ before)
    return min(max(float(before @ after) / squares, 0.0), 1.0) if squares > 0 else 0.0
