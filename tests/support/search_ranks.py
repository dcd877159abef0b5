"""Ranks that search for a power limit together, as threads, each with a GPU and a time of its own."""

import random
import threading
from dataclasses import dataclass

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer, OptimumSelector
from zeus_core.search import GridSearch
from zeus_core.testing import FaultyGpu, ThreadWorld, VirtualTime

WORK = Work(0.9, 289.2, 0.889, 0.784)  # of the power-limit tests, on an A40
EVALUATION = Work(7.0, 200.0)
ORIGINAL_WATTS = 250
LIMITS = [250, 175, 100]
STEPS = 5 * (1 + 2) + 1  # of a whole search, until training goes on at the choice
QUICK = {"wait_steps": 0, "warmup_steps": 1, "profile_steps": 2, "pl_step": 75}


@dataclass
class Rank:
    """One rank: its own clock, GPU and optimizer."""

    optimizer: GlobalPowerLimitOptimizer
    gpu: SimulatedGpu
    faulty: FaultyGpu

    def step(self, work=WORK):
        self.optimizer.on_step_begin()
        self.gpu.execute(work)
        self.optimizer.on_step_end()

    def train(self, steps=STEPS, work=WORK):
        self.optimizer.on_train_begin()
        for _ in range(steps):
            self.step(work)

    @property
    def outcome(self):
        optimizer = self.optimizer
        return optimizer.phase, optimizer.chosen_limit_watts, optimizer.trials, optimizer.confirmation


def make_rank(world, selector=None, *, model="A40", original_watts=ORIGINAL_WATTS, grants_control=True, **arguments):
    threading.current_thread().name = f"rank {world.rank}"
    time_source = VirtualTime()
    gpu = SimulatedGpu(
        find_preset(model),
        world.rank,
        time_source=time_source,
        power_limit_watts=original_watts,
        grants_control=grants_control,
    )
    faulty = FaultyGpu(gpu)
    monitor = ZeusMonitor(gpus=[faulty], time_source=time_source)
    return Rank(
        GlobalPowerLimitOptimizer(
            monitor, selector or Energy(), world=world, **{"search": GridSearch, **QUICK, **arguments}
        ),
        gpu,
        faulty,
    )


def run(size, rank_main, timeout_seconds=60.0):
    """The ranks after they have run; all of them must have come out alike, with the hardware put back."""
    ranks = ThreadWorld.run(size, rank_main, timeout_seconds)
    assert all(rank.outcome == ranks[0].outcome for rank in ranks)
    for rank in ranks:
        rank.optimizer.on_train_end()
        assert rank.gpu.read_power_limit_watts() == ORIGINAL_WATTS
        assert rank.optimizer.power_limit_watts is None
    return ranks


def stops(caplog):
    """Return each rank's message about the end of its search."""
    return sorted(
        (record.threadName, record.args[-1])
        for record in caplog.records
        if "is off for the rest of this run" in record.getMessage()
    )


def truth(gpu, work, limit_watts):
    return gpu.preset.physics.operating_point(work, limit_watts)


class Whim(OptimumSelector):
    def select(self, measurements):
        return random.choice([measurement.power_limit for measurement in measurements])
