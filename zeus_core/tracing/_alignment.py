"""The clocks of the ranks of a job, brought together. Pure.

Ranks of one machine share its monotonic clock, so that each of them is placed by the comparison of the best-known one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from zeus_core.tracing.clocks import point_at
from zeus_core.tracing.facts import ClockPoint, RankFacts

_READING_SECONDS = 1e-6  # two processes that read one clock: a call of it takes less


class Alignment:
    """How far the clock of each rank is ahead of that of rank 0.

    Args:
        ranks: The ranks, each once.
    """

    def __init__(self, ranks: Sequence[RankFacts]) -> None:
        machines: dict[str, list[RankFacts]] = {}
        for rank in ranks:
            machines.setdefault(rank.machine or f"rank {rank.rank}", []).append(rank)
        self._reference = {
            rank.rank: reference for of_one in machines.values() for reference in [_best(of_one)] for rank in of_one
        }
        self._machines = list(machines.values())
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
        worst = sorted(map(self._uncertainty, self._machines))
        return max(worst[-1] + worst[-2], _READING_SECONDS)

    def _uncertainty(self, of_one: Sequence[RankFacts]) -> float:
        """Return how far the clock of a machine can be off at most: at an end, a comparison, or halfway between two."""
        reference = self._reference[of_one[0].rank]
        moments = [0.0, *(point.at for point in reference.clock)]
        for rank in of_one:
            later = (rank.machine_nanoseconds - reference.machine_nanoseconds) / 1e9
            moments += [later, *(later + at for at, _ in rank.unix_points)]
        return _worst(reference, moments)


def _best(of_one: Sequence[RankFacts]) -> RankFacts:
    """Return the rank of a machine whose clock is known best: rank 0, or the one with the closest comparisons."""
    compared = [rank for rank in of_one if rank.rank == 0 or rank.clock] or of_one[:1]
    return min(compared, key=lambda rank: _worst(rank, [0.0, *(at for at, _ in rank.unix_points)]))


def _point(rank: RankFacts, at: float) -> ClockPoint | None:
    return ClockPoint(at, 0.0, 0.0) if rank.rank == 0 else point_at(rank.clock, at)


def _worst(rank: RankFacts, moments: Sequence[float]) -> float:
    in_order = sorted([*moments, *(point.at for point in rank.clock)])
    in_order += [(before + after) / 2 for before, after in itertools.pairwise(in_order)]
    points = [_point(rank, at) for at in in_order]
    return max((point.uncertainty_seconds for point in points if point is not None), default=0.0)
