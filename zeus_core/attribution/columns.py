"""The columns of the regression: the time in each class and phase, as the power that follows the load sees it. Pure.

Where the power follows the load with a lag, each second counts for the class just before it too: the power of a part
that began t seconds ago holds exp(-t / lag) of the power then. There are rows for each of several lags.

The columns of one class hold its power as it is, late or not. If it followed the load from phase to phase too, a step
of 2 s whose load changes within a tenth of it would look like a lag of 45 ms where there is none, and every other class
would be estimated with that lag.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from zeus_core.attribution.regression import Array
from zeus_core.attribution.timeline import Part

# Boards follow their load within 1 to 50 ms. The steps between them are what benchmarks/attribution.py needs: from 20
# to 40 ms at once, a load of 30 ms was seen by neither, and steps of a training were off by more than was stated.
LAGS_SECONDS = np.array([1e-6, 0.005, 0.01, 0.02, 0.03, 0.045])
_FORGOTTEN = 1e-9  # the share of the power before a class that shows no more: after 0.9 s at the longest lag


class PowerColumns:
    """The columns so far, and which of them the power follows at this moment.

    Attributes:
        of_class: The numbers of the columns of each class.
    """

    def __init__(self) -> None:
        self.of_class: dict[Hashable, list[int]] = {}
        self._numbers: dict[tuple[Hashable, int], int] = {}  # by class and phase
        self._before = np.zeros((len(LAGS_SECONDS), 0))  # the share of each column in the power before this class
        self._left = np.zeros(len(LAGS_SECONDS))  # the share of that power in the power now
        self._latest: tuple[Hashable, int] | None = None  # the class and phase of the latest piece

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self, parts: Sequence[Part]) -> tuple[list[Array], dict[Hashable, Array]]:
        """Add the parts of the next interval.

        Returns:
            The seconds of each part in each column, with each lag. And how often the power of each column crosses an
            edge of each class if the knots are late.
        """
        self._grow(parts)
        rows: list[Array] = []
        crossing: dict[Hashable, Array] = {}
        for part in parts:
            if self._latest is not None and self._latest[0] == part.key and self._left[-1] < _FORGOTTEN:
                rows.append(self._alone(part))
                self._latest = part.key, part.pieces[-1].phase
                continue
            if self._latest is not None and self._latest[0] != part.key:
                now = np.zeros(len(self))
                now[self._numbers[self._latest]] = 1.0
                for key, sign in ((part.key, 1.0), (self._latest[0], -1.0)):
                    crossing[key] = crossing.get(key, 0.0) + sign * now
                self._before = self._left[:, None] * self._before + np.outer(1 - self._left, now)
                self._left = np.ones(len(LAGS_SECONDS))
            ends = np.append(0.0, np.cumsum([piece.seconds for piece in part.pieces]))
            left = self._left[:, None] * np.exp(-ends / LAGS_SECONDS[:, None])
            behind = -LAGS_SECONDS[:, None] * np.diff(left)  # seconds of each piece with the power before the class
            row = behind.sum(axis=1)[:, None] * self._before
            self._add(row, part, np.diff(ends) - behind)
            rows.append(row)
            self._left, self._latest = left[:, -1], (part.key, part.pieces[-1].phase)
        return rows, crossing

    def skip(self) -> None:
        """Note that nothing is known of the power before the next interval."""
        self._latest = None
        self._left = np.zeros(len(LAGS_SECONDS))

    def alone(self, part: Part) -> Array:
        """Return the seconds of a part in each column where the power has no lag."""
        self._grow([part])
        return self._alone(part)

    def _alone(self, part: Part) -> Array:
        row = np.zeros((len(LAGS_SECONDS), len(self)))
        if len(part.pieces) == 1:
            row[:, self._numbers[part.key, part.pieces[0].phase]] = part.pieces[0].seconds
        else:
            self._add(row, part, np.array([[piece.seconds for piece in part.pieces]]))
        return row

    def _add(self, row: Array, part: Part, seconds: Array) -> None:
        """Add the seconds of each piece of a part to its column."""
        columns = [self._numbers[part.key, piece.phase] for piece in part.pieces]
        np.add.at(row.T, columns, seconds.T)

    def _grow(self, parts: Sequence[Part]) -> None:
        for part in parts:
            for piece in part.pieces:
                if (part.key, piece.phase) not in self._numbers:
                    self.of_class.setdefault(part.key, []).append(len(self))
                    self._numbers[part.key, piece.phase] = len(self)
        self._before = padded(self._before, len(self))


def padded(array: Array, size: int, value: float = 0.0) -> Array:
    """Return an array with more of a value behind, so that its last axis is so long."""
    more = size - array.shape[-1]
    if more == 0:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, more)], constant_values=value)
