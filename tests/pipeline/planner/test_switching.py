"""Plans with a price of switches: no worse than any simpler plan, and above their bound."""

import contextlib
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.planner.instances import pipelines, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, PipelineProfile, baselines, make_plan, schedules
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.pipeline.testing import simulate_pipeline

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


@settings(max_examples=12, **QUIET)
@given(pipelines(), prices, st.sampled_from([1.0, 1.02, 1.1, 1.5]))
def test_a_plan_is_above_its_bound_and_costs_at_most_any_baseline(pipeline, price, factor):
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


def test_a_plan_does_not_depend_on_what_was_planned_before():
    profile, schedule = smooth_profile(3, noise=0.02), schedules.one_f_one_b(3, 8)
    used = Frontier.from_profile(profile, schedule)
    for factor, switch_seconds, dwell_seconds in product((1.0, 1.1, 1.5), (0.005, 0.02), (0.0, 0.5)):
        asked = {"slowdown_factor": factor, "switch_seconds": switch_seconds, "dwell_seconds": dwell_seconds}
        plan = make_plan(used, effort=0.002, **asked)
        assert make_plan(Frontier.from_profile(profile, schedule), effort=0.002, **asked) == plan


@pytest.mark.parametrize("switch_seconds", [0.0, 0.005])
def test_the_bound_of_a_plan_that_waits_is_below_it_and_close(switch_seconds):
    frontier = Frontier.from_profile(smooth_profile(3), schedules.one_f_one_b(3, 8))
    straggler = 1.2 * frontier.highest_clock_point[0]
    plan = make_plan(frontier, straggler_seconds=straggler, switch_seconds=switch_seconds, effort=0.1)
    assert 0.95 * plan.energy_joules < plan.bound_joules <= plan.energy_joules * (1 + 1e-9)


def one_stage(*options, blocking_power_watts=80.0):
    kinds = [(stage, kind) for stage in range(len(options) // 2) for kind in ("forward", "backward")]
    made = [tuple(MeasuredOption(*option) for option in of_kind) for of_kind in options]
    return PipelineProfile(
        [InstructionProfile(stage, kind, of_kind) for (stage, kind), of_kind in zip(kinds, made, strict=True)],
        blocking_power_watts,
    )


def test_a_plan_that_keeps_the_dwell_is_accepted_with_slow_switches():
    forward, backward = ((1410, 0.1, 30.0), (1400, 0.11, 28.0)), ((1200, 0.1, 30.0), (1100, 0.11, 28.0))
    profile = one_stage(forward, backward)
    frontier = Frontier.from_profile(profile, schedules.gpipe(1, 1))
    plan = make_plan(frontier, straggler_seconds=0.32, switch_seconds=0.05, dwell_seconds=0.12)
    assert plan.time_seconds <= 0.32
    assert plan.execution(profile).shortest_dwell_seconds >= 0.12


def test_slow_switches_take_no_more_than_one_clock_per_stage_either():
    quick, slow = ((1410, 0.2, 60.0), (1000, 0.202, 20.0)), ((1410, 0.2, 60.0), (1000, 0.38, 58.0))
    profile = one_stage(quick, quick, slow, slow, blocking_power_watts=0.0)
    frontier = Frontier.from_profile(profile, schedules.interleaved(1, 1, 2))
    plan = make_plan(frontier, straggler_seconds=0.95, switch_seconds=0.05, dwell_seconds=0.44)
    assert plan.energy_joules == pytest.approx(160.0)
    assert plan.execution(profile).shortest_dwell_seconds >= 0.44
