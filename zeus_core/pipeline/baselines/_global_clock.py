"""The usual way: every instruction at its highest clock, or all at one lower clock."""

from __future__ import annotations

import math

from zeus_core._validate import checked_number
from zeus_core.errors import UsageError
from zeus_core.pipeline._options import CostedOption
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._problem import Problem, checked_problem

__all__ = ["clocks_in_common", "global_clock_plan", "highest_clocks_plan", "one_clock"]


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
    clocks = clocks_in_common(problem, range(len(problem.kinds)))
    if not clocks:
        raise UsageError("no clock was measured for all instructions; measure the stages at the same clocks")
    plans = [
        Plan.from_options("one clock", problem, one_clock(problem, dict.fromkeys(problem.kinds, clock)))
        for clock in clocks
    ]
    in_time = [plan for plan in plans if plan.time_seconds <= time_seconds]
    if not in_time:
        shortest = min(plan.time_seconds for plan in plans)
        raise UsageError(f"time_seconds is {time_seconds!r}, but one clock for all takes at least {shortest!r} s")
    return min(in_time, key=lambda plan: plan.energy_joules)


def clocks_in_common(problem: Problem, kinds: range | list[int]) -> list[int]:
    """Return the clocks at which all given kinds with several options were measured, the highest first."""
    measured = [
        {option.clock_mhz for option in problem.options[kind] if option.clock_mhz is not None} for kind in kinds
    ]
    several = [clocks for clocks in measured if len(clocks) > 1]
    return sorted(set.intersection(*several), reverse=True) if several else []


def one_clock(problem: Problem, clock_of: dict[tuple[int, str], int]) -> list[CostedOption]:
    """Return the option of each instruction with each kind at a given clock; fixed kinds have one option only."""
    by_kind = [
        of_kind[0] if len(of_kind) == 1 else problem.option_at(*kind, clock_of[kind])
        for kind, of_kind in zip(problem.kinds, problem.options, strict=True)
    ]
    return [by_kind[kind] for kind in problem.kind_of.tolist()]
