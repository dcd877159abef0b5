"""Parts of an interval between two updates of a counter, each of one class. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

__all__ = ["EDGES_SECONDS", "Estimate", "Part", "Piece", "begins", "seconds_by_key"]

EDGES_SECONDS = (0.01, 0.02, 0.045, 0.1)
"""Distances from the nearer edge of a part that bound the places near an edge; what is farther is the middle."""


class Piece(NamedTuple):
    """An uninterrupted time of one class, within which the power has no reason to change.

    Attributes:
        seconds: How long.
        phase: The part of a step that it lies in; 0 where steps are not told apart.
        edge: 0 in the middle of a part; else the number of its place after the begin of the part, or minus that before
            its end.
    """

    seconds: float
    phase: int = 0
    edge: int = 0


class Part(NamedTuple):
    """The pieces of one class in a row, within one interval.

    Attributes:
        key: The class.
        pieces: All of its time.
        span: A longer time whose energy is wanted too, such as one evaluation; None if there is none.
    """

    key: Hashable
    pieces: Sequence[Piece]
    span: Hashable = None

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The class, and the span if there is one."""
        return (self.key,) if self.span is None else (self.key, self.span)

    @property
    def seconds(self) -> float:
        """How long it is."""
        return sum(piece.seconds for piece in self.pieces)

    @property
    def steps(self) -> int:
        """In how many steps it lies, 1 where these are not told apart."""
        phases = [piece.phase for piece in self.pieces if piece.phase]
        return 1 + sum(later < earlier for earlier, later in itertools.pairwise(phases))


class Estimate(NamedTuple):
    """An energy and how far it can be off, in joules."""

    energy_joules: float
    uncertainty_joules: float


def seconds_by_key(parts: Iterable[Part]) -> dict[Hashable, float]:
    """Return the time of each class and span."""
    seconds: dict[Hashable, float] = {}
    for part in parts:
        for key in part.keys:
            seconds[key] = seconds.get(key, 0.0) + part.seconds
    return seconds


def begins(parts: Sequence[Part]) -> list[tuple[Hashable, float]]:
    """Return where in an interval each class begins, from 0 to 1."""
    seconds, elapsed = sum(part.seconds for part in parts), 0.0
    places: list[tuple[Hashable, float]] = []
    for part, following in itertools.pairwise(parts):
        elapsed += part.seconds
        if part.key != following.key:
            places.append((following.key, elapsed / seconds))
    return places
