"""Recurring jobs whose runs are trainings by the real Trainer, in several processes, one of which is killed."""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support import recurring_training
from tests.support.postgres import NoPostgresError, find_programs, postgres
from tests.support.recurring import Untried, job_in
from tests.support.recurring_training import DEFAULT, run_once, wait_until
from zeus_core.jobs._job_store import JobStore

RUNS = 8


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/zeus.db"
        return
    with contextlib.ExitStack() as stack:
        try:
            url = stack.enter_context(postgres())
        except NoPostgresError as error:
            pytest.skip(f"NOT TESTED ON POSTGRESQL: {error}")
        yield url


def start(folder, storage, *mode):
    command = [sys.executable, "-m", recurring_training.__name__, str(folder), storage, *mode]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def is_stale(storage):
    """Whether heartbeats of a run are missed, as the next run will find."""
    store = JobStore(storage, "nightly", heartbeat_seconds=5)
    return bool(store._storage._get_stale_trial_ids(store._study_id))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_eight_nights_of_which_one_is_killed_and_two_overlap(tmp_path, storage):
    run_once(tmp_path, storage)

    killed = start(tmp_path, storage, "--hang")
    wait_until(lambda: (tmp_path / "hangs").exists() or killed.poll() is not None)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    wait_until(lambda: is_stale(storage))

    both = [start(tmp_path, storage, "--meet", own, other) for own, other in ("ab", "ba")]
    assert [process.wait(timeout=400) for process in both] == [0, 0]
    for _ in range(RUNS - 4):
        run_once(tmp_path, storage)

    runs = JobStore(storage, "nightly").runs()
    records = [stored.record for stored in runs]
    assert [stored.number for stored in runs] == list(range(RUNS))
    assert records[0].batch_size == DEFAULT
    assert [record.outcome for record in records].count("failed") == 1
    lost = records[1]
    assert (lost.outcome, lost.reason) == ("failed", "its process was killed, or lost the database")
    assert lost.last.cost > 0, "what it had spent is known"
    overlapping = records[2:4]
    assert lost.batch_size in {record.batch_size for record in overlapping}, "it is tried again at once"
    assert len({record.batch_size for record in overlapping}) == 2
    assert {record.batch_size for record in records} <= {record.batch_size for record in records if record is not lost}
    assert {record.outcome for record in records if record is not lost} <= {"reached", "stopped"}
    at_default = [record.last.cost for record in records if record.batch_size == DEFAULT]
    assert sum(record.last.cost for record in records) < RUNS * sum(at_default) / len(at_default)
    assert not (tmp_path / "pending").exists()


class Slow(Untried):
    """Takes so long that all would see the same history if they did not take turns."""

    def propose(self, problem, runs, seed):
        time.sleep(0.2)
        return super().propose(problem, runs, seed)


def begin(folder, storage, gate, sizes, candidates):
    job = job_in(folder, storage=storage, policy=Slow(), batch_sizes=candidates)
    gate.wait()
    with job.run() as run:
        sizes.put(run.batch_size)
        gate.wait()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("_", range(2))
@pytest.mark.parametrize("count", [3, 18])
def test_processes_that_begin_at_the_same_time_take_turns(tmp_path, storage, count, _):
    """However many meet at a new database, none loses its turn to another's tables, rows or locks."""
    context = multiprocessing.get_context("forkserver")  # a fork of this process would have threads of tests before it
    context.set_forkserver_preload([__name__])
    candidates = [2**power for power in range(count)] + [64] * (count < 7)
    gate, sizes = context.Barrier(count), context.SimpleQueue()
    arguments = (tmp_path, storage, gate, sizes, candidates)
    processes = [context.Process(target=begin, args=arguments, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    running = {process.sentinel: process for process in processes}
    while running:  # one that fails leaves the others at the gate
        for ended in multiprocessing.connection.wait(running):
            process = running.pop(ended)
            process.join()
            assert process.exitcode == 0
    begun = [sizes.get() for _ in processes]
    assert len(set(begun)) == count
    assert set(begun) <= set(candidates)


def test_who_has_no_postgresql_is_told(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(NoPostgresError, match=r"pip install 'psycopg\[binary\]'"):
        find_programs()
