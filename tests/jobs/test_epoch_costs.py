"""The cost of an epoch of each batch size: measured before the first run, kept, and given to the policy."""

import json
import math

import optuna
import pytest

from tests.support.recurring import EPOCH_JOULES, EPOCHS, Untried, job_in, train, trained
from zeus_core.jobs import Target
from zeus_core.jobs._job_records import Evaluation, JobRun
from zeus_core.jobs._job_store import JobStore
from zeus_core.jobs._next_batch_size import epoch_costs
from zeus_core.jobs.policies import AdaptiveBatchSize, BatchProblem
from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize
from zeus_core.jobs.replay._workload import EpochAtLimit, RecordedSize, Workload
from zeus_core.jobs.replay.job_replay import Contestant, replay
from zeus_core.optimizer import Energy
from zeus_core.testing import ThreadWorld

PROBLEM = BatchProblem(tuple(EPOCHS), 64, 20, gpu_model="A40")


pytestmark = pytest.mark.usefixtures("here")


def train_a_little(run, steps_per_epoch=100, begin_joules=5000.0):
    """Train until the run says stop; the first steps, in which memory is allocated, are dear. Return the steps."""
    for step in range(1, 10_000):
        joules = begin_joules + EPOCH_JOULES[run.batch_size] * step / steps_per_epoch
        seconds = 60.0 + step * 0.5
        if run.progress(epoch=step / steps_per_epoch, energy_joules=joules, seconds=seconds):
            return step
    raise AssertionError("it was never told to stop")


def measured(job, **options):
    """Measure the epochs of a job, and return the batch sizes that it asked for."""
    asked = []

    def train_this(run):
        asked.append(run.batch_size)
        train_a_little(run, **options)

    job.measure_epochs(train_this)
    return asked


class Seeing(Untried):
    """Notes what it is told of the cost of an epoch."""

    def propose(self, problem, runs, seed):
        self.epoch_costs = dict(problem.epoch_costs)
        return super().propose(problem, runs, seed)


def test_each_batch_size_is_measured_once_without_the_begin_of_training(tmp_path):
    policy = Seeing()
    job = job_in(tmp_path, policy=policy, objective=Energy())
    assert measured(job) == [16, 32, 64, 128]
    assert measured(job) == []
    run = trained(job)
    assert run.batch_size == 64, "the default"
    assert policy.epoch_costs == pytest.approx(EPOCH_JOULES)


def test_measurements_are_in_the_history_with_all_their_costs(tmp_path):
    job = job_in(tmp_path, objective=Energy())
    measured(job)
    records = [stored.record for stored in JobStore(job._storage, job.name).runs()]
    assert [(record.batch_size, record.outcome) for record in records] == [(size, "measured") for size in EPOCHS]
    assert all(5000 < record.last.cost < 5300 for record in records)
    assert {record.to_batch_run().outcome for record in records} == {"failed"}, "they say nothing of the target"
    study = optuna.load_study(study_name="nightly", storage=job._storage)
    assert {trial.state.name for trial in study.trials} == {"PRUNED"}


def test_a_run_that_measures_lasts_some_seconds_or_an_epoch(tmp_path):
    lasted = []
    job_in(tmp_path).measure_epochs(lambda run: lasted.append(train_a_little(run, 10_000)), seconds=20.0)
    assert all(40 <= steps < 80 for steps in lasted), lasted  # half a second each, and some before
    short = []
    job_in(tmp_path, name="short").measure_epochs(lambda run: short.append(train_a_little(run, 10)), seconds=1e4)
    assert all(13 <= steps < 30 for steps in short), short


def test_the_service_chooses_what_the_replay_does_with_measured_epochs(tmp_path):
    """The number that the documentation gives for the default strategy is that of the service."""
    epochs = {16: 3, 32: 4, 64: 8, 128: 16}
    sizes = {
        size: RecordedSize((count,), {300: EpochAtLimit(EPOCH_JOULES[size] / 300, EPOCH_JOULES[size])})
        for size, count in epochs.items()
    }
    contestant = Contestant("adaptive", AdaptiveBatchSize(), measured_epoch_fraction=0.1)
    expected = replay([Workload("job", "A40", sizes, 64, 20, 400.0)], contestant, 0, recurrences=5)
    job = job_in(tmp_path, policy=None)
    job.measure_epochs(steps_like_epochs)
    runs, chosen = 0, []
    while runs < 5:
        run = trained(job, epochs=epochs)
        chosen.append((run.batch_size, run.outcome))
        runs += run.outcome == "reached"
    assert chosen == [(one.run.batch_size, one.run.outcome) for one in expected.runs]


def steps_like_epochs(run):
    """Train in steps that take time and energy as the epochs of `train` do."""
    for step in range(1, 200):
        joules = EPOCH_JOULES[run.batch_size] * step / 100
        if run.progress(epoch=step / 100, energy_joules=joules, seconds=joules / 300):
            return


def record(size, outcome, joules_per_epoch, epochs=4.0, **changes):
    begin = (Evaluation(1.0, None, 10.0, 0.0, 700.0),) if outcome == "measured" else ()
    cost = joules_per_epoch * (epochs - 1) + 700.0 if begin else joules_per_epoch * epochs
    last = Evaluation(epochs, 0.5, 10.0, cost, cost)
    settings = {"max_cost": None, "gpu_model": "A40", "ranks": 1, "evaluations": (*begin, last), **changes}
    return JobRun(str(size), size, outcome, "", 0.0, **settings)


def test_a_killed_or_running_run_shows_the_cost_of_its_epochs():
    records = [record(16, "failed", 900.0), record(32, "running", 500.0), record(128, "failed", 0.0)]
    assert epoch_costs(records, PROBLEM, 1) == pytest.approx({16: 900.0, 32: 500.0})


def test_runs_that_tell_it_themselves_are_left_to_the_policy():
    assert epoch_costs([record(16, "reached", 900.0), record(32, "stopped", 500.0)], PROBLEM, 1) == {}


def test_runs_on_other_gpus_or_numbers_of_ranks_tell_nothing():
    records = [record(16, "measured", 900.0, gpu_model="H100"), record(32, "measured", 500.0, ranks=2)]
    assert epoch_costs(records, PROBLEM, 1) == {}


def test_what_was_measured_is_corrected_by_what_trainings_took():
    """Trainings evaluate, and have the power limit that is best: 20 % less here."""
    records = [record(size, "measured", joules) for size, joules in EPOCH_JOULES.items()]
    assert epoch_costs(records, PROBLEM, 1) == pytest.approx(EPOCH_JOULES)
    records += [record(64, "reached", 0.8 * EPOCH_JOULES[64])]
    expected = {size: 0.8 * joules for size, joules in EPOCH_JOULES.items() if size != 64}
    assert epoch_costs(records, PROBLEM, 1) == pytest.approx(expected)


class OutOfMemoryError(RuntimeError):
    """As torch's, by its name."""


def test_a_batch_size_out_of_memory_is_never_proposed_and_training_continues(tmp_path):
    job = job_in(tmp_path)

    def train_what_fits(run):
        if run.batch_size >= 32:
            raise OutOfMemoryError
        train_a_little(run)

    job.measure_epochs(train_what_fits)
    assert [trained(job).batch_size for _ in range(2)] == [16, 16]
    runs = JobStore(job._storage, job.name).runs()
    assert [(run.record.batch_size, run.record.outcome) for run in runs][:2] == [(16, "measured"), (32, "infeasible")]


def test_another_error_of_the_training_passes(tmp_path):
    def fail(run):
        raise ZeroDivisionError

    job = job_in(tmp_path)
    with pytest.raises(ZeroDivisionError):
        job.measure_epochs(fail)
    assert JobStore(job._storage, job.name).runs() == []


def test_a_training_that_ends_early_or_hides_its_progress_is_named(tmp_path, caplog):
    job = job_in(tmp_path)
    job.measure_epochs(lambda run: [run.progress(epoch=n / 100, energy_joules=n, seconds=n) for n in range(1, 3)])
    assert caplog.text.count("ended after 2 calls of progress(), too few to measure an epoch") == 4
    assert measured(job) == [16, 32, 64, 128], "the next call tries again"


def test_energy_that_is_not_known_is_said_and_measures_nothing(tmp_path, caplog):
    job = job_in(tmp_path, batch_sizes=[64])

    def train_without_energy(run):
        for step in range(1, 500):
            if run.progress(epoch=step / 100, seconds=float(step)):
                return

    job.measure_epochs(train_without_energy)
    assert "the energy of the run is not known" in caplog.text
    assert JobStore(job._storage, job.name).runs() == []


def test_wrong_arguments_end_a_training_that_measures(tmp_path, caplog):
    job_in(tmp_path, batch_sizes=[64]).measure_epochs(lambda run: run.progress(epoch=-1) or 1 / 0)
    assert "epoch is -1; it must be epochs trained so far" in caplog.text


def test_a_run_that_is_no_measurement_goes_on_whatever_its_progress(tmp_path):
    with job_in(tmp_path).run() as run:
        assert run.progress(epoch=0.1) is False
        train(run)
        assert run.progress(epoch=9.0) is True, "it has reached its target"


def test_evaluations_of_a_training_that_measures_are_not_reported(tmp_path):
    asked = []

    def train_and_evaluate(run):
        asked.append(run.report(epoch=0.1, metric=0.99))
        train_a_little(run)
        asked.append(run.report(epoch=0.5, metric=0.99))

    job = job_in(tmp_path, batch_sizes=[64])
    job.measure_epochs(train_and_evaluate)
    assert asked == [False, True]


def test_a_storage_that_cannot_be_reached_measures_nothing(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(JobStore, "declare", lambda *_: (_ for _ in ()).throw(OSError("connection refused")))
    assert measured(job_in(tmp_path)) == []
    assert "the cost of epochs is not measured: connection refused" in caplog.text


def test_all_ranks_measure_the_same_batch_sizes_for_equally_many_steps(tmp_path):
    def rank(world):
        name = "zeus" if world.rank == 0 else "none"
        job = job_in(tmp_path, world=world, storage=f"sqlite:///{tmp_path}/{name}.db", batch_sizes=[32, 64])
        steps = []
        job.measure_epochs(lambda run: steps.append(train_a_little(run)))
        return steps

    first, second = ThreadWorld.run(2, rank)
    assert first == second
    assert not (tmp_path / "none.db").exists()


def test_the_record_is_json_whatever_was_measured(tmp_path):
    job = job_in(tmp_path, target=Target("eval_loss", 1.0), policy=DefaultBatchSize())
    measured(job)
    document = json.dumps([stored.record.last.cost for stored in JobStore(job._storage, job.name).runs()])
    assert all(math.isfinite(cost) for cost in json.loads(document))
