"""Planning: a task that makes plans in the background, requests for other plans, and the stage that waits for some."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from zeus_core.pipeline.child_process import run_in_child
from zeus_core.pipeline.optimizer._deployment import Deployment, total_saving
from zeus_core.pipeline.optimizer._pipeline_planner import PipelinePlanner, plan_all
from zeus_core.pipeline.optimizer._stage import RankContext, Stage
from zeus_core.pipeline.optimizer._watches import MIN_WAIT_FRACTION, DelayWatch
from zeus_core.pipeline.optimizer.frequency_phases import Conclusion, GivenUp, Planned, PlanningPhase, Profiled
from zeus_core.pipeline.profile.iterations import IterationCost
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.units import duration_text

# Excess of the instructions by the profile over all measured work, as a fraction of it, that is more than the scatter
# of both: the model is wrong by as much, which is logged.
_MAX_EXCESS_FRACTION = 0.02

_logger = logging.getLogger(__name__)


class PlanningTask:
    """Plans for all pipelines, in the background of rank 0; does nothing on the other ranks.

    Args:
        context: This rank.
        profile: The measured profile.
        baseline: An iteration at the original clocks.
        time_budget_factor: The maximum iteration time to plan for, over the time the user allows: below 1 if an earlier
            plan was too slow.
    """

    def __init__(
        self, context: RankContext, profile: JobProfile, baseline: IterationCost, time_budget_factor: float
    ) -> None:
        self._context = context
        self._profile = profile
        self._baseline = baseline
        self._slowdown_factor = time_budget_factor * context.settings.slowdown_factor
        self._result: tuple[Deployment, ...] = ()
        self._error: Exception | None = None
        self._requests = 0

    def begin(self, until_seconds: Sequence[float | None]) -> None:
        """Start planning. Plans that were requested before, and are not made yet, are not needed any more.

        Args:
            until_seconds: How long the work of each pipeline may take because it waits for another one regardless;
                None for a pipeline that does not wait.
        """
        self._result, self._error = (), None
        self._requests += 1
        if self._context.is_first:
            soon, number = self._context.planning_background.soon, self._requests
            self._context.exchange.attempt(lambda: soon(lambda: self._plan(until_seconds, number)))

    def result(self) -> tuple[Deployment, ...]:
        """Return the plan of each pipeline, on rank 0; empty until they are made.

        Raises:
            Exception: Planning has failed.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def _plan(self, until_seconds: Sequence[float | None], number: int) -> None:
        """Runs in the background, once for each request."""
        if number < self._requests:
            return
        try:
            allowed = self._baseline.allowed_work_seconds(self._slowdown_factor)
            asked = [
                (self._planner(pipeline), allowed[pipeline], until) for pipeline, until in enumerate(until_seconds)
            ]
            result = run_in_child(plan_all, asked)
            if number == self._requests:
                self._result = result
        except Exception as error:
            self._error = error

    def _planner(self, pipeline: int) -> PipelinePlanner:
        settings = self._context.settings
        return PipelinePlanner(
            replace(self._profile.planning_options(pipeline), node_power_watts=settings.node_power_watts),
            self._profile.job.schedules[pipeline],
            self._baseline.work_seconds[pipeline],
            self._baseline.tail_seconds(pipeline),
            self._profile.tail_joules(pipeline),
            settings.switch_seconds or 0.0,
            self._profile.switch_seconds,
        )


class RequestedPlans:
    """Plans for another time of the pipelines, which are requested where such a time is expected.

    Args:
        task: Makes them.
        usual_seconds: How long the work of each pipeline takes by the plans for all of the time.
    """

    def __init__(self, task: PlanningTask, usual_seconds: Sequence[float]) -> None:
        self._task = task
        self._usual_seconds = usual_seconds
        self.drop()

    def drop(self) -> None:
        """Need none any more."""
        self._seconds: Sequence[float] = ()  # that the pipelines may take by them
        self.made: Sequence[Deployment] = ()
        """The plans, once all ranks have received them."""
        self.are_ahead = False
        """Whether they are for a little less time than is expected."""

    def request(self, seconds: Sequence[float], are_ahead: bool = False) -> None:
        """Have plans made for some times."""
        self.drop()
        self._seconds, self.are_ahead = seconds, are_ahead
        granted = zip(seconds, self._usual_seconds, strict=True)
        self._task.begin([new if new > usual else None for new, usual in granted])

    def serve(self, seconds: Sequence[float]) -> bool:
        """Return whether the requested plans are good ones for other times too: they take no longer."""
        longest = zip(self._seconds, seconds, strict=bool(self._seconds))
        return bool(self._seconds) and all(one <= (1 + MIN_WAIT_FRACTION) * other for one, other in longest)

    def result(self) -> tuple[Deployment, ...]:
        """Return new plans, on rank 0; empty until they are made. Raises what planning has raised."""
        return self._task.result() if self._seconds and not self.made else ()


class Planning(Stage):
    """Waits at the original clocks for the plans.

    Args:
        context: This rank.
        profiled: The measurements to plan with.
        delays: Knows how much time the plans may take.
    """

    def __init__(self, context: RankContext, profiled: Profiled, delays: DelayWatch) -> None:
        super().__init__(PlanningPhase.PLANNING)
        self._context = context
        self._profiled = profiled
        self._task = PlanningTask(context, profiled.profile, profiled.baseline, delays.time_budget_factor)
        delays.begin_planning()
        self._task.begin([None] * profiled.profile.job.pipelines)

    def end_step(self, step: RecordedStep) -> Conclusion | None:
        """Check whether the plans are made, and save more than the prediction can be off."""
        deployments = self._context.decide(tuple[Deployment, ...], self._task.result, self.phase)
        if not deployments:
            return None
        profile, baseline = self._profiled.profile, self._profiled.baseline
        for pipeline, deployment in enumerate(deployments):
            work_seconds = baseline.work_seconds[pipeline]
            if self._context.is_first and deployment.excess_seconds > _MAX_EXCESS_FRACTION * work_seconds:
                _logger.warning(
                    "the instructions of pipeline %d take %s by the profile, and all work of an iteration took "
                    "%s, which is what times are predicted from",
                    pipeline,
                    duration_text(work_seconds + deployment.excess_seconds),
                    duration_text(work_seconds),
                )
        saving = total_saving(deployments)
        if saving is None or saving.joules >= saving.uncertainty_joules:  # 0 if it is the original clocks
            return Planned(profile.job, baseline, deployments, profile)
        job, settings = profile.job, self._context.settings
        reason = f"the predicted saving is within its error: {saving}"
        if job.pipelines > 1 and settings.follow_stragglers:  # one that waits for another can save all the same
            reason = f"the clocks stay as they are until a pipeline waits for another one: {reason}"
            _logger.info(reason)
            usual = [Deployment.at_original_clocks(job, baseline, pipeline) for pipeline in range(job.pipelines)]
            return Planned(job, baseline, usual, profile, reason=reason)
        return no_plan(self._context, baseline, reason)


def no_plan(context: RankContext, baseline: IterationCost, reason: str) -> GivenUp:
    """Say why no plan is followed any more."""
    if context.is_first:
        _logger.warning("no plan is deployed; training continues at the original clocks: %s", reason)
    return GivenUp(baseline, reason=reason)
