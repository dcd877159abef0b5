"""The clocks of all GPUs after training has ended, in whatever way, as another process sees them."""

import logging
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from functools import partial

import deepspeed
import pytest
import torch

from tests.deepspeed.virtual_engine import Trainer
from tests.ranks import torchrun_environments
from tests.virtual_time import A100, SharedTimes
from zeus_core.method_wraps import MethodWraps
from zeus_core.pytorch import TorchWorld

RANKS = 2
MICROBATCHES = 4
FOUND_MHZ = 1200
TRAINING_TIMEOUT_SECONDS, EXCHANGE_TIMEOUT_SECONDS = 4.0, 1.0
QUICK = {"warmup_steps": 1, "most_clocks": 3, "profile_instructions": 4}
FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def simulated_gpus(monkeypatch):
    monkeypatch.setenv("ZEUS_SIMULATED_GPUS", f"{A100}:{RANKS}")


class Hardware:
    """What the GPUs are locked at, also once the processes of their ranks are gone; 0 is unlocked.

    Args:
        found_mhz: What they were locked at before.
        latency_seconds: How long the driver takes.
    """

    def __init__(self, found_mhz=0, latency_seconds=0.0):
        self.found_mhz = found_mhz
        self._latency_seconds = latency_seconds
        self._clocks_mhz = FORK.RawArray("i", [found_mhz] * RANKS)
        self._noted_mhz = FORK.RawArray("i", [found_mhz] * RANKS)
        self._interruptions = FORK.RawArray("i", RANKS)

    def plug_in(self, gpu, rank):
        def change(driver_call, clock_mhz=0):
            self._interrupt(rank)
            driver_call(*[clock_mhz] if clock_mhz else [])
            time.sleep(self._latency_seconds)
            self._clocks_mhz[rank] = clock_mhz

        wraps = MethodWraps(gpu)
        wraps.wrap("lock_sm_clock", change)
        wraps.wrap("unlock_sm_clock", change)

    def interrupt_next(self, rank):
        """Ctrl-C, as the driver is called next."""
        self._interruptions[rank] = 1

    def note(self, rank):
        """Let the test know what this GPU is locked at now."""
        self._noted_mhz[rank] = self._clocks_mhz[rank]

    def clock_mhz(self, rank):
        return self._clocks_mhz[rank]

    @property
    def changed(self):
        """The ranks whose clock was not what was found, as noted."""
        return [rank for rank, clock_mhz in enumerate(self._noted_mhz) if clock_mhz != self.found_mhz]

    @property
    def left_changed(self):
        """The ranks whose clock is not what was found."""
        return [rank for rank, clock_mhz in enumerate(self._clocks_mhz) if clock_mhz != self.found_mhz]

    def _interrupt(self, rank):
        if self._interruptions[rank]:
            self._interruptions[rank] = 0
            os.kill(os.getpid(), signal.SIGINT)


class Job:
    """Ranks that have found each other, each in a process that ends as it may."""

    def __init__(self, folder, rank_main, *arguments):
        folder.mkdir(exist_ok=True)
        self._logs = [folder / f"rank-{rank}.txt" for rank in range(RANKS)]
        self.processes = [
            FORK.Process(target=_run_rank, args=(environment, log, rank_main, arguments))
            for environment, log in zip(torchrun_environments(RANKS), self._logs, strict=True)
        ]
        for process in self.processes:
            process.start()

    def wait(self):
        """Until all have ended; returns their exit codes, None for one that had to be killed."""
        codes = []
        for process in self.processes:
            process.join(30.0)
            codes.append(process.exitcode)
            if process.exitcode is None:
                process.kill()
        return codes

    def said(self, rank):
        return self._logs[rank].read_text()


def _run_rank(environment, log, rank_main, arguments):
    os.environ.update(environment)
    sys.stdout = sys.stderr = log.open("w", buffering=1)
    logging.basicConfig(force=True, level=logging.WARNING, stream=sys.stderr)
    timeout = timedelta(seconds=TRAINING_TIMEOUT_SECONDS)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False, timeout=timeout)
    torch.set_num_threads(1)
    rank_main(int(environment["RANK"]), *arguments)


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
    """Until there is no other rank any more."""
    trainer.train(100)


def amid(end, trainer):
    """In a forward pass, with the GPU busy."""
    passes = iter(range(100))
    trainer.engine.module.register_forward_pre_hook(lambda *_: end(trainer) if next(passes) == 1 else None)
    trainer.train(1)


def in_exchange(end, trainer):
    """When it is about to tell the other rank what it has measured."""
    MethodWraps(trainer.optimizer._agreement.world).wrap("gather", lambda *_: end(trainer))
    trainer.train(100)


def noting_that_it_stopped(trainer):
    try:
        trainer.train(100)
    except RuntimeError:
        trainer.hardware.note(trainer.engine.global_rank)
        raise


terminated, hung_up, interrupted, killed = (
    partial(signalled, it) for it in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL)
)


def train(rank, hardware, times, phase, ends):
    block = {**QUICK, "found_clock_mhz": hardware.found_mhz or None}
    trainer = Trainer(times, RANKS, MICROBATCHES, A100, perseus=block)
    trainer.hardware = hardware
    trainer.optimizer._agreement.world = TorchWorld(EXCHANGE_TIMEOUT_SECONDS)
    hardware.plug_in(trainer.gpu, rank)
    while trainer.optimizer.phase.value != phase:
        trainer.train(1)
    while phase == "profiling" and hardware.clock_mhz(rank) in (hardware.found_mhz, 1410):
        trainer.train(1)
    trainer.train(phase == "replaying")
    hardware.note(rank)
    ends[rank](trainer)


def start(folder, hardware, phase, *ends):
    return Job(folder, train, hardware, SharedTimes(RANKS, MICROBATCHES), phase, ends)


def check_put_back(folder, hardware, phase, ends, codes):
    job = start(folder, hardware, phase, *ends)
    assert job.wait() == codes, [job.said(rank) for rank in range(RANKS)]
    assert hardware.changed == ([0, 1] if phase in ("profiling", "replaying") else [])
    assert hardware.left_changed == []


ENDS = {
    "returns and raises": ([returning, raising], [0, 1]),
    "destroys and exits": ([destroying, exiting], [0, 3]),
    "SIGTERM and SIGINT": ([terminated, interrupted], [-signal.SIGTERM, 1]),
    "both SIGTERM": ([terminated, terminated], [-signal.SIGTERM, -signal.SIGTERM]),
    "SIGINT twice and SIGHUP": ([interrupted_twice, hung_up], [1, -signal.SIGHUP]),
    "raises amid a pass": ([partial(amid, raising), going_on], [1, 1]),
    "Ctrl-C amid a pass": ([going_on, partial(amid, interrupted)], [1, 1]),
    "SIGTERM amid a pass": ([partial(amid, terminated), going_on], [-signal.SIGTERM, 1]),
}


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(("phase", "found_mhz"), [("profiling", FOUND_MHZ), ("replaying", 0)])
def test_x(tmp_path, name, phase, found_mhz):
    check_put_back(tmp_path, Hardware(found_mhz), phase, *ENDS[name])
