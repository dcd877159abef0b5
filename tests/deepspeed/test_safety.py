"""The clocks of all GPUs after training has ended, in whatever way, as another process sees them."""

import faulthandler
import logging
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import deepspeed
import pytest
import torch

import zeus_deepspeed
from tests.deepspeed.engines import batches, make_engine, make_module
from tests.deepspeed.virtual_engine import Trainer
from tests.support.ranks import torchrun_environments
from tests.support.virtual_time import A100, SharedTimes
from zeus_core.adapters import Patches
from zeus_core.device import Work, discover_gpus
from zeus_core.pipeline import schedules, write_plan
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pytorch import SimulatedCompute
from zeus_core.pytorch.torch_world import TorchWorld

RANKS = 2
MICROBATCHES = 4
ORIGINAL_MHZ = 1200
NOT_CHANGED = 99  # exit code
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def simulated_gpus(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", f"{A100}:{RANKS}")


class Hardware:
    """Clocks in MHz that the GPUs are locked at, also once the processes of their ranks are gone; 0 is unlocked.

    Args:
        folder: Where it is kept, for other processes too.
        original_mhz: What they were locked at before.
        latency_seconds: How long the driver takes.
    """

    def __init__(self, folder, original_mhz=0, latency_seconds=0.0):
        self.folder, self.original_mhz, self._latency_seconds = folder, original_mhz, latency_seconds
        file = folder / "hardware"
        is_new = not file.exists()
        with file.open("w+b" if is_new else "r+b") as opened:
            if is_new:
                opened.truncate(4 * RANKS * 4)
            cells = memoryview(mmap.mmap(opened.fileno(), 0)).cast("i")
        self._clocks_mhz, self._was_changed, self._is_noted, self._is_to_be_interrupted = (
            cells[row * RANKS : (row + 1) * RANKS] for row in range(4)
        )
        for rank in range(RANKS * is_new):
            self._clocks_mhz[rank] = original_mhz

    def plug_in(self, gpu, rank):
        def change(driver_call, *clocks_mhz):
            if self._is_to_be_interrupted[rank]:
                self._is_to_be_interrupted[rank] = 0
                os.kill(os.getpid(), signal.SIGINT)
            driver_call(*clocks_mhz)
            if self._latency_seconds:
                time.sleep(self._latency_seconds)
            self._clocks_mhz[rank] = sum(clocks_mhz)  # of none or one
            self._was_changed[rank] |= self.is_changed(rank)

        wraps = Patches(gpu)
        wraps.wrap("lock_sm_clock", change)
        wraps.wrap("unlock_sm_clock", change)

    def interrupt_next(self, rank):
        """Ctrl-C, as the driver is called next."""
        self._is_to_be_interrupted[rank] = 1

    def note(self, rank):
        """Forget how the clock was before."""
        self._was_changed[rank] = self.is_changed(rank)
        self._is_noted[rank] = 1

    def clock_mhz(self, rank):
        return self._clocks_mhz[rank]

    def is_changed(self, rank):
        return self._clocks_mhz[rank] != self.original_mhz

    @property
    def changed(self):
        """The ranks whose clock is not what was found."""
        return [rank for rank in range(RANKS) if self.is_changed(rank)]

    @property
    def ever_changed(self):
        """The ranks whose clock was not what was found, at some time since `note`."""
        return [rank for rank in range(RANKS) if self._is_noted[rank] and self._was_changed[rank]]


@pytest.fixture(autouse=True)
def leave_nothing_running():
    """A test that fails must not keep the machine from the others."""
    before = multiprocessing.active_children()
    yield
    for process in multiprocessing.active_children():
        if process not in before:
            process.kill()
            process.join()


class Job:
    """Ranks that have found each other, each in a process that ends as it may."""

    def __init__(self, folder, rank_main, *arguments):
        folder.mkdir(exist_ok=True)
        self._logs = [folder / f"rank-{rank}.txt" for rank in range(RANKS)]
        self.processes = [
            FORK.Process(target=_run_rank, args=(environment, log, rank_main, arguments), daemon=True)
            for environment, log in zip(torchrun_environments(RANKS), self._logs, strict=True)
        ]
        for process in self.processes:
            process.start()

    def codes(self):
        """The exit codes, once all have ended."""
        for process in self.processes:
            process.join(240.0)
        codes = [process.exitcode for process in self.processes]
        assert None not in codes, [self.said(rank) for rank in range(RANKS)]
        return codes

    def said(self, rank):
        return self._logs[rank].read_text()


def _run_rank(environment, log, rank_main, arguments):
    os.environ.update(environment)
    sys.stdout = sys.stderr = log.open("w", buffering=1)
    faulthandler.dump_traceback_later(100.0, file=sys.stderr)  # where it hangs, if it does
    initialize()
    rank_main(int(environment["RANK"]), *arguments)


def initialize():
    logging.basicConfig(force=True, level=logging.WARNING, stream=sys.stderr)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, timeout=timedelta(seconds=240))
    torch.set_num_threads(1)


# How training ends on a rank: functions of its trainer.


def returning(trainer):
    pass


def destroying(trainer):
    trainer.end()


def raising(trainer):
    raise RuntimeError("training failed")


def exiting(trainer):
    sys.exit(3)


def signalled(number, trainer):
    os.kill(os.getpid(), number)
    time.sleep(60)


def interrupted_twice(trainer):
    trainer.hardware.interrupt_next(trainer.engine.global_rank)
    raise KeyboardInterrupt


def going_on(trainer):
    """Train until no other rank is left."""
    while True:
        trainer.train(1)


def during_a_step(end, trainer):
    """End in a forward pass, with the GPU busy at a clock that is not the original one."""
    rank, passes = trainer.engine.global_rank, iter(range(100))

    def begin_pass(*_):
        if next(passes) == 1:
            if not trainer.hardware.is_changed(rank):
                os._exit(NOT_CHANGED)
            end(trainer)

    trainer.engine.module.register_forward_pre_hook(begin_pass)
    trainer.train(1)


def in_exchange(end, trainer):
    """When it is about to tell the other rank what it has measured."""
    Patches(trainer.optimizer._exchange.world).wrap("gather", lambda *_: end(trainer))
    trainer.train(100)


def stuck(trainer):
    while True:
        time.sleep(0.1)


terminated, hung_up, interrupted, killed = (
    partial(signalled, number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
)


def train(rank, hardware, times, phase, ends):
    quick = {"warmup_steps": 1, "max_clocks": 3, "profile_instructions": 4, "slowdown_factor": 1.2}
    block = {**quick, "original_clock_mhz": hardware.original_mhz or None}
    trainer = Trainer(times, RANKS, MICROBATCHES, A100, perseus=block)
    trainer.hardware = hardware
    hardware.plug_in(trainer.gpu, rank)
    while trainer.optimizer.phase.value != phase:
        assert trainer.optimizer.steps < 60
        trainer.train(1)
    while phase == "profiling" and hardware.clock_mhz(rank) in (hardware.original_mhz, 1410):
        trainer.train(1)
    hardware.note(rank)
    trainer.train(2 * (phase == "replaying"))
    ends[rank](trainer)


def start(hardware, phase, *ends):
    return Job(hardware.folder, train, hardware, SharedTimes(RANKS, MICROBATCHES), phase, ends)


def end(hardware, phase, ends, codes):
    """Train up to a phase, and end there."""
    job = start(hardware, phase, *ends)
    assert job.codes() == codes, "\n".join(job.said(rank) for rank in range(RANKS))  # a text is shown whole
    assert hardware.ever_changed == ([0, 1] if phase in ("profiling", "replaying") else [])


BETWEEN_STEPS = {
    "SIGTERM and Ctrl-C": ([terminated, interrupted], [-signal.SIGTERM, 1]),
    "returns and raises": ([returning, raising], [0, 1]),
    "destroys and exits": ([destroying, exiting], [0, 3]),
    "SIGHUP and Ctrl-C twice": ([hung_up, interrupted_twice], [-signal.SIGHUP, 1]),
}
IN_A_STEP = {
    "raises": ([partial(during_a_step, raising), going_on], [1, 1]),
    "SIGTERM at the last stage": ([going_on, partial(during_a_step, terminated)], [1, -signal.SIGTERM]),
    "Ctrl-C": ([going_on, partial(during_a_step, interrupted)], [1, 1]),
    "SIGTERM": ([partial(during_a_step, terminated), going_on], [-signal.SIGTERM, 1]),
}


def ending(ends, situations):
    """Return the parameters of tests: each end in two of the three situations, the first two of them by default."""
    return pytest.mark.parametrize(
        ("phase", "original_mhz", "ends", "codes"),
        [
            pytest.param(
                *situations[(number + turn) % 3],
                *ends[name],
                marks=[pytest.mark.long] * (turn > 0 or number > 1),
                id=f"{situations[(number + turn) % 3][0]}-{name}",
            )
            for turn in range(2)
            for number, name in enumerate(ends)
        ],
    )


@ending(BETWEEN_STEPS, [("profiling", 0), ("profiling", ORIGINAL_MHZ), ("replaying", 0)])
def test_clocks_are_restored_where_training_ends_between_steps(tmp_path, phase, original_mhz, ends, codes):
    hardware = Hardware(tmp_path, original_mhz)
    end(hardware, phase, ends, codes)
    assert hardware.changed == []


@ending(IN_A_STEP, [("replaying", ORIGINAL_MHZ), ("replaying", 0), ("profiling", ORIGINAL_MHZ)])
def test_clocks_are_restored_where_training_ends_in_a_step(tmp_path, phase, original_mhz, ends, codes):
    """The other rank, left alone, fails in its turn."""
    hardware = Hardware(tmp_path, original_mhz)
    end(hardware, phase, ends, codes)
    assert hardware.changed == []


@pytest.mark.parametrize("phase", ["baseline", pytest.param("planning", marks=pytest.mark.long)])
def test_original_clocks_stay(tmp_path, phase):
    hardware = Hardware(tmp_path, ORIGINAL_MHZ)
    end(hardware, phase, [terminated, raising], [-signal.SIGTERM, 1])
    assert hardware.changed == []


@pytest.mark.parametrize(("phase", "original_mhz"), [("profiling", ORIGINAL_MHZ), ("replaying", 0)])
def test_a_killed_ranks_clock_stays_and_the_others_is_restored(tmp_path, phase, original_mhz):
    hardware = Hardware(tmp_path, original_mhz)
    end(hardware, phase, [going_on, partial(during_a_step, killed)], [1, -signal.SIGKILL])
    assert hardware.changed == [1], "which nothing in that process could help"


STOPPED = (
    "planning the clocks of the pipeline is off for the rest of this run; training continues: "
    "the ranks of this job did not reach each other"
)


def noting_how_it_fails(trainer):
    with pytest.raises(RuntimeError):
        trainer.train(100)
    trainer.hardware.note(trainer.engine.global_rank)


def test_a_rank_that_is_killed_before_an_exchange_is_missed(tmp_path):
    hardware = Hardware(tmp_path)
    job = start(hardware, "profiling", noting_how_it_fails, partial(in_exchange, killed))
    assert job.codes() == [0, -signal.SIGKILL]
    assert hardware.changed == hardware.ever_changed == [1], "put back before training itself failed"
    assert STOPPED in job.said(0)


def impatiently(end, trainer):
    trainer.optimizer._exchange.world = TorchWorld(timeout_seconds=1.0)
    end(trainer)


def test_a_rank_that_hangs_is_not_waited_for_longer_than_said(tmp_path):
    hardware = Hardware(tmp_path)
    ends = noting_how_it_fails, partial(in_exchange, stuck)
    job = start(hardware, "profiling", *(partial(impatiently, end) for end in ends))
    wait_until(job, lambda: hardware.ever_changed == [0, 1])
    wait_until(job, lambda: hardware.changed == [1])
    job.processes[1].terminate()
    assert job.codes() == [0, -signal.SIGTERM]
    assert hardware.changed == []
    assert STOPPED in job.said(0)


def wait_until(job, holds):
    """Wait as long as the machine takes: a rank that hangs says where, and the test's own timeout ends it."""
    while not holds():
        assert any(process.is_alive() for process in job.processes), [job.said(rank) for rank in range(RANKS)]
        time.sleep(0.005)


# In real time: a thread sets the clocks, and signals come from outside at any moment.


class RealTimeTrainer:
    """One rank as users have it, that replays a plan with a switch before each instruction."""

    def __init__(self, hardware):
        plan_path = str(hardware.folder / "plan.json")
        block = {"enabled": True, "warmup_steps": 1, "plan_path": plan_path, "check_steps": 1000}
        blocks = {"gradient_accumulation_steps": MICROBATCHES, "perseus": block}
        block["original_clock_mhz"] = hardware.original_mhz or None
        self.engine = make_engine(make_module(RANKS), initialize=zeus_deepspeed.initialize, **blocks)
        self.hardware = hardware
        gpu = discover_gpus()[self.engine.global_rank]
        hardware.plug_in(gpu, self.engine.global_rank)
        SimulatedCompute(self.engine.module, gpu, Work(0.015, 330.0, 1.0, 0.75))
        self._data = batches()

    def train(self, steps):
        for _ in range(steps):
            self.engine.train_batch(self._data)


def train_in_real_time(rank, hardware, ends):
    trainer = RealTimeTrainer(hardware)
    while (phase := trainer.engine.perseus.optimizer.phase.value) != "replaying":
        assert phase != "off"
        trainer.train(1)
    hardware.note(rank)
    ends[rank](trainer)


def slow_hardware(folder, original_mhz=0, latency_seconds=0.005):
    """Its driver takes a third of an instruction, or so long; with a plan beside it."""
    folder.mkdir(exist_ok=True)
    schedule = schedules.one_f_one_b(RANKS, MICROBATCHES)
    clocks = tuple(tuple((900, 1050)[place % 2] for place, _ in enumerate(order)) for order in schedule.ranks)
    write_plan(Plan("restless", schedule, clocks, 0.01, 1.0, 0, 0.0, 0.0, ""), folder / "plan.json")
    return Hardware(folder, original_mhz, latency_seconds)


TERM, INT = signal.SIGTERM, signal.SIGINT
SENT = {"to all": [(TERM, 0), (TERM, 1)], "to the first": [(TERM, 0)], "to the last": [(TERM, 1)]}
SENT |= {"Ctrl-C": [(INT, 0), (INT, 1)], "Ctrl-C under torchrun": [(INT, 0), (INT, 1), (TERM, 0), (TERM, 1)]}


@pytest.mark.long  # in the default suite, by the kill matrix of tests/process
@pytest.mark.timeout(900)  # ten processes side by side
@pytest.mark.parametrize("seed", range(3))
def test_clocks_are_restored_after_signals_at_any_moment_of_a_replay(tmp_path, seed):
    moments = random.Random(seed)
    hardwares = {name: slow_hardware(tmp_path / name, moments.choice([0, ORIGINAL_MHZ])) for name in SENT}
    jobs = {
        name: Job(hardware.folder, train_in_real_time, hardware, [going_on, going_on])
        for name, hardware in hardwares.items()
    }
    for name, job in jobs.items():
        wait_until(job, lambda hardware=hardwares[name]: hardware.ever_changed == [0, 1])
        time.sleep(moments.uniform(0.0, 0.2))
        for number, rank in SENT[name]:
            os.kill(job.processes[rank].pid, number)
    codes = {name: job.codes() for name, job in jobs.items()}
    assert {name: hardware.changed for name, hardware in hardwares.items()} == {name: [] for name in SENT}
    under_torchrun = codes.pop("Ctrl-C under torchrun")  # whichever of the two they have come to
    assert set(under_torchrun) <= {1, -TERM}
    second = codes["to all"].pop()  # it may lose the first before its own signal comes
    assert second in (-TERM, 1)
    assert list(codes.values()) == [[-TERM], [-TERM, 1], [1, -TERM], [1, 1]]


@pytest.mark.long
def test_a_driver_late_at_each_clock_is_no_reason_to_give_up(tmp_path):
    """Together they take longer than one hook waits for a driver: it is the first look at the GPU."""
    hardware = slow_hardware(tmp_path, latency_seconds=0.45)
    assert Job(tmp_path, train_in_real_time, hardware, [returning, returning]).codes() == [0, 0]
    assert hardware.changed == []


SCRIPT = "import sys, tests.deepspeed.conftest; from tests.deepspeed import test_safety as it; it.run(*sys.argv[1:])"


def run(folder, end):
    """Run a training script on one of its ranks."""
    initialize()
    hardware = Hardware(Path(folder), latency_seconds=0.005)
    train_in_real_time(int(os.environ["RANK"]), hardware, [IN_SCRIPTS[end], going_on])


def returning_during_a_step(trainer):
    """Fail as a script does that swallows its own error."""
    with pytest.raises(RuntimeError):
        during_a_step(raising, trainer)


IN_SCRIPTS = {
    "returns": returning_during_a_step,
    "Ctrl-C": partial(during_a_step, interrupted),
}


@pytest.mark.long
@pytest.mark.parametrize(("end", "code"), [("returns", 0), ("Ctrl-C", -INT)])  # others: of forks, above
def test_clocks_are_restored_after_scripts(tmp_path, end, code):
    hardware = slow_hardware(tmp_path)
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ranks = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path, end], env={**os.environ, **environment, **path})
        for environment in torchrun_environments(RANKS)
    ]
    try:
        assert [process.wait(240) for process in ranks] == [code, 1]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    assert hardware.ever_changed == [0, 1]
    assert hardware.changed == []
