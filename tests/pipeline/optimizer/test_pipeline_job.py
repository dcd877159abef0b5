"""Jobs assembled from the information of their ranks."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.pipeline_jobs import a_job, introduce
from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.pipeline import schedules
from zeus_core.pipeline.optimizer import PipelineRank
from zeus_core.pipeline.planner.pipeline_schedule import Instruction
from zeus_core.pipeline.profile.pipeline_job import PipelineJob, StageFacts, StageGpu

places = st.builds(PipelineRank, st.integers(0, 9), st.integers(0, 9))
instructions = st.builds(Instruction, st.sampled_from(["forward", "backward"]), st.integers(0, 9), st.integers(0, 9))


@given(
    st.builds(
        StageFacts,
        places,
        st.lists(instructions).map(tuple),
        st.builds(
            StageGpu, st.text(), st.text(), st.none() | st.floats(50.0, 900.0), driver_version=st.none() | st.text()
        ),
        st.floats(0.01, 0.2),
        st.lists(st.integers(1, 3000)).map(tuple),
        st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none())),
        st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none())),
        st.one_of(st.none(), st.text()),
    )
)
def test_an_introduction_comes_through_json_as_it_was(rank_information):
    assert decode(StageFacts, json.loads(json.dumps(encode(rank_information)))) == rank_information


class TestJobOf:
    def test_ranks_of_several_pipelines_may_come_in_any_order(self):
        job = a_job([(1, 1), (0, 0), (0, 1), (1, 0)])
        assert job.pipelines == 2
        assert [schedule.ranks for schedule in job.schedules] == [schedules.one_f_one_b(2, 3).ranks] * 2
        assert job.of_pipeline(["a", "b", "c", "d"], 1) == ["a", "c"]

    def test_the_clocks_are_those_all_gpus_support_highest_first(self):
        assert PipelineJob.from_ranks([introduce(0, 0, clocks_mhz=(900, 1200)), introduce(1, 1)]).clocks_mhz == (1200,)

    def test_denials_are_those_of_each_rank(self):
        assert PipelineJob.from_ranks(
            [introduce(0, 0), introduce(1, 1, permission_problem="no")]
        ).permission_problems == [None, "no"]

    @pytest.mark.parametrize(
        ("ranks", "message"),
        [
            ([introduce(0, 0)], "no .*of stage 1|the schedule|waits for"),
            ([introduce(0, 1)], "pipeline 0 has no rank 0; pass each rank its own PipelineRank, counted from 0"),
            ([introduce(0, 0), introduce(1, 1), introduce(2, 0, 2), introduce(3, 1, 2)], "pipeline 1 has no rank 0"),
            ([introduce(0, 0), introduce(0, 1)], r"ranks 0 and 1 share A100 \(GPU-0\).*gpu_indices=\[local_rank\]"),
            (
                [introduce(0, 0), introduce(1, 0, schedule=schedules.one_f_one_b(2, 4)), introduce(2, 1)],
                "two ranks at position 0 of pipeline 0 report different work; pass each rank its own PipelineRank",
            ),
            ([introduce(0, 0), introduce(1, 1, clocks_mhz=(1000,))], "no SM clock in common; use GPUs of one model"),
            ([introduce(0, 0), introduce(1, 1, order=schedules.one_f_one_b(2, 4).ranks[1])], "microbatch 3"),
        ],
    )
    def test_what_is_no_job_is_named(self, ranks, message):
        if len(ranks) == 1 and ranks[0].pipeline_rank.rank == 0:
            assert PipelineJob.from_ranks(ranks).schedules[0].stages == 1, "a pipeline of one stage is one"
            return
        with pytest.raises(UsageError, match=message):
            PipelineJob.from_ranks(ranks)

    def test_pipelines_may_run_other_numbers_of_microbatches(self):
        other = schedules.one_f_one_b(2, 5)
        job = PipelineJob.from_ranks(
            [introduce(0, 0), introduce(1, 1), introduce(2, 0, 1, schedule=other), introduce(3, 1, 1, schedule=other)]
        )
        assert [schedule.microbatches for schedule in job.schedules] == [3, 5]

    def test_the_fingerprint_of_the_same_work_is_equal_for_any_microbatches(self):
        ours = a_job([(0,), (1,)]).fingerprint
        assert a_job([(0,), (1,)], schedule=schedules.gpipe(2, 8)).fingerprint == ours
        assert json.loads(json.dumps(ours)) == ours

    @pytest.mark.parametrize(
        "change",
        [
            {"identity": {"layers": 13}},
            {"gpu": StageGpu("GPU-x", "H100", 400.0, "570.1")},
            {"gpu": StageGpu("GPU-x", "A100", 300.0, "570.1")},
            {"gpu": StageGpu("GPU-x", "A100", 400.0, "580.1")},
            {"order": schedules.zb_h1(2, 3).ranks[1]},
        ],
    )
    def test_the_fingerprint_tells_other_work_apart(self, change):
        first, second = introduce(0, 0), introduce(1, 1)
        if "order" in change:
            first = replace(first, order=schedules.zb_h1(2, 3).ranks[0])
        assert PipelineJob.from_ranks([first, replace(second, **change)]).fingerprint != a_job([(0,), (1,)]).fingerprint

    def test_another_gpu_of_the_same_model_does_not_matter(self):
        other = PipelineJob.from_ranks([introduce(7, 0), introduce(8, 1)])
        assert other.fingerprint == a_job([(0,), (1,)]).fingerprint
