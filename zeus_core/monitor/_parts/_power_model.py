"""The power that each class of parts draws, by a regression; the mean power until that tells anything. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from zeus_core.monitor._parts._part import Part, seconds_by_key
from zeus_core.monitor._parts._power_columns import Array, PowerColumns
from zeus_core.monitor._parts._power_regression import MIN_WATTS, PowerRegression

__all__ = ["PowerModel"]

# A fraction of the energy at the mean power: no class has less, even if a regression of few intervals tells less.
_MIN_SHARE = 0.02


class PowerModel:
    """The power of the classes of one device.

    Args:
        peak_watts: The most it can draw.

    Attributes:
        columns: Those of the regression.
        regression: The regression.
        joules: The energy of all intervals.
        seconds: The time of all intervals.
        intervals: How many there are.
    """

    def __init__(self, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self.columns = PowerColumns()
        self.regression = PowerRegression(peak_watts)
        self.joules = self.seconds = 0.0
        self.intervals = 0

    def add(self, energy_joules: float, seconds: float) -> None:
        """Note the energy and the time of one more interval."""
        self.joules += energy_joules
        self.seconds += seconds
        self.intervals += 1

    @property
    def mean_watts(self) -> float | None:
        """The mean power of all intervals; None if there is none."""
        return self.joules / self.seconds if self.seconds > 0 else None

    def grow(self) -> None:
        """Add the columns that the regression does not have yet."""
        self.regression.grow(self.columns.numbers, self.mean_watts or 0.0)

    def solve(self) -> None:
        """Find the power in all columns."""
        if self.seconds > 0:
            self.regression.solve(self.columns.numbers, self.joules / self.seconds)

    def fitted_joules(self, row: Array, seconds: float) -> float:
        """Return the energy of some time in each column. Some time must have been added."""
        joules = self.regression.joules(row)
        return self.joules / self.seconds * seconds if joules is None else joules

    def shares(
        self, energy_joules: float, parts: Sequence[Part], rows: Mapping[Hashable, Array]
    ) -> dict[Hashable, float]:
        """Return the likely share of each class and span in the energy of an interval.

        Args:
            energy_joules: The energy.
            parts: All time of the interval.
            rows: The seconds of each class and span in each column.
        """
        times, keys = seconds_by_key(parts), dict.fromkeys(part.key for part in parts)
        mean_watts = self.joules / self.seconds
        fitted = {
            key: max(self.fitted_joules(rows[key], times[key]), max(_MIN_SHARE * mean_watts, MIN_WATTS) * times[key])
            for key in keys
        }
        scale = sum(fitted.values())
        shares = _clipped(
            {key: fitted[key] / scale for key in keys},
            energy_joules,
            {key: self._peak_watts * times[key] for key in keys},
        )
        for span in [key for key in rows if key not in keys]:
            within: dict[Hashable, float] = {}
            for part in parts:
                if part.span == span:
                    within[part.key] = within.get(part.key, 0.0) + part.seconds
            shares[span] = min(1.0, sum(shares[key] * seconds / times[key] for key, seconds in within.items()))
        return shares


def _clipped(shares: dict[Hashable, float], energy: float, highest: dict[Hashable, float]) -> dict[Hashable, float]:
    """Move energy that a class cannot have drawn to the others."""
    for _ in shares:
        over = [key for key, share in shares.items() if share * energy > highest[key] * (1 + 1e-9)]
        room = {key: highest[key] - share * energy for key, share in shares.items() if key not in over}
        if not over or sum(room.values()) <= 0:
            break
        excess = sum(shares[key] * energy - highest[key] for key in over)
        fraction = min(1.0, excess / sum(room.values()))
        shares = {
            key: highest[key] / energy if key in over else share + fraction * room[key] / energy
            for key, share in shares.items()
        }
    return shares
