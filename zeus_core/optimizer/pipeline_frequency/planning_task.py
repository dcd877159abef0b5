"""Planning beside training, on rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from zeus_core.optimizer.pipeline_frequency.deployment import Deployment
from zeus_core.optimizer.pipeline_frequency.job import fixed_joules, pipeline_profile
from zeus_core.optimizer.pipeline_frequency.planner import PipelinePlanner
from zeus_core.optimizer.pipeline_frequency.rank import Rank

__all__ = ["PlanningTask"]


class PlanningTask:
    """Plans for all pipelines in the background of rank 0; on the other ranks it does nothing.

    Args:
        rank: This rank; its profiles and its baseline are known.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._planners: list[PipelinePlanner] = []
        self._result: list[dict[str, Any]] | None = None
        self._error: Exception | None = None
        self.is_busy = False
        """Whether a plan is being made, on whichever rank."""

    def limits_seconds(self, haste_factor: float) -> list[float]:
        """The longest time of the work of each pipeline that the user allows, times a factor."""
        baseline = self._rank.known_baseline()
        longest = haste_factor * self._rank.settings.slowdown_factor * baseline.step_seconds
        return [longest - (baseline.step_seconds - work) for work in baseline.work_seconds]

    def begin(self, limits_seconds: Sequence[float], is_waiting: Sequence[bool] | None = None) -> None:
        """Plan.

        Args:
            limits_seconds: The longest time of the work of each pipeline.
            is_waiting: Whether each waits until then in any case.
        """
        self.is_busy = True
        self._result = self._error = None
        if self._rank.is_first:
            asked = list(zip(limits_seconds, is_waiting or [False] * len(limits_seconds), strict=True))
            self._rank.background.soon(lambda: self._plan(asked))

    def result(self) -> list[dict[str, Any]] | None:
        """The plans in JSON's types, on rank 0; None until they are made.

        Raises:
            Exception: Planning has failed.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def _plan(self, asked: Sequence[tuple[float, bool]]) -> None:
        """Runs in the background."""
        try:
            if not self._planners:
                self._planners = [self._planner(pipeline) for pipeline in range(len(asked))]
            self._result = [
                Deployment.of(planner, limit_seconds, is_waiting).to_json()
                for planner, (limit_seconds, is_waiting) in zip(self._planners, asked, strict=True)
            ]
        except Exception as error:
            self._error = error

    def _planner(self, pipeline: int) -> PipelinePlanner:
        rank = self._rank
        job, baseline = rank.knows(), rank.known_baseline()
        work_seconds = baseline.work_seconds[pipeline]
        switch_seconds = rank.settings.switch_seconds
        if switch_seconds is None:
            switch_seconds = median(rank.switch_seconds or [0.0])
        return PipelinePlanner(
            pipeline_profile(job, rank.profiles, pipeline),
            job.schedules[pipeline],
            work_seconds,
            baseline.step_seconds - work_seconds,
            fixed_joules(job, rank.profiles, pipeline),
            switch_seconds,
        )
