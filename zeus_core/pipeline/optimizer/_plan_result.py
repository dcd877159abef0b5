"""The result of planning for people, and what profiling has cost. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zeus_core.pipeline.optimizer._deployment import PlanPrediction
from zeus_core.pipeline.optimizer._replaying import MeasuredIterations
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.profile.iterations import IterationCost, Saving
from zeus_core.search.comparison import percentage, quotient_uncertainty
from zeus_core.units import duration_text, energy_text


@dataclass(frozen=True)
class PlanResult:
    """The facts at the end of a training.

    Attributes:
        phase: The last phase.
        baseline: The latest iteration at the original clocks, which the prediction is from; None if it is not known.
        predicted: An iteration with the plan, as predicted; None without a plan.
        comparison: Iterations at the original clocks and with the latest plan, as measured; None before they were.
        profiling_steps: Iterations that were profiled.
        profiling_seconds: How long they took.
        reason: Why there is no plan, why it is judged, or why another one is made; empty without one.
        has_replayed: Whether an iteration has run with the latest plan.
        earlier: As `comparison`, for the latest plan before that one; None without one.
    """

    phase: PlanningPhase
    baseline: IterationCost | None
    predicted: PlanPrediction | None
    comparison: MeasuredIterations | None
    profiling_steps: int
    profiling_seconds: float
    reason: str = ""
    has_replayed: bool = True
    earlier: MeasuredIterations | None = None

    def rows(self) -> dict[str, str]:
        """Return the result as labelled lines."""
        rows = {"clock plan": self._plan()}
        if self.comparison is not None:
            before, after = self.comparison
            rows |= {"before": _of(before), "after": _of(after), **_change_rows(before, after)}
        elif self.baseline is not None and self.predicted is not None:
            rows["before"] = _of(self.baseline)
            rows["predicted"] = _described(self.predicted.step_seconds, self.predicted.energy_joules)
        if self.comparison is None and self.earlier is not None:
            change = _change_rows(*self.earlier)
            rows["earlier plan"] = f"saving {change.get('saving', 'unknown')}, slowdown {change['slowdown']}"
        return {**rows, **self._cost_rows(self.baseline)}

    def _plan(self) -> str:
        """Return whether a plan is in force, or why not."""
        if self.phase is PlanningPhase.REPLAYING and not self.reason:
            return "in force for each instruction" if self.has_replayed else "made, but no iteration has run with it"
        if self.phase is PlanningPhase.JUDGING:
            return f"none at the end, as it was judged again: {self.reason}"
        ended = f"none yet: training ended in the phase {self.phase.value!r}"
        if not self.reason:
            return _NO_PLAN.get(self.phase, ended)
        is_final = self.phase is PlanningPhase.REPLAYING or self.phase in _NO_PLAN
        return f"none: {self.reason}" if is_final else f"{ended}, after this: {self.reason}"

    def _cost_rows(self, baseline: IterationCost | None) -> dict[str, str]:
        if baseline is None or self.profiling_steps == 0:
            return {}
        seconds = max(self.profiling_seconds - self.profiling_steps * baseline.step_seconds, 0.0)
        longer = f"{duration_text(seconds)} longer than at the original clocks"
        return {"profiling": f"{self.profiling_steps} iterations, {longer}"}


# Where there is no reason.
_NO_PLAN = {
    PlanningPhase.OBSERVED: "none, as setting clocks is not permitted here; measured at the original clocks",
    PlanningPhase.OBSERVING: "none, as setting clocks is not permitted here",
    PlanningPhase.OFF: "none, for a reason that was logged; training went on at the original clocks",
}


def _change_rows(before: IterationCost, after: IterationCost) -> dict[str, str]:
    slowdown = after.step_seconds / before.step_seconds
    time_uncertainty = quotient_uncertainty(
        (before.step_seconds, before.seconds_uncertainty), (after.step_seconds, after.seconds_uncertainty)
    )
    rows = {"slowdown": f"{percentage(slowdown - 1, time_uncertainty, sign='+')} time per iteration"}
    if not before.energy_joules or after.energy_joules is None:
        return rows
    saving = 1 - after.energy_joules / before.energy_joules
    joules = Saving(
        before.energy_joules - after.energy_joules, math.hypot(before.uncertainty_joules, after.uncertainty_joules)
    )
    uncertainty = quotient_uncertainty(
        (before.energy_joules, before.uncertainty_joules), (after.energy_joules, after.uncertainty_joules)
    )
    known = percentage(saving, uncertainty)
    certain = f"{joules} ({known})"
    return {"saving": certain if abs(saving) > uncertainty else f"too small to be certain: {known}", **rows}


def _of(iteration: IterationCost) -> str:
    return _described(iteration.step_seconds, iteration.energy_joules)


def _described(seconds: float, joules: float | None) -> str:
    energy = "its energy was lost" if joules is None else energy_text(joules)
    return f"{duration_text(seconds)} and {energy} per iteration"
