"""Work that has changed is noticed after a few iterations, and a profile that no longer fits is measured again."""

import logging
import subprocess
import sys
import textwrap

import pytest

from tests.support.pipeline_training import FULL_COURSE, Run, Watched, train_with, works
from zeus_core.pipeline import schedules
from zeus_core.pipeline.optimizer import PipelineFrequencySettings, _planning
from zeus_core.pipeline.optimizer._pipeline_planner import plan_all
from zeus_core.pipeline.optimizer._watches import WorkWatch, is_other_work
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.testing import SimulatedJob


@pytest.fixture(autouse=True)
def ranks_are_threads():
    """Signals are guarded against in the main thread only, which says so."""
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.ERROR)
    yield
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.NOTSET)


@pytest.mark.parametrize(("factor", "begin"), [(1.375, 51), (0.7, 50)])
def test_longer_or_shorter_sequences_are_noticed_within_five_iterations_and_measured(factor, begin, caplog):
    job = SimulatedJob(
        schedules.one_f_one_b(2, 8), works(2), slowed_by=lambda pipeline, step: factor if step >= begin else 1.0
    )
    run = Run(job, 130)
    assert run.course == [
        *FULL_COURSE,
        PlanningPhase.JUDGING,
        PlanningPhase.PROFILING,
        PlanningPhase.PLANNING,
        PlanningPhase.REPLAYING,
    ]
    assert run.steps_of(PlanningPhase.JUDGING)[0] <= begin + 5
    assert "the profile no longer fits" in caplog.text
    predicted = run.first.latest["predicted"]
    assert run.joules(range(120, 130)) == pytest.approx(predicted.energy_joules, rel=0.01)


def test_a_kept_profile_of_shorter_sequences_is_refused_by_its_energy(caplog):
    kept = train_with({}).first.state_dict()
    run = train_with(kept, steps=60, slowed_by=lambda pipeline, step: 1.375)
    assert PlanningPhase.PROFILING in run.course
    assert "J by the profile" in caplog.text
    assert run.joules(run.steps_of(PlanningPhase.REPLAYING)[-5:]) == pytest.approx(
        run.first.latest["predicted"].energy_joules, rel=0.01
    )


def test_the_usual_plan_is_kept_for_the_time_after_a_straggler(monkeypatch):
    asked = []

    def plan(requests):
        asked.append([until for *_, until in requests])
        return plan_all(requests)

    monkeypatch.setattr(_planning, "plan_all", plan)
    slow = range(50, 70)
    job = SimulatedJob(
        schedules.one_f_one_b(2, 8),
        works(2),
        pipelines=2,
        slowed_by=lambda pipeline, step: 1.2 if pipeline == 1 and step in slow else 1.0,
    )
    run = Run(job, 90)
    usual_plan, ahead, exact = asked
    assert usual_plan == [None, None]
    assert 0.97 < ahead[0] / exact[0] < 1.0
    usual = run.joules(range(40, 50))
    assert run.joules(range(71, 90)) == pytest.approx(usual, rel=0.001)
    first_normal, next_one = slow[-1] + 1, slow[-1] + 2
    assert run.seconds([first_normal]) > 1.15 * run.seconds([next_one])  # the time is withdrawn at the first
    assert run.seconds([next_one]) == pytest.approx(run.seconds(range(40, 50)), rel=0.001)


def test_the_time_and_energy_of_a_profile_are_those_of_the_planner():
    run = train_with({}, steps=45)
    profile: JobProfile = run.first._course.profile
    pipeline = profile.of_pipeline(0)
    problem = PipelineProblem(pipeline, profile.job.schedules[0])
    seconds = problem.iteration_seconds(problem.durations_of(problem.highest_clock_options))
    assert profile.work_seconds(0) == pytest.approx(seconds, rel=1e-12)
    assert profile.joules(seconds) == pytest.approx(run.joules(run.steps_of(PlanningPhase.BASELINE)), rel=0.01)


def test_comparing_a_kept_profile_loads_no_compiler_in_the_training_thread():
    program = """
        import sys
        from tests.support.pipeline_jobs import a_job, measured
        from zeus_core.pipeline.profile.job_profile import JobProfile
        profile = JobProfile(a_job([(0, 0), (1, 0)]), (measured(0), measured(1)))
        assert profile.work_seconds(0) > 0 and profile.joules(1.0) > 0
        assert "llvmlite" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=240)


def test_other_shapes_are_noticed_even_if_the_work_takes_as_long():
    class Told(Watched):
        def on_step_end(self):
            self.use_work({"shapes": "8x128" if len(self.phases) < 50 else "8x132"})
            super().on_step_end()

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 80, Told)
    course = [
        PlanningPhase.WARMING_UP,
        PlanningPhase.BASELINE,
        PlanningPhase.PROFILING,
        PlanningPhase.PLANNING,
        PlanningPhase.REPLAYING,
    ]
    assert run.course == [*course, *course][: len(run.course)]
    assert run.course[5:7] == [PlanningPhase.WARMING_UP, PlanningPhase.BASELINE]
    assert PlanningPhase.PROFILING in run.course[7:]
    assert run.steps_of(PlanningPhase.WARMING_UP)[-1] <= 55
    assert run.first.state_dict()["profile"] == {} or "8x132" in str(run.first.state_dict())


@pytest.mark.parametrize("warmup_steps", [1, 5])
def test_a_stored_profile_needs_equal_shapes_although_other_work_is_as_long(warmup_steps):
    settings = PipelineFrequencySettings(warmup_steps=warmup_steps, quiet=True)

    def run(shapes, kept):
        class Told(Watched):
            def on_step_end(self):
                if len(self.phases) >= 2:  # as the taps, from the third step on
                    self.use_work({"shapes": shapes})
                super().on_step_end()

        def make(rank):
            optimizer = Told(rank, settings)
            optimizer.load_state_dict(kept)
            return optimizer

        return Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 45, make)

    kept = run("8x128", {}).first.state_dict()
    assert run("8x128", kept).course == [step for step in FULL_COURSE if step is not PlanningPhase.PROFILING]
    assert run("8x132", kept).course == FULL_COURSE


def watched(*seconds):
    watch = WorkWatch()
    for one in seconds:
        watch.add(one)
    return watch.change_factor


def test_work_has_changed_if_three_iterations_in_a_row_say_so():
    assert watched() == watched(1.0, 1.0, 1.0) == 1.0
    assert watched(1.0, 1.0, 1.0, 1.5, 1.5) <= 1.0
    assert watched(1.0, 1.0, 1.0, 1.5, 1.4, 1.6) == pytest.approx(1.4)
    assert watched(1.0, 1.0, 1.0, 0.5, 0.6, 0.4) == pytest.approx(0.6)


def test_work_has_changed_if_all_ranks_say_so():
    assert is_other_work([1.3, 1.2])
    assert is_other_work([0.8, 0.7])
    assert not is_other_work([1.3, 1.1])
    assert not is_other_work([1.3, 0.7])
