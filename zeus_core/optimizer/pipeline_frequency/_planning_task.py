"""Planning in the background, on rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from zeus_core.optimizer.pipeline_frequency._deployment import Deployment
from zeus_core.optimizer.pipeline_frequency._pipeline_job import pipeline_profile, tail_joules
from zeus_core.optimizer.pipeline_frequency._planner import PipelinePlanner
from zeus_core.optimizer.pipeline_frequency._rank import Rank

__all__ = ["PlanningTask", "plan_all"]


class PlanningTask:
    """Plans for all pipelines, in the background of rank 0; does nothing on the other ranks.

    Args:
        rank: This rank; its profiles and its baseline are known.
        time_budget_factor: The maximum iteration time to plan for, over what the user allows: below 1 if an earlier
            plan was too slow.
    """

    def __init__(self, rank: Rank, time_budget_factor: float) -> None:
        self._rank = rank
        baseline = rank.known_baseline()
        longest_seconds = time_budget_factor * rank.allowed_step_seconds
        self.limit_seconds = [longest_seconds - (baseline.step_seconds - work) for work in baseline.work_seconds]
        """The maximum time of the work of each pipeline, if it does not wait for another."""
        self._result: list[dict[str, Any]] | None = None
        self._error: Exception | None = None
        self.is_wanted = False
        """Whether plans have been requested that the ranks have not received yet."""

    def begin(self, until_seconds: Sequence[float | None]) -> None:
        """Start planning.

        Args:
            until_seconds: How long the work of each pipeline may take because it waits for another one regardless;
                None for a pipeline that does not wait.
        """
        self.is_wanted = True
        self._result = self._error = None
        if self._rank.is_first:
            self._rank.exchange.attempt(lambda: self._rank.background.soon(lambda: self._plan(until_seconds)))

    def result(self) -> list[dict[str, Any]] | None:
        """The plans in JSON types, on rank 0; None until they are made.

        Raises:
            Exception: Planning has failed.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def _plan(self, until_seconds: Sequence[float | None]) -> None:
        """Runs in the background."""
        try:
            planners = [self._planner(pipeline) for pipeline in range(len(until_seconds))]
            asked = list(zip(planners, self.limit_seconds, until_seconds, strict=True))
            self._result = self._rank.background.run_in_child(plan_all, asked)
        except Exception as error:
            self._error = error

    def _planner(self, pipeline: int) -> PipelinePlanner:
        rank = self._rank
        job, baseline = rank.known_job(), rank.known_baseline()
        work_seconds = baseline.work_seconds[pipeline]
        switch_seconds = rank.settings.switch_seconds
        if switch_seconds is None:
            switch_seconds = median(it.switch_seconds for it in rank.profiles)
        return PipelinePlanner(
            pipeline_profile(job, rank.profiles, pipeline),
            job.schedules[pipeline],
            work_seconds,
            baseline.step_seconds - work_seconds,
            tail_joules(job, rank.profiles, pipeline),
            switch_seconds,
        )


def plan_all(asked: Sequence[tuple[PipelinePlanner, float, float | None]]) -> list[dict[str, Any]]:
    """The plan of each pipeline, in JSON types. Pure.

    Args:
        asked: For each pipeline its planner, the maximum time of its work in seconds, and until when it waits
            regardless, in seconds, or None if it does not wait.
    """
    return [
        Deployment.of(planner, limit if until is None else until, is_waiting=until is not None).to_json()
        for planner, limit, until in asked
    ]
