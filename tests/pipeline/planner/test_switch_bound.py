"""The bound of plans with a price of switches: below the best of all plans, and with a dwell close to it."""

from itertools import product

import numpy as np
import pytest

from tests.pipeline.planner.instances import smooth_profile
from zeus_core.pipeline import Frontier, make_plan, schedules
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.switching._switch_bound import find_bound
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, RunState, run


def least_cost(task):
    """The lowest cost of all clocks that keep limit and dwell."""
    state, least = RunState.for_task(task), np.inf
    for clocks in product(range(task.clocks), repeat=len(task.kind)):
        seconds, dwell, cost = run(task, np.array(clocks, np.int64), state)
        if seconds <= task.limit_seconds and dwell >= task.dwell_seconds:
            least = min(least, cost)
    return least


@pytest.mark.parametrize("dwell_seconds", [0.0, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("schedule", [schedules.one_f_one_b(2, 2), schedules.gpipe(1, 4)], ids=["1f1b", "gpipe"])
def test_no_plan_at_all_is_below_the_bound(schedule, dwell_seconds):
    gaps = []
    for seed, factor, switch_seconds in product(range(2), (1.0, 1.2), (0.001,)):
        profile = smooth_profile(schedule.stages, clocks=2, seed=seed, noise=0.03, blocking_power_watts=80.0 * seed)
        frontier = Frontier.from_profile(profile, schedule)
        limit = factor * frontier.highest_clock_point[0]
        numbered = NumberedProblem.from_problem(frontier.problem)
        task = numbered.priced(limit, False, SwitchPrice(switch_seconds, 0.1, dwell_seconds))
        bound = find_bound(numbered, task, frontier.at(limit)).cost_joules
        least = least_cost(task)
        assert bound <= least * (1 + 1e-9)
        gaps.append(least / bound - 1)
    assert np.mean(gaps) < 0.04


def test_the_bound_knows_that_no_clock_is_switched_before_the_dwell():
    frontier = Frontier.from_profile(smooth_profile(2), schedules.one_f_one_b(2, 8))
    free, none = (
        make_plan(frontier, slowdown_factor=1.05, switch_seconds=0.001, dwell_seconds=dwell, effort=0.1)
        for dwell in (0.0, 100.0)
    )
    assert none.switches == 0
    assert none.bound_joules > free.bound_joules
    assert none.energy_joules - none.bound_joules < 0.015 * none.energy_joules


def test_a_switch_that_makes_the_iteration_late_is_left_out_of_the_bound():
    frontier = Frontier.from_profile(smooth_profile(1), schedules.gpipe(1, 8))
    numbered = NumberedProblem.from_problem(frontier.problem)
    limit = frontier.shortest_seconds
    task = numbered.priced(limit, False, SwitchPrice(0.5 * limit, 0.0, 0.0))
    bound = find_bound(numbered, task, frontier.at(limit)).cost_joules
    clocks = (np.full(len(task.kind), clock) for clock in range(task.clocks))
    found = (run(task, chosen, RunState.for_task(task)) for chosen in clocks)
    assert bound == pytest.approx(min(cost for seconds, _, cost in found if seconds <= limit * (1 + 1e-12)), rel=1e-6)
