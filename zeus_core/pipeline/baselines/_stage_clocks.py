"""One clock per stage: a lighter stage always runs slower."""

from __future__ import annotations

import math

from zeus_core._validate import checked_number
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.pipeline_problem import Problem, checked_problem
from zeus_core.pipeline.planner.simple_plans import stage_clocks_options

__all__ = ["stage_clocks_plan"]


def stage_clocks_plan(problem: Problem, time_seconds: float) -> Plan:
    """Return a plan with one clock per stage, within an iteration time. It never takes more energy than one clock.

    Raises:
        UsageError: A stage has no clock that all its instructions were measured at, or the highest ones do not keep
            the time.
    """
    checked_problem(problem)
    time_seconds = checked_number("time_seconds", time_seconds, 0.0, math.inf, "a finite number of seconds")
    return Plan.from_options("one clock per stage", problem, stage_clocks_options(problem, time_seconds))
