"""The frontier is exact: HiGHS agrees at every point tried."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.pipeline.planner.highs import Oracle
from tests.pipeline.planner.instances import SPLIT, WHOLE, pipelines, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, PipelineProfile, make_plan, schedules
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile

POINTS = 20
QUIET = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


def check_against_highs(profile, schedule, points=POINTS):
    frontier = Frontier.from_profile(profile, schedule)
    oracle = Oracle(profile, schedule)
    assert frontier.shortest_seconds == pytest.approx(oracle.shortest_seconds(), rel=1e-7)
    times = np.linspace(frontier.shortest_seconds, frontier.slowest_seconds, points)
    for time in times.tolist():
        waited = float(frontier.energy_joules(time, until_seconds=time))
        scale = abs(waited) + frontier.problem.blocking_power_watts * time
        assert abs(waited - oracle.energy_joules(time)) <= 1e-7 * scale
    return frontier


@settings(max_examples=60, **QUIET)
@given(pipelines())
def test_highs_agrees_on_any_pipeline(pipeline):
    check_against_highs(*pipeline)


@pytest.mark.long
@settings(max_examples=300, **QUIET)
@given(pipelines())
def test_highs_agrees_on_many_pipelines(pipeline):
    check_against_highs(*pipeline)


@pytest.mark.parametrize(
    ("schedule", "kinds"),
    [
        (schedules.gpipe(4, 6), WHOLE),
        (schedules.one_f_one_b(4, 8), WHOLE),
        (schedules.interleaved(2, 6, 2), WHOLE),
        (schedules.zb_h1(4, 6), SPLIT),
        (schedules.zbv(2, 6), SPLIT),
    ],
    ids=lambda parameter: getattr(parameter, "name", ""),
)
def test_highs_agrees_on_profiles_that_look_measured(schedule, kinds):
    check_against_highs(smooth_profile(schedule.stages, kinds=kinds), schedule)


@pytest.mark.timeout(60)
def test_slopes_that_rounding_makes_equal_do_not_stop_the_sweep():
    """Most passes save 400 W, then 400 W less a unit in the last place; one backward pass saves far more."""
    even = (MeasuredOption(1410, 0.1, 388.0), MeasuredOption(1350, 0.5, 228.0), MeasuredOption(1305, 0.8, 108.0))
    steep = (MeasuredOption(1410, 0.1, 1e4), MeasuredOption(1305, 0.2, 1.0))
    kinds = [(0, "forward", even), (0, "backward", even), (1, "forward", even), (1, "backward", steep)]
    profile = PipelineProfile([InstructionProfile(*kind) for kind in kinds], 0.0)
    check_against_highs(profile, schedules.one_f_one_b(2, 4))


@settings(max_examples=30, **QUIET)
@given(pipelines(), st.integers(0, 999))
def test_noise_of_floats_in_the_times_does_not_move_the_frontier(pipeline, seed):
    profile, schedule = pipeline
    random = np.random.default_rng(seed)
    instructions = []
    for each in profile.instructions:
        options = tuple(
            replace(option, time_seconds=option.time_seconds * (1 + 1e-13 * random.standard_normal()))
            for option in each.options
        )
        instructions.append(InstructionProfile(each.stage, each.kind, options))
    perturbed = PipelineProfile(instructions, profile.blocking_power_watts, profile.gpus)
    frontiers = [Frontier.from_profile(each, schedule) for each in (profile, perturbed)]
    shortest = max(frontier.shortest_seconds for frontier in frontiers)
    times = np.linspace(shortest, frontiers[0].slowest_seconds * (1 + 1e-12), 9)
    one, other = (frontier.energy_joules(times, until_seconds=times + 1.0) for frontier in frontiers)
    assert other == pytest.approx(one, rel=1e-9, abs=1e-7)


@settings(max_examples=60, **QUIET)
@given(pipelines())
def test_whole_slopes_are_as_precise_as_stated_and_strictly_fall(pipeline):
    frontier = Frontier.from_profile(*pipeline)
    network, problem = frontier._network, frontier.problem
    for number, kind in enumerate(problem.kind_of.tolist()):
        first, last = network.arrays.first_corner[number : number + 2].tolist()
        slopes, hull = network.arrays.corner_slope[first:last], problem.hulls[kind]
        assert (np.diff(slopes) < 0).all()
        for slope, (corner, following) in zip(slopes, pairwise(hull), strict=False):
            fall = corner.cost_joules - following.cost_joules
            exact = fall / (following.time_seconds - corner.time_seconds) / network.slope_quantum_watts
            assert abs(int(slope) - exact) <= len(hull) + 1e-15 * exact  # and the rounding of the float


@settings(max_examples=60, **QUIET)
@given(pipelines())
def test_a_frontier_is_falling_and_convex(pipeline):
    frontier = Frontier.from_profile(*pipeline)
    times, energies = frontier.times_seconds, frontier.energies_joules
    assert (np.diff(times) > 0).all()
    scale = np.abs(energies).max() + frontier.problem.blocking_power_watts * times[-1]
    assert (np.diff(energies) <= 1e-12 * scale).all()
    slopes = np.diff(energies) / np.diff(times)
    assert (np.diff(slopes) >= -1e-6 * (1 + np.abs(slopes[:-1]))).all() or np.diff(times).min() < 1e-9
    assert times[0] == frontier.shortest_seconds
    assert times[-1] == frontier.least_energy_seconds <= frontier.slowest_seconds


@settings(max_examples=40, **QUIET)
@given(pipelines())
def test_a_point_can_be_run_as_it_says(pipeline):
    """Its durations take its time, and the hull at these durations costs its energy."""
    frontier = Frontier.from_profile(*pipeline)
    problem = frontier.problem
    times = np.linspace(frontier.shortest_seconds, frontier.slowest_seconds, 7).tolist()
    for point in (frontier.at(time, is_waiting=True) for time in times):
        assert problem.iteration_seconds(point.duration_seconds) <= point.time_seconds * (1 + 1e-9)
        assert (point.start_seconds + point.duration_seconds <= point.deadline_seconds + 1e-12).all()
        cost = sum(
            np.interp(duration, [point.time_seconds for point in hull], [point.cost_joules for point in hull])
            for duration, hull in zip(
                point.duration_seconds, (problem.hulls[kind] for kind in problem.kind_of), strict=True
            )
        )
        scale = abs(point.energy_joules) + problem.blocking_power_watts * point.time_seconds + 1e-9
        assert abs(problem.energy_joules(cost, point.time_seconds) - point.energy_joules) <= 1e-9 * scale


def test_beyond_the_least_energy_only_time_that_passes_anyway_is_used():
    frontier = Frontier.from_profile(smooth_profile(3), schedules.one_f_one_b(3, 4))
    best, later = frontier.least_energy_seconds, frontier.slowest_seconds
    assert best < later
    assert frontier.at(later).time_seconds == best
    assert frontier.at(later, is_waiting=True).time_seconds == later
    assert frontier.energy_joules(later) == frontier.energy_joules(best)
    waiting_joules = frontier.energy_joules(best) + frontier.problem.blocking_power_watts * (later - best)
    assert frontier.energy_joules(later, until_seconds=later) < waiting_joules


def test_at_a_fixed_slope_the_frontier_is_affine_in_the_microbatches():
    """In the middle of a long 1F1B pipeline the plan repeats itself: each microbatch more costs as much as the last."""
    profile = smooth_profile(4, clocks=6, noise=0.0)
    frontiers = [
        Frontier.from_profile(profile, schedules.one_f_one_b(4, microbatches)) for microbatches in (32, 48, 64)
    ]
    for watts in (330.0, 400.0, 600.0, 1000.0):  # of energy saved for time, above the blocking power
        points = []
        for frontier in frontiers:
            times = frontier.times_seconds
            value = frontier.energies_joules + watts * times
            points.append((float(times[value.argmin()]), float(value.min())))
        (_, first), (_, second), (_, third) = points
        assert third - second == pytest.approx(second - first, rel=1e-6)


def test_a_time_below_the_least_is_refused_with_the_least():
    frontier = Frontier.from_profile(smooth_profile(2), schedules.one_f_one_b(2, 2))
    with pytest.raises(UsageError, match=f"shorter than {frontier.shortest_seconds!r}"):
        frontier.at(frontier.shortest_seconds * 0.99)
    with pytest.raises(UsageError, match="nan"):
        frontier.at(float("nan"))
    with pytest.raises(UsageError, match="nan"):
        frontier.energy_joules([frontier.shortest_seconds, float("nan")])
    for until in (float("nan"), float("inf"), frontier.shortest_seconds / 2):
        with pytest.raises(UsageError, match="until_seconds is"):
            frontier.energy_joules(frontier.shortest_seconds, until_seconds=until)


def test_profile_and_schedule_must_fit():
    with pytest.raises(UsageError, match="profile has 3 stages, but the schedule 1f1b has 4"):
        PipelineProblem(smooth_profile(3), schedules.one_f_one_b(4, 4))
    with pytest.raises(UsageError, match="no 'backward-input' of stage 0"):
        PipelineProblem(smooth_profile(2), schedules.zb_h1(2, 4))
    uneven = smooth_profile(4, blocking_power_watts=[80, 80, 70, 80])
    with pytest.raises(UsageError, match=r"blocking_power_watts is 80.0 for stage 0 and 70.0 for stage 2"):
        PipelineProblem(uneven, schedules.interleaved(2, 4, 2))


def test_memory_is_linear_in_the_instructions():
    def size(microbatches):
        frontier = Frontier.from_profile(smooth_profile(4, clocks=20), schedules.one_f_one_b(4, microbatches))
        kept = sum(snapshot.times.nbytes + snapshot.flow.nbytes for snapshot in frontier._snapshots)
        return kept / (8 * microbatches)

    assert size(64) < 2000
    assert size(128) < 1.2 * size(64) + 100


@settings(max_examples=40, **QUIET)
@given(pipelines(), st.sampled_from([0.3, 0.03, 0.001]))
def test_a_coarse_frontier_is_below_the_exact_by_at_most_its_precision(pipeline, precision):
    exact = Frontier.from_profile(*pipeline)
    coarse = Frontier.from_profile(*pipeline, precision=precision)
    assert coarse.shortest_seconds == exact.shortest_seconds
    times = np.linspace(exact.shortest_seconds, exact.slowest_seconds, 9)
    below = exact.energy_joules(times, until_seconds=times) - coarse.energy_joules(times, until_seconds=times)
    joules = exact.highest_clock_point[1]
    scale = joules + exact.problem.blocking_power_watts * exact.slowest_seconds
    assert (below >= -1e-9 * scale).all()
    assert (below <= precision * joules + 1e-9 * scale).all()


def test_a_coarse_frontier_has_few_breakpoints_and_plans_nearly_as_good():
    profile, schedule = smooth_profile(12, clocks=30), schedules.one_f_one_b(12, 24)
    exact, coarse = (Frontier.from_profile(profile, schedule, precision=precision) for precision in (0.0, 0.005))
    assert len(coarse.times_seconds) < len(exact.times_seconds) / 10
    best, plan = (make_plan(frontier, slowdown_factor=1.05) for frontier in (exact, coarse))
    assert plan.bound_joules <= best.bound_joules <= best.energy_joules
    assert plan.energy_joules <= 1.002 * best.energy_joules
