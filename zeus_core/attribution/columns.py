"""The columns of the regression: the time in each class and place, as the power that follows the load sees it. Pure.

A column is a class and phase, or a class and place near an edge. Where the power follows the load with a lag, each
second counts for the class just before it too: there are rows for each of several lags.

The columns of one class tell its power as it is, late or not. If it followed the load from phase to phase too, a step
of 2 s whose load changes amid a tenth of it would look like a lag of 45 ms where there is none, and every other class
would be told by that lag.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.attribution.regression import Array
from zeus_core.attribution.timeline import Part

__all__ = ["LAGS_SECONDS", "Column", "PowerColumns", "padded"]

# Boards follow their load within 1 to 50 ms. The steps between them are what benchmarks/part_energy.py needs: from 20
# to 40 ms at once, a load of 30 ms was told by neither, and steps of a training were off by more than was stated.
LAGS_SECONDS = np.array([1e-6, 0.005, 0.01, 0.02, 0.03, 0.045])


class Column(NamedTuple):
    """A class in one phase of a step, or near one edge of its parts."""

    key: Hashable
    is_edge: bool
    number: int


class PowerColumns:
    """The columns so far, and which of them the power follows at this moment."""

    def __init__(self) -> None:
        self.numbers: dict[Column, int] = {}
        self._before = np.zeros((len(LAGS_SECONDS), 0))  # the share of each column in the power before this class
        self._left = np.zeros((len(LAGS_SECONDS), 1))  # the share of that power in the power now
        self._last: tuple[Hashable, list[int]] | None = None  # the class and the columns of the latest piece

    def __len__(self) -> int:
        return len(self.numbers)

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
            columns = [self._columns_of(part.key, piece.phase, piece.edge) for piece in part.pieces]
            rows.append(self._follow(part, columns))
            if self._last is not None and self._last[0] != part.key:
                for key, sign in ((part.key, 1.0), (self._last[0], -1.0)):
                    crossing.setdefault(key, np.zeros(len(self)))[self._last[1]] += sign
            self._last = part.key, columns[-1]
        return rows, crossing

    def of_power_alone(self, part: Part) -> Array:
        """Return the seconds of a part in each column where the power has no lag."""
        self._grow([part])
        held = self._held([self._columns_of(part.key, piece.phase, piece.edge) for piece in part.pieces])
        seconds: Array = np.array([piece.seconds for piece in part.pieces]) @ held
        return np.tile(seconds, (len(LAGS_SECONDS), 1))

    def levels(self, first: int) -> list[int]:
        """Return the columns from a number on that are no edges: those of a power, not of a difference."""
        return [number for column, number in self.numbers.items() if number >= first and not column.is_edge]

    def _follow(self, part: Part, columns: Sequence[list[int]]) -> Array:
        """Let the power follow the load of a part. Return the seconds in each column, with each lag."""
        held = self._held(columns)
        if self._last is not None and self._last[0] != part.key:
            now = self._held([self._last[1]])
            self._before, self._left = self._left * self._before + (1 - self._left) * now, np.ones_like(self._left)
        durations = np.array([piece.seconds for piece in part.pieces])
        lags = LAGS_SECONDS[:, None]
        left = self._left * np.exp(-np.append(0.0, durations.cumsum()) / lags)
        behind = lags * (left[:, :-1] - left[:, 1:])  # seconds of each piece with the power before the part
        self._left = left[:, -1:]
        seconds: Array = (durations - behind) @ held + behind.sum(axis=1, keepdims=True) * self._before
        return seconds

    def _held(self, columns: Sequence[list[int]]) -> Array:
        """Return which columns make up the power of each piece."""
        held = np.zeros((len(columns), len(self)))
        for row, of_piece in enumerate(columns):
            held[row, of_piece] = 1.0
        return held

    def _columns_of(self, key: Hashable, phase: int, edge: int) -> list[int]:
        column = self.numbers[Column(key, False, phase)]
        return [column, self.numbers[Column(key, True, edge)]] if edge else [column]

    def _grow(self, parts: Sequence[Part]) -> None:
        for part in parts:
            for piece in part.pieces:
                self.numbers.setdefault(Column(part.key, False, piece.phase), len(self.numbers))
                if piece.edge:
                    self.numbers.setdefault(Column(part.key, True, piece.edge), len(self.numbers))
        self._before = padded(self._before, len(self))


def padded(array: Array, size: int, axes: int = 1) -> Array:
    """Return an array with zeros behind, so that its last axes are so long."""
    more = size - array.shape[-1]
    if more == 0:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - axes) + [(0, more)] * axes)
