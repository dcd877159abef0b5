"""The course of a training: an unbroken row of parts, each of one class, cut into pieces. Pure."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

_PHASES = 10  # of a step
_MIN_STEP_SECONDS = 0.05  # phases of shorter ones would tell little: one interval between two updates holds several


class Piece(NamedTuple):
    """An uninterrupted time of one class, within which the power has no reason to change.

    Attributes:
        seconds: How long.
        phase: The tenth of a step that it lies in, from 1; 0 where steps are not told apart.
    """

    seconds: float
    phase: int = 0


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


class Estimate(NamedTuple):
    """An energy and how far it can be off, in joules."""

    energy_joules: float
    uncertainty_joules: float


class _Change(NamedTuple):
    at: float
    key: Hashable
    span: Hashable


class Timeline:
    """The classes of all time, from the first moment on.

    Moments come in the order of time, from one thread; another one may ask for parts meanwhile.

    Args:
        at: The first moment.
        before: The class of the time before it.
        key: The class that begins there.
        stepping: The class that consists of steps.
    """

    def __init__(self, at: float, before: Hashable, key: Hashable, stepping: Hashable = None) -> None:
        self.stepping = stepping
        """The class that consists of steps."""
        self._changes = [_Change(-math.inf, before, None), _Change(at, key, None)]
        self._steps = [-math.inf]
        self.begin = at
        """The first moment."""

    @property
    def changed_at(self) -> float:
        """When the latest class began."""
        return self._changes[-1].at

    def change(self, at: float, key: Hashable, span: Hashable = None) -> None:
        """Begin another class."""
        self._changes.append(_Change(at, key, span))

    def begin_step(self, at: float) -> None:
        """Begin a step, whose power is likely that of the step before."""
        self._steps.append(at)

    def is_one_part(self, begin: float, end: float) -> bool:
        """Whether all time between two moments is of one part."""
        number = bisect.bisect_right(self._changes, begin, key=lambda change: change.at)
        return number == len(self._changes) or self._changes[number].at >= end

    def forget_before(self, moment: float) -> None:
        """Drop what is not needed for the parts after a moment."""
        first = bisect.bisect_right(self._changes, moment, key=lambda change: change.at) - 1
        if first > 64:
            del self._changes[:first]
        first = bisect.bisect_right(self._steps, moment) - 2
        if first > 64:
            del self._steps[:first]

    def parts(self, begin: float, end: float) -> list[Part]:
        """Return the parts between two moments."""
        changes, steps = self._changes[:], self._steps[:]
        number = bisect.bisect_right(changes, begin, key=lambda change: change.at) - 1
        parts = []
        while begin < end:
            last = changes[number + 1].at if number + 1 < len(changes) else math.inf
            in_part = steps if changes[number].key == self.stepping else []
            pieces = _pieces(begin, min(end, last), changes[number].at, last, in_part)
            if pieces:
                parts.append(Part(changes[number].key, pieces, changes[number].span))
            begin = max(begin, last)
            number += 1
        return parts


def _pieces(begin: float, end: float, part_begin: float, part_end: float, steps: list[float]) -> list[Piece]:
    if end <= begin:
        return []
    cuts = [begin, end]
    number = max(bisect.bisect_right(steps, begin) - 1, 0)
    spans = []
    while number < len(steps) and steps[number] < end:
        span = _step_span(steps, number, part_begin, part_end)
        if span is not None:
            spans.append(span)
            cuts += [
                cut
                for phase in range(_PHASES)
                if begin < (cut := span[0] + (span[1] - span[0]) * phase / _PHASES) < end
            ]
        number += 1
    cuts.sort()
    return [Piece(high - low, _phase((low + high) / 2, spans)) for low, high in itertools.pairwise(cuts) if high > low]


def _step_span(steps: list[float], number: int, part_begin: float, part_end: float) -> tuple[float, float] | None:
    """Return the time of a step; None if it is too short, or not known."""
    begin = steps[number]
    end = steps[number + 1] if number + 1 < len(steps) else math.inf
    end = min(end, part_end)
    if math.isinf(end) and number > 0:  # it has not ended: it will likely take as long as the one before
        end = begin + (begin - steps[number - 1])
    if begin < part_begin or not _MIN_STEP_SECONDS <= end - begin < 60.0:
        return None
    return begin, end


def _phase(at: float, spans: list[tuple[float, float]]) -> int:
    number = bisect.bisect_right(spans, (at, math.inf)) - 1  # they are in order
    if number < 0 or at >= spans[number][1]:
        return 0
    begin, end = spans[number]
    return 1 + min(int((at - begin) / (end - begin) * _PHASES), _PHASES - 1)
