"""The power of classes of short times, from the updates of an energy counter that come less often. Pure.

Stretches of a class may differ in duration: then its energy is that of its time, and of further columns
(`_range_columns.py`). How late all updates are seen together, by some milliseconds, and with which lag the power
follows the work, is not known: each counts by how well it explains the energies (`zeus_core.attribution.regression`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from zeus_core.attribution.columns import LAGS_SECONDS
from zeus_core.attribution.regression import PowerRegression
from zeus_core.attribution.timeline import Estimate
from zeus_core.errors import UsageError
from zeus_core.tracing.facts import Update
from zeus_core.tracing.ranges._range_columns import Columns, Key, Stretch
from zeus_core.units import duration_text

_SHIFTS = np.linspace(-1.0, 1.0, 9)  # times how late updates can be seen
_MIN_SHIFT_SECONDS = 0.002
_PRIOR = 0.5  # of the mean power: how far a class may be off it before anything is known
_NOISE = 0.02  # of the energy of an interval, before anything is known
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
            raise UsageError(
                f"of the {duration_text(end - stretches[0].begin)} of ranges, the energy trace holds no updates"
            )
        columns = Columns(stretches, end)
        self._numbers, self._size = columns.numbers, columns.size
        self._peak_watts = peak_watts
        times = np.array([[first.at, last.at] for first, last in intervals])
        joules = np.array([last.energy_joules - first.energy_joules for first, last in intervals])
        widths = [update.half_width_seconds for interval in intervals for update in interval]
        late = max(_MIN_SHIFT_SECONDS, float(np.median(widths)))
        following = [columns.following(lag) for lag in LAGS_SECONDS]
        seconds = np.stack([between(times + shift * late) for between in following for shift in _SHIFTS])
        lengths = times[:, 1] - times[:, 0]
        mean_watts = float(joules.sum() / lengths.sum())
        variances = np.maximum(_NOISE * mean_watts, 1e-9) ** 2 * lengths * lengths.mean()
        expected = np.where(np.arange(columns.size) < len(self._numbers), mean_watts, 0.0)
        prior_watts = _PRIOR * max(mean_watts, peak_watts - mean_watts)
        precision = np.eye(columns.size) / prior_watts**2
        self._regression = PowerRegression.of(seconds, joules, variances, expected, precision)

    def watts(self, key: Key) -> float:
        """Return the power of a class."""
        times = np.zeros(self._size)
        times[self._numbers[key]] = 1.0
        watts, _ = self._regression.energy(times)
        return min(max(watts, 0.0), self._peak_watts)

    def energy(self, seconds: Mapping[Key, float]) -> Estimate:
        """Return the energy of some time of each of some classes together."""
        times = np.zeros(self._size)
        for key, some in seconds.items():
            times[self._numbers[key]] = some
        joules = sum(self.watts(key) * some for key, some in seconds.items())
        off = _QUANTILE * self._regression.energy(times)[1] + _MODEL_FRACTION * joules
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
