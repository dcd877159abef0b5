"""The clocks of ranks against each other, by exchanges of all ranks, and what is left uncertain. Pure.

No rank leaves an exchange before all have entered it. So if rank j entered at s_j and left at e_j, by its own clock,
and rank 0 at s_0 and e_0, the clock of rank j is ahead of that of rank 0 by

    s_j - e_0 <= ahead <= e_j - s_0

which is certain, however unequal the ways are. The middle is the estimate, as NTP has it; half the width is how far it
can be off. The median of several exchanges is less disturbed by one that was slow, and must lie within all bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from zeus_core.tracing.facts import ClockPoint

_ROUNDS = 8  # the fastest few of so many are hardly disturbed by what else the machines do

UNKNOWN_DRIFT = 1e-4
"""How much faster a clock may be than another, where they were compared once: quartz is within 50 ppm each."""

# Beyond two comparisons, or between them, two clocks may move apart by this though their drift is known: quartz changes
# by some ppm with the temperature of a room.
_CHANGING_DRIFT = 2e-6


class Meeting(NamedTuple):
    """One exchange, as a rank and rank 0 saw it, each by its own clock."""

    entered: float
    left: float
    entered_0: float
    left_0: float


def meet(share: Callable[[list[float]], list[float]], now: Callable[[], float]) -> list[Meeting]:
    """Let all ranks meet some times; a collective call.

    Args:
        share: Returns the value of rank 0, from that of this rank, in an exchange of all ranks.
        now: The clock of this rank.
    """
    meetings = []
    entered = entered_0 = left = 0.0
    for number in range(_ROUNDS + 2):  # they come to the first at any time, and the last shows when the others left
        stamps = [now(), left]
        of_rank_0 = share(stamps)
        if number > 1:
            meetings.append(Meeting(entered, left, entered_0, of_rank_0[1]))
        left, entered, entered_0 = now(), stamps[0], of_rank_0[0]
    return meetings


def compare_clocks(meetings: Sequence[Meeting], at: float) -> ClockPoint:
    """Return how far the clock of a rank is ahead of that of rank 0.

    Args:
        meetings: At least one.
        at: This moment, in seconds of the trace.
    """
    low = max(meeting.entered - meeting.left_0 for meeting in meetings)
    high = min(meeting.left - meeting.entered_0 for meeting in meetings)
    middles = [
        (meeting.entered - meeting.left_0 + meeting.left - meeting.entered_0) / 2
        for meeting in sorted(meetings, key=_width)[: max(len(meetings) // 2, 1)]
    ]
    ahead = min(max(median(middles), low), high) if low <= high else median(middles)
    # A clock that was set between the meetings leaves nothing in common: then each may be right.
    uncertainty = max(high - ahead, ahead - low) if low <= high else max(map(_width, meetings)) + (low - high)
    return ClockPoint(at, ahead, uncertainty)


def point_at(points: Sequence[ClockPoint], at: float) -> ClockPoint | None:
    """Return how far a clock is ahead at some moment, from comparisons at others; None if there is none."""
    if len(points) < 2:
        return None if not points else _carried(points[0], at)
    after = next((number for number, point in enumerate(points[1:], 1) if at < point.at), len(points) - 1)
    first, second = points[after - 1], points[after]
    if second.at <= first.at:
        return _carried(second, at)
    share = (at - first.at) / (second.at - first.at)
    ahead = first.ahead_seconds + share * (second.ahead_seconds - first.ahead_seconds)
    off = abs(1 - share) * first.uncertainty_seconds + abs(share) * second.uncertainty_seconds
    outside = max(first.at - at, at - second.at)
    nearest = outside if outside > 0 else min(at - first.at, second.at - at)
    return ClockPoint(at, ahead, off + _CHANGING_DRIFT * nearest)


def _carried(point: ClockPoint, at: float) -> ClockPoint:
    return point._replace(at=at, uncertainty_seconds=point.uncertainty_seconds + UNKNOWN_DRIFT * abs(at - point.at))


def _width(meeting: Meeting) -> float:
    return meeting.left - meeting.entered + meeting.left_0 - meeting.entered_0
