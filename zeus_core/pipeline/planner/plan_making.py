"""Make plans: pick a point of the frontier, and choose real clocks for it."""

from __future__ import annotations

import math

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.dependencies import ROUNDING
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.frontier.frontier import Frontier, FrontierPoint
from zeus_core.pipeline.planner.frontier.rounding import Rounding
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.planner.simple_plans import simple_plans, stage_clocks_bound
from zeus_core.pipeline.planner.switching.switching import plan_switches
from zeus_core.pipeline.planner.waiting_clocks import choose_waiting_clocks
from zeus_core.units import number_text
from zeus_core.validate import checked_number

_NAME = "frontier"
_MAX_EFFORT = 1000.0  # minutes become days, for gains that ended long before


def make_plan(
    frontier: Frontier,
    *,
    time_seconds: float | None = None,
    slowdown_factor: float | None = None,
    straggler_seconds: float | None = None,
    switch_seconds: float = 0.0,
    switch_joules: float = 0.0,
    dwell_seconds: float = 0.0,
    effort: float = 1.0,
) -> Plan:
    """Return a plan of real clocks. Name exactly one of the first three arguments.

    With its measured durations the plan never takes longer than requested. It takes little more energy than the
    frontier, because few real clocks are exactly as fast as a point of the frontier would need them.

    Args:
        frontier: The frontier of the pipeline.
        time_seconds: The longest iteration time. Beyond the time of least energy it is no longer.
        slowdown_factor: The longest iteration time over that at the highest clocks; 1 is no slowdown.
        straggler_seconds: Time of another pipeline that this one waits for. Waiting costs the same at all clocks, so
            the plan uses time beyond that of least energy too, up to `frontier.slowest_seconds`.
        switch_seconds: Duration of each clock switch; about 0.005 on an NVIDIA GPU.
        switch_joules: Energy of each clock switch on each GPU above waiting.
        dwell_seconds: The shortest allowed time from one switch of a rank to its next.
        effort: Search effort relative to the default, up to 1000; 0 is the quickest.

    Raises:
        UsageError: An argument is out of its range, or the time too short for any iteration or for the switches.
    """
    limit = _limit_seconds(frontier, time_seconds, slowdown_factor, straggler_seconds)
    wanted = "a finite number, at least 0"
    price = SwitchPrice(
        checked_number("switch_seconds", switch_seconds, 0.0, 1e9, "seconds, from 0 to 1e9"),
        checked_number("switch_joules", switch_joules, 0.0, math.inf, wanted),
        checked_number("dwell_seconds", dwell_seconds, 0.0, math.inf, wanted),
    )
    effort = checked_number("effort", effort, 0.0, _MAX_EFFORT, f"0 to {_MAX_EFFORT:g}, such as 1")
    is_waiting = straggler_seconds is not None
    if any(price):
        chosen, bound = plan_switches(frontier, limit, is_waiting, price, effort)
        plan = Plan.from_options(_NAME, frontier.problem, chosen, price.seconds, price.joules, bound)
    else:
        plan = _rounded_plan(frontier.problem, frontier.at(limit, is_waiting), is_waiting, effort)
    return _with_waits(frontier.problem, plan, price, limit, straggler_seconds)


def _with_waits(
    problem: PipelineProblem, plan: Plan, price: SwitchPrice, limit: float, until_seconds: float | None
) -> Plan:
    """Return a plan with its clocks of waits, or a simple plan with its own if that takes less."""
    best = with_waiting_clocks(problem, plan, price, until_seconds)
    if best is plan:
        return plan
    for options in simple_plans(problem, limit):
        simple = Plan.from_options(_NAME, problem, options, price.seconds, price.joules, plan.bound_joules)
        simple = with_waiting_clocks(problem, simple, price, until_seconds)
        dwell_seconds = simple.execution(problem.profile).shortest_dwell_seconds
        if simple.time_seconds <= limit and dwell_seconds >= price.dwell_seconds:
            best = min(best, simple, key=lambda one: one.energy_joules_until(until_seconds or one.time_seconds))
    return best


def with_waiting_clocks(
    problem: PipelineProblem, plan: Plan, price: SwitchPrice, until_seconds: float | None = None
) -> Plan:
    """Return a plan whose ranks wait at clocks that save energy; the same plan if they were not measured.

    Args:
        problem: The problem it was made for.
        plan: The plan.
        price: That of a switch in a wait.
        until_seconds: Until when all ranks wait anyway; None if they do not.
    """
    waiting = choose_waiting_clocks(problem, options := plan.options(problem), price, until_seconds)
    if not waiting:
        return plan
    return Plan.from_options(
        plan.name, problem, options, plan.switch_seconds, plan.switch_joules, plan.bound_joules, waiting
    )


def _rounded_plan(problem: PipelineProblem, point: FrontierPoint, is_waiting: bool, effort: float) -> Plan:
    """Return the plan of a point without a price of switches: its rounding, or a simple plan if that is cheaper."""
    rounded = Rounding(problem, effort).round(point)
    time_watts = 0.0 if is_waiting else problem.blocking_power_watts
    # One clock per stage takes seconds to find for 128 stages, and is seldom needed.
    is_needed = stage_clocks_bound(problem, point, time_watts) < _joules(problem, rounded, time_watts)
    plans = [rounded, *simple_plans(problem, point.time_seconds, is_needed)]
    chosen = min(plans, key=lambda options: _joules(problem, options, time_watts))
    bound = point.energy_joules
    if is_waiting:  # from its end on, the plan waits for less of the time of the point
        seconds = problem.iteration_seconds(np.array([option.time_seconds for option in chosen]))
        bound -= problem.blocking_power_watts * (point.time_seconds - seconds)
    return Plan.from_options(_NAME, problem, chosen, bound_joules=bound)


def _limit_seconds(frontier: Frontier, time: float | None, slowdown: float | None, straggler: float | None) -> float:
    arguments = {"time_seconds": time, "slowdown_factor": slowdown, "straggler_seconds": straggler}
    given = {name: value for name, value in arguments.items() if value is not None}
    if len(given) != 1:
        raise UsageError(f"{', '.join(given) or 'none'} given; name exactly one of {', '.join(arguments)}")
    ((name, value),) = given.items()
    value = checked_number(name, value, 0.0, math.inf, "a finite number above 0", is_open=True)
    if name != "slowdown_factor":
        return frontier.check_time(value)
    highest_seconds = frontier.highest_clock_point[0]
    if value * highest_seconds < frontier.shortest_seconds * (1 - ROUNDING):
        lowest = frontier.shortest_seconds / highest_seconds
        raise UsageError(
            f"slowdown_factor is {value!r}; it must be at least {number_text(lowest, 6)}, as no clocks make an "
            f"iteration shorter than {frontier.shortest_seconds!r} s"
        )
    return frontier.check_time(max(value * highest_seconds, frontier.shortest_seconds))


def _joules(problem: PipelineProblem, chosen: list[CostedOption], time_watts: float) -> float:
    """Return the energy of a plan without a price of switches, where the iteration time costs a power."""
    seconds = problem.iteration_seconds(np.array([option.time_seconds for option in chosen]))
    return sum(option.cost_joules for option in chosen) + problem.transfer_joules + time_watts * seconds
