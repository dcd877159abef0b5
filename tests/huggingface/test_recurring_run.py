"""A run of a recurring job that a Trainer trains: its evaluations are reported, and it ends the training."""

import os

import pytest
import torch

from tests.huggingface.trainers import BACKWARD, FORWARD, make_trainer
from tests.support.ranks import run_ranks
from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import UsageError
from zeus_core.jobs import RecurringJob, Target
from zeus_core.jobs._job_store import JobStore
from zeus_core.jobs.policies import BatchProposal
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import Energy
from zeus_core.pytorch import SimulatedCompute, torch_world
from zeus_core.testing import VirtualTime
from zeus_huggingface import ZeusTrainerCallback

STEPS_PER_EPOCH = 30  # 60 examples, 2 a step


class Bounded:
    def __init__(self, max_cost=None):
        self.max_cost = max_cost

    def propose(self, problem, runs, seed):
        return BatchProposal(problem.default, self.max_cost)


def job_in(folder, target, **changes):
    settings = {"max_epochs": 8, "storage": f"sqlite:///{folder}/zeus.db", "pending_folder": folder / "pending"}
    return RecurringJob("nightly", [2, 4], 2, target, **{**settings, **changes})


def trained(folder, run, monitor, gpu, callbacks=(), **arguments):
    callback = ZeusTrainerCallback(monitor, quiet=True, recurring_run=run)
    settings = {"num_train_epochs": 5, "eval_strategy": "epoch", **arguments}
    trainer = make_trainer(folder, [callback, *callbacks], **settings)
    SimulatedCompute(trainer.model, gpu, FORWARD, BACKWARD)
    trainer.train()
    return trainer


def record_of(job):
    return JobStore(job._storage, job.name).runs()[-1].record


def test_training_ends_when_an_evaluation_reaches_the_target(tmp_path, monitor, gpu):
    job = job_in(tmp_path, Target("eval_loss", 3.4))
    with job.run() as run:
        trainer = trained(tmp_path, run, monitor, gpu)
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert run.outcome == "reached"
    assert losses[-1] <= 3.4 < min(losses[:-1], default=9.0)
    assert trainer.state.global_step == STEPS_PER_EPOCH * len(losses) < 5 * STEPS_PER_EPOCH
    record = record_of(job)
    assert [evaluation.metric for evaluation in record.evaluations] == losses
    assert record.gpu_model == gpu.name


def test_energy_time_and_cost_are_those_of_the_training(tmp_path, monitor, gpu, time_source):
    before, begin = gpu.exact_energy_joules(), time_source.now()
    job = job_in(tmp_path, Target("eval_loss", 0.0))
    with job.run() as run:
        trained(tmp_path, run, monitor, gpu, num_train_epochs=2)
    last = record_of(job).last
    seconds, joules = time_source.now() - begin, gpu.exact_energy_joules() - before
    assert (last.seconds, last.energy_joules) == (pytest.approx(seconds, rel=0.02), pytest.approx(joules, rel=0.02))
    highest = gpu.read_power_limit_range_watts().highest_watts
    assert last.cost == pytest.approx(0.5 * last.energy_joules + 0.5 * highest * last.seconds)
    assert run.outcome == "stopped", "the training ended short of its target"


def test_a_training_that_cannot_pay_off_ends_properly_with_its_checkpoint(tmp_path, monitor, gpu):
    job = job_in(tmp_path, Target("eval_loss", 0.0), objective=Energy(), policy=Bounded(20_000.0))
    with job.run() as run:
        trainer = trained(tmp_path, run, monitor, gpu, save_strategy="steps", save_steps=10_000)
    assert run.outcome == "stopped"
    assert 0 < run.cost <= 20_000
    steps = trainer.state.global_step
    assert STEPS_PER_EPOCH <= steps < 5 * STEPS_PER_EPOCH
    assert (tmp_path / f"checkpoint-{steps}" / "trainer_state.json").exists()
    assert "train_loss" in trainer.state.log_history[-1], "the training ended as any other"


def test_an_epoch_of_each_batch_size_is_measured_in_a_few_steps(tmp_path, monitor, gpu, time_source):
    """A step takes the same here at each batch size, so that an epoch of twice the batch takes half."""
    job, steps = job_in(tmp_path, Target("eval_loss", 3.4), objective=Energy()), []

    def train(run):
        settings = {"per_device_train_batch_size": run.batch_size, "eval_strategy": "no", "num_train_epochs": 9}
        steps.append(trained(tmp_path, run, monitor, gpu, **settings).state.global_step)

    job.measure_epochs(train, seconds=10.0)
    step = FORWARD.seconds + BACKWARD.seconds
    assert all(10 / step <= count < 20 / step + 6 for count in steps), steps
    measured = {stored.record.batch_size: stored.record for stored in JobStore(job._storage, job.name).runs()}
    joules = sum(gpu.preset.physics.operating_point(work, 350).energy_joules for work in (FORWARD, BACKWARD))
    for size, record in measured.items():
        assert record.epoch_cost == pytest.approx(60 / size * joules, rel=0.02)
    assert list(measured) == [2, 4]


@pytest.mark.long
def test_who_saves_no_checkpoints_gets_none(tmp_path, monitor, gpu):
    with job_in(tmp_path, Target("eval_loss", 99.0)).run() as run:
        trained(tmp_path, run, monitor, gpu)
    assert run.outcome == "reached"
    assert list(tmp_path.glob("checkpoint-*")) == []


@pytest.mark.long
def test_an_evaluation_before_the_first_step_or_after_a_decision_changes_nothing(tmp_path, monitor, gpu):
    job = job_in(tmp_path, Target("eval_loss", 99.0))
    with job.run() as run:
        trainer = trained(tmp_path, run, monitor, gpu, eval_on_start=True)
        trainer.evaluate()
    assert len(record_of(job).evaluations) == 1


@pytest.mark.long
def test_an_evaluation_after_the_training_counts(tmp_path, monitor, gpu):
    job = job_in(tmp_path, Target("eval_loss", 99.0))
    with job.run() as run:
        trained(tmp_path, run, monitor, gpu, eval_strategy="no", num_train_epochs=1).evaluate()
    assert run.outcome == "reached"
    assert record_of(job).last.energy_joules > 0


@pytest.mark.long
def test_the_metrics_and_losses_of_the_training_are_those_without_a_run(tmp_path, monitor, gpu):
    with job_in(tmp_path, Target("eval_loss", 0.0)).run() as run:
        with_run = trained(tmp_path / "with", run, monitor, gpu)
    without = trained(tmp_path / "without", None, monitor, gpu)
    kept = [
        [entry["loss"] for entry in trainer.state.log_history if "loss" in entry] for trainer in (with_run, without)
    ]
    assert kept[0] == kept[1]


def test_without_a_gpu_training_goes_on_and_the_cost_is_not_known(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv("ZEUS_SIMULATED_GPUS", raising=False)
    job = job_in(tmp_path, Target("eval_loss", 99.0))
    with job.run() as run:
        callback = ZeusTrainerCallback(quiet=True, recurring_run=run)
        make_trainer(tmp_path, [callback], num_train_epochs=1, eval_strategy="epoch").train()
    assert (run.outcome, run.cost) == ("reached", None)
    assert "the energy of the run is not known, and so neither is the cost" in caplog.text


def test_something_else_is_refused(monitor):
    with pytest.raises(UsageError, match="recurring_run is 3; it must be the run of a recurring job"):
        ZeusTrainerCallback(monitor, recurring_run=3)


@pytest.mark.long
def test_all_ranks_end_at_the_same_step_by_rank_0s_history(tmp_path):
    """Two processes of a gloo job, each with a GPU of its own; rank 1 has no database."""
    assert len({tuple(answer) for answer in run_ranks(2, train_rank, tmp_path)}) == 1
    (stored,) = JobStore(f"sqlite:///{tmp_path}/0.db", "nightly").runs()
    assert (stored.record.outcome, stored.record.ranks, stored.record.batch_size) == ("reached", 2, 2)
    assert stored.record.last.cost > 0
    assert not (tmp_path / "1.db").exists()


def train_rank(folder):
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo")
    time_source = VirtualTime()
    gpu = SimulatedGpu(find_preset("A40"), rank, time_source=time_source)
    monitor = ZeusMonitor(gpus=[gpu], time_source=time_source)
    job = job_in(folder, Target("eval_loss", 3.42), world=torch_world(), storage=f"sqlite:///{folder}/{rank}.db")
    with job.run() as run:
        steps = trained(
            folder, run, monitor, gpu, per_device_train_batch_size=run.batch_size_per_rank, learning_rate=3e-4
        ).state.global_step
    return [steps, run.batch_size, run.outcome, run.cost]
