"""Pipelines trained on simulated GPUs in virtual time: each rank is a thread, whose optimizer takes notes."""

import functools
import itertools
import threading
from dataclasses import replace
from statistics import median

from zeus_core.device import Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.errors import DriverFaultError
from zeus_core.monitor import ZeusMonitor
from zeus_core.pipeline import PipelineFrequencyOptimizer, PipelineProfile, PipelineRank, schedules
from zeus_core.pipeline.optimizer import _planning
from zeus_core.pipeline.optimizer.frequency_phases import PlanningPhase
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.pipeline.testing import SimulatedJob
from zeus_core.testing import FaultyGpu, VirtualBackground

# In this process: virtual time stands still meanwhile, and another one takes a second to start.
_planning.run_in_child = lambda function, *arguments: function(*arguments)

A100 = "A100-SXM4-80GB"
POWERS = {A100: 330.0, "A40": 270.0}
UNEQUAL = (1.0, 1.15, 0.9, 1.05)


def works(stages, model=A100, kinds=("forward", "backward")):
    seconds = {"forward": 0.06, "backward": 0.12, "backward-input": 0.06, "backward-weight": 0.06}
    return {
        (stage, kind): Work(seconds[kind] * UNEQUAL[stage % 4], POWERS[model], 1.0, 0.75 + 0.03 * (stage % 3))
        for stage in range(stages)
        for kind in kinds
    }


_own = threading.local()


def own_optimizer():
    """The optimizer of the rank that asks: that of another rank, another thread, may be a phase ahead or behind."""
    return _own.optimizer


class Watched(PipelineFrequencyOptimizer):
    """Notes the phase of each step, and what was known at its end."""

    def __init__(self, rank, settings=None, **arguments):
        arguments = {"world": rank.world, "make_background": rank.make_background, **arguments}
        super().__init__(rank.monitor, PipelineRank(rank.rank, rank.pipeline), settings, **arguments)
        self.phases = []
        _own.optimizer = self
        self.gpu, self.latest = rank.gpu, {}

    def on_step_end(self):
        reached = self.phase
        self.phases.append(reached)
        super().on_step_end()
        found = {"baseline": self.baseline, "predicted": self.predicted, "measured": self.measured}
        found["clocks"] = self.clocks_mhz
        if self.phase is not reached or not self.latest:  # these change with the phase only, and take milliseconds
            found |= {"profile": self.profile(), "state": self.state_dict()}
        self.latest |= {name: value for name, value in found.items() if value is not None}


class Run:
    """A job that has been trained, with a `Watched` on each rank."""

    def __init__(self, job, steps, make=Watched, timeout_seconds=60.0):
        self.observers = {}

        def observe(rank):
            self.observers[rank.world.rank] = make(rank)
            return self.observers[rank.world.rank]

        self.ranks = job.run(steps, observe, timeout_seconds)
        self.first = self.observers[0]

    @property
    def course(self):
        return [phase for phase, _ in itertools.groupby(self.first.phases)]

    def steps_of(self, phase):
        return [number for number, reached in enumerate(self.first.phases) if reached is phase]

    def seconds(self, steps):
        return median(max(rank.step_seconds[step] for rank in self.ranks) for step in steps)

    def joules(self, steps, ranks=None):
        chosen = self.ranks if ranks is None else [self.ranks[number] for number in ranks]
        return median(sum(rank.step_joules[step] for rank in chosen) for step in steps)

    def is_restored(self):
        return all(rank.gpu._locked_clock_mhz == rank.gpu.preset.highest_clock_mhz for rank in self.ranks)


def true_options(work, model):
    preset = find_preset(model)
    for clock in range(preset.highest_clock_mhz, preset.lowest_clock_mhz - 1, -preset.clock_step_mhz):
        point = preset.physics.operating_point(work, preset.default_limit_watts, clock / preset.highest_clock_mhz)
        yield MeasuredOption(clock, point.seconds, point.energy_joules)


def true_profile(work, model=A100):
    instructions = [InstructionProfile(*name, tuple(true_options(one, model))) for name, one in work.items()]
    return PipelineProfile(instructions, find_preset(model).physics.blocking_power_watts)


FULL_COURSE = [
    PlanningPhase.WARMING_UP,
    PlanningPhase.BASELINE,
    PlanningPhase.PROFILING,
    PlanningPhase.PLANNING,
    PlanningPhase.REPLAYING,
]


class LateEvents:
    """Events of a device that is known to have done something only a step later."""

    def __init__(self, time_source):
        self.time_source = time_source
        self.horizon = time_source.now()

    def __call__(self):
        return LateEvent(self, self.time_source.now())


class LateEvent:
    def __init__(self, events, at):
        self.events, self.at = events, at

    def wait(self):
        self.events.horizon = max(self.events.horizon, self.at)

    def seconds(self):
        return self.at if self.at <= self.events.horizon else None


class Late(Watched):
    """On such a device."""

    def __init__(self, rank, settings=None):
        self._late_events = LateEvents(rank.time_source)
        super().__init__(rank, settings, device_events=self._late_events)

    def on_step_begin(self):
        events = self._late_events
        events.horizon = max(events.horizon, events.time_source.now() - 1e-9)
        super().on_step_begin()


def train_with(state, settings=None, steps=40, **arguments):
    def make(rank):
        optimizer = Watched(rank, settings)
        optimizer.load_state_dict(state)
        return optimizer

    arguments = {"work": works(2), **arguments}
    return Run(SimulatedJob(schedules.one_f_one_b(2, 8), **arguments), steps, make)


class SlowToSet(FaultyGpu):
    """A GPU whose driver takes 5 ms to set a clock."""

    def __init__(self, gpu, time_source):
        super().__init__(gpu)
        self._time_source = time_source

    def lock_sm_clock(self, clock_mhz):
        super().lock_sm_clock(clock_mhz)
        self._time_source.advance(0.005)


class CountedCalls(FaultyGpu):
    """A GPU whose driver notes each change of its clock: the moment, and the clock or None."""

    def __init__(self, gpu, time_source):
        super().__init__(gpu)
        self._time_source, self.calls = time_source, []

    def lock_sm_clock(self, clock_mhz):
        self.calls.append((self._time_source.now(), clock_mhz))
        super().lock_sm_clock(clock_mhz)

    def unlock_sm_clock(self):
        self.calls.append((self._time_source.now(), None))
        super().unlock_sm_clock()


class LatentDriver(CountedCalls):
    """A GPU whose driver takes some time to set a clock, which is in force after it.

    The training thread waits for its own calls; those from the background take place while it goes on, one after
    another.
    """

    def __init__(self, gpu, time_source, seconds):
        super().__init__(gpu, time_source)
        self._seconds, self._free_at = seconds, 0.0
        self._now, self._is_in_background = time_source.now, False

    def background(self):
        return _LatentBackground(self._time_source, self)

    def lock_sm_clock(self, clock_mhz):
        self._in_time(lambda: super(LatentDriver, self).lock_sm_clock(clock_mhz))

    def unlock_sm_clock(self):
        self._in_time(super().unlock_sm_clock)

    def _in_time(self, call):
        if not self._is_in_background:
            self._time_source.advance(self._seconds)
            call()
            return
        self._free_at = max(self._free_at, self._time_source.now()) + self._seconds
        VirtualBackground(self._time_source).later(call, self._free_at - self._time_source.now())


class _LatentBackground(VirtualBackground):
    def __init__(self, time_source, driver):
        super().__init__(time_source)
        self._driver = driver

    def soon(self, action):
        super().soon(self._noted(action))

    def later(self, action, seconds):
        super().later(self._noted(action), seconds)

    def _noted(self, action):
        def noted():
            self._driver._is_in_background = True
            try:
                action()
            finally:
                self._driver._is_in_background = False

        return noted


def on_driver(driver_of, settings=None, drivers=None):
    """Return a maker of `Watched` on GPUs whose drivers are made by a function of GPU and time source."""

    def make(rank):
        driver = driver_of(rank.gpu, rank.time_source)
        if drivers is not None:
            drivers[rank.world.rank] = driver
        monitor = ZeusMonitor(gpus=[driver], cpus=CpuDiscovery(()), gpu_indices=[0], time_source=rank.time_source)
        arguments = {"make_background": driver.background} if isinstance(driver, LatentDriver) else {}
        return Watched(replace(rank, monitor=monitor), settings, **arguments)

    return make


class CountedFaults(FaultyGpu):
    """A GPU whose counter cannot be read for some time."""

    def __init__(self, gpu, time_source, fails):
        super().__init__(gpu)
        self._time_source, self._fails = time_source, fails

    def read_energy_counter_joules(self):
        if self._fails(self._time_source.now()):
            raise DriverFaultError("the GPU has fallen off the bus")
        return super().read_energy_counter_joules()


@functools.cache
def trained(stages=2, microbatches=8, model=A100, pipelines=1):
    """A job without incidents, trained for 60 steps; the same run for all tests."""
    job = SimulatedJob(schedules.one_f_one_b(stages, microbatches), works(stages, model), model, pipelines)
    return Run(job, 60)
