"""Which pipelines wait for which, and how long each may take. Pure.

All times are those of the work of an iteration, up to its last computation. A pipeline is slowed by as much as it took
longer than its own plan says. The time it would take with its usual plan follows, for each pipeline alike; the longest
of these is what all the others wait for in any case.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["LEAST_WAIT_FRACTION", "PipelineTimes", "StragglerWatch"]

_PATIENCE = 3  # iterations: a hiccup of one slows nobody down
LEAST_WAIT_FRACTION = 0.015
"""The share of an iteration below which a wait is not worth another plan."""


class PipelineTimes(NamedTuple):
    """What an iteration of one pipeline took.

    Attributes:
        measured_seconds: From its beginning to its last computation.
        planned_seconds: What the plan in force says.
        usual_seconds: What the plan says that waits for nobody.
    """

    measured_seconds: float
    planned_seconds: float
    usual_seconds: float

    @property
    def slowdown_factor(self) -> float:
        """By how much the pipeline is slowed by something that no plan knows of; below 1 if it was when profiled."""
        return self.measured_seconds / self.planned_seconds


class StragglerWatch:
    """Says how long the iterations of each pipeline may take, as its own plans count time.

    Time is granted after several iterations in which it could have been, and taken back at once.
    """

    def __init__(self) -> None:
        self._longest: deque[float] = deque(maxlen=_PATIENCE)

    def allow(self, pipelines: Sequence[PipelineTimes], announced_seconds: float | None = None) -> list[float]:
        """How long each pipeline may take from now on, in seconds.

        Args:
            pipelines: What the latest iteration of each took.
            announced_seconds: How long the work takes elsewhere, as somebody knows who watches the whole job; that is
                granted at once.
        """
        usual = [it.usual_seconds * it.slowdown_factor for it in pipelines]
        self._longest.append(max(usual))
        is_patient = len(self._longest) == _PATIENCE
        longest = max(min(self._longest) if is_patient else 0.0, announced_seconds or 0.0)
        return [
            it.usual_seconds if longest <= (1 + LEAST_WAIT_FRACTION) * own else longest / it.slowdown_factor
            for it, own in zip(pipelines, usual, strict=True)
        ]
