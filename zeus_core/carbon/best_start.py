"""The start of a program that costs or emits least by the forecast; pure.

A program of the duration d that always draws the same power emits in proportion to the mean of the signal over it,

    m(s) = (C(s + d) - C(s)) / d,  C(t) the integral of the expected signal from now to t.

The expected signal changes in steps, so that C is linear between its edges: the least m lies where s or s + d is an
edge, the present or the latest start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zeus_core.carbon._forecasts import Forecaster
from zeus_core.electricity import Signal
from zeus_core.electricity.signal import joined

_Floats = npt.NDArray[np.float64]

_HOUR_SECONDS = 3600.0
_SAME = 1e-9  # so close, means differ by rounding: the earliest start is right


@dataclass(frozen=True)
class BestStart:
    """A start, and the expected mean of the signal over the program.

    Attributes:
        begin_seconds: The start, in seconds since 1970.
        mean: The expected mean over a program that starts then, in the unit of the signal.
        mean_now: The same, if it started at once.
        published_fraction: The share of the time until the deadline for which the source has published values; those of
            the rest are forecast from the past, or the average of the signal where there is no past either.
    """

    begin_seconds: float
    mean: float
    mean_now: float
    published_fraction: float


def best_start(signal: Signal, now_seconds: float, deadline_seconds: float, duration_seconds: float) -> BestStart:
    """Return the best start of a program that is to end by a deadline: at once if it cannot.

    Args:
        signal: The intensity, or the price. Values that it has for the time to come count as published.
        now_seconds: The present, in seconds since 1970.
        deadline_seconds: The end that the program must not pass.
        duration_seconds: How long it takes, more than 0.
    """
    latest = max(deadline_seconds - duration_seconds, now_seconds)
    edges, values, published_fraction = _expected(signal, now_seconds, latest + duration_seconds)
    integral = np.concatenate(([0.0], np.cumsum(values * np.diff(edges))))
    starts = np.unique(np.clip(np.concatenate((edges, edges - duration_seconds)), now_seconds, latest))
    ends = np.interp(starts + duration_seconds, edges, integral)
    means = (ends - np.interp(starts, edges, integral)) / duration_seconds
    first = int(np.flatnonzero(means <= means.min() + _SAME * np.abs(means).max())[0])
    return BestStart(float(starts[first]), float(means[first]), float(means[0]), published_fraction)


def _expected(signal: Signal, now: float, end: float) -> tuple[_Floats, _Floats, float]:
    """Return the edges of the expected signal, its values between them, and the share that is published."""
    parts = joined(signal.parts(now, end))
    stale = [part for part in parts if part.is_stale]
    begins = [part.begin_seconds for part in parts]
    hours = [now, *np.arange(math.floor(now / _HOUR_SECONDS) + 1, math.ceil(end / _HOUR_SECONDS)) * _HOUR_SECONDS, end]
    edges = np.unique([now, end, *begins, *(hours if stale else [])])
    at_edges = [parts[number] for number in np.searchsorted(begins, edges[:-1], side="right") - 1]
    values = np.array([part.value for part in at_edges])
    if stale:
        is_stale = np.array([part.is_stale for part in at_edges])
        forecast = Forecaster(signal, _HOUR_SECONDS).course([float(hour) for hour in hours]).mean
        values = np.where(is_stale, forecast[np.searchsorted(hours, edges[:-1], side="right") - 1], values)
    return edges, values, 1.0 - sum(part.seconds for part in stale) / (end - now)
