"""Nothing is done and nothing is changed."""

from __future__ import annotations

from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep

__all__ = ["Resting"]


class Resting(Phase):
    """Before training, after it, and where there is nothing more to do.

    Args:
        name: Which of these it is: RESTING, OBSERVED or OFF.
    """

    def __init__(self, name: PhaseName) -> None:
        self.name = name

    def end_step(self, step: RecordedStep) -> Phase:
        """Stay in this phase."""
        return self
