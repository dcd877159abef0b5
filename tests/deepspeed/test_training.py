"""Perseus on real engines: from the first batch to the deployed plan, in virtual time."""

import inspect

import pytest
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint

from tests.deepspeed.engines import run_engines
from tests.deepspeed.virtual_engine import Trainer
from tests.support.virtual_time import A100, Run, SharedTimes, true_profile
from zeus_core.pipeline import Frontier, make_plan, schedules


@pytest.fixture(autouse=True)
def simulated_gpus(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", f"{A100}:4")  # found, and then not used


def train(times, steps, *arguments, **options):
    trainer = Trainer(times, *arguments, **options)
    trainer.train(steps)
    return trainer.end()


def train_without(times, steps, *arguments):
    return train(times, steps, *arguments, perseus={"enabled": False})


@pytest.mark.parametrize(
    ("stages", "microbatches", "model"),
    [
        (2, 8, A100),
        pytest.param(2, 16, "A40", marks=pytest.mark.long),  # the other pairs: with threads, in tests/optimizer
        pytest.param(4, 8, A100, marks=pytest.mark.long),
    ],
)
def test_the_plan_gives_what_it_promises_and_the_losses_are_the_same(stages, microbatches, model):
    times = SharedTimes(stages, microbatches)
    run = Run(run_engines(stages, train, times, 46, stages, microbatches, model))
    run.check_against(true_profile(stages, model), schedules.one_f_one_b(stages, microbatches))
    losses = run_engines(stages, train_without, times, 46, stages, microbatches, model)
    assert [record.losses for record in run.records] == losses


def train_with_a_straggler(times):
    trainer = Trainer(times, 2, 8, A100, pipelines=2)
    trainer.train(40)
    if trainer.engine.grid.get_data_parallel_id() == 1:
        trainer.slow_down(1.2)
    trainer.train(20)
    trainer.slow_down(1.0)
    trainer.train(10)
    return trainer.end()


@pytest.mark.long
def test_a_pipeline_borrows_the_time_of_a_slower_one_and_returns_it():
    run = Run(run_engines(4, train_with_a_straggler, SharedTimes(2, 8, pipelines=2)))
    quick = [rank for rank in range(4) if rank % 2 == 0]  # stage 0 and 1 of pipeline 0
    usual, waiting = range(30, 40), range(46, 60)
    until = run.seconds(waiting)
    assert until == pytest.approx(1.2 * run.seconds(usual), rel=0.01)
    frontier = Frontier.from_profile(run.records[0].latest["profile"], schedules.one_f_one_b(2, 8))
    plain = make_plan(frontier, slowdown_factor=1.0).energy_joules_until(until)
    best = make_plan(frontier, straggler_seconds=until).energy_joules_until(until)
    assert run.joules([40, 41], quick) - run.joules(waiting, quick) >= 0.8 * (plain - best)
    assert run.seconds(range(63, 70)) == pytest.approx(run.seconds(usual), rel=0.005)
    assert run.joules(range(63, 70)) == pytest.approx(run.joules(usual), rel=0.005)


def train_and_evaluate(times):
    trainer = Trainer(times, 2, 4, A100)
    evaluations = []
    for _ in range(20):
        trainer.train(2)
        evaluations.append(trainer.evaluate())
    record = trainer.end()
    return record, evaluations


def train_and_evaluate_without(times):
    trainer = Trainer(times, 2, 4, A100, perseus={"enabled": False})
    evaluations = []
    for _ in range(20):
        trainer.train(2)
        evaluations.append(trainer.evaluate())
    return trainer.end(), evaluations


@pytest.mark.long
def test_evaluation_runs_at_the_original_clocks_and_changes_nothing():
    times = SharedTimes(2, 4)
    records, evaluations = zip(*run_engines(2, train_and_evaluate, times), strict=True)
    losses, plain = zip(*run_engines(2, train_and_evaluate_without, times), strict=True)
    assert evaluations == plain
    assert [record.losses for record in records] == list(losses)
    assert records[0].end_phase == "replaying"
    assert {clock for record in records for clock in record.clocks_at_pauses} == {1410}


def train_in_two_parts(times, folder):
    trainer = Trainer(times, 2, 8, A100)
    trainer.train(26)
    trainer.engine.save_checkpoint(folder, client_state={"mine": 1})
    first = trainer.end()
    trainer = Trainer(times, 2, 8, A100)
    _, client_state = trainer.engine.load_checkpoint(folder)
    trainer.train(14)
    return first, trainer.end(), client_state["mine"]


@pytest.mark.long
def test_a_resumed_run_plans_from_the_profile_in_its_checkpoint(tmp_path):
    answers = run_engines(2, train_in_two_parts, SharedTimes(2, 8), str(tmp_path))
    for first, second, mine in answers:
        assert "profiling" in first.phases
        assert "profiling" not in second.phases
        assert second.end_phase == "replaying"
        assert second.latest["clocks"] == first.latest["clocks"]
        assert mine == 1


def train_with_more_microbatches(times):
    trainer = Trainer(times, 2, 4, A100)
    trainer.train(35)
    trainer.engine.set_train_batch_size(2 * 6)
    trainer.train(25)
    return trainer.end()


@pytest.mark.long
def test_another_number_of_microbatches_is_planned_for():
    run = Run(run_engines(2, train_with_more_microbatches, SharedTimes(2, 6)))
    assert run.records[0].phases[-1] == "replaying"
    assert "profiling" not in run.records[0].phases[36:]
    found = [step for step in run.steps_of("baseline") if step > 35]
    assert run.seconds(range(54, 60)) == pytest.approx(run.seconds(found), rel=0.001)
    assert run.joules(range(54, 60)) <= 0.97 * run.joules(found)


OPTIONS = {
    "ZeRO-1": {"zero_optimization": {"stage": 1}},
    "tied layers": {"module": {"is_tied": True}},
    "activation checkpointing": {"module": {"activation_checkpoint_interval": 1}, "pipeline": {"use_reentrant": False}},
}
if "Stream(" in inspect.getsource(non_reentrant_checkpoint):  # older releases checkpoint activations on GPUs only
    del OPTIONS["activation checkpointing"]


@pytest.mark.long
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_goes_with(options):
    run = Run(run_engines(2, train_so, SharedTimes(2, 8), options))
    run.check_plan(least_saved_fraction=0.08)


def train_so(times, options):
    return train(times, 46, 2, 8, A100, **options)
