"""One clock for the whole pipeline."""

from __future__ import annotations

from zeus_core.errors import UsageError
from zeus_core.pipeline._hull import CostedOption
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._problem import Problem

__all__ = ["clocks_in_common", "global_clock_plan", "one_clock"]


def global_clock_plan(problem: Problem, time_seconds: float) -> Plan:
    """The plan of least energy with the same clock for all instructions, and within an iteration time.

    Raises:
        UsageError: No clock was measured for all instructions, or none keeps the time.
    """
    clocks = clocks_in_common(problem, range(len(problem.kinds)))
    if not clocks:
        raise UsageError("no clock was measured for all instructions; measure the stages at the same clocks")
    plans = [Plan.of("one clock", problem, one_clock(problem, dict.fromkeys(problem.kinds, clock))) for clock in clocks]
    in_time = [plan for plan in plans if plan.time_seconds <= time_seconds]
    if not in_time:
        shortest = min(plan.time_seconds for plan in plans)
        raise UsageError(f"time_seconds is {time_seconds!r}, but one clock for all takes at least {shortest!r} s")
    return min(in_time, key=lambda plan: plan.energy_joules)


def clocks_in_common(problem: Problem, kinds: range | list[int]) -> list[int]:
    """The clocks at which all of some kinds that have a choice were measured, the highest first."""
    sets = [{it.clock_mhz for it in problem.all_choices[kind] if it.clock_mhz is not None} for kind in kinds]
    several = [clocks for clocks in sets if len(clocks) > 1]
    return sorted(set.intersection(*several), reverse=True) if several else []


def one_clock(problem: Problem, clock_of: dict[tuple[int, str], int]) -> list[CostedOption]:
    """The choice of each instruction when each kind runs at a given clock; kinds without a choice as they do."""
    by_kind = []
    for kind, of_kind in zip(problem.kinds, problem.all_choices, strict=True):
        by_kind.append(of_kind[0] if len(of_kind) == 1 else problem.choice_at(*kind, clock_of[kind]))
    return [by_kind[kind] for kind in problem.kind_of.tolist()]
