"""Training goes on at the clocks found, while rank 0 plans in the background."""

from __future__ import annotations

from zeus_core.optimizer.pipeline_frequency.deployment import Deployment
from zeus_core.optimizer.pipeline_frequency.phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency.phases.replaying import Replaying
from zeus_core.optimizer.pipeline_frequency.planning_task import PlanningTask
from zeus_core.optimizer.pipeline_frequency.rank import Rank
from zeus_core.optimizer.pipeline_frequency.timeline import RecordedStep

__all__ = ["Planning"]


class Planning(Phase):
    """Waits for a plan.

    Args:
        rank: This rank.
        haste_factor: The longest iteration over what the user allows: below 1 where an earlier plan was too slow.
        back_offs: How many were.
    """

    name = PhaseName.PLANNING

    def __init__(self, rank: Rank, haste_factor: float = 1.0, back_offs: int = 0) -> None:
        self._rank = rank
        self._haste_factor = haste_factor
        self._back_offs = back_offs
        self._task = PlanningTask(rank)
        rank.set_clock(None)
        rank.agreement.attempt(lambda: self._task.begin(self._task.limits_seconds(haste_factor)))

    def end_step(self, step: RecordedStep) -> Phase:
        """Ask for the plan."""
        rank = self._rank
        told = rank.agreement.decide(self.name, self._task.result)
        if told is None:
            return self
        deployments = [Deployment.from_json(it) for it in told]
        return Replaying(rank, deployments, self._task, self._haste_factor, self._back_offs)
