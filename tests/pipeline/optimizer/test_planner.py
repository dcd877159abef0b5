"""The planner: from a profile to the clocks of each rank."""

import functools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.planner.instances import smooth_profile
from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.pipeline import PipelineProfile, make_plan, schedules, write_plan
from zeus_core.pipeline.optimizer import PipelineRank
from zeus_core.pipeline.optimizer._deployment import Deployment, PlanPrediction
from zeus_core.pipeline.optimizer._pipeline_planner import PipelinePlanner
from zeus_core.pipeline.profile.pipeline_job import PipelineJob, StageFacts, StageGpu

SCHEDULE = schedules.one_f_one_b(3, 6)
PROFILE = smooth_profile(3, seed=1)


def planner(work_seconds=None, switch_seconds=0.0, overhead_seconds=0.0):
    bare = PipelinePlanner(PROFILE, SCHEDULE, 1e-9, 0.25, 40.0, switch_seconds)
    work_seconds = bare.frontier.highest_clock_point[0] + overhead_seconds if work_seconds is None else work_seconds
    return PipelinePlanner(PROFILE, SCHEDULE, work_seconds, 0.25, 40.0, switch_seconds)


def highest_joules(pipeline_planner):
    """A whole iteration at the highest clocks."""
    return (
        pipeline_planner.frontier.highest_clock_point[1] + watts() * (pipeline_planner.overhead_seconds + 0.25) + 40.0
    )


def watts():
    return sum(PROFILE.blocking_power_watts)


@pytest.mark.parametrize("overhead_seconds", [0.0, 0.2])
def test_work_longer_than_its_instructions_has_an_overhead_at_any_clocks(overhead_seconds):
    pipeline_planner = planner(overhead_seconds=overhead_seconds)
    assert pipeline_planner.overhead_seconds == pytest.approx(overhead_seconds)
    assert pipeline_planner.work_seconds == pytest.approx(
        pipeline_planner.frontier.highest_clock_point[0] + overhead_seconds
    )
    plan = pipeline_planner.plan(pipeline_planner.work_seconds)
    whole = pipeline_planner.prediction(plan)
    assert whole.step_seconds == pytest.approx(plan.time_seconds + overhead_seconds + 0.25)
    assert whole.energy_joules == pytest.approx(plan.energy_joules + watts() * (overhead_seconds + 0.25) + 40.0)


def test_work_shorter_than_its_instructions_has_no_overhead_and_reports_the_excess():
    pipeline_planner = planner(work_seconds=0.1)
    assert pipeline_planner.overhead_seconds == 0.0
    assert pipeline_planner.deployment(0.1).excess_seconds == pytest.approx(
        pipeline_planner.frontier.highest_clock_point[0] - 0.1
    )
    assert planner(overhead_seconds=0.2).deployment(0.1).excess_seconds == 0.0


@settings(max_examples=4, deadline=None)
@given(st.floats(0.8, 1.6), st.sampled_from([0.0, 0.0005, 0.003]), st.floats(0.0, 0.3), st.booleans())
def test_a_plan_keeps_its_limit_or_is_quickest_and_matches_its_prediction(
    factor, switch_seconds, overhead_seconds, is_waiting
):
    pipeline_planner = planner(None, switch_seconds, overhead_seconds)
    limit_seconds = factor * pipeline_planner.work_seconds
    deployment = pipeline_planner.deployment(limit_seconds, limit_seconds if is_waiting else None)
    quickest = pipeline_planner.overhead_seconds + max(
        pipeline_planner.frontier.highest_clock_point[0], pipeline_planner.frontier.shortest_seconds
    )
    assert deployment.work_seconds <= max(limit_seconds, quickest) * (1 + 1e-9)
    work_seconds = max(deployment.work_seconds, limit_seconds) if is_waiting else deployment.work_seconds
    assert deployment.prediction.step_seconds == pytest.approx(work_seconds + 0.25)
    if factor >= 1 and not is_waiting:
        assert deployment.prediction.energy_joules <= highest_joules(pipeline_planner) * (1 + 1e-9)
    assert [len(of_rank) for of_rank in deployment.clocks_mhz] == [len(of_rank) for of_rank in SCHEDULE.ranks]


def test_more_time_takes_less_energy():
    pipeline_planner = planner()
    predictions = [
        pipeline_planner.deployment(factor * pipeline_planner.work_seconds).prediction
        for factor in (1.0, 1.05, 1.1, 1.2)
    ]
    energies = [prediction.energy_joules for prediction in predictions]
    assert energies == sorted(energies, reverse=True)
    assert energies[0] < highest_joules(pipeline_planner)


def test_a_pipeline_that_waits_anyway_uses_less_energy_by_slowing_down():
    pipeline_planner = planner()
    until = 1.5 * pipeline_planner.work_seconds
    waiting = pipeline_planner.deployment(0.0, until)
    hurrying = pipeline_planner.prediction(pipeline_planner.plan(pipeline_planner.work_seconds), until)
    assert waiting.prediction.step_seconds == pytest.approx(hurrying.step_seconds) == pytest.approx(until + 0.25)
    assert waiting.prediction.energy_joules < hurrying.energy_joules
    assert waiting.work_seconds <= until * (1 + 1e-9)


def test_a_switch_cost_reduces_switches_and_a_negligible_one_does_not():
    free, dear = planner(), planner(switch_seconds=0.02)
    limit = 1.05 * free.work_seconds
    assert dear.plan(limit).switches < free.plan(limit).switches
    assert planner(switch_seconds=0.0009).plan(limit) == free.plan(limit)


clocks = st.lists(st.lists(st.one_of(st.none(), st.integers(1, 3000))).map(tuple)).map(tuple)
amounts = st.floats(0.0, 1e9)


@given(st.builds(Deployment, clocks, amounts, st.builds(PlanPrediction, amounts, amounts)))
def test_a_deployment_comes_through_json_as_it_was(deployment):
    assert decode(Deployment, json.loads(json.dumps(encode(deployment)))) == deployment


@functools.cache
def made_plan():
    return make_plan(planner().frontier, slowdown_factor=1.1)


class TestPlanFiles:
    def read(self, tmp_path, schedule=SCHEDULE, clocks_mhz=None):
        if clocks_mhz is None:
            clocks_mhz = sorted({clock for of_rank in made_plan().clocks_mhz for clock in of_rank}, reverse=True)
        job = PipelineJob.from_ranks(
            [
                StageFacts(
                    PipelineRank(rank),
                    order,
                    StageGpu(f"GPU-{rank}", "A100", 400.0, None),
                    0.1,
                    tuple(clocks_mhz),
                    {},
                    {},
                    None,
                )
                for rank, order in enumerate(schedule.ranks)
            ]
        )
        write_plan(made_plan(), tmp_path / "plan.json")
        return Deployment.from_file(str(tmp_path / "plan.json"), job, 0.2)

    def test_a_plan_made_beforehand_is_deployed_as_it_is(self, tmp_path):
        deployment = self.read(tmp_path)
        assert deployment.clocks_mhz == made_plan().clocks_mhz
        assert deployment.work_seconds == made_plan().time_seconds
        assert deployment.prediction.step_seconds == made_plan().time_seconds + 0.2
        assert deployment.prediction.energy_joules == made_plan().energy_joules

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                {"schedule": schedules.one_f_one_b(2, 6)},
                r"have \[12, 12, 12\] instructions, those of this job \[12, 12\]",
            ),
            (
                {"schedule": schedules.gpipe(3, 6)},
                r"have \[12, 12, 12\] instructions, those of this job \[12, 12, 12\]",
            ),
            (
                {"schedule": schedules.one_f_one_b(3, 7)},
                r"have \[12, 12, 12\] instructions, those of this job \[14, 14, 14\]",
            ),
            ({"clocks_mhz": (1410, 850)}, "which uses clocks this job cannot set"),
        ],
    )
    def test_a_plan_for_another_job_is_refused(self, tmp_path, arguments, message):
        with pytest.raises(UsageError, match=rf"plan_path is '.*plan.json', .*{message}"):
            self.read(tmp_path, **arguments)


def test_the_nodes_power_is_paid_for_but_not_predicted_for_gpus():
    bare = planner()
    with_node = PipelineProfile(PROFILE.instructions, PROFILE.blocking_power_watts, PROFILE.gpus, 300.0)
    paying = replace(bare, profile=with_node)
    until_seconds = 10 * bare.frontier.slowest_seconds
    assert paying.plan(until_seconds).time_seconds < bare.plan(until_seconds).time_seconds
    plans = [make_plan(one.frontier, slowdown_factor=1.0) for one in (paying, bare)]
    predicted = [one.prediction(plan).energy_joules for one, plan in zip((paying, bare), plans, strict=True)]
    assert predicted[0] == pytest.approx(predicted[1], rel=0.02)
