"""Stragglers: which pipelines wait for which, and how long each may take. Pure.

All times are those of the work of an iteration, up to its last computation. The slowdown of a pipeline is its measured
time over that of its plan. Its usual plan, slowed by the same factor, gives the time it takes if it waits for nobody;
the longest of these, over all pipelines, is the time the others wait for regardless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["MIN_WAIT_FRACTION", "Announcement", "AnnouncementBoard", "PipelineTimes", "StragglerWatch"]

# Exchanges in a row that must show a wait before it is used: a stall of the machine in one or two of them slows nobody
# down. Larger values leave the energy of a wait unused for longer.
_PATIENCE_EXCHANGES = 3

# Fraction by which a pipeline must be faster than planned to count as recovered from a slow profile; iterations scatter
# by less.
_MIN_SPEEDUP_FRACTION = 0.02

MIN_WAIT_FRACTION = 0.015
"""The fraction of an iteration below which a wait is not worth another plan: it would save about as little energy, and
times scatter by as much."""


class Announcement(NamedTuple):
    """Time of an iteration elsewhere, as announced by the user on a rank; the greatest of several counts.

    Attributes:
        number: Count of the announcements that the rank knows of.
        rank: The rank.
        time_seconds: The time; None if there is nothing to wait for.
    """

    number: int = 0
    rank: int = 0
    time_seconds: float | None = None


class AnnouncementBoard:
    """The latest announcement that a rank knows of."""

    def __init__(self) -> None:
        self.latest = Announcement()

    def announce(self, rank: int, time_seconds: float | None) -> None:
        """Replace all announcements known so far by one of this rank."""
        self.latest = Announcement(self.latest.number + 1, rank, time_seconds)

    def learn(self, announcement: Announcement) -> None:
        """Take over an announcement of another rank, unless a newer one is known."""
        self.latest = max(self.latest, announcement)


class PipelineTimes(NamedTuple):
    """Times of an iteration of one pipeline.

    Attributes:
        measured_seconds: From its beginning to its last computation.
        planned_seconds: The same by the plan in force.
        usual_seconds: The same by the usual plan, which waits for nobody.
    """

    measured_seconds: float
    planned_seconds: float
    usual_seconds: float

    @property
    def slowdown_factor(self) -> float:
        """The slowdown of the pipeline by something outside its plan."""
        return self.measured_seconds / self.planned_seconds


class StragglerWatch:
    """Decides how long the iterations of each pipeline may take, in the time of its own plans.

    Extra time is granted after three exchanges in a row that would have allowed it, and withdrawn at the first that
    does not. The pipelines exchange their times in each iteration, or every half second where iterations are shorter
    (at the latest after `check_steps` of them).
    """

    def __init__(self) -> None:
        self._longest: deque[float] = deque(maxlen=_PATIENCE_EXCHANGES)
        self._factors: deque[list[float]] = deque(maxlen=_PATIENCE_EXCHANGES)  # of each pipeline

    def allow(self, pipelines: Sequence[PipelineTimes], announced_seconds: float | None = None) -> list[float]:
        """Return how long each pipeline may take from now on, in seconds.

        Args:
            pipelines: Times of the latest iteration of each.
            announced_seconds: How long the work takes elsewhere, as announced by the user; granted at once. None if
                nothing was announced.
        """
        self._factors.append([times.slowdown_factor for times in pipelines])
        factors = [self._factor(pipeline) for pipeline in range(len(pipelines))]
        usual = [times.usual_seconds * factor for times, factor in zip(pipelines, factors, strict=True)]
        self._longest.append(max(usual))
        is_patient = len(self._longest) == _PATIENCE_EXCHANGES
        longest = max(min(self._longest) if is_patient else 0.0, announced_seconds or 0.0)
        return [
            times.usual_seconds if longest <= (1 + MIN_WAIT_FRACTION) * own else longest / factor
            for times, own, factor in zip(pipelines, usual, factors, strict=True)
        ]

    def _factor(self, pipeline: int) -> float:
        """Return the slowdown of a pipeline; below 1 if it has recovered from one that its profile was measured in."""
        recent = [factors[pipeline] for factors in self._factors]
        has_recovered = len(recent) == _PATIENCE_EXCHANGES and max(recent) < 1 - _MIN_SPEEDUP_FRACTION
        return recent[-1] if has_recovered else max(recent[-1], 1.0)
