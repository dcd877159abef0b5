"""The course of a training: an unbroken row of parts, each of one class, cut into pieces. Pure.

A step may be interrupted by parts of other classes, such as a pass of a reference model. It is cut into tenths of its
*own* time, in which its class goes on: what it draws around a pass is known from steps without one too.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

_PHASES = 10  # of a step
_MAX_STEP_SECONDS = 60.0  # longer ones hold a stop that nothing reported
_MIN_STEP_SECONDS = 0.05  # phases of shorter ones would show little: one interval between two updates holds several


class ClassPiece(NamedTuple):
    """An uninterrupted time of one class, within which the power has no reason to change.

    Attributes:
        seconds: How long.
        phase: The tenth of a step's own time that it lies in, from 1; 0 where steps have no phases.
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
    pieces: Sequence[ClassPiece]
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
    own_seconds: float  # how long the class of steps had gone on until then
    is_stepping: bool

    def own_until(self, moment: float) -> float:
        """Return how long the class of steps has gone on until a moment before the next change."""
        return self.own_seconds + (moment - self.at if self.is_stepping else 0.0)


class ClassTimeline:
    """The classes of all time, from the first moment on.

    Moments come in the order of time, from one thread; another one may ask for parts meanwhile.

    Args:
        at: The first moment.
        before: The class of the time before it.
        key: The class that begins there.
        stepping: The class that consists of steps.
    """

    def __init__(self, at: float, before: Hashable, key: Hashable, stepping: Hashable = None) -> None:
        self.before = before
        """The class of the time before the first moment."""
        self.stepping = stepping
        """The class that consists of steps."""
        self._changes = [_Change(-math.inf, before, None, 0.0, False), _Change(at, key, None, 0.0, key == stepping)]
        self._steps = [-math.inf]  # when they begin, by the own time of their class
        self._is_in_step = False
        self.begin = at
        """The first moment."""

    @property
    def changed_at(self) -> float:
        """When the latest class began."""
        return self._changes[-1].at

    def change(self, at: float, key: Hashable, span: Hashable = None) -> None:
        """Begin another class."""
        own_seconds = self._changes[-1].own_until(at)
        self._changes.append(_Change(at, key, span, own_seconds, key == self.stepping))

    def begin_step(self, at: float) -> None:
        """Begin a step, whose power is likely that of the step before."""
        self._is_in_step = True
        _, _, _, own_seconds, is_stepping = change = self._changes[-1]
        self._steps.append(own_seconds + (at - change.at) if is_stepping else own_seconds)  # own_until, without a call

    def end_step(self) -> None:
        """End the step: another class that begins now does not interrupt it."""
        self._is_in_step = False

    def is_one_part(self, begin: float, end: float) -> bool:
        """Whether all time between two moments is of one part."""
        number = bisect.bisect_right(self._changes, begin, key=lambda change: change.at)
        return number == len(self._changes) or self._changes[number].at >= end

    def key_within(self, begin: float, end: float) -> Hashable:
        """Return the class of the time between two moments; None if that is of several parts."""
        number = bisect.bisect_right(self._changes, begin, key=lambda change: change.at)
        is_one = number > 0 and (number == len(self._changes) or self._changes[number].at >= end)
        return self._changes[number - 1].key if is_one else None

    def forget_before(self, moment: float) -> None:
        """Drop what is not needed for the parts after a moment."""
        first = bisect.bisect_right(self._changes, moment, key=lambda change: change.at) - 1
        own_seconds = self._changes[max(first, 0)].own_until(moment)
        if first > 64:
            del self._changes[:first]
        first = bisect.bisect_right(self._steps, own_seconds) - 2
        if first > 64:
            del self._steps[:first]

    def parts(self, begin: float, end: float) -> list[Part]:
        """Return the parts between two moments."""
        changes, steps = self._changes[:], self._steps[:]
        if not self._is_in_step and not changes[-1].is_stepping:  # else the end of the latest step is not known
            steps.append(changes[-1].own_seconds)
        number = bisect.bisect_right(changes, begin, key=lambda change: change.at) - 1
        parts = []
        while begin < end:
            change, last = changes[number], changes[number + 1].at if number + 1 < len(changes) else math.inf
            until = min(end, last)
            pieces = [ClassPiece(until - begin)] if until > begin else []
            if pieces and change.is_stepping:
                pieces = _pieces(change.own_until(begin), change.own_until(until), steps) or pieces
            if pieces:
                parts.append(Part(change.key, pieces, change.span))
            begin = max(begin, last)
            number += 1
        return parts


def _pieces(begin: float, end: float, steps: list[float]) -> list[ClassPiece]:
    """Return the pieces between two moments of one part; all times are those of its class."""
    cuts = [begin, end]
    number = max(bisect.bisect_right(steps, begin) - 1, 0)
    spans = []
    while number < len(steps) and steps[number] < end:
        span = _step_span(steps, number)
        if span is not None:
            spans.append(span)
            cuts += [
                cut
                for phase in range(_PHASES)
                if begin < (cut := span[0] + (span[1] - span[0]) * phase / _PHASES) < end
            ]
        number += 1
    cuts.sort()
    return [
        ClassPiece(high - low, _phase((low + high) / 2, spans)) for low, high in itertools.pairwise(cuts) if high > low
    ]


def _step_span(steps: list[float], number: int) -> tuple[float, float] | None:
    """Return the time of a step; None if it is too short, or not known."""
    begin = steps[number]
    if number + 1 < len(steps):
        end = steps[number + 1]
    else:  # it has not ended: it will likely take as long as the one before
        end = begin + (begin - steps[number - 1]) if number > 0 else math.inf
    return (begin, end) if _MIN_STEP_SECONDS <= end - begin < _MAX_STEP_SECONDS else None


def _phase(at: float, spans: list[tuple[float, float]]) -> int:
    number = bisect.bisect_right(spans, (at, math.inf)) - 1  # they are in order
    if number < 0 or at >= spans[number][1]:
        return 0
    begin, end = spans[number]
    return 1 + min(int((at - begin) / (end - begin) * _PHASES), _PHASES - 1)
