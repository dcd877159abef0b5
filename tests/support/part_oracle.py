"""The least half-widths that anyone could state for the parts of a random training, from the reads that were made.

An oracle knows more than any estimator can: the moments of the updates that were read, the edges of the parts, the lag
of the power behind the load, and from which distribution the power of each part was drawn. The counter still tells it
only sums, each over the time from one update that was read to the next. If the powers are taken for normal,

    p = m + A z,  z independent and standard normal;  read sums e = H z;  wanted sums t = G z,

then the errors that are left have the covariance G (I - H' (H H')^-1 H) G'. Bursts of the power are left out, so that
it can only be less than what is possible. Where powers are drawn from few values, it can be more.

A second oracle is not told the lag, how old the values of the counter are, and by how much each update is out of step,
but only from which distribution these are: more latents, to which the energies are taken for linear.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["WALK", "Latents", "Timing", "least_half_widths"]

Latents = Mapping[Hashable, float]
"""How many watts a segment draws more for each standard deviation of something that is not known."""

WALK = "walk"
"""The first item of the name of a latent that is the sum of those before it, and its own."""

_NOISE_SECONDS = 0.05  # for which the noise of the power stays the same
_LAGS = 12.0  # after so many, the power has followed
_READING_JOULES = 1e-3  # the counter's last digit
_MOMENT_SECONDS = 1e-3  # for derivatives
_QUANTILE = 1.96

_Array = npt.NDArray[np.float64]


class Timing(NamedTuple):
    """Standard errors of what the second oracle is not told, in seconds."""

    lag_seconds: float = 0.0
    age_seconds: float = 0.0
    jitter_seconds: float = 0.0


class _Load:
    """A script of powers that are not known."""

    def __init__(
        self,
        script: Sequence[tuple[float, float]],
        latents: Sequence[Latents],
        lag_seconds: float,
        noise_fraction: float,
    ) -> None:
        self.lag_seconds = lag_seconds
        self._numbers: dict[Hashable, int] = {}
        begins: list[float] = []
        ends: list[float] = []
        powers: list[float] = []
        first_entries, columns, watts = [0], [], []
        at = 0.0
        for (power, seconds), of_segment in zip(script, latents, strict=True):
            end = at + seconds
            while at < end - 1e-9:
                block = math.floor(at / _NOISE_SECONDS + 1e-9)
                until = min(end, (block + 1) * _NOISE_SECONDS) if noise_fraction > 0 else end
                for name, more_watts in {**of_segment, ("noise", block): noise_fraction * power}.items():
                    if more_watts > 0:
                        columns.append(self._numbers.setdefault(name, len(self._numbers)))
                        watts.append(more_watts)
                begins.append(at)
                ends.append(until)
                powers.append(power)
                first_entries.append(len(columns))
                at = until
        self._begins, self._ends, self._powers = np.array(begins), np.array(ends), np.array(powers)
        self._first_entries, self._columns, self._watts = np.array(first_entries), np.array(columns), np.array(watts)
        self._walk = [n for name, n in self._numbers.items() if isinstance(name, tuple) and name[0] == WALK]

    def row(self, begin: float, end: float) -> _Array:
        """Return how many joules the time between two moments has more for each standard deviation."""
        segments, seconds = self._followed(begin, end, self.lag_seconds)
        entries = slice(self._first_entries[segments.start], self._first_entries[segments.stop])
        counts = np.diff(self._first_entries[segments.start : segments.stop + 1])
        joules = np.repeat(seconds, counts) * self._watts[entries]
        return np.bincount(self._columns[entries], joules, len(self._numbers))

    def joules(self, begin: float, end: float, lag_seconds: float | None = None) -> float:
        """Return the energy between two moments."""
        segments, seconds = self._followed(begin, end, self.lag_seconds if lag_seconds is None else lag_seconds)
        return float(seconds @ self._powers[segments])

    def with_walks(self, rows: _Array) -> _Array:
        """Express the energies by independent latents."""
        if self._walk:
            rows[:, self._walk] = rows[:, self._walk][:, ::-1].cumsum(axis=1)[:, ::-1]
        return rows

    def _followed(self, begin: float, end: float, lag_seconds: float) -> tuple[slice, _Array]:
        """Return for how long the power followed which segments between two moments."""
        first = int(np.searchsorted(self._ends, begin - _LAGS * lag_seconds))
        segments = slice(first, max(first, int(np.searchsorted(self._begins, end))))
        seconds: _Array = np.zeros(segments.stop - first)
        for until, sign in ((end, 1.0), (begin, -1.0)):
            for edges, side in ((self._begins[segments], sign), (self._ends[segments], -sign)):
                since = np.maximum(until - edges, 0.0)
                seconds += side * since
                if lag_seconds > 0:
                    seconds += side * lag_seconds * np.expm1(-since / lag_seconds)
        return segments, seconds


def least_half_widths(
    script: Sequence[tuple[float, float]],
    latents: Sequence[Latents],
    lag_seconds: float,
    noise_fraction: float,
    knots: Sequence[tuple[int, float]],
    times: Mapping[Hashable, Sequence[tuple[float, float]]],
    timing: Timing | None = None,
) -> dict[Hashable, float]:
    """Return the least half-width of a 95 % interval for each class, in joules.

    Args:
        script: Watts and seconds, one after the other.
        latents: For each of them, what is not known of its power.
        lag_seconds: Of the power behind the load.
        noise_fraction: Scatter of the power.
        knots: The count and the moment of each update that was read; a fault begins another count.
        times: When each class ran, from begin to end.
        timing: What is not told; None if all is.
    """
    load = _Load(script, latents, lag_seconds, noise_fraction)
    told = sorted(set(knots))
    pairs = [(first, second) for (count, first), (other, second) in itertools.pairwise(told) if count == other]
    read = load.with_walks(np.array([load.row(*pair) for pair in pairs]))
    wanted = load.with_walks(np.array([sum(load.row(*time) for time in of_class) for of_class in times.values()]))
    if timing is not None:
        spans = [[pair] for pair in pairs], list(times.values())
        by_lag = [np.array([[timing.lag_seconds * _joules_by_lag(load, span)] for span in row]) for row in spans]
        moments = sorted({moment for pair in pairs for moment in pair})
        watts = {moment: load.joules(moment, moment + _MOMENT_SECONDS) / _MOMENT_SECONDS for moment in moments}
        by_moment = np.array(
            [[((at == second) - (at == first)) * watts[at] for at in moments] for first, second in pairs]
        )
        late = [timing.age_seconds * by_moment.sum(axis=1, keepdims=True), timing.jitter_seconds * by_moment]
        read = np.hstack([read, by_lag[0], *late])
        wanted = np.hstack([wanted, by_lag[1], np.zeros((len(wanted), 1 + len(moments)))])
    common = read @ wanted.T
    noise = 2 * _READING_JOULES**2 * np.eye(len(pairs))
    left = (wanted**2).sum(axis=1) - (common * np.linalg.solve(read @ read.T + noise, common)).sum(axis=0)
    return {key: _QUANTILE * math.sqrt(max(float(variance), 0.0)) for key, variance in zip(times, left, strict=True)}


def _joules_by_lag(load: _Load, times: Sequence[tuple[float, float]]) -> float:
    """Return by how many joules the energy of some times grows for each second of lag."""
    return sum(
        (load.joules(*time, lag_seconds=load.lag_seconds + _MOMENT_SECONDS) - load.joules(*time)) / _MOMENT_SECONDS
        for time in times
    )
