"""Jobs put together from what their ranks have told."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency import PipelineRank
from zeus_core.optimizer.pipeline_frequency._clock_search import MeasuredPoint
from zeus_core.optimizer.pipeline_frequency._pipeline_job import (
    GpuFacts,
    RankInformation,
    check_clocks,
    check_energies,
    job_of,
    measured_points,
    pipeline_profile,
    tail_joules,
)
from zeus_core.optimizer.pipeline_frequency._profiler import InstructionRow, RankProfile
from zeus_core.pipeline import Instruction, MeasuredOption, schedules

CLOCKS = (1410, 1200, 1050)


def introduce(number, rank, pipeline=0, *, schedule=None, **changes):
    schedule = schedule or schedules.one_f_one_b(2, 3)
    rank_information = RankInformation(
        PipelineRank(rank, pipeline),
        schedule.ranks[rank],
        GpuFacts(f"GPU-{number}", "A100", 400.0, "570.1"),
        0.1,
        CLOCKS,
        {"layers": 12},
        {},
        None,
    )
    return replace(rank_information, **changes)


def a_job(places, **changes):
    return job_of([introduce(number, *place, **changes) for number, place in enumerate(places)])


def row(stage, kind, clock_mhz, seconds, joules, errors=(0.0, 0.0)):
    return InstructionRow(stage, kind, clock_mhz, seconds, errors[0], joules, errors[1])


def measured(stage, watts=400.0, waiting_watts=80.0, more=()):
    """Half as fast at 1200 MHz, at half the power."""
    rows = [
        row(stage, kind, clock_mhz, seconds * slow, watts / slow * seconds * slow)
        for kind, seconds in (("forward", 0.05), ("backward", 0.1))
        for clock_mhz, slow in ((1410, 1.0), (1200, 2.0))
    ]
    return RankProfile((*rows, *more), waiting_watts)


places = st.builds(PipelineRank, st.integers(0, 9), st.integers(0, 9))
instructions = st.builds(Instruction, st.sampled_from(["forward", "backward"]), st.integers(0, 9), st.integers(0, 9))


@given(
    st.builds(
        RankInformation,
        places,
        st.lists(instructions).map(tuple),
        st.builds(
            GpuFacts, st.text(), st.text(), st.none() | st.floats(50.0, 900.0), driver_version=st.none() | st.text()
        ),
        st.floats(0.01, 0.2),
        st.lists(st.integers(1, 3000)).map(tuple),
        st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none())),
        st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none())),
        st.one_of(st.none(), st.text()),
    )
)
def test_an_introduction_comes_through_json_as_it_was(rank_information):
    assert RankInformation.from_json(json.loads(json.dumps(rank_information.to_json()))) == rank_information


class TestJobOf:
    def test_ranks_of_several_pipelines_may_come_in_any_order(self):
        job = a_job([(1, 1), (0, 0), (0, 1), (1, 0)])
        assert job.pipelines == 2
        assert [it.ranks for it in job.schedules] == [schedules.one_f_one_b(2, 3).ranks] * 2
        assert job.of_pipeline(["a", "b", "c", "d"], 1) == ["a", "c"]

    def test_the_clocks_are_those_all_gpus_support_highest_first(self):
        assert job_of([introduce(0, 0, clocks_mhz=(900, 1200)), introduce(1, 1)]).clocks_mhz == (1200,)

    def test_denials_are_those_of_each_rank(self):
        assert job_of([introduce(0, 0), introduce(1, 1, permission_problem="no")]).permission_problems == [None, "no"]

    @pytest.mark.parametrize(
        ("rank_informations", "message"),
        [
            ([introduce(0, 0)], "no .*of stage 1|the schedule|waits for"),
            ([introduce(0, 1)], "pipeline 0 has no rank 0; pass each rank its own PipelineRank, counted from 0"),
            ([introduce(0, 0), introduce(1, 1), introduce(2, 0, 2), introduce(3, 1, 2)], "pipeline 1 has no rank 0"),
            ([introduce(0, 0), introduce(0, 1)], r"ranks 0 and 1 share A100 \(GPU-0\).*gpu_indices=\[local_rank\]"),
            (
                [introduce(0, 0), introduce(1, 0, schedule=schedules.one_f_one_b(2, 4)), introduce(2, 1)],
                "two ranks at .*rank=0.* report different work; pass each rank its own PipelineRank",
            ),
            ([introduce(0, 0), introduce(1, 1, clocks_mhz=(1000,))], "no SM clock in common; use GPUs of one model"),
            ([introduce(0, 0), introduce(1, 1, order=schedules.one_f_one_b(2, 4).ranks[1])], "microbatch 3"),
        ],
    )
    def test_what_is_no_job_is_named(self, rank_informations, message):
        if len(rank_informations) == 1 and rank_informations[0].pipeline_rank.rank == 0:
            assert job_of(rank_informations).schedules[0].stages == 1, "a pipeline of one stage is one"
            return
        with pytest.raises(UsageError, match=message):
            job_of(rank_informations)

    def test_pipelines_may_run_other_numbers_of_microbatches(self):
        other = schedules.one_f_one_b(2, 5)
        job = job_of(
            [introduce(0, 0), introduce(1, 1), introduce(2, 0, 1, schedule=other), introduce(3, 1, 1, schedule=other)]
        )
        assert [it.microbatches for it in job.schedules] == [3, 5]

    def test_the_fingerprint_is_the_same_for_the_same_work_in_any_number_of_microbatches(self):
        ours = a_job([(0,), (1,)]).fingerprint
        assert a_job([(0,), (1,)], schedule=schedules.gpipe(2, 8)).fingerprint == ours
        assert json.loads(json.dumps(ours)) == ours

    @pytest.mark.parametrize(
        "change",
        [
            {"identity": {"layers": 13}},
            {"gpu": GpuFacts("GPU-x", "H100", 400.0, "570.1")},
            {"gpu": GpuFacts("GPU-x", "A100", 300.0, "570.1")},
            {"gpu": GpuFacts("GPU-x", "A100", 400.0, "580.1")},
            {"order": schedules.zb_h1(2, 3).ranks[1]},
        ],
    )
    def test_the_fingerprint_tells_other_work_apart(self, change):
        first, second = introduce(0, 0), introduce(1, 1)
        if "order" in change:
            first = replace(first, order=schedules.zb_h1(2, 3).ranks[0])
        assert job_of([first, replace(second, **change)]).fingerprint != a_job([(0,), (1,)]).fingerprint

    def test_another_gpu_of_the_same_model_does_not_matter(self):
        other = job_of([introduce(7, 0), introduce(8, 1)])
        assert other.fingerprint == a_job([(0,), (1,)]).fingerprint


class TestProfile:
    def test_each_pipeline_has_the_options_of_its_own_ranks(self):
        job = a_job([(0, 0), (1, 0), (0, 1), (1, 1)])
        profiles = [measured(0), measured(1, 300.0, 60.0), measured(0, 200.0), measured(1, 100.0)]
        profile = pipeline_profile(job, profiles, 0)
        assert profile.get(0, "forward").options == (MeasuredOption(1410, 0.05, 20.0), MeasuredOption(1200, 0.1, 20.0))
        assert profile.get(1, "backward").at_highest_clock.energy_joules == pytest.approx(30.0)
        assert (profile.blocking_power_watts, profile.gpus) == ((80.0, 60.0), (1, 1))
        other = pipeline_profile(job, profiles, 1)
        assert other.get(0, "backward").at_highest_clock.energy_joules == pytest.approx(20.0)

    def test_of_ranks_at_one_place_it_is_the_mean_and_they_are_counted(self):
        job = a_job([(0,), (0,), (1,)])
        profile = pipeline_profile(job, [measured(0, 400.0, 80.0), measured(0, 200.0, 60.0), measured(1)], 0)
        assert profile.get(0, "forward").at_highest_clock.energy_joules == pytest.approx(15.0)
        assert (profile.blocking_power_watts, profile.gpus) == ((70.0, 80.0), (2, 1))

    def test_where_an_energy_is_missing_on_one_of_them_the_others_count(self):
        job = a_job([(0,), (0,), (1,)])
        lacking = RankProfile(tuple(replace(it, energy_joules=None) for it in measured(0).rows), None)
        profile = pipeline_profile(job, [lacking, measured(0), measured(1)], 0)
        assert profile.get(0, "forward").at_highest_clock.energy_joules == pytest.approx(20.0)
        assert profile.blocking_power_watts == (80.0, 80.0)
        with pytest.raises(UsageError, match="no instruction of stage 0"):
            pipeline_profile(job, [lacking, lacking, measured(1)], 0)
        with pytest.raises(UsageError, match=r"the energy of backward of stage 0 .* rank 1 .* profile_instructions"):
            check_energies(job, [measured(0), lacking, measured(1)], 1410, [None] * 3)
        with pytest.raises(UsageError, match=r"the energy of backward .* rank 1 \(A100\): the GPU is lost"):
            check_energies(job, [measured(0), lacking, measured(1)], 1410, [None, "the GPU is lost", None])

    def test_what_was_not_measured_at_a_clock_is_named(self):
        job = a_job([(0,), (1,)])
        check_energies(job, [measured(0), measured(1)], 1200, [None] * 2)
        with pytest.raises(UsageError, match="backward of stage 0 was not measured at 1050 MHz on rank 0"):
            check_energies(job, [measured(0), measured(1)], 1050, [None] * 2)

    def test_clocks_of_a_kept_profile_are_those_of_the_job(self):
        job = a_job([(0,), (1,)])
        check_clocks(job, [measured(0), measured(1)])
        strange = replace(measured(1), rows=(row(1, "forward", 1987, 0.1, 10.0),))
        with pytest.raises(UsageError, match=r"clocks that this job cannot set: \[1987\] MHz"):
            check_clocks(job, [measured(0), strange])

    def test_ranks_that_never_wait_are_given_the_waiting_power_of_the_others(self):
        profiles = [replace(measured(0), waiting_watts=None), measured(1, waiting_watts=70.0)]
        assert pipeline_profile(a_job([(0,), (1,)]), profiles, 0).blocking_power_watts == (70.0, 70.0)
        alone = [replace(it, waiting_watts=None) for it in profiles]
        assert pipeline_profile(a_job([(0,), (1,)]), alone, 0).blocking_power_watts == (0.0, 0.0)

    def test_what_was_measured_at_the_clock_found_and_other_work_is_left_out(self):
        more = [row(0, "forward", None, 9.0, 9.0), row(0, "optimizer-step", None, 0.2, 30.0)]
        job = a_job([(0,), (1,)])
        assert pipeline_profile(job, [measured(0, more=more), measured(1)], 0) == pipeline_profile(
            job, [measured(0), measured(1)], 0
        )

    def test_an_instruction_that_took_no_time_that_could_be_seen_is_planned_with_all_the_same(self):
        rows = tuple(replace(it, time_seconds=0.0) for it in measured(1).rows)
        profile = pipeline_profile(a_job([(0,), (1,)]), [measured(0), RankProfile(rows, 80.0)], 0)
        assert profile.get(1, "forward").at_highest_clock.time_seconds > 0

    def test_a_stage_that_was_not_measured_is_named(self):
        with pytest.raises(UsageError, match="stage"):
            pipeline_profile(a_job([(0,), (1,)]), [RankProfile((), None), measured(1)], 0)

    def test_tail_joules_are_what_other_work_takes_beyond_waiting_over_all_ranks_of_a_pipeline(self):
        step = [row(0, "optimizer-step", None, 0.2, 30.0)]
        profiles = [measured(0, more=step), measured(0, waiting_watts=50.0, more=step), measured(1), measured(0)]
        job = a_job([(0, 0), (0, 0), (1, 0), (0, 1), (1, 1)])
        profiles.append(measured(1, more=[row(1, "optimizer-step", None, 0.2, None)]))
        assert tail_joules(job, profiles, 0) == pytest.approx(30.0 - 16.0 + 30.0 - 10.0)
        assert tail_joules(job, profiles, 1) == 0.0

    def test_points_of_a_clock_are_those_of_all_ranks_where_energy_is_known(self):
        job = a_job([(0,), (1,)])
        lacking = RankProfile((row(1, "forward", 1200, 0.1, None), row(1, "backward", 1200, 0.2, 40.0)), 60.0)
        assert measured_points(job, [measured(0), lacking], 1200) == {
            (0, 0, "forward"): MeasuredPoint(0.1, 20.0, 12.0),
            (0, 0, "backward"): MeasuredPoint(0.2, 40.0, 24.0),
            (1, 1, "backward"): MeasuredPoint(0.2, 40.0, 28.0),
        }
