"""Planning: training continues at the original clocks until the plans are made, in the background."""

from __future__ import annotations

import logging

from zeus_core.pipeline.optimizer._context import RankContext
from zeus_core.pipeline.optimizer._delays import DelayWatch
from zeus_core.pipeline.optimizer._deployment import Deployment, total_saving
from zeus_core.pipeline.optimizer._planner import PlanningTask
from zeus_core.pipeline.optimizer._stage import Stage
from zeus_core.pipeline.optimizer.frequency_phases import Conclusion, GivenUp, Phase, Planned, Profiled
from zeus_core.pipeline.profile.iterations import Iteration
from zeus_core.pipeline.profile.step_timeline import RecordedStep

__all__ = ["Planning", "no_plan"]

# Excess of the instructions by the profile over all measured work, as a fraction of it, that is more than the scatter
# of both: the model is wrong by as much, which is logged.
_MAX_EXCESS_FRACTION = 0.02

_logger = logging.getLogger(__name__)


class Planning(Stage):
    """Waits at the original clocks for the plans.

    Args:
        context: This rank.
        profiled: The measurements to plan with.
        delays: Tells how much time the plans may take.
    """

    def __init__(self, context: RankContext, profiled: Profiled, delays: DelayWatch) -> None:
        super().__init__(Phase.PLANNING)
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
                    "the instructions of pipeline %d take %.4g s by the profile, and all work of an iteration took "
                    "%.4g s: the predicted times are too long by the difference",
                    pipeline,
                    work_seconds + deployment.excess_seconds,
                    work_seconds,
                )
        saving = total_saving(deployments)
        if saving is None or saving.joules >= saving.uncertainty_joules:  # 0 if it is the original clocks
            return Planned(profile.job, baseline, deployments, profile)
        job, settings = profile.job, self._context.settings
        reason = f"the predicted saving is within its error: {saving}"
        if job.pipelines > 1 and settings.follow_stragglers:  # one that waits for another can save all the same
            _logger.info("the clocks stay as they are until a pipeline waits for another one: %s", reason)
            usual = [Deployment.at_original_clocks(job, baseline, pipeline) for pipeline in range(job.pipelines)]
            return Planned(job, baseline, usual, profile)
        return no_plan(self._context, baseline, reason)


def no_plan(context: RankContext, baseline: Iteration, reason: str) -> GivenUp:
    """Say why no plan is followed any more."""
    if context.is_first:
        _logger.warning("no plan is deployed; training continues at the original clocks: %s", reason)
    return GivenUp(baseline, reason)
