"""A run of a recurring job that a loop with accelerate trains, or a loop of its own."""

import pytest

from tests.accelerate.loop import Loop
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.jobs import RecurringJob, Target
from zeus_core.jobs._job_store import JobStore
from zeus_core.training import TrainingEnergy
from zeus_huggingface.accelerate import ZeusAccelerate


@pytest.fixture
def job(tmp_path):
    storage = f"sqlite:///{tmp_path}/zeus.db"
    return RecurringJob("nightly", [4, 8], 4, Target("loss", 1.0), 20, storage=storage, pending_folder=tmp_path)


def last_of(job):
    return JobStore(job._storage, job.name).runs()[-1].record.last


@pytest.mark.long
def test_a_loop_with_accelerate_reports_and_its_energy_is_measured(tmp_path, gpu, job, monitor):
    before = gpu.exact_energy_joules()
    with job.run() as run:
        loop = Loop(tmp_path, gpu, batch_size=run.batch_size)
        with ZeusAccelerate(loop.accelerator, monitor, quiet=True, recurring_run=run) as energy:
            for epoch in range(20):
                loop.train_and_log(steps=16)
                with energy.evaluation():
                    loss = 3.0 - epoch
                if run.report(epoch=epoch + 1, metric={"loss": loss}):
                    loop.accelerator.save_state(str(tmp_path / "checkpoint"))
                    break
    assert (run.outcome, epoch) == ("reached", 2)
    assert last_of(job).energy_joules == pytest.approx(gpu.exact_energy_joules() - before, rel=0.02)
    assert last_of(job).cost > 0


def test_a_loop_of_its_own_reports_and_its_energy_is_measured(gpu, job, monitor, work):
    before = gpu.exact_energy_joules()
    with job.run() as run, TrainingEnergy(monitor, quiet=True, recurring_run=run) as energy:
        for epoch in range(20):
            for _ in range(10):
                with energy.step(samples=run.batch_size):
                    gpu.execute(work)
            with energy.during(Activity.EVALUATION):
                gpu.execute(work)
            if run.report(epoch=epoch + 1, metric=3.0 - epoch):
                break
    assert (run.outcome, epoch) == ("reached", 2)
    assert last_of(job).energy_joules == pytest.approx(gpu.exact_energy_joules() - before, rel=0.02)


def test_a_report_after_the_training_has_its_energy(gpu, job, monitor, work):
    with job.run() as run:
        with TrainingEnergy(monitor, quiet=True, recurring_run=run) as energy:
            for _ in range(10):
                with energy.step():
                    gpu.execute(work)
        assert run.report(epoch=1, metric=0.5)
    assert last_of(job).energy_joules == pytest.approx(energy.summary.account.total.energy_joules)


def test_a_loop_that_says_how_far_it_is_can_be_measured(gpu, job, monitor, work):
    steps = []

    def train(run):
        with TrainingEnergy(monitor, quiet=True, recurring_run=run) as energy:
            for number in range(1, 1_000):
                with energy.step(samples=run.batch_size):
                    gpu.execute(work)
                if run.progress(epoch=number * run.batch_size / 400):
                    break
        steps.append(number)

    job.measure_epochs(train)
    assert all(5 / work.seconds <= count < 15 / work.seconds + 6 for count in steps)
    runs = [stored.record for stored in JobStore(job._storage, job.name).runs()]
    joules = gpu.preset.physics.operating_point(work, 350).energy_joules
    last, first = runs[0].evaluations[-1], runs[0].evaluations[0]
    assert last.energy_joules - first.energy_joules == pytest.approx(
        joules * (last.epoch - first.epoch) * 100, rel=0.02
    )
    assert runs[0].epoch_cost == pytest.approx(2 * runs[1].epoch_cost, rel=0.02)


def test_something_else_is_refused(monitor):
    with pytest.raises(UsageError, match="recurring_run is 3; it must be the run of a recurring job"):
        TrainingEnergy(monitor, recurring_run=3)
