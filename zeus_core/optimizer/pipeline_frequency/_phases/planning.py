"""Training continues at the original clocks, while rank 0 plans in the background."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from zeus_core.optimizer.pipeline_frequency._deployment import Deployment
from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._planning_task import PlanningTask
from zeus_core.optimizer.pipeline_frequency._rank import Rank
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep

__all__ = ["Planning"]


class Planning(Phase):
    """Waits for the plans.

    Args:
        rank: This rank.
        task: Makes them.
        follow: Creates the next phase, from the plans.
    """

    name = PhaseName.PLANNING

    def __init__(self, rank: Rank, task: PlanningTask, follow: Callable[[Sequence[Deployment]], Phase]) -> None:
        self._rank = rank
        self._task = task
        self._follow = follow

    def end_step(self, step: RecordedStep) -> Phase:
        """Check whether the plans are made."""
        told = self._rank.exchange.decide(self._task.result, self.name)
        if told is None:
            return self
        self._task.is_wanted = False  # or the next phase would take these for newer plans
        return self._follow([Deployment.from_json(it) for it in told])
