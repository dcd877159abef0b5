"""The times of the updates of a counter, from brackets around some of them. Pure.

Update n happens at phi + n T, give or take a jitter, and was seen to lie in a bracket [low_n, high_n]. The line is off
its brackets by

    D(phi) = sum over n of the distance of phi + n T from [low_n, high_n],

which is least where phi is a median of both ends of all brackets together, low_n - n T and high_n - n T. All phi
between the two ends in the middle are equally good; half of that gap is how far the line can be off. T is right if the
medians of the earlier and of the later half of the brackets agree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

PERIOD_TOLERANCE = 0.03
"""How far the true period may be from the nominal one, as a fraction of it; boards are within 2 %."""

_LEAST_BRACKETS = 4  # in two halves: fewer do not correct the period
_ROUNDS = 3  # each corrects the period by what the halves still disagree
_LEAST_JITTER = 0.012  # of the period, a half-width: few brackets show less than there is
_JITTERS = 3.0  # times the root mean square distance of the line from brackets: reads near an update show a third of it
_COMMON = 0.25  # of the jitter: how far its mean can be from its middle
_Array = npt.NDArray[np.float64]


class Bracket(NamedTuple):
    """Two moments between which an update happened."""

    number: int  # of the update
    low: float
    high: float


class UpdateGrid:
    """The line phi + n T.

    Args:
        brackets: Around some updates, in order.
        nominal_seconds: T before anything is known.
        previous: The grid of brackets up to shortly before.

    Attributes:
        period_seconds: T.
        off_seconds: How far an update was off the line, as far as the brackets show.
        jitter_seconds: How far an update can be off it.
    """

    def __init__(self, brackets: Sequence[Bracket], nominal_seconds: float, previous: UpdateGrid | None = None) -> None:
        self._last, self._anchor, _ = brackets[-1]
        table = np.array(brackets)
        places, ends = table[:, :1] - self._last, table[:, 1:] - self._anchor
        self._middle = self._last + float(places.sum()) / len(places)
        halves = slice(len(places) // 2), slice(len(places) // 2, None)
        period: float = nominal_seconds if previous is None else previous.period_seconds
        self._period_slack = PERIOD_TOLERANCE * nominal_seconds
        if len(places) >= _LEAST_BRACKETS:
            updates = float(places[halves[1]].mean() - places[halves[0]].mean())
            for _ in range(_ROUNDS):
                offsets = ends - places * period
                (first, first_gap), (second, second_gap) = (_median(offsets[half]) for half in halves)
                slack = (first_gap + second_gap) / updates
                known = 1 / (1 + (slack / (PERIOD_TOLERANCE * nominal_seconds)) ** 2)
                period = nominal_seconds + known * (period + (second - first) / updates - nominal_seconds)
            self._period_slack = min(slack, PERIOD_TOLERANCE * nominal_seconds)
        self.period_seconds: float = period
        offsets = ends - places * period
        self._phi, self._slack = _median(offsets)
        off = np.maximum(np.maximum(offsets[:, 0] - self._phi, self._phi - offsets[:, 1]), 0.0)
        self.off_seconds: float = _JITTERS * math.sqrt(float(off @ off) / len(off))
        self.jitter_seconds: float = max(self.off_seconds, _LEAST_JITTER * nominal_seconds)

    def number_near(self, moment: float) -> int:
        """Return the number of the update nearest to a moment."""
        return self._last + round((moment - self._anchor - self._phi) / self.period_seconds)

    def at(self, number: int) -> float:
        """Return the likeliest time of an update."""
        return self._anchor + self._phi + (number - self._last) * self.period_seconds

    def reach_seconds(self, number: int) -> float:
        """Return how far an update can be from its likeliest time."""
        return self.slack_seconds(number) + self.jitter_seconds

    def slack_seconds(self, number: int) -> float:
        """Return how far the line can be off at an update."""
        return self._slack + abs(number - self._middle) * self._period_slack

    @property
    def common_seconds(self) -> float:
        """How far the latest updates can all be off together, in the same direction."""
        return self.slack_seconds(self._last) + _COMMON * self.jitter_seconds


def _median(ends: _Array) -> tuple[float, float]:
    """Return the middle of the two ends in the middle, and half of the distance between them."""
    low, high = sorted(ends.ravel().tolist())[len(ends) - 1 : len(ends) + 1]
    return (low + high) / 2, (high - low) / 2
