"""GPUs whose power of waiting falls with the clock: that is measured, planned with, and saves what is predicted."""

import functools
import logging
from dataclasses import replace

import pytest

from tests.support.pipeline_training import A100, FULL_COURSE, LatentDriver, Run, Watched, on_driver, works
from zeus_core.device import SimulatedGpu
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.pipeline import schedules
from zeus_core.pipeline.optimizer._plan_follower import Wait, with_waits
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.profile import profiler
from zeus_core.pipeline.testing import SimulatedJob

LOWEST_FRACTION = 0.4  # of the power of waiting at the highest clock, at clock 0


@pytest.fixture(autouse=True)
def ranks_are_threads():
    """Signals are guarded against in the main thread only, which says so."""
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.ERROR)
    yield
    logging.getLogger("zeus_core.process.restore_registry").setLevel(logging.NOTSET)


class WaitingGpu(SimulatedGpu):
    """Waits at a power that rises linearly with its clock."""

    @property
    def _idle_watts(self):
        ratio = self._locked_clock_mhz / self.preset.highest_clock_mhz
        return self._highest_watts * (LOWEST_FRACTION + (1 - LOWEST_FRACTION) * ratio)

    @_idle_watts.setter
    def _idle_watts(self, watts):
        self._highest_watts = watts


class WaitingJob(SimulatedJob):
    def _rank(self, world):
        rank = super()._rank(world)
        gpu = WaitingGpu(self._preset, world.rank, time_source=rank.time_source, noise=self._noise)
        monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery(()), time_source=rank.time_source, gpu_indices=[0])
        return replace(rank, gpu=gpu, monitor=monitor)


@functools.cache
def trained(make=Watched):
    return Run(WaitingJob(schedules.one_f_one_b(4, 8), works(4), A100), 60, make)


@pytest.mark.parametrize("latency_seconds", [0.0, pytest.param(0.01, marks=pytest.mark.long)])
def test_ranks_wait_at_lower_clocks_without_delay(latency_seconds, monkeypatch):
    make = Watched
    if latency_seconds:
        make = on_driver(lambda gpu, time_source: LatentDriver(gpu, time_source, latency_seconds))
    run = trained(make)
    assert run.course == FULL_COURSE
    measured = run.first.latest["profile"].get(0, "blocking").options
    for option in measured:
        true_watts = run.ranks[0].gpu._highest_watts * (
            LOWEST_FRACTION + (1 - LOWEST_FRACTION) * option.clock_mhz / run.ranks[0].gpu.preset.highest_clock_mhz
        )
        assert option.energy_joules / option.time_seconds == pytest.approx(true_watts, rel=0.03)
    replayed, found = run.steps_of(PlanningPhase.REPLAYING)[-20:], run.steps_of(PlanningPhase.BASELINE)
    assert run.seconds(replayed) == pytest.approx(run.seconds(found), rel=0.002)
    assert run.joules(replayed) == pytest.approx(run.first.latest["predicted"].energy_joules, rel=0.01)
    assert run.is_restored()

    if not latency_seconds:
        return
    monkeypatch.setattr(profiler, "_MIN_BLOCKING_FALL_FRACTION", 1.0)  # as if it had not been seen
    unseen = trained.__wrapped__(make)
    assert unseen.first.latest["profile"].find(0, "blocking") is None
    assert run.joules(replayed) <= 0.99 * unseen.joules(unseen.steps_of(PlanningPhase.REPLAYING)[-20:])


@pytest.mark.long
def test_a_kept_profile_has_the_power_of_waiting():
    state = trained().first.latest["state"]

    def make(rank):
        optimizer = Watched(rank)
        optimizer.load_state_dict(state)
        return optimizer

    run = Run(WaitingJob(schedules.one_f_one_b(4, 8), works(4), A100), 30, make)
    assert PlanningPhase.PROFILING not in run.course
    replayed = run.steps_of(PlanningPhase.REPLAYING)[-10:]
    assert run.joules(replayed) == pytest.approx(run.first.latest["predicted"].energy_joules, rel=0.01)
    assert run.first.latest["profile"].find(0, "blocking") is not None


def test_a_wait_is_followed_as_far_as_the_driver_can():
    waits = (Wait(850, 0.5), None, Wait(850, 1.0))
    clocks, seconds, begins = with_waits((1200, None, None), (0.1, 0.2), waits, (0.3, 0.0, None), 0.01)
    assert clocks == [850, 1200, None, 850, None]
    assert seconds == pytest.approx([0.3 * 0.95 - 0.005, 0.1, 0.2, 0.945])
    assert begins == [(-1, 0.0), (0, 0.0), (1, 0.0), (1, 0.2)]
    clocks, seconds, begins = with_waits((1200, None, None), (0.1, 0.2), waits, (None, None, None), 0.7)
    assert clocks == [1200, None, None]  # the driver takes too long for any of them
    assert begins == [(0, 0.0), (1, 0.0)]
