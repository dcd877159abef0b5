"""The times of the updates of a counter, from brackets around some of them. Pure.

Update n happens at phi + n T, give or take a jitter, and was seen to lie in a bracket [low_n, high_n]. The line is off
its brackets by

    D(phi) = sum over n of the distance of phi + n T from [low_n, high_n],

which is least where phi is a median of both ends of all brackets together, low_n - n T and high_n - n T. All phi
between the two ends in the middle are equally good; half of that gap is how far the line can be off. T is right if the
medians of the earlier and of the later half of the brackets agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["PERIOD_TOLERANCE", "Bracket", "UpdateGrid"]

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
        numbers, lows, highs = (np.array(column, float) for column in zip(*brackets, strict=True))
        self._last, self._anchor = int(numbers[-1]), float(lows[-1])
        numbers -= numbers[-1]
        self._middle = self._last + float(numbers.mean())
        ends, places = np.stack([lows, highs]) - self._anchor, numbers
        halves = slice(len(numbers) // 2), slice(len(numbers) // 2, None)
        period: float = nominal_seconds if previous is None else previous.period_seconds
        self._period_slack = PERIOD_TOLERANCE * nominal_seconds
        for _ in range(_ROUNDS if len(numbers) >= _LEAST_BRACKETS else 0):
            (first, first_gap), (second, second_gap) = (
                _median(ends[:, half] - places[half] * period) for half in halves
            )
            updates = float(places[halves[1]].mean() - places[halves[0]].mean())
            slack = (first_gap + second_gap) / updates
            known = 1 / (1 + (slack / (PERIOD_TOLERANCE * nominal_seconds)) ** 2)
            period = nominal_seconds + known * (period + (second - first) / updates - nominal_seconds)
            self._period_slack = min(slack, PERIOD_TOLERANCE * nominal_seconds)
        self.period_seconds: float = period
        phi, self._slack = _median(ends - places * period)
        self._phi = phi
        at = phi + places * period
        off = np.maximum(np.maximum(ends[0] - at, at - ends[1]), 0.0)
        self.off_seconds: float = _JITTERS * float(np.sqrt(np.square(off).mean()))
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
    in_order = np.sort(ends, axis=None)
    low, high = in_order[ends.shape[1] - 1 : ends.shape[1] + 1]
    return float(low + high) / 2, float(high - low) / 2
