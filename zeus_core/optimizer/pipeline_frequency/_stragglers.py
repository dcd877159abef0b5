"""Which pipelines wait for which, and how long each may take. Pure.

All times are those of the work of an iteration, up to its last computation. The slowdown of a pipeline is its measured
time over that of its plan. Its usual plan, slowed by the same factor, gives the time it takes if it waits for nobody;
the longest of these, over all pipelines, is what the others wait for regardless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LEAST_WAIT_FRACTION", "PipelineTimes", "StragglerWatch"]

_PATIENCE = 3  # exchanges: a delay in one of them slows nobody down
_LEAST_SPEEDUP = 0.02  # by which a pipeline is quicker than planned, and not just by chance
LEAST_WAIT_FRACTION = 0.015
"""The fraction of an iteration below which a wait is not worth another plan."""


class PipelineTimes(NamedTuple):
    """What an iteration of one pipeline took.

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
        self._longest: deque[float] = deque(maxlen=_PATIENCE)
        self._factors: deque[list[float]] = deque(maxlen=_PATIENCE)  # of each pipeline

    def allow(self, pipelines: Sequence[PipelineTimes], announced_seconds: float | None = None) -> list[float]:
        """How long each pipeline may take from now on, in seconds.

        Args:
            pipelines: What the latest iteration of each took.
            announced_seconds: How long the work takes elsewhere, as announced by the user; granted at once. None if
                nothing was announced.
        """
        self._factors.append([it.slowdown_factor for it in pipelines])
        factors = [self._factor(pipeline) for pipeline in range(len(pipelines))]
        usual = [it.usual_seconds * factor for it, factor in zip(pipelines, factors, strict=True)]
        self._longest.append(max(usual))
        is_patient = len(self._longest) == _PATIENCE
        longest = max(min(self._longest) if is_patient else 0.0, announced_seconds or 0.0)
        return [
            it.usual_seconds if longest <= (1 + LEAST_WAIT_FRACTION) * own else longest / factor
            for it, own, factor in zip(pipelines, usual, factors, strict=True)
        ]

    def _factor(self, pipeline: int) -> float:
        """The slowdown of a pipeline; below 1 if it has recovered from one that its profile was measured in."""
        recent = [factors[pipeline] for factors in self._factors]
        has_recovered = len(recent) == _PATIENCE and max(recent) < 1 - _LEAST_SPEEDUP
        return recent[-1] if has_recovered else max(recent[-1], 1.0)
