"""One clock per stage: a lighter stage runs slower, always."""

from __future__ import annotations

from zeus_core.errors import UsageError
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline.baselines._global_clock import clocks_in_common, one_clock

__all__ = ["stage_clocks_plan"]


def stage_clocks_plan(problem: Problem, time_seconds: float) -> Plan:
    """A plan with one clock per stage, within an iteration time.

    From the highest clocks, the stage whose next lower clock saves the most energy per lost time goes there, as long as
    the time is kept; until no stage can.

    Raises:
        UsageError: A stage has no clock that all its instructions were measured at, or the highest ones do not keep
            the time.
    """
    stages = range(problem.profile.stages)
    clocks = [
        clocks_in_common(problem, [k for k, it in enumerate(problem.kinds) if it[0] == stage]) for stage in stages
    ]
    if not all(clocks):
        raise UsageError(
            f"stage {clocks.index([])} has no clock in common for all its instructions; measure them alike"
        )

    def plan_at(places: list[int]) -> Plan:
        clock_of = {kind: clocks[kind[0]][places[kind[0]]] for kind in problem.kinds}
        return Plan.of("one clock per stage", problem, one_clock(problem, clock_of))

    places = [0 for _ in stages]
    best = plan_at(places)
    if best.time_seconds > time_seconds:
        raise UsageError(f"time_seconds is {time_seconds!r}, but the highest clocks take {best.time_seconds!r} s")
    improved = True
    while improved:
        improved = False
        for found in _lower_by_one(places, clocks):
            plan = plan_at(found)
            if plan.time_seconds <= time_seconds and plan.energy_joules < best.energy_joules:
                best, next_places, improved = plan, found, True
        if improved:
            places = next_places
    return best


def _lower_by_one(places: list[int], clocks: list[list[int]]) -> list[list[int]]:
    """All ways to lower the clock of one stage by up to three steps: a single one may look worse by chance."""
    return [
        [place + (step if stage == other else 0) for other, place in enumerate(places)]
        for stage in range(len(places))
        for step in (1, 2, 3)
        if places[stage] + step < len(clocks[stage])
    ]
