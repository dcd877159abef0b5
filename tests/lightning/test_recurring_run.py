"""A run of a recurring job that a Lightning trainer trains: its validations are reported, and it ends the training."""

import pickle

import pytest
import torch

from tests.lightning.trainers import loader, make_trainer, module_class, step_joules
from zeus_core.errors import UsageError
from zeus_core.jobs import RecurringJob, Target
from zeus_core.jobs._job_store import JobStore
from zeus_core.jobs.policies import BatchProposal
from zeus_core.optimizer import Energy
from zeus_lightning import ZeusCallback

BATCHES = 5


class Bounded:
    def propose(self, problem, runs, seed):
        return BatchProposal(problem.default, 6_000.0)


def job_in(folder, target, **changes):
    settings = {"max_epochs": 8, "storage": f"sqlite:///{folder}/zeus.db", "pending_folder": folder / "pending"}
    return RecurringJob("nightly", [2, 4], 4, target, **{**settings, **changes})


def trained(pl, folder, run, monitor, gpu, **arguments):
    class Module(module_class(pl)):
        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.layer(batch).square().mean())

    callback = ZeusCallback(monitor, quiet=True, recurring_run=run)
    settings = {"max_epochs": 6, "max_steps": -1, **arguments}
    trainer = make_trainer(folder, [callback], pl, **settings)
    trainer.fit(Module(gpu), loader(BATCHES), loader(2))
    return trainer


def record_of(job):
    return JobStore(job._storage, job.name).runs()[-1].record


def test_training_ends_when_a_validation_reaches_the_target(pl, tmp_path, monitor, gpu):
    job = job_in(tmp_path, Target("val_loss", 0.3))
    with job.run() as run:
        trainer = trained(pl, tmp_path, run, monitor, gpu, num_sanity_val_steps=2)
    evaluations = record_of(job).evaluations
    assert run.outcome == "reached"
    assert [evaluation.epoch for evaluation in evaluations] == [float(n + 1) for n in range(len(evaluations))]
    assert evaluations[-1].metric <= 0.3
    assert trainer.global_step == BATCHES * len(evaluations) < 6 * BATCHES
    assert evaluations[-1].energy_joules > 0


def test_a_training_that_cannot_pay_off_ends_properly_with_its_checkpoint(pl, tmp_path, monitor, gpu):
    job = job_in(tmp_path, Target("val_loss", 0.0), objective=Energy(), policy=Bounded())
    with job.run() as run:
        trainer = trained(pl, tmp_path, run, monitor, gpu, enable_checkpointing=True, val_check_interval=BATCHES)
    assert run.outcome == "stopped"
    assert 0 < run.cost <= 6_000
    steps = trainer.global_step
    assert BATCHES <= steps < 6 * BATCHES
    kept = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
    assert kept["global_step"] == steps


def test_an_epoch_is_measured_in_a_few_steps_ending_in_its_middle(pl, tmp_path, monitor, gpu):
    job, steps = job_in(tmp_path, Target("val_loss", 0.3), objective=Energy()), []

    def train(run):
        module = module_class(pl)(gpu)
        callbacks = [ZeusCallback(monitor, quiet=True, recurring_run=run)]
        trainer = make_trainer(tmp_path, callbacks, pl, max_epochs=9, max_steps=-1)
        trainer.fit(module, loader(30))
        steps.append(trainer.global_step)

    job.measure_epochs(train, seconds=5.0)
    assert all(9 <= count < 18 for count in steps), steps
    records = [stored.record for stored in JobStore(job._storage, job.name).runs()]
    assert [record.batch_size for record in records] == [2, 4]
    assert [record.epoch_cost for record in records] == pytest.approx([30 * step_joules(gpu)] * 2, rel=0.02)


@pytest.mark.long
def test_a_validation_in_mid_epoch_is_reported_at_its_place(tmp_path, monitor, gpu):
    import lightning.pytorch as pl

    job = job_in(tmp_path, Target("val_loss", 0.0))
    with job.run():
        pass
    with job.run() as run:
        trained(pl, tmp_path, run, monitor, gpu, max_epochs=1, val_check_interval=2)
    assert [evaluation.epoch for evaluation in record_of(job).evaluations] == [0.4, 0.8]


def test_a_validation_by_itself_is_not_reported(tmp_path, monitor, gpu):
    import lightning.pytorch as pl

    job = job_in(tmp_path, Target("val_loss", 99.0))
    with job.run() as run:
        module = module_class(pl)(gpu)
        make_trainer(tmp_path, [ZeusCallback(monitor, recurring_run=run)]).validate(module, loader(2), verbose=False)
        assert run.outcome == "running"


def test_a_copy_for_another_process_has_no_run(tmp_path, monitor):
    with job_in(tmp_path, Target("val_loss", 99.0)).run() as run:
        copy = pickle.loads(pickle.dumps(ZeusCallback(recurring_run=run)))
    assert copy._run is None


def test_something_else_is_refused():
    with pytest.raises(UsageError, match="recurring_run is 3; it must be the run of"):
        ZeusCallback(recurring_run=3)
