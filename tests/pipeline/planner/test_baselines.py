"""The baselines: what they are, and that the frontier is better."""

import pytest

from tests.pipeline.planner.instances import SPLIT, WHOLE, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, baselines, make_plan, schedules
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.testing import simulate_pipeline


@pytest.mark.parametrize(
    ("schedule", "kinds"),
    [(schedules.one_f_one_b(4, 8), WHOLE), (schedules.gpipe(3, 4), WHOLE), (schedules.zb_h1(3, 5), SPLIT)],
    ids=["1f1b", "gpipe", "zb-h1"],
)
def test_no_baseline_beats_the_frontier_and_all_are_run_as_predicted(schedule, kinds):
    profile = smooth_profile(schedule.stages, kinds=kinds)
    frontier = Frontier.from_profile(profile, schedule)
    limit = 1.1 * frontier.highest_clock_point[0]
    plans = [
        baselines.highest_clocks_plan(frontier.problem),
        baselines.global_clock_plan(frontier.problem, limit),
        baselines.stage_clocks_plan(frontier.problem, limit),
        baselines.envpipe_plan(frontier.problem),
    ]
    assert plans[0].energy_joules > plans[1].energy_joules >= plans[2].energy_joules
    for plan in plans:
        assert plan.time_seconds <= limit
        assert plan.energy_joules >= frontier.energy_joules(plan.time_seconds) - 1e-9
        simulated = simulate_pipeline(profile, plan)
        assert simulated.time_seconds == pytest.approx(plan.time_seconds, rel=1e-9)
        assert simulated.energy_joules == pytest.approx(plan.energy_joules, rel=1e-9)
    assert make_plan(frontier, time_seconds=limit).energy_joules < plans[2].energy_joules


def test_the_highest_clocks_are_the_point_of_no_slowdown():
    frontier = Frontier.from_profile(smooth_profile(3), schedules.one_f_one_b(3, 6))
    plan = baselines.highest_clocks_plan(frontier.problem)
    assert (plan.time_seconds, plan.energy_joules) == pytest.approx(frontier.highest_clock_point, rel=1e-12)
    assert {clock for rank in plan.clocks_mhz for clock in rank} == {1410}
    assert plan.switches == 0


def test_one_clock_is_a_single_one_and_per_stage_one_each():
    frontier = Frontier.from_profile(smooth_profile(3), schedules.one_f_one_b(3, 6))
    limit = 1.2 * frontier.highest_clock_point[0]
    one = baselines.global_clock_plan(frontier.problem, limit)
    assert len({clock for rank in one.clocks_mhz for clock in rank}) == 1
    several = baselines.stage_clocks_plan(frontier.problem, limit)
    assert [len(set(rank)) for rank in several.clocks_mhz] == [1, 1, 1]


def test_too_little_time_is_an_error():
    problem = Frontier.from_profile(smooth_profile(3, noise=0.0), schedules.one_f_one_b(3, 6)).problem
    with pytest.raises(UsageError, match="one clock for all takes at least"):
        baselines.global_clock_plan(problem, 0.1)
    with pytest.raises(UsageError, match="one clock per stage takes at least"):
        baselines.stage_clocks_plan(problem, 0.1)


def test_one_clock_per_stage_repeats_no_step_known_to_be_worse():
    """Nearly all the time is predictions; a descent that predicts each step anew needs 1808 here."""
    problem = _CountingProblem(smooth_profile(8, clocks=40), schedules.one_f_one_b(8, 96))
    baselines.stage_clocks_plan(problem, 1.2 * problem.highest_clock_point[0])
    assert 100 < problem.predictions[0] < 1000


class _CountingProblem(PipelineProblem):
    """Counts the iterations that are predicted."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.__dict__["predictions"] = [0]

    def iteration_seconds(self, durations):
        self.predictions[0] += 1
        return super().iteration_seconds(durations)
