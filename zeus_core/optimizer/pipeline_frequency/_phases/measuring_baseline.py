"""Iterations at the original clocks, which plans are compared with."""

from __future__ import annotations

from collections.abc import Callable

from zeus_core.optimizer.pipeline_frequency._iterations import StepWindow, iteration_of
from zeus_core.optimizer.pipeline_frequency._phases.phase import Phase, PhaseName
from zeus_core.optimizer.pipeline_frequency._rank import Rank
from zeus_core.optimizer.pipeline_frequency._timeline import RecordedStep
from zeus_core.ports import DeviceEvent

__all__ = ["MeasuringBaseline"]

_STEPS = 5


class MeasuringBaseline(Phase):
    """Measures a few iterations at the original clocks.

    Args:
        rank: This rank.
        follow: Creates the next phase, once `rank.baseline` is known.
    """

    name = PhaseName.BASELINE

    def __init__(self, rank: Rank, follow: Callable[[], Phase]) -> None:
        self._rank = rank
        self._follow = follow
        self._window = StepWindow(rank.monitor)
        rank.set_clock(None)

    def begin_step(self, begin: DeviceEvent) -> None:
        """Begin to measure the step."""
        self._window.begin_step()

    def end_step(self, step: RecordedStep) -> Phase:
        """After the last of them, exchange what was measured."""
        self._window.add(step)
        if len(self._window) < _STEPS:
            return self
        rank = self._rank
        told = rank.exchange.gather(self._window.report, self.name)
        rank.baseline = iteration_of(rank.known_job(), told)
        if rank.baseline is None:
            self._window = StepWindow(rank.monitor)
            return self
        return self._follow()
