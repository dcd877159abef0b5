"""The clocks of ranks against each other, by exchanges of all ranks, and what is left uncertain. Pure.

No rank leaves an exchange before all have entered it. So if rank j entered at s_j and left at e_j, by its own clock,
and rank 0 at s_0 and e_0, the clock of rank j is ahead of that of rank 0 by

    s_j - e_0 <= ahead <= e_j - s_0

which is certain, however unequal the ways are. The middle is the estimate, as NTP has it; half the width is how far it
can be off. The median of several exchanges is less disturbed by one that was slow, and must lie within all bounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from zeus_core.tracing.facts import ClockPoint, RankFacts

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


_READING_SECONDS = 1e-6  # two processes that read one clock: a call of it takes less


class Alignment:
    """How far the clock of each rank is ahead of that of rank 0. Pure.

    Ranks of one machine share its monotonic clock, so that each of them is placed by the comparison of the best-known
    one.

    Args:
        ranks: The ranks, each once.
    """

    def __init__(self, ranks: Sequence[RankFacts]) -> None:
        machines: dict[str, list[RankFacts]] = {}
        for rank in ranks:
            machines.setdefault(rank.machine or f"rank {rank.rank}", []).append(rank)
        self._machines = [(_best(machine), machine) for machine in machines.values()]
        self._reference = {rank.rank: reference for reference, machine in self._machines for rank in machine}
        self.unknown: Sequence[int] = [
            rank.rank for rank in ranks if self._reference[rank.rank].rank > 0 and not self._reference[rank.rank].clock
        ]
        """Ranks whose clock nothing compares with that of rank 0."""

    def ahead(self, rank: RankFacts) -> Callable[[float], float]:
        """Return the function of how far the clock of a rank is ahead, at a moment of its trace."""
        reference = self._reference[rank.rank]
        later = (rank.machine_nanoseconds - reference.machine_nanoseconds) / 1e9
        between = (rank.base_nanoseconds - reference.base_nanoseconds) / 1e9 - later

        def ahead(at: float) -> float:
            point = _point(reference, at + later)
            return between + (0.0 if point is None else point.ahead_seconds)

        return ahead

    @property
    def skew_seconds(self) -> float | None:
        """How far any two clocks can be apart; None if that is not known, or of one rank."""
        if len(self._reference) == 1 or (self.unknown and len(self._machines) > 1):
            return None
        if len(self._machines) == 1:
            return _READING_SECONDS
        worst = sorted(_worst(reference, machine) for reference, machine in self._machines)
        return max(worst[-1] + worst[-2], _READING_SECONDS)


def _best(machine: Sequence[RankFacts]) -> RankFacts:
    """Return the rank of a machine whose clock is known best: rank 0, or the one with the closest comparisons."""
    compared = [rank for rank in machine if rank.rank == 0 or rank.clock] or machine[:1]
    return min(compared, key=lambda rank: _worst(rank, [rank]))


def _point(rank: RankFacts, at: float) -> ClockPoint | None:
    return ClockPoint(at, 0.0, 0.0) if rank.rank == 0 else point_at(rank.clock, at)


def _worst(reference: RankFacts, ranks: Sequence[RankFacts]) -> float:
    """Return how far the clock of a rank can be off while ranks of its machine were traced.

    The uncertainty is the highest at an end, at a comparison, or halfway between two of these.
    """
    moments = [0.0, *(point.at for point in reference.clock)]
    for rank in ranks:
        later = (rank.machine_nanoseconds - reference.machine_nanoseconds) / 1e9
        moments += [later, later + rank.seconds]
    moments.sort()
    moments += [(before + after) / 2 for before, after in itertools.pairwise(moments)]
    points = [_point(reference, at) for at in moments]
    return max((point.uncertainty_seconds for point in points if point is not None), default=0.0)
