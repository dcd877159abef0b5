"""The result of planning, as people see it at the end of training."""

import math
import re
from dataclasses import replace

import pytest

from tests.support.pipeline_jobs import a_job
from tests.support.pipeline_training import A100, Run, Watched, trained, works
from zeus_core.device import SimulatedNoise
from zeus_core.errors import DeviceHeldError
from zeus_core.pipeline import PipelineFrequencySettings, schedules
from zeus_core.pipeline.optimizer._deployment import Deployment, PlanPrediction
from zeus_core.pipeline.optimizer._plan_result import PlanResult
from zeus_core.pipeline.optimizer._replaying import MeasuredIterations
from zeus_core.pipeline.optimizer.frequency_phases import Planned, PlanningPhase
from zeus_core.pipeline.profile.iterations import IterationCost
from zeus_core.pipeline.testing import SimulatedJob
from zeus_core.testing import FaultyGpu

BEFORE = IterationCost(2.0, (1.9,), 2000.0, 0.01, 10.0)
PREDICTED = PlanPrediction(2.0, 1690.0)
AFTER = IterationCost(2.02, (1.9,), 1700.0, 0.01, 8.0)


def rows(phase=PlanningPhase.REPLAYING, baseline=BEFORE, predicted=PREDICTED, measured=AFTER, steps=12, **facts):
    comparison = None if measured is None else MeasuredIterations(BEFORE, measured)
    return PlanResult(phase, baseline, predicted, comparison, steps, 30.0, **facts).rows()


def test_a_plan_in_force_says_what_it_saves_with_its_uncertainty():
    assert rows() == {
        "clock plan": "in force for each instruction",
        "before": "2 s and 2 kJ per iteration",
        "after": "2.02 s and 1.7 kJ per iteration",
        "saving": "300 ±13 J per iteration (15.0% ±0.6)",
        "slowdown": "+1.0% ±0.7 time per iteration",
        "profiling": "12 iterations, 6 s longer than at the original clocks",
    }


def test_a_saving_within_its_uncertainty_is_not_one():
    after = IterationCost(2.0, (1.9,), 1990.0, 0.01, 30.0)
    assert rows(measured=after)["saving"] == "too small to be certain: 0.5% ±1.6"
    assert "saving" not in rows(measured=IterationCost(2.0, (1.9,), None))
    assert rows(measured=IterationCost(2.0, (1.9,), 1000.0, math.inf, math.inf))["saving"].startswith("too small")


SAVED = "300 ±13 J per iteration (15.0% ±0.6)"


@pytest.mark.parametrize(
    "phase", [PlanningPhase.JUDGING, PlanningPhase.BASELINE, PlanningPhase.PLANNING, PlanningPhase.OFF]
)
def test_the_latest_measured_saving_outlives_the_plan_with_the_reason(phase):
    later = IterationCost(2.3, (2.2,), 2300.0, 0.01, 10.0)
    shown = rows(phase, later, predicted=None, reason="an iteration took 2.3 s")
    assert (shown["saving"], shown["before"]) == (SAVED, "2 s and 2 kJ per iteration")
    assert shown["clock plan"].startswith("none")
    assert shown["clock plan"].endswith(": an iteration took 2.3 s")


def test_a_new_plan_is_shown_beside_what_the_earlier_one_saved():
    shown = rows(measured=None, earlier=MeasuredIterations(BEFORE, AFTER))
    assert shown["earlier plan"] == f"saving {SAVED}, slowdown +1.0% ±0.7 time per iteration"
    assert {"before", "predicted"} < shown.keys()
    assert "earlier plan" not in rows(earlier=MeasuredIterations(BEFORE, AFTER))


def test_a_plan_is_in_force_once_an_iteration_has_run_with_it():
    assert rows(measured=None)["clock plan"] == "in force for each instruction"
    assert rows(measured=None, has_replayed=False)["clock plan"] == "made, but no iteration has run with it"
    assert rows(reason="nobody waits")["clock plan"] == "none: nobody waits"


def test_before_the_first_comparison_there_is_a_prediction():
    shown = rows(measured=None)
    assert shown["predicted"] == "2 s and 1.69 kJ per iteration"
    assert "saving" not in shown


def test_plans_that_are_kept_after_judging_predict_from_the_later_baseline():
    later = IterationCost(2.1, (2.0,), 2080.0, 0.01, 10.0)
    usual = Deployment(((None,),), 1.9, PlanPrediction(2.0, 845.0))
    waiting = replace(usual, is_waiting=True)
    kept = Planned(a_job([(0,)]), BEFORE, [usual, waiting], None).compared_with(later)
    assert kept.baseline is later
    assert kept.deployments[0].prediction == PlanPrediction(pytest.approx(2.1), pytest.approx(885.0))
    assert kept.deployments[1] == waiting, "until another pipeline has ended, as before"
    lost = IterationCost(2.1, (2.0,), None)
    assert kept.compared_with(lost).deployments[0].prediction.energy_joules == pytest.approx(885.0)


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        (PlanningPhase.PROFILING, "none yet: training ended in the phase 'profiling'"),
        (PlanningPhase.OBSERVED, "not permitted"),
        (PlanningPhase.OFF, "a reason that was logged"),
    ],
)
def test_without_a_plan_it_says_why(phase, text):
    shown = rows(phase, predicted=None, measured=None)
    assert text in shown["clock plan"]
    assert shown.keys() == {"clock plan", "profiling"}


def shown_by(capsys, steps, settings=None, **arguments):
    """Train two stages, and return the boxes."""
    job = SimulatedJob(schedules.one_f_one_b(2, 4), works(2, A100), **arguments)
    run = Run(job, steps, lambda rank: Watched(rank, settings))
    return run, capsys.readouterr().err.split("+- zeus-core ")[1:]


def test_the_result_of_a_training_that_ends_while_its_plan_is_judged(capsys):
    def slowed_by(pipeline, step):
        return 1.1 if step > 50 else 1.0

    run, (box,) = shown_by(capsys, 67, slowed_by=slowed_by)
    assert run.first.phases[-1] is PlanningPhase.JUDGING
    assert re.search(r"clock plan +none at the end, as it was judged again: an iteration took [\d.]+ s", box)
    assert re.search(r"saving +[\d.]+ ±[\d.]+ J per iteration", box)


def test_a_plan_that_no_iteration_has_run_with_is_not_in_force(capsys):
    planned = trained().steps_of(PlanningPhase.PLANNING)[-1]
    job = SimulatedJob(schedules.one_f_one_b(2, 8), works(2))
    capsys.readouterr()
    run = Run(job, planned + 1)
    box = capsys.readouterr().err
    assert run.first.phases[-1] is PlanningPhase.PLANNING
    assert "made, but no iteration has run with it" in box
    assert "in force" not in box


def test_the_box_names_who_holds_the_gpu(capsys):
    held = DeviceHeldError("process 4711 (python) controls the GPU")

    def make(rank):
        rank.monitor.gpus[0] = gpu = FaultyGpu(rank.gpu)
        gpu.fail("lock_sm_clock", held)
        return Watched(rank)

    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 30, make)
    assert run.first.result()["clock plan"] == f"none: {held}"


@pytest.mark.long
def test_the_first_rank_shows_it_once_and_it_is_true(capsys):
    run, (box,) = shown_by(capsys, 50, noise=SimulatedNoise(0.01, 0.01, seed=3))
    truth = 1 - run.joules(run.steps_of(PlanningPhase.REPLAYING)[-10:]) / run.joules(
        run.steps_of(PlanningPhase.BASELINE)
    )
    saving, uncertainty = re.search(r"saving .*\((.+)% ±(.+)\)", box).groups()
    assert abs(float(saving) - 100 * truth) <= float(uncertainty) + 1.0
    assert [observer.result() for observer in run.observers.values()] == [run.first.result()] * 2


def test_training_that_is_too_short_says_so_and_quiet_says_nothing(capsys):
    _, (box,) = shown_by(capsys, 3)
    assert "training ended in the phase 'warming up'" in box
    _, boxes = shown_by(capsys, 3, PipelineFrequencySettings(quiet=True))
    assert boxes == []
    _, boxes = shown_by(capsys, 0)
    assert boxes == []
