"""A recurring job: what it proposes, keeps and says, with a database of its own and trainings that take no time."""

import contextlib
import dataclasses
import json
import logging
import math
import sqlite3
import threading
import types

import optuna
import pytest
import sqlalchemy.exc

from tests.support.recurring import BEST, EPOCHS, Untried, job_in, train, trained
from tests.support.variants import long_but_first
from zeus_core.errors import UsageError
from zeus_core.jobs import RecurringJob, Target
from zeus_core.jobs import _job_database as database
from zeus_core.jobs import _job_store as job_store
from zeus_core.jobs import _run_reporter as run_reporter
from zeus_core.jobs._job_store import JobStore
from zeus_core.jobs._next_batch_size import NextBatchSize
from zeus_core.jobs._run_rules import JobGpus, Spent
from zeus_core.jobs.policies import AdaptiveBatchSize, BatchProblem, BatchProposal
from zeus_core.optimizer import Energy, EnergyWithin, MaxSlowdownConstraint, Time, ZeusCost
from zeus_core.ports.world import SoloWorld
from zeus_core.testing import ThreadWorld

pytestmark = pytest.mark.usefixtures("here")


def history(job):
    return [stored.record for stored in JobStore(job._storage, job.name).runs()]


def outcomes(job):
    return [(record.batch_size, record.outcome) for record in history(job)]


def test_a_job_explores_its_batch_sizes_and_then_uses_the_cheapest(tmp_path):
    job = job_in(tmp_path)
    runs = [trained(job) for _ in range(6)]
    assert [run.batch_size for run in runs] == [64, 16, 32, 128, BEST, BEST]
    assert [run.outcome for run in runs] == ["reached", "reached", "reached", "stopped", "reached", "reached"]
    assert outcomes(job) == [(run.batch_size, run.outcome) for run in runs]
    assert [run.number for run in runs] == list(range(6))


def test_cost_is_energy_and_time_weighted_by_the_objective(tmp_path):
    for number, (objective, cost) in enumerate(
        [(Energy(), 3600.0), (Time(), 12.0), (ZeusCost(0.5, max_power_watts=400), 0.5 * 3600 + 0.5 * 400 * 12)]
    ):
        run = trained(job_in(tmp_path, name=f"job {number}", objective=objective))
        assert run.cost == pytest.approx(cost)


def test_a_run_that_cannot_pay_off_stops_before_it_exceeds_its_bound(tmp_path):
    job = job_in(tmp_path, policy=Untried(max_cost=1600.0), objective=Energy())
    with job.run() as run:
        assert run.max_cost == 1600.0
        assert train(run) == 3  # 450 J an epoch: the fourth would end at 1,800 J
    assert run.outcome == "stopped"
    assert history(job)[0].last.cost == 1350.0


def test_a_run_ends_after_the_most_epochs(tmp_path):
    job = job_in(tmp_path, max_epochs=6)
    run = trained(job)
    assert (run.outcome, history(job)[0].last.epoch) == ("stopped", 6)


def test_what_the_history_says_of_a_run_is_enough_for_a_policy(tmp_path):
    job = job_in(tmp_path)
    trained(job)
    (record,) = history(job)
    told = record.to_batch_run()
    assert (told.batch_size, told.outcome, told.epochs, told.gpu_model) == (64, "reached", 8, "A40")
    assert (told.seconds, told.energy_joules) == (12.0, 3600.0)
    assert told.cost == record.last.cost


def test_dashboards_of_optuna_see_the_runs(tmp_path):
    job = job_in(tmp_path)
    trained(job)
    trained(job, last_epoch=1)
    study = optuna.load_study(study_name="nightly", storage=f"sqlite:///{tmp_path}/zeus.db")
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    assert study.best_trial.params == {"batch_size": 64}
    assert study.best_value == history(job)[0].last.cost
    assert max(study.best_trial.intermediate_values.values()) == pytest.approx(0.84)


# The learning rate.


@pytest.mark.parametrize(
    ("rule", "rate"),
    long_but_first(
        [("linear", 4e-3), (lambda base, size, default: base * 7, 7e-3), ("square root", 2e-3), ("none", 1e-3)], count=2
    ),
)
def test_the_learning_rate_follows_the_batch_size_by_the_rule(tmp_path, rule, rate):
    job = job_in(tmp_path, batch_sizes=[16, 64], default=16, policy=Largest(), learning_rate_rule=rule)
    with job.run() as run:
        assert (run.batch_size, run.learning_rate(1e-3)) == (64, pytest.approx(rate))
        with pytest.raises(UsageError, match="base is 0; it must be a learning rate above 0"):
            run.learning_rate(0)


class Largest:
    def propose(self, problem, runs, seed):
        return BatchProposal(max(problem.batch_sizes))


# Bad input.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"default": 48}, "default is 48; it must be one of batch_sizes: 16, 32, 64, 128"),
        ({"batch_sizes": []}, r"batch_sizes is \(\); it must be batch sizes, such as \[64, 128, 256\]"),
        ({"batch_sizes": [64, 0.5]}, r"batch_sizes\[1\] is 0.5; it must be a whole number, at least 1"),
        ({"name": " "}, 'name is .*; it must be a name, such as "nightly"'),
        ({"target": 0.84}, r'target is 0.84; it must be a Target\("eval_accuracy", 0.84\)'),
        ({"max_epochs": 0}, "max_epochs is 0"),
        ({"objective": MaxSlowdownConstraint(1.1)}, "objective is .*, whose cost is a power limit"),
        ({"objective": EnergyWithin(1.1)}, "objective is EnergyWithin.*, and no run is the original of others"),
        ({"objective": "energy"}, "objective is 'energy'; it must be an Objective object"),
        ({"storage": "zeus.db"}, "storage is 'zeus.db'; it must be the URL of a database, such as sqlite:///zeus.db"),
        ({"policy": Untried}, "policy is .*; it must be a BatchSizePolicy object"),
        ({"learning_rate_rule": "cubic"}, "learning_rate_rule is 'cubic'; it must be one of 'linear', 'square root'"),
        ({"half_life_runs": 0}, "half_life_runs is 0"),
        ({"heartbeat_seconds": 0}, "heartbeat_seconds is 0"),
    ],
)
def test_a_wrong_argument_is_named(tmp_path, changes, message):
    with pytest.raises(UsageError, match=message):
        job_in(tmp_path, **changes)


@pytest.mark.parametrize(
    ("storage", "message"),
    [
        ("mysql+nodriver://user@host/jobs", "storage is .*nodriver.*, for which there is no driver: Can't load plugin"),
        ("oracle+oracledb://user:secret@host/jobs", r"storage is 'oracle.*\*\*\*@host.*no driver: No module named"),
    ],
)
def test_a_storage_whose_driver_is_not_installed_is_refused_before_any_training(tmp_path, storage, message):
    with pytest.raises(UsageError, match=message) as raised:
        job_in(tmp_path, storage=storage)
    assert "secret" not in str(raised.value)


def test_a_file_that_is_no_database_is_said_in_one_line(tmp_path, caplog):
    (tmp_path / "zeus.db").write_bytes(b"not a database" * 100)
    with job_in(tmp_path).run() as run:
        assert run.batch_size == 64
    (said,) = [entry.getMessage() for entry in caplog.records if "cannot be reached" in entry.getMessage()]
    assert said.endswith("(sqlite3.DatabaseError) file is not a database")


def test_a_target_knows_which_way_is_better():
    assert Target("eval_accuracy", 0.84).is_reached(0.85)
    assert Target("eval_loss", 2.0).is_reached(1.9)
    assert Target("test/WER", 0.1).is_higher_better is False
    assert Target("lossless", 1.0).is_higher_better
    assert not Target("eval_loss", 2.0, is_higher_better=True).is_reached(1.9)
    assert not Target("eval_accuracy", 0.84).is_reached(math.nan)
    with pytest.raises(UsageError, match=r"Target.value is nan"):
        Target("eval_accuracy", math.nan)


def test_optuna_missing_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    with pytest.raises(ModuleNotFoundError, match=r"optuna is not installed: pip install .*\[batch-size\]'"):
        job_in(tmp_path)


def test_a_metric_that_is_never_reported_is_said_with_those_that_were(tmp_path, caplog):
    job = job_in(tmp_path)
    with job.run() as run:
        assert not run.report(epoch=1, metric={"eval_loss": 2.0, "eval_f1": 0.5}, energy_joules=1.0)
    assert run.outcome == "failed"
    assert "eval_accuracy was never reported, so that this run says nothing; reported were: eval_f1, eval_loss" in (
        caplog.text
    )
    assert trained(job).batch_size == 64, "the run counts as if it had never begun"


@pytest.mark.parametrize("value", long_but_first([math.nan, "0.9", None, [0.9], math.inf], count=2))
def test_a_metric_that_is_no_number_misses_the_target_and_warns_once(tmp_path, caplog, value):
    job = job_in(tmp_path)
    with job.run() as run:
        for epoch in (1, 2):
            assert not run.report(epoch=epoch, metric=value, energy_joules=100.0 * epoch)
    assert caplog.text.count("which is no number and does not reach the target") == 1
    assert [evaluation.metric for evaluation in history(job)[0].evaluations] == [None, None]
    assert run.outcome == "stopped"


@pytest.mark.long
def test_a_target_that_no_run_reaches_is_said_with_the_best_value(tmp_path, caplog):
    job = job_in(tmp_path, target=Target("eval_accuracy", 0.99), max_epochs=5)
    for _ in range(5):
        trained(job)
    assert "has reached" not in caplog.text
    trained(job)
    assert "none of 5 runs of the job 'nightly' has reached eval_accuracy >= 0.99; the best value was 0.84" in (
        caplog.text
    )


def test_a_wrong_report_does_not_raise_into_training(tmp_path, caplog):
    with job_in(tmp_path).run() as run:
        assert run.report(epoch=0, metric=0.5) is False
        assert run.report(epoch="one", metric=0.9) is False
        assert not run.report(epoch=1, metric=0.5, energy_joules=1.0)
    assert caplog.text.count("epoch is 0; it must be epochs trained so far") == 1


def test_energy_that_is_not_known_leaves_the_cost_unknown_and_says_so(tmp_path, caplog):
    job = job_in(tmp_path)
    with job.run() as run:
        assert run.report(epoch=1, metric=0.9)
    assert run.outcome == "reached"
    assert run.cost is None
    assert "the energy of the run is not known" in caplog.text
    assert "objective=Time()" in caplog.text
    assert [trained(job_in(tmp_path, policy=AdaptiveBatchSize())).batch_size for _ in range(2)] == [64, 32]


def test_a_job_declared_otherwise_says_what_differs_and_what_to_do(tmp_path, caplog):
    trained(job_in(tmp_path))
    other = job_in(tmp_path, target=Target("eval_accuracy", 0.9), objective=Energy())
    with pytest.raises(UsageError, match="the job 'nightly' was declared with") as raised, other.run():
        pass
    assert "target eval_accuracy >= 0.84 instead of eval_accuracy >= 0.9" in str(raised.value)
    assert "objective ZeusCost(eta_knob=0.5, world_size=1, max_power_watts=400) instead of Energy()" in str(
        raised.value
    )
    assert "zeus-core jobs forget nightly" in str(raised.value)
    assert len(outcomes(job_in(tmp_path))) == 1


def test_other_batch_sizes_keep_the_history_and_are_said_once(tmp_path, caplog):
    trained(job_in(tmp_path))
    job = job_in(tmp_path, batch_sizes=[32, 64], max_epochs=30)
    trained(job)
    trained(job)
    assert caplog.text.count("batch sizes 16, 32, 64, 128 instead of 32, 64; max epochs 20 instead of 30") == 1
    assert outcomes(job) == [(64, "reached"), (32, "reached"), (32, "reached")]


def test_batches_that_the_ranks_cannot_share_are_left_out_or_refused(tmp_path, caplog):
    class Three(SoloWorld):
        size = 3

        def gather(self, value):
            return [value] * 3

    with (
        pytest.raises(UsageError, match="default is 64, which 3 ranks cannot share"),
        job_in(tmp_path, world=Three()).run(),
    ):
        pass
    job = job_in(tmp_path, batch_sizes=[12, 16, 24], default=24, world=Three())
    with job.run() as run:
        assert run.batch_size_per_rank == 8
    assert "3 ranks cannot share batches of 16: left out" in caplog.text


def test_a_rank_without_the_others_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="this process is one of 4, and world is None"), job_in(tmp_path).run():
        pass


def test_a_study_of_another_program_is_left_alone(tmp_path):
    study = optuna.create_study(study_name="nightly", storage=f"sqlite:///{tmp_path}/zeus.db")
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    with (
        pytest.raises(UsageError, match="name is 'nightly', which is a study of another program"),
        job_in(tmp_path).run(),
    ):
        pass


# Memory.


class OutOfMemoryError(RuntimeError):
    """As torch's, by its name."""


@pytest.mark.parametrize("error", long_but_first([OutOfMemoryError("x"), RuntimeError("CUDA error: out of memory")]))
def test_batch_sizes_from_one_out_of_memory_on_are_not_proposed_again(tmp_path, error):
    job = job_in(tmp_path)
    with pytest.raises(RuntimeError), job.run():
        raise error
    assert [trained(job).batch_size for _ in range(3)] == [16, 32, 32]
    assert outcomes(job)[0] == (64, "infeasible")


def test_all_batch_sizes_out_of_memory_is_an_error_that_says_so(tmp_path):
    job = job_in(tmp_path, batch_sizes=[64, 128])
    with pytest.raises(OutOfMemoryError), job.run():
        raise OutOfMemoryError
    with pytest.raises(UsageError, match="no batch size is left: a training can run at none of 64, 128"), job.run():
        pass
    elsewhere = job_in(tmp_path, batch_sizes=[64, 128], gpu_model="H100")
    assert trained(elsewhere).batch_size == 64, "another GPU model may have more memory"


def test_an_error_of_the_training_passes_and_costs_no_batch_size(tmp_path):
    job = job_in(tmp_path)
    with pytest.raises(KeyboardInterrupt), job.run():
        raise KeyboardInterrupt
    assert outcomes(job) == [(64, "failed")]
    assert trained(job).batch_size == 64


# Several processes. Threads stand for them here; test_real_jobs.py has processes, and a run that is killed.


def test_runs_that_overlap_have_different_batch_sizes(tmp_path):
    job = job_in(tmp_path)
    with job.run() as first, job_in(tmp_path).run() as second, job_in(tmp_path).run() as third:
        assert [run.batch_size for run in (first, second, third)] == [64, 16, 32]


def test_runs_that_begin_at_the_same_time_take_turns(tmp_path):
    """The policy is slow, so that all would see the same history if they did not."""
    trained(job_in(tmp_path))
    gate, sizes = threading.Barrier(3), []

    class Slow(Untried):
        def propose(self, problem, runs, seed):
            threading.Event().wait(0.1)
            return super().propose(problem, runs, seed)

    def begin():
        job = job_in(tmp_path, policy=Slow())
        gate.wait()
        with job.run() as run:
            sizes.append(run.batch_size)
            gate.wait()

    threads = [threading.Thread(target=begin) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sizes) == [16, 32, 128]


def test_a_database_file_created_by_another_process_opens_however_slow_the_disk(tmp_path, monkeypatch):
    """Both make its tables; the one that comes second learns so once the disk has answered."""
    kind, attempts = optuna.storages.RDBStorage, []

    def made_by_another(*arguments, **options):
        attempts.append(arguments)
        if len(attempts) == 1:
            raise sqlalchemy.exc.OperationalError("CREATE TABLE studies", {}, Exception("table studies already exists"))
        return kind(*arguments, **options)

    monkeypatch.setattr(optuna.storages, "RDBStorage", made_by_another)
    monkeypatch.setattr(database, "_OPEN_SECONDS", -1.0)
    trained(job_in(tmp_path))
    assert len(attempts) >= 2


@pytest.mark.parametrize(
    "text",
    long_but_first(["database is locked", "table studies already exists", "UNIQUE constraint failed: studies.name"]),
)
def test_a_race_of_many_processes_is_tried_again_until_it_has_passed(tmp_path, monkeypatch, text):
    """Whichever request meets it: the tables, the study, its declaration, or the run."""
    monkeypatch.setattr(database, "_OPEN_POLL_SECONDS", 1e-4)
    kind = optuna.storages.RDBStorage
    names = ("__init__", "create_new_study", "set_study_user_attr", "create_new_trial", "set_trial_param")
    lost = dict.fromkeys(names, 0)

    def losing(name):
        method = getattr(kind, name)

        def call(*arguments, **options):
            lost[name] += 1
            if lost[name] <= 30:
                raise sqlalchemy.exc.OperationalError("a statement", {}, Exception(text))
            return method(*arguments, **options)

        return call

    for name in names:
        monkeypatch.setattr(kind, name, losing(name))
    assert trained(job_in(tmp_path)).number == 0
    assert set(lost.values()) == {31}


def test_what_does_not_pass_is_not_tried_for_long(tmp_path):
    errors = [ValueError("x"), OSError("x"), sqlalchemy.exc.OperationalError("x", {}, Exception("no such host"))]
    assert not any(map(database.is_passing, errors))
    deadlock = Exception("deadlock detected")
    deadlock.sqlstate = "40P01"
    wrapped = optuna.exceptions.StorageInternalError("x")
    wrapped.__cause__ = sqlalchemy.exc.OperationalError("x", {}, deadlock)
    assert database.is_passing(wrapped)


def test_a_study_that_another_process_is_declaring_is_no_other_programs(tmp_path, monkeypatch):
    """The other declares the job and begins its first run between two questions of this one."""
    kind, others = optuna.storages.RDBStorage, [job_in(tmp_path)]
    kind(f"sqlite:///{tmp_path}/zeus.db").create_new_study([optuna.study.StudyDirection.MINIMIZE], "nightly")
    monkeypatch.setattr(database, "_quiet_lock", contextlib.nullcontext())  # the other is a process

    def then_another_begins(ask):
        def call(storage, *arguments, **options):
            answer = ask(storage, *arguments, **options)
            if others:
                trained(others.pop())
            return answer

        return call

    for name in ("get_study_user_attrs", "get_n_trials"):
        monkeypatch.setattr(kind, name, then_another_begins(getattr(kind, name)))
    assert trained(job_in(tmp_path)).batch_size == 16


def test_a_run_waits_for_those_before_it_as_long_as_they_advance(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(job_store, "_TURN_SECONDS", 0.3)
    job = job_in(tmp_path)
    trained(job)
    store = JobStore(job._storage, job.name)
    ahead = [store._new_number() for _ in range(4)]
    record, own = history(job)[0], store._new_number()
    waits = iter(range(40))

    def sleep(seconds):  # one of them gets its batch size after 0.2 s
        now[0] += 0.1
        if next(waits) % 2 and ahead:
            store.update(ahead.pop(), record)

    now = [0.0]
    monkeypatch.setattr(job_store, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    store._trials_at_turn(own)
    assert not ahead
    assert "not waited for any longer" not in caplog.text


# Filters of warnings are those of the process, and these threads leave each other without one.
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_killed_run_is_retried_once_however_many_begin_together(tmp_path, monkeypatch):
    """Both find it killed, and would both mark it, if a database in a file did not lock before it reads."""
    job = job_in(tmp_path)
    trained(job)
    killed = job.run()
    killed.__enter__()  # and its process is gone
    kind, both_look, meet = optuna.storages.RDBStorage, threading.Barrier(2), threading.Barrier(2)
    check = kind.check_trial_is_updatable

    def find_stale(*_):
        both_look.wait(60)
        return [2]

    def check_together(storage, trial_id, state):
        if trial_id == 2 and state == optuna.trial.TrialState.RUNNING:
            with contextlib.suppress(threading.BrokenBarrierError):
                meet.wait(0.5)
        return check(storage, trial_id, state)

    monkeypatch.setattr(database, "_quiet_lock", contextlib.nullcontext())  # threads stand for processes here
    monkeypatch.setattr(kind, "_get_stale_trial_ids", find_stale)
    monkeypatch.setattr(kind, "check_trial_is_updatable", check_together)
    begun, sizes = threading.Barrier(2), []

    def begin():
        with job_in(tmp_path).run() as run:
            sizes.append(run.batch_size)
            begun.wait(60)

    threads = [threading.Thread(target=begin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sizes) == [16, 32], "that of the run that was killed, and another one"


def test_a_killed_runs_batch_size_stays_with_one_that_has_it(tmp_path):
    """One that began between the death of the run and its retry was given the same."""
    job = job_in(tmp_path)
    trained(job)
    with job.run() as killed, job.run():
        pass
    reached, again, other = history(job)
    records = [reached, dataclasses.replace(again, outcome="failed"), dataclasses.replace(other, batch_size=16)]
    lost, problem = records[1], BatchProblem(job.batch_sizes, 64, 20, gpu_model="A40")
    next_size = NextBatchSize(problem, ranks=1, policy=AdaptiveBatchSize(), seed=0)
    assert (killed.batch_size, lost.batch_size) == (16, 16)
    for outcome, is_retried in (("running", False), ("failed", True)):
        records[2] = dataclasses.replace(records[2], outcome=outcome)
        assert (next_size.proposal(records, lost).batch_size == 16) == is_retried


def test_all_ranks_have_the_batch_size_and_the_outcome_of_rank_0(tmp_path):
    """Only rank 0 reads and writes the history."""

    def rank(world):
        job = job_in(tmp_path, world=world, storage=f"sqlite:///{tmp_path}/{'zeus' if world.rank == 0 else 'none'}.db")
        with job.run() as run:
            stops = [run.report(epoch=epoch, metric=0.5 * epoch if world.rank == 0 else 0.0) for epoch in (1, 2)]
        return run.batch_size, run.batch_size_per_rank, stops, run.outcome

    assert ThreadWorld.run(2, rank) == [(64, 32, [False, True], "reached")] * 2
    assert not (tmp_path / "none.db").exists()


# The database.


def test_a_database_of_a_newer_optuna_is_a_clear_error(tmp_path):
    trained(job_in(tmp_path))
    with sqlite3.connect(tmp_path / "zeus.db") as database:
        database.execute("update alembic_version set version_num = 'v99.0.0.a'")
    with (
        pytest.raises(UsageError, match=r"storage is .*, which cannot be used: .*pip install -U optuna"),
        job_in(tmp_path).run(),
    ):
        pass


def test_a_job_of_a_newer_package_version_is_a_clear_error(tmp_path):
    trained(job_in(tmp_path))
    change_study(tmp_path, lambda document: {**document, "version": 2})
    with pytest.raises(UsageError, match=r"its version is 2; .* pip install -U zeus-core"), job_in(tmp_path).run():
        pass


def change_study(folder, change):
    study = optuna.load_study(study_name="nightly", storage=f"sqlite:///{folder}/zeus.db")
    study.set_user_attr("zeus", json.dumps(change(json.loads(study.user_attrs["zeus"]))))


def test_a_run_that_cannot_be_read_is_left_out(tmp_path, caplog):
    job = job_in(tmp_path)
    trained(job)
    trained(job)
    with sqlite3.connect(tmp_path / "zeus.db") as database:
        database.execute("update trial_user_attributes set value_json = '\"{}\"' where trial_id = 1")
    assert outcomes(job) == [(16, "reached")]
    assert "run 0 of the job 'nightly' cannot be read" in caplog.text


@pytest.mark.long
def test_an_unreachable_storage_means_the_default_and_the_result_is_not_lost(tmp_path, caplog):
    job = job_in(tmp_path, storage=f"sqlite:///{tmp_path}/missing/zeus.db")
    run = trained(job)
    assert (run.batch_size, run.outcome, run.number) == (64, "reached", None)
    assert "cannot be reached: this run has the default batch size of 64" in caplog.text
    (tmp_path / "missing").mkdir()
    trained(job)
    assert outcomes(job) == [(64, "reached"), (16, "reached")], "the result was reported before the next one began"
    assert list((tmp_path / "pending").iterdir()) == []


class Gone:
    """A history that cannot be reached for a while."""

    def __init__(self, monkeypatch):
        self.is_gone = False
        for name in ("update", "finish", "beat"):
            monkeypatch.setattr(JobStore, name, self.unless_gone(getattr(JobStore, name)))

    def unless_gone(self, method):
        def call(*args, **kwargs):
            if self.is_gone:
                raise OSError("connection refused")
            return method(*args, **kwargs)

        return call


def test_a_storage_lost_in_mid_run_costs_nothing(tmp_path, monkeypatch, caplog):
    gone, job = Gone(monkeypatch), job_in(tmp_path)
    with job.run() as run:
        gone.is_gone = True
        train(run)
    assert run.outcome == "reached"
    assert caplog.text.count("the storage of the job cannot be reached; training continues") == 1
    assert "reported by the next run of the job" in caplog.text
    gone.is_gone = False
    trained(job)
    assert outcomes(job) == [(64, "reached"), (16, "reached")]
    assert history(job)[0].last.epoch == EPOCHS[64]
    assert list((tmp_path / "pending").iterdir()) == []


def test_a_result_is_not_kept_twice_however_often_it_is_reported(tmp_path, monkeypatch):
    gone, job = Gone(monkeypatch), job_in(tmp_path)
    with job.run() as run:
        gone.is_gone = True
        train(run)
    (file,) = (tmp_path / "pending").iterdir()
    content = file.read_bytes()
    gone.is_gone = False
    trained(job)
    file.write_bytes(content)
    trained(job)
    assert [size for size, _ in outcomes(job)] == [64, 16, 32]


def test_a_database_that_hangs_does_not_hold_up_the_end_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(run_reporter, "_LAST_REPORT_SECONDS", 0.05)
    release, job = threading.Event(), job_in(tmp_path)
    finish = JobStore.finish
    monkeypatch.setattr(JobStore, "finish", lambda *args: (release.wait(30), finish(*args)))
    trained(job)
    (file,) = (tmp_path / "pending").iterdir()
    release.set()
    wait_until(lambda: not file.exists())  # it was reported after all
    assert outcomes(job) == [(64, "reached")]


def wait_until(condition):
    for _ in range(3_000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never happened")


def test_a_run_taken_for_dead_that_ends_after_all_replaces_its_record(tmp_path):
    job = job_in(tmp_path)
    with job.run() as run:
        optuna.storages.RDBStorage(job._storage).set_trial_state_values(1, optuna.trial.TrialState.FAIL)
        assert outcomes(job) == [(64, "failed")]
        train(run)
    assert outcomes(job) == [(64, "reached")]


def test_records_of_other_jobs_in_the_folder_stay(tmp_path, monkeypatch):
    gone, job = Gone(monkeypatch), job_in(tmp_path)
    gone.is_gone = True
    trained(job)
    gone.is_gone = False
    trained(job_in(tmp_path, name="nightly-2"))
    trained(job_in(tmp_path, storage=f"sqlite:///{tmp_path}/other.db"))
    assert len(list((tmp_path / "pending").iterdir())) == 1


def test_nothing_is_written_before_the_first_run(tmp_path):
    job_in(tmp_path)
    RecurringJob("other", [8], 8, Target("eval_loss", 1.0), 3, storage="sqlite:///other.db")
    assert [path.name for path in tmp_path.iterdir()] == ["zeus.db"]


def test_optuna_is_imported_by_jobs_alone():
    import zeus_core.jobs._recurring_job as module

    assert not any(
        isinstance(value, types.ModuleType) and value.__name__ == "optuna" for value in vars(module).values()
    )
    assert logging.getLogger("optuna").level in {logging.NOTSET, logging.INFO, logging.WARNING}


def test_a_gpu_model_that_is_declared_stays_whatever_a_meter_says(tmp_path):
    """A measured name of its own in the history would be another model to the policy of the next run."""

    class Measured:
        def spent(self):
            return Spent(10.0, 1000.0, JobGpus(1, "A40 (simulated)", 300.0))

    job = job_in(tmp_path)
    with job.run() as run:
        run.use_meter(Measured())
        assert run.report(epoch=1, metric=0.9)
    assert history(job)[0].gpu_model == "A40"
    unknown = job_in(tmp_path, name="unknown", gpu_model=None)
    with unknown.run() as run:
        run.use_meter(Measured())
        assert run.report(epoch=1, metric=0.9)
    assert history(unknown)[0].gpu_model == "A40 (simulated)"
