"""The profile of a job, combined from those of its ranks."""

from dataclasses import replace

import pytest

from tests.support.pipeline_jobs import a_job, measured, row
from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.profile.clock_search import MeasuredPoint
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.rank_profile import RankProfile


def pipeline_profile(job, profiles, pipeline):
    return JobProfile(job, tuple(profiles)).of_pipeline(pipeline)


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

    def test_of_ranks_at_one_place_it_is_the_mean_and_their_number(self):
        job = a_job([(0,), (0,), (1,)])
        profile = pipeline_profile(job, [measured(0, 400.0, 80.0), measured(0, 200.0, 60.0), measured(1)], 0)
        assert profile.get(0, "forward").at_highest_clock.energy_joules == pytest.approx(15.0)
        assert (profile.blocking_power_watts, profile.gpus) == ((70.0, 80.0), (2, 1))

    def test_where_an_energy_is_missing_on_one_of_them_the_others_count(self):
        job = a_job([(0,), (0,), (1,)])
        lacking = RankProfile(tuple(replace(row, energy_joules=None) for row in measured(0).rows), None)
        profile = pipeline_profile(job, [lacking, measured(0), measured(1)], 0)
        assert profile.get(0, "forward").at_highest_clock.energy_joules == pytest.approx(20.0)
        assert profile.blocking_power_watts == (80.0, 80.0)
        with pytest.raises(UsageError, match="no instruction of stage 0"):
            pipeline_profile(job, [lacking, lacking, measured(1)], 0)
        with pytest.raises(UsageError, match=r"the energy of backward of stage 0 .* rank 1 .* profile_instructions"):
            JobProfile(job, (measured(0), lacking, measured(1))).check_measured(1410, [None] * 3)
        with pytest.raises(UsageError, match=r"the energy of backward .* rank 1 \(A100\): the GPU is lost"):
            JobProfile(job, (measured(0), lacking, measured(1))).check_measured(1410, [None, "the GPU is lost", None])

    def test_what_was_not_measured_at_a_clock_is_named(self):
        job = a_job([(0,), (1,)])
        JobProfile(job, (measured(0), measured(1))).check_measured(1200, [None] * 2)
        with pytest.raises(UsageError, match="backward of stage 0 was not measured at 1050 MHz on rank 0"):
            JobProfile(job, (measured(0), measured(1))).check_measured(1050, [None] * 2)

    def test_clocks_of_a_kept_profile_are_those_of_the_job(self):
        job = a_job([(0,), (1,)])
        JobProfile(job, (measured(0), measured(1))).check_usable()
        strange = replace(measured(1), rows=(row(1, "forward", 1987, 0.1, 10.0),))
        with pytest.raises(UsageError, match=r"clocks that this job cannot set: \[1987\] MHz"):
            JobProfile(job, (measured(0), strange)).check_usable()

    def test_ranks_that_never_wait_are_given_the_waiting_power_of_the_others(self):
        profiles = [replace(measured(0), blocking_power_watts=None), measured(1, blocking_power_watts=70.0)]
        assert pipeline_profile(a_job([(0,), (1,)]), profiles, 0).blocking_power_watts == (70.0, 70.0)
        alone = [replace(profile, blocking_power_watts=None) for profile in profiles]
        assert pipeline_profile(a_job([(0,), (1,)]), alone, 0).blocking_power_watts == (0.0, 0.0)

    def test_measurements_at_the_found_clock_and_other_work_are_excluded(self):
        more = [row(0, "forward", None, 9.0, 9.0), row(0, "optimizer-step", None, 0.2, 30.0)]
        job = a_job([(0,), (1,)])
        assert pipeline_profile(job, [measured(0, more=more), measured(1)], 0) == pipeline_profile(
            job, [measured(0), measured(1)], 0
        )

    def test_an_instruction_without_measurable_time_is_planned_all_the_same(self):
        rows = tuple(replace(row, time_seconds=0.0) for row in measured(1).rows)
        profile = pipeline_profile(a_job([(0,), (1,)]), [measured(0), RankProfile(rows, 80.0)], 0)
        assert profile.get(1, "forward").at_highest_clock.time_seconds > 0

    def test_a_stage_that_was_not_measured_is_named(self):
        with pytest.raises(UsageError, match="stage"):
            pipeline_profile(a_job([(0,), (1,)]), [RankProfile((), None), measured(1)], 0)

    def test_tail_joules_are_other_works_energy_beyond_waiting_on_all_ranks(self):
        step = [row(0, "optimizer-step", None, 0.2, 30.0)]
        profiles = [measured(0, more=step), measured(0, blocking_power_watts=50.0, more=step), measured(1), measured(0)]
        job = a_job([(0, 0), (0, 0), (1, 0), (0, 1), (1, 1)])
        profiles.append(measured(1, more=[row(1, "optimizer-step", None, 0.2, None)]))
        assert JobProfile(job, (*profiles,)).tail_joules(0) == pytest.approx(30.0 - 16.0 + 30.0 - 10.0)
        assert JobProfile(job, (*profiles,)).tail_joules(1) == 0.0

    def test_points_of_a_clock_include_all_ranks_where_energy_is_known(self):
        job = a_job([(0,), (1,)])
        lacking = RankProfile((row(1, "forward", 1200, 0.1, None), row(1, "backward", 1200, 0.2, 40.0)), 60.0)
        assert JobProfile(job, (measured(0), lacking)).points(1200, [0.0]) == {
            (0, 0, "forward"): MeasuredPoint(0.1, 20.0, 12.0),
            (0, 0, "backward"): MeasuredPoint(0.2, 40.0, 24.0),
            (1, 1, "backward"): MeasuredPoint(0.2, 40.0, 28.0),
        }

    def test_a_ranks_wait_at_the_highest_clocks_is_shared_by_its_computations(self):
        job = a_job([(0,), (1,)])
        profile = JobProfile(job, (measured(0), measured(1)))
        order = job.ranks[0].order
        busy = sum({"forward": 0.05, "backward": 0.1}[one.kind] for one in order)
        points = profile.points(1200, [busy + 0.6])
        assert [point.spare_seconds for point in points.values()] == pytest.approx([0.6 / len(order)] * len(points))
