"""A plan is deployed if it is predicted to save more than its error, and withdrawn if it does not save."""

import logging
import math
import random
from dataclasses import replace

import pytest

from tests.support.pipeline_training import Run, Watched, true_profile, works
from zeus_core.device import SimulatedGpu
from zeus_core.pipeline import Frontier, PipelineFrequencySettings, make_plan, schedules, write_plan
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.profile.iterations import IterationCost, Saving, SavingWatch
from zeus_core.pipeline.testing import SimulatedJob

BASELINE = IterationCost(2.0, (1.9,), 1000.0, 0.01, 10.0)


@pytest.fixture(autouse=True)
def ranks_are_threads():
    """Signals are guarded against in the main thread only, which says so."""
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.ERROR)
    yield
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.NOTSET)


@pytest.fixture
def gpus_that_idle(monkeypatch):
    """The work takes its time elsewhere, with some noise."""
    noise = random.Random(7)

    def execute(gpu, work):
        gpu._time_source.advance(work.seconds * (1 + 0.01 * noise.gauss(0.0, 1.0)))

    monkeypatch.setattr(SimulatedGpu, "execute", execute)


def test_no_plan_is_deployed_on_gpus_that_idle(gpus_that_idle, caplog):
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 160)
    assert run.course[-1] is PlanningPhase.OFF
    assert PlanningPhase.REPLAYING not in run.course
    assert "no plan is deployed" in caplog.text
    assert "the predicted saving is within its error" in caplog.text
    assert run.first.result()["clock plan"].startswith("none: the predicted saving is within its error")


def test_mutually_waiting_pipelines_stay_at_original_clocks_until_one_waits(gpus_that_idle):
    run = Run(SimulatedJob(schedules.one_f_one_b(1, 8), works(1), pipelines=2), 160)
    assert run.course[-1] is PlanningPhase.REPLAYING
    assert set(run.first.clocks_mhz or run.first.latest["clocks"]) == {None}


def plan_that_wastes(path):
    """All instructions at the lowest clock, which takes more energy than the highest."""
    truth = true_profile(works(2))
    plan = make_plan(Frontier.from_profile(truth, schedules.one_f_one_b(2, 8)), slowdown_factor=1.0)
    lowest_mhz = truth.instructions[0].options[-1].clock_mhz
    write_plan(replace(plan, clocks_mhz=tuple((lowest_mhz,) * len(clocks) for clocks in plan.clocks_mhz)), path)


def test_a_plan_that_costs_energy_is_withdrawn_with_the_reason(tmp_path, caplog):
    plan_that_wastes(tmp_path / "plan.json")
    settings = PipelineFrequencySettings(slowdown_factor=9.0, plan_path=str(tmp_path / "plan.json"))
    run = Run(SimulatedJob(schedules.one_f_one_b(2, 8), works(2)), 60, lambda rank: Watched(rank, settings))
    assert run.course == [
        PlanningPhase.WARMING_UP,
        PlanningPhase.BASELINE,
        PlanningPhase.REPLAYING,
        PlanningPhase.JUDGING,
        PlanningPhase.OFF,
    ]
    assert len(run.steps_of(PlanningPhase.REPLAYING)) == settings.check_steps
    assert "the plan is withdrawn, as it does not save: -" in caplog.text
    assert "withdrawn" in run.first.result()["clock plan"]
    assert run.is_restored()


def test_a_withdrawn_plan_stays_withdrawn_though_a_pipeline_waits_later(tmp_path):
    plan_that_wastes(tmp_path / "plan.json")
    settings = PipelineFrequencySettings(slowdown_factor=9.0, plan_path=str(tmp_path / "plan.json"), quiet=True)
    job = SimulatedJob(
        schedules.one_f_one_b(2, 8),
        works(2),
        pipelines=2,
        slowed_by=lambda pipeline, step: 1.2 if pipeline == 1 and step >= 50 else 1.0,
    )
    run = Run(job, 70, lambda rank: Watched(rank, settings))
    assert {observer.phases[-1] for observer in run.observers.values()} == {PlanningPhase.OFF}
    assert run.is_restored()
    assert run.joules(range(40, 50)) == pytest.approx(run.joules(run.steps_of(PlanningPhase.BASELINE)), rel=1e-6)


def measured(joules, uncertainty_joules=10.0):
    return IterationCost(2.0, (1.9,), joules, 0.01, uncertainty_joules)


def test_a_saving_is_the_latest_comparisons_mean_with_errors_of_both_sides():
    watch = SavingWatch(None)
    assert watch.saving(BASELINE) is None
    for joules in (2000.0, 880.0, 920.0, 900.0, 890.0, 910.0):
        watch.add(measured(joules))
    saving = watch.saving(BASELINE)
    assert saving == Saving(pytest.approx(100.0), pytest.approx(math.hypot(10.0, 10.0 / math.sqrt(5))))
    assert str(saving) == "100 ±11 J per iteration"
    assert watch.saving(IterationCost(2.0, (1.9,), None)) is None


def test_a_plan_is_doubted_when_it_costs_or_lacks_a_visible_saving():
    costs, shows, too_early, hidden = (SavingWatch(Saving(100.0, 20.0)) for _ in range(4))
    costs.add(measured(1050.0))
    assert costs.is_doubtful(BASELINE)
    for _ in range(3):
        assert not shows.is_doubtful(BASELINE)
        shows.add(measured(999.0))
        hidden.add(measured(999.0, 200.0))
    assert shows.is_doubtful(BASELINE)
    assert not hidden.is_doubtful(BASELINE)
    too_early.add(measured(999.0))
    assert not too_early.is_doubtful(BASELINE)
    assert not SavingWatch(None).is_doubtful(BASELINE)
