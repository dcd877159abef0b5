"""Picking a point of the frontier, and turning it into a plan of real clocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from zeus_core.errors import UsageError
from zeus_core.pipeline._choice_arrays import choice_arrays
from zeus_core.pipeline._dependencies import Indices
from zeus_core.pipeline._frontier import Frontier
from zeus_core.pipeline._hull import CostedOption
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._rounding import round_point
from zeus_core.pipeline._switching import plan_switches

__all__ = ["make_plan", "make_plans"]

_NAME = "frontier"
_ROUNDING = 1e-12


def make_plan(
    frontier: Frontier,
    *,
    time_seconds: float | None = None,
    slowdown_factor: float | None = None,
    straggler_seconds: float | None = None,
    switch_seconds: float = 0.0,
    dwell_seconds: float = 0.0,
    effort: float = 1.0,
) -> Plan:
    """A plan of real clocks. Name exactly one of the first three arguments.

    With its measured durations the plan never takes longer than asked. It takes little more energy than the frontier:
    a real clock is seldom exactly as fast as the frontier would have it.

    Args:
        frontier: What is planned.
        time_seconds: The longest iteration time. Beyond T* the plan is that of T*, as more time costs energy.
        slowdown_factor: The longest iteration time over that at the highest clocks; 1 is no slowdown.
        straggler_seconds: Another pipeline takes this long, and this one then waits for it. Waiting costs the same
            whatever the clocks were, so even time beyond T* is used, up to `frontier.slowest_seconds`.
        switch_seconds: What each switch of a clock costs; such as 0.005 for an NVIDIA GPU.
        dwell_seconds: The least time from one switch of a rank to its next.
        effort: How much is tried to get closer to the frontier, over the usual; 0 is the quickest.

    Raises:
        UsageError: An argument is out of its range, the time is below T_min, or too short for the switches.
    """
    limit = _limit(frontier, time_seconds, slowdown_factor, straggler_seconds)
    for name, value in (("switch_seconds", switch_seconds), ("dwell_seconds", dwell_seconds), ("effort", effort)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UsageError(f"{name} is {value!r}; it must be a finite number, at least 0")
    is_waiting = straggler_seconds is not None
    if switch_seconds or dwell_seconds:
        chosen = plan_switches(frontier, limit, is_waiting, switch_seconds, dwell_seconds)
    else:
        problem = frontier.problem
        chosen = _chosen(problem, round_point(choice_arrays(problem), frontier.at(limit, is_waiting), effort))
    return Plan.of(_NAME, frontier.problem, chosen, switch_seconds)


def make_plans(frontier: Frontier, times_seconds: Sequence[float], effort: float = 1.0) -> Iterator[Plan]:
    """Plans for several iteration times, the longest first whatever their order: quicker than one by one."""
    arrays = choice_arrays(frontier.problem)
    for point in frontier.points(times_seconds):
        chosen = _chosen(frontier.problem, round_point(arrays, point, effort))
        yield Plan.of(_NAME, frontier.problem, chosen)


def _limit(frontier: Frontier, time: float | None, slowdown: float | None, straggler: float | None) -> float:
    given = {"time_seconds": time, "slowdown_factor": slowdown, "straggler_seconds": straggler}
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise UsageError(f"{', '.join(named) or 'none'} given; name exactly one of {', '.join(given)}")
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"{name} is {value!r}; it must be a number above 0")
    if name != "slowdown_factor":
        return frontier.check_time(value)
    highest_seconds = frontier.highest_clock_point[0]
    if value * highest_seconds < frontier.shortest_seconds * (1 - _ROUNDING):
        least = frontier.shortest_seconds / highest_seconds
        raise UsageError(
            f"slowdown_factor is {value!r}; it must be at least {least:.6g}, as no clocks make an iteration shorter "
            f"than T_min, {frontier.shortest_seconds!r} s"
        )
    return frontier.check_time(max(value * highest_seconds, frontier.shortest_seconds))


def _chosen(problem: Problem, numbers: Indices) -> list[CostedOption]:
    choices = [choice for of_kind in problem.choices for choice in of_kind]
    return [choices[number] for number in numbers.tolist()]
