"""The usual way: every instruction at its highest clock, or all at one lower clock."""

from __future__ import annotations

import math

from zeus_core._validate import checked_number
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.pipeline_problem import Problem, checked_problem
from zeus_core.pipeline.planner.simple_plans import one_clock_options

__all__ = ["global_clock_plan", "highest_clocks_plan"]


def highest_clocks_plan(problem: Problem) -> Plan:
    """Return the plan with every instruction at its highest clock: the meaning of "no slowdown"."""
    checked_problem(problem)
    options = problem.highest_clock_options
    return Plan.from_options("highest clocks", problem, [options[kind] for kind in problem.kind_of.tolist()])


def global_clock_plan(problem: Problem, time_seconds: float) -> Plan:
    """Return the plan of the lowest energy with one clock for all instructions, within an iteration time.

    Raises:
        UsageError: No clock was measured for all instructions, or none keeps the time.
    """
    checked_problem(problem)
    time_seconds = checked_number("time_seconds", time_seconds, 0.0, math.inf, "a finite number of seconds")
    return Plan.from_options("one clock", problem, one_clock_options(problem, time_seconds))
