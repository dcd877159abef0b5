"""The energy drawn shortly before and after a time that was not counted. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, padded
from zeus_core.monitor._parts._power_samples import Sampled

__all__ = ["NOISY_SECONDS", "NOTHING", "Gap", "Near", "NearPower", "Seen"]

NOISY_SECONDS = 0.02
"""An interval inside a part tells what it draws near it, less by its noise: as if some time of it told nothing."""

_NEAR_SECONDS = 1.0  # of a class: what it drew longer ago tells less
_FOLLOWED_GAPS = 8  # the latest ones


class Seen(NamedTuple):
    """Intervals that lie inside parts of one class, added up.

    Attributes:
        seconds: Their length.
        joules: Their energy.
        row: Their seconds in each column, with each lag.
    """

    seconds: float
    joules: float
    row: Array

    def and_more(self, other: Seen, kept: float = 1.0) -> Seen:
        """Return both together, with a fraction of this one."""
        size = max(self.row.shape[-1], other.row.shape[-1])
        row = kept * padded(self.row, size) + padded(other.row, size)
        return Seen(kept * self.seconds + other.seconds, kept * self.joules + other.joules, row)

    def times(self, weight: float) -> Seen:
        """Return it as if it had been so many times as long."""
        return Seen(weight * self.seconds, weight * self.joules, weight * self.row)


NOTHING = Seen(0.0, 0.0, np.zeros((len(LAGS_SECONDS), 0)))
"""No interval."""


class Near(NamedTuple):
    """The energy seen near a gap.

    Attributes:
        seen: The intervals.
        is_of_part: Whether they lie inside the same part, not only in parts of the same class.
        has_both_sides: Whether they lie before and after it.
    """

    seen: Seen
    is_of_part: bool
    has_both_sides: bool


class _Side:
    """The energy seen of each class on one side of a gap, and of the part that reaches into it."""

    def __init__(self, of_class: dict[Hashable, Seen], of_part: dict[Hashable, Seen]) -> None:
        self.of_class, self.of_part = of_class, of_part


class Gap:
    """A time that was not counted.

    Args:
        before: The energy seen before it.
        sampled: The energies that samples of the power tell of each of its parts; nothing if there are none.
    """

    def __init__(self, before: _Side, sampled: Sequence[Sampled | None]) -> None:
        self.sampled = sampled
        self._before = before
        self._after = _Side({}, {})
        self._is_in_part = True  # that begins in the gap, or before it

    def see(self, key: Hashable, seen: Seen) -> None:
        """Take in an interval after it that lies inside a part; those that are late tell no more."""
        sums = [self._after.of_class, *([self._after.of_part] if self._is_in_part else [])]
        for after in sums:
            if after.get(key, NOTHING).seconds < _NEAR_SECONDS:
                after[key] = after.get(key, NOTHING).and_more(seen)

    def see_edge(self) -> None:
        """Note that the part in which it ended has ended."""
        self._is_in_part = False

    def near(self, key: Hashable, is_first: bool, is_last: bool) -> Near:
        """Return what was seen near one of its parts.

        Args:
            key: Its class.
            is_first: Whether it has begun before the gap.
            is_last: Whether it goes on behind it.
        """
        of_part = [
            side.of_part[key]
            for side, does_reach in ((self._before, is_first), (self._after, is_last))
            if does_reach and key in side.of_part
        ]
        of_class = [side.of_class[key] for side in (self._before, self._after) if key in side.of_class]
        seen = NOTHING
        for one in of_part or of_class:
            seen = seen.and_more(one)
        return Near(seen, bool(of_part), len(of_part or of_class) == 2)


class NearPower:
    """The energy drawn recently, and around each gap."""

    def __init__(self) -> None:
        self._recent: dict[Hashable, Seen] = {}
        self._of_part: dict[Hashable, Seen] = {}
        self._gaps: deque[Gap] = deque(maxlen=_FOLLOWED_GAPS)

    def see(self, key: Hashable, seen: Seen) -> None:
        """Take in an interval that lies inside a part."""
        kept = math.exp(-seen.seconds / _NEAR_SECONDS)
        for recent in (self._recent, self._of_part):
            recent[key] = recent.get(key, NOTHING).and_more(seen, kept)
        for gap in self._gaps:
            gap.see(key, seen)

    def see_edge(self) -> None:
        """Note that a part has ended."""
        self._of_part = {}
        for gap in self._gaps:
            gap.see_edge()

    def gap_now(self, sampled: Sequence[Sampled | None] = ()) -> Gap:
        """Return a gap that begins with this moment, and is not followed."""
        return Gap(_Side(dict(self._recent), dict(self._of_part)), sampled)

    def begin_gap(self, sampled: Sequence[Sampled | None] = ()) -> Gap:
        """Return a gap that begins with this moment, and learn what was drawn after it."""
        self._gaps.append(gap := self.gap_now(sampled))
        self._of_part = {}
        return gap
