"""Plans with a price of switches: no worse than any simpler plan, above their bound, and better the less is asked."""

import contextlib
from itertools import product

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.pipeline.instances import pipelines, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, baselines, make_plan, schedules
from zeus_core.pipeline._execution import SwitchPrice
from zeus_core.pipeline._switching import _ladder
from zeus_core.testing import simulate_pipeline

QUIET = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}

prices = st.fixed_dictionaries(
    {
        "switch_seconds": st.sampled_from([0.0, 0.001, 0.005, 0.02]),
        "switch_joules": st.sampled_from([0.0, 0.5]),
        "dwell_seconds": st.sampled_from([0.0, 0.1, 0.5]),
    }
)


def scale_of(plan):
    return abs(plan.energy_joules) + plan.blocking_power_watts * plan.time_seconds + 1.0


@settings(max_examples=25, **QUIET)
@given(pipelines(), prices, st.sampled_from([1.0, 1.02, 1.1, 1.5]))
def test_a_plan_is_above_its_bound_and_takes_no_more_than_any_baseline(pipeline, price, factor):
    profile, schedule = pipeline
    frontier = Frontier.from_profile(profile, schedule)
    limit = factor * frontier.highest_clock_point[0]
    try:
        plan = make_plan(frontier, time_seconds=limit, effort=0.02, **price)
    except UsageError:  # not even the highest clocks keep it, which then may differ by kind
        return
    assert plan.time_seconds <= limit
    assert plan.execution(profile).shortest_dwell_seconds >= price["dwell_seconds"]
    slack = 1e-9 * scale_of(plan)
    assert plan.energy_joules >= plan.bound_joules - slack
    assert plan.bound_joules >= frontier.energy_joules(limit) - slack
    for baseline in (baselines.global_clock_plan, baselines.stage_clocks_plan):
        with contextlib.suppress(UsageError):  # no clock in common, or none keeps the time
            simple = baseline(frontier.problem, limit)
            if simple.switches == 0:
                assert plan.energy_joules <= simple.energy_joules + slack
    simulated = simulate_pipeline(profile, plan)
    assert simulated.time_seconds == pytest.approx(plan.time_seconds, rel=1e-9)
    assert simulated.energy_joules == pytest.approx(plan.energy_joules, rel=1e-9, abs=1e-9)


def energies_by_price(frontier, slowdown_factor):
    return {
        price: make_plan(
            frontier,
            slowdown_factor=slowdown_factor,
            switch_seconds=price[0],
            dwell_seconds=price[1],
            effort=0.02,
        ).energy_joules
        for price in product((0.005, 0.02), (0.0, 0.5))
    }


def check_no_plan_is_dearer_than_that_of_a_stricter_problem(easier, stricter):
    for loose, strict in product(easier, stricter):
        if loose[0] <= strict[0] and loose[1] <= strict[1]:
            assert easier[loose] <= stricter[strict] * (1 + 1e-9), (loose, strict)


@settings(max_examples=6, **QUIET)
@given(st.integers(2, 4), st.integers(2, 8), st.integers(0, 99), st.sampled_from([(1.0, 1.05), (1.05, 1.2)]))
@example(3, 8, 3, (1.0, 1.2))  # 0.6 % dearer before the searches started from the plans of stricter prices
def test_less_price_or_more_time_never_makes_a_dearer_plan(stages, microbatches, seed, slowdown_factors):
    profile = smooth_profile(stages, clocks=10, seed=seed, noise=0.02)
    frontier = Frontier.from_profile(profile, schedules.one_f_one_b(stages, microbatches))
    stricter, easier = (energies_by_price(frontier, factor) for factor in slowdown_factors)
    for pair in ((stricter, stricter), (easier, easier), (easier, stricter)):
        check_no_plan_is_dearer_than_that_of_a_stricter_problem(*pair)


def test_prices_start_from_those_that_are_one_step_stricter():
    assert _ladder(SwitchPrice(0.02, 0.0, 0.5)) == [SwitchPrice(0.02, 0.0, 0.5)]
    assert _ladder(SwitchPrice(0.01, 0.5, 0.0)) == [
        SwitchPrice(0.02, 0.5, 0.5),
        SwitchPrice(0.02, 0.5, 0.0),
        SwitchPrice(0.01, 0.5, 0.5),
        SwitchPrice(0.01, 0.5, 0.0),
    ]


@pytest.mark.parametrize("switch_seconds", [0.0, 0.005])
def test_the_bound_of_a_plan_that_waits_is_below_it_and_close(switch_seconds):
    frontier = Frontier.from_profile(smooth_profile(3), schedules.one_f_one_b(3, 8))
    straggler = 1.2 * frontier.highest_clock_point[0]
    plan = make_plan(frontier, straggler_seconds=straggler, switch_seconds=switch_seconds, effort=0.1)
    assert 0.95 * plan.energy_joules < plan.bound_joules <= plan.energy_joules * (1 + 1e-9)
