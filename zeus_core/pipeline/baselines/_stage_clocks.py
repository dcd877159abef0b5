"""One clock per stage: a lighter stage always runs slower."""

from __future__ import annotations

import math

from zeus_core._validate import checked_number
from zeus_core.errors import UsageError
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._problem import Problem, checked_problem
from zeus_core.pipeline.baselines._global_clock import clocks_in_common, one_clock

__all__ = ["stage_clocks_plan"]


def stage_clocks_plan(problem: Problem, time_seconds: float) -> Plan:
    """Return a plan with one clock per stage, within an iteration time.

    A greedy descent from the highest clocks: lower the clock of the stage that leads to the lowest energy within the
    time, as long as one does.

    Raises:
        UsageError: A stage has no clock that all its instructions were measured at, or the highest ones do not keep
            the time.
    """
    checked_problem(problem)
    time_seconds = checked_number("time_seconds", time_seconds, 0.0, math.inf, "a finite number of seconds")
    stages = range(problem.profile.stages)
    clocks = [
        clocks_in_common(problem, [number for number, kind in enumerate(problem.kinds) if kind[0] == stage])
        for stage in stages
    ]
    if not all(clocks):
        raise UsageError(
            f"stage {clocks.index([])} has no clock in common for all its instructions; measure them alike"
        )

    def plan_at(places: list[int]) -> Plan:
        clock_of = {kind: clocks[kind[0]][places[kind[0]]] for kind in problem.kinds}
        return Plan.from_options("one clock per stage", problem, one_clock(problem, clock_of))

    places: list[int] | None = [0 for _ in stages]
    best = plan_at([0 for _ in stages])
    if best.time_seconds > time_seconds:
        raise UsageError(f"time_seconds is {time_seconds!r}, but the highest clocks take {best.time_seconds!r} s")
    while places is not None:
        neighbours, places = _with_one_lower(places, clocks), None
        for neighbour in neighbours:
            plan = plan_at(neighbour)
            if plan.time_seconds <= time_seconds and plan.energy_joules < best.energy_joules:
                best, places = plan, neighbour
    return best


def _with_one_lower(places: list[int], clocks: list[list[int]]) -> list[list[int]]:
    """Return all ways to lower one stage's clock by one to three clocks: noise may make a single one look worse."""
    return [
        [place + (step if stage == other else 0) for other, place in enumerate(places)]
        for stage in range(len(places))
        for step in (1, 2, 3)
        if places[stage] + step < len(clocks[stage])
    ]
