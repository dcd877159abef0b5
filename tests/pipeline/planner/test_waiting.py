"""Waits at lower clocks, where the power of waiting was measured by the clock."""

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.planner.instances import pipelines, smooth_profile, with_blocking
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, PipelineProfile, baselines, make_plan, schedules, write_plan
from zeus_core.pipeline.planner.clock_plan import Plan, read_plan
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.waiting_clocks import choose_waiting_clocks, execute_waits
from zeus_core.pipeline.testing import simulate_pipeline

QUIET = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}
STEEP = {1410: 84.0, 1000: 70.0, 850: 60.0}  # watts by the clock


def make(profile, microbatches=6, **wanted):
    frontier = Frontier.from_profile(profile, schedules.one_f_one_b(profile.stages, microbatches))
    return frontier, make_plan(frontier, effort=0.05, **({"slowdown_factor": 1.0} | wanted))


@pytest.mark.parametrize("price", [{}, {"switch_seconds": 0.005}, {"switch_seconds": 0.005, "dwell_seconds": 0.1}])
def test_waits_at_lower_clocks_save_what_the_power_falls_by(price):
    steep = with_blocking(smooth_profile(4), STEEP)
    flat = smooth_profile(4, blocking_power_watts=84.0)
    (frontier, plan), (_, usual) = make(steep, **price), make(flat, **price)
    assert plan.time_seconds <= frontier.highest_clock_point[0]
    assert frontier.highest_clock_point[1] == pytest.approx(
        baselines.highest_clocks_plan(frontier.problem).energy_joules
    )
    assert frontier.highest_clock_point[1] > usual.energy_joules
    assert plan.energy_joules < 0.995 * usual.energy_joules
    assert plan.energy_joules >= plan.bound_joules
    assert {clock for rank in plan.waiting_clocks_mhz for clock in rank} >= {850, None}
    assert plan.execution(steep).shortest_dwell_seconds >= price.get("dwell_seconds", 0.0)


@settings(max_examples=12, **QUIET)
@given(
    pipelines(),
    st.lists(st.integers(20, 100), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.004, 0.03]),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([1.0, 1.1]),
)
def test_the_simulator_and_the_bound_agree_with_any_plan(pipeline, watts, seconds, joules, dwell, factor):
    profile, schedule = pipeline
    profile = with_blocking(
        replace(profile, blocking_power_watts=80.0), {1400 - 30 * n: float(power) for n, power in enumerate(watts)}
    )
    frontier = Frontier.from_profile(profile, schedule)
    limit = factor * frontier.highest_clock_point[0]
    price = {"switch_seconds": seconds, "switch_joules": joules, "dwell_seconds": dwell}
    try:
        plan = make_plan(frontier, time_seconds=limit, effort=0.02, **price)
    except UsageError:
        return
    slack = 1e-9 * (abs(plan.energy_joules) + plan.blocking_power_watts * plan.time_seconds + 1.0)
    assert plan.time_seconds <= limit
    assert plan.execution(profile).shortest_dwell_seconds >= dwell
    assert plan.energy_joules >= plan.bound_joules - slack
    unmoved = Plan.from_options("x", frontier.problem, plan.options(frontier.problem), seconds, joules)
    assert plan.energy_joules <= unmoved.energy_joules + slack
    for one in (plan, unmoved):
        simulated = simulate_pipeline(profile, one)
        assert simulated.time_seconds == pytest.approx(one.time_seconds, rel=1e-9)
        assert simulated.energy_joules == pytest.approx(one.energy_joules, rel=1e-9, abs=slack)
        assert simulated.switches == one.switches


def test_no_other_clocks_of_waits_take_less():
    """All clocks of the waits of a small pipeline, with a price of switches."""
    profile = with_blocking(smooth_profile(2, clocks=3), STEEP)
    frontier, plan = make(profile, microbatches=2, slowdown_factor=1.1, switch_seconds=0.01, switch_joules=0.2)
    problem, price = frontier.problem, SwitchPrice(0.01, 0.2)
    options = plan.options(problem)
    chosen = choose_waiting_clocks(problem, options, price)
    least = execute_waits(problem, options, price, chosen).energy_joules
    for rank, other in ((0, 1), (1, 0)):
        for clocks in product((None, 1410, 850), repeat=len(chosen[rank])):
            both = [(), ()]
            both[rank], both[other] = clocks, chosen[other]
            result = execute_waits(problem, options, price, tuple(both))
            moved = replace(plan, waiting_clocks_mhz=tuple(both))
            if simulate_pipeline(profile, moved).time_seconds <= plan.time_seconds * (1 + 1e-9):  # its switches fit
                assert result.energy_joules >= least - 1e-9


def test_the_power_that_a_pipeline_waits_at_for_another_one_counts():
    profile = with_blocking(smooth_profile(4), STEEP)
    seconds = make(profile)[0].highest_clock_point[0]
    _, plan = make(profile, slowdown_factor=None, straggler_seconds=1.5 * seconds, switch_seconds=0.005)
    assert plan.blocking_power_watts == pytest.approx(4 * 60.0)
    assert plan.energy_joules_until(1.5 * seconds) >= plan.bound_joules


def test_a_power_that_does_not_fall_changes_no_plan():
    flat = smooth_profile(4)
    even = with_blocking(flat, {1410: 80.0, 850: 80.0})
    _, usual = make(flat, switch_seconds=0.005)
    _, plan = make(even, switch_seconds=0.005)
    assert plan.clocks_mhz == usual.clocks_mhz
    assert plan.energy_joules == pytest.approx(usual.energy_joules, rel=1e-12)
    assert {clock for rank in plan.waiting_clocks_mhz for clock in rank} == {None}
    assert usual.waiting_clocks_mhz == ()


def test_files_keep_the_clocks_of_waits(tmp_path):
    profile = with_blocking(smooth_profile(2), STEEP)
    _, plan = make(profile)
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    profile.to_csv(tmp_path / "profile.csv")
    assert PipelineProfile.from_csv(tmp_path / "profile.csv", None) == profile
    assert PipelineProfile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        ([[None]], "each rank has a wait more than instructions"),
        ([[None] * 12 + [10**6]] * 2, "waiting_clocks_mhz has 1000000"),
        ([["850"] * 13] * 2, "must be a whole number"),
    ],
)
def test_damaged_clocks_of_waits_are_refused(tmp_path, waiting, message):
    _, plan = make(with_blocking(smooth_profile(2), STEEP))
    write_plan(plan, tmp_path / "plan.json")
    fields = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(fields | {"waiting_clocks_mhz": waiting}))
    with pytest.raises(UsageError, match=message):
        read_plan(tmp_path / "plan.json")


def test_a_power_of_waiting_is_given_once():
    flat, steep = smooth_profile(2), with_blocking(smooth_profile(2), STEEP)
    assert steep.blocking_power_watts == (60.0, 60.0)
    with pytest.raises(UsageError, match="has no 'blocking' rows; give the watts"):
        PipelineProfile(flat.instructions, None)
    with pytest.raises(UsageError, match="leave one of them out"):
        PipelineProfile(steep.instructions, 80.0)
    with pytest.raises(UsageError, match="stage 1 has no 'blocking' rows, but stage 0 has"):
        PipelineProfile([one for one in steep.instructions if (one.stage, one.kind) != (1, "blocking")], None)


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        ([[850] * 3] * 2, r"has \[3, 3\] clocks for the \[13, 13\] waits"),
        ([[850.5] * 13] * 2, r"waiting_clocks_mhz\[0\]\[0\] is 850.5"),
        ([[None] * 12 + [-1]] * 2, r"waiting_clocks_mhz\[0\]\[12\] is -1"),
    ],
)
def test_clocks_of_waits_that_do_not_fit_are_refused(waiting, message):
    frontier, plan = make(with_blocking(smooth_profile(2), STEEP))
    with pytest.raises(UsageError, match=message):
        Plan.from_options("x", frontier.problem, plan.options(frontier.problem), waiting_clocks_mhz=waiting)
