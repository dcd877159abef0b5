"""Real frameworks on simulated GPUs in virtual time, in several processes.

A stage begins with a microbatch no earlier than the neighbour it has it from was done with it; a step ends for all
ranks at once. The frameworks see to the order, by passing the data; when it was is passed beside it.
"""

import multiprocessing
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import torch
import torch.distributed

from zeus_core.device import SimulatedGpu, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.pipeline import (
    Frontier,
    PipelineFrequencyOptimizer,
    PipelineFrequencySettings,
    PipelineProfile,
    PipelineRank,
    make_plan,
)
from zeus_core.pipeline.optimizer import _planning
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS
from zeus_core.pytorch import torch_world
from zeus_core.testing import VirtualBackground, VirtualTime

# In this process: virtual time stands still meanwhile, and another one takes a second to start.
_planning.run_in_child = lambda function, *arguments: function(*arguments)

A100 = "A100-SXM4-80GB"
_POWERS = {A100: 330.0, "A40": 270.0}
_UNEQUAL = (1.0, 1.15, 0.9, 1.05)
_SECONDS = {"forward": 0.06, "backward": 0.12, "backward-input": 0.06, "backward-weight": 0.06}
_BEFORE = {"forward": -1, "backward": 1, "backward-input": 1}  # from which stage a microbatch comes


def work_of(stage, kind, model, factor=1.0):
    """Return the work of a stage's pass: stages are unequal."""
    seconds = _SECONDS[kind] * _UNEQUAL[stage % 4] * factor
    return Work(seconds, _POWERS[model], 1.0, 0.75 + 0.03 * (stage % 3))


def true_profile(stages, model, kinds=("forward", "backward")):
    """The profile at every clock, as the physics have it."""
    preset = find_preset(model)

    def option(work, clock):
        point = preset.physics.operating_point(work, preset.default_limit_watts, clock / preset.highest_clock_mhz)
        return MeasuredOption(clock, point.seconds, point.energy_joules)

    clocks = range(preset.highest_clock_mhz, preset.lowest_clock_mhz - 1, -preset.clock_step_mhz)
    names = [(stage, kind) for stage in range(stages) for kind in kinds]
    instructions = [
        InstructionProfile(*instruction, tuple(option(work_of(*instruction, model), clock) for clock in clocks))
        for instruction in names
    ]
    return PipelineProfile(instructions, preset.physics.blocking_power_watts)


def check_profile(measured, truth):
    """Times within 2 %, energies within 4 %, their differences between neighbouring clocks within 1.5 %."""
    for instruction in measured.instructions:
        true = {option.clock_mhz: option for option in truth.get(instruction.stage, instruction.kind).options}
        pairs = [(option, true[option.clock_mhz]) for option in instruction.options]
        assert len(pairs) >= 6
        for option, one in pairs:
            assert abs(option.time_seconds / one.time_seconds - 1) <= 0.02, option
            assert abs(option.energy_joules / one.energy_joules - 1) <= 0.04, option
        for (option, one), (next_option, next_one) in pairwise(pairs):
            off = (option.energy_joules - next_option.energy_joules) - (one.energy_joules - next_one.energy_joules)
            assert abs(off) <= 0.015 * one.energy_joules, (option, next_option)


def best_saving(truth, schedule):
    """The fraction of the energy that the planner saves with the true profile, with no slowdown."""
    frontier = Frontier.from_profile(truth, schedule)
    return 1 - make_plan(frontier, slowdown_factor=1.0).energy_joules / frontier.highest_clock_point[1]


class SharedTimes:
    """When which stage was done with which microbatch; to be made before the ranks are forked."""

    def __init__(self, stages, microbatches, pipelines=1):
        self._shape = (pipelines, 2, 2, stages, microbatches)
        size = pipelines * 4 * stages * microbatches
        self._times = torch.frombuffer(multiprocessing.get_context("fork").RawArray("d", size), dtype=torch.float64)

    def of(self, pipeline, step, kind, stage, microbatch):
        """Where the time of a microbatch is kept: `times[index]`."""
        index = (pipeline, step % 2, int(kind != "forward"), stage, microbatch)
        return self._times.view(self._shape)[index]

    @property
    def stages(self):
        return self._shape[3]


@dataclass
class Record:
    """History of one rank, step by step."""

    phases: list = field(default_factory=list)
    seconds: list = field(default_factory=list)
    joules: list = field(default_factory=list)
    losses: list = field(default_factory=list)
    latest: dict = field(default_factory=dict)
    clocks_at_pauses: set = field(default_factory=set)
    end_phase: str = ""
    end_clock_mhz: int = 0


class VirtualOptimizer(PipelineFrequencyOptimizer):
    """Lets time pass as the messages of the pipeline say, and notes what happens."""

    def __init__(self, gpu, time_source, times, pipeline_rank, settings, **options):
        monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery(()), gpu_indices=[0], time_source=time_source)
        super().__init__(
            monitor, pipeline_rank, settings, make_background=lambda: VirtualBackground(time_source), **options
        )
        self.record = Record()
        self.gpu, self.time_source, self._times, self.pipeline_rank = gpu, time_source, times, pipeline_rank
        self.steps = 0
        self._running = ()

    def on_step_begin(self):
        self._began = (self.time_source.now(), self.gpu.exact_energy_joules())
        self._counts = {}
        super().on_step_begin()

    def on_instruction_begin(self, name, stage=None, microbatch=None):
        stage = self.pipeline_rank.rank if stage is None else stage
        count = self._counts[name, stage] = self._counts.get((name, stage), -1) + 1
        self._running = (name, stage, count if microbatch is None else microbatch)
        neighbour = stage + _BEFORE.get(name, self._times.stages)
        if 0 <= neighbour < self._times.stages:
            self._advance_to(self._time_of(name, neighbour, self._running[2]).item())
        super().on_instruction_begin(name, stage, microbatch)

    def on_instruction_end(self, name):
        if name in _BEFORE:
            self._time_of(*self._running).fill_(self.time_source.now())
        super().on_instruction_end(name)

    def on_step_end(self):
        latest = torch.tensor(self.time_source.now(), dtype=torch.float64)
        torch.distributed.all_reduce(latest, torch.distributed.ReduceOp.MAX)
        self._advance_to(latest.item())
        reached = self.phase
        self.record.phases.append(reached.value)
        self.record.seconds.append(self.time_source.now() - self._began[0])
        self.record.joules.append(self.gpu.exact_energy_joules() - self._began[1])
        super().on_step_end()
        self.steps += 1
        found = {"baseline": self.baseline, "predicted": self.predicted, "measured": self.measured}
        found["clocks"] = self.clocks_mhz
        if self.phase is not reached:  # the profile changes with the phase only, and takes milliseconds
            found["profile"] = self.profile(self.pipeline_rank.pipeline)
        self.record.latest |= {name: value for name, value in found.items() if value is not None}

    def on_pause(self, activity):
        super().on_pause(activity)
        self.record.clocks_at_pauses.add(self.gpu._locked_clock_mhz)

    def close(self):
        self.record.end_phase = self.record.end_phase or self.phase.value
        super().close()
        self.record.end_clock_mhz = self.gpu._locked_clock_mhz

    def _time_of(self, kind, stage, microbatch):
        return self._times.of(self.pipeline_rank.pipeline, self.steps, kind, stage, microbatch)

    def _advance_to(self, seconds):
        self.time_source.advance(seconds - self.time_source.now())


class ComputingOptimizer(VirtualOptimizer):
    """Each instruction takes place on the simulated GPU too."""

    def on_instruction_end(self, name):
        if name in COMPUTE_KINDS:
            self.gpu.execute(work_of(self._running[1], name, A100))
        super().on_instruction_end(name)

    def on_step_end(self):
        super().on_step_end()
        if self._course.profile is not None:
            self.record.latest["schedule"] = self._course.profile.job.schedules[0]


def computing_optimizer(times):
    """One for this rank of a job of a single pipeline."""
    rank = torch.distributed.get_rank()
    gpu, time_source = virtual_gpu(A100, rank)
    settings = PipelineFrequencySettings()
    return ComputingOptimizer(gpu, time_source, times, PipelineRank(rank), settings, world=torch_world())


def virtual_gpu(model, index):
    """A simulated GPU and its clock."""
    time_source = VirtualTime()
    return SimulatedGpu(find_preset(model), index, time_source=time_source), time_source


class Run:
    """The records of all ranks of a job."""

    def __init__(self, records):
        self.records = records

    def steps_of(self, phase):
        return [step for step, reached in enumerate(self.records[0].phases) if reached == phase]

    def seconds(self, steps):
        return median(max(record.seconds[step] for record in self.records) for step in steps)

    def joules(self, steps, ranks=None):
        chosen = self.records if ranks is None else [self.records[rank] for rank in ranks]
        return median(sum(record.joules[step] for record in chosen) for step in steps)

    def saved_fraction(self):
        """Energy saved in the last 20 steps of the plan, over the steps at the clocks found."""
        return 1 - self.joules(self.steps_of("replaying")[-20:]) / self.joules(self.steps_of("baseline"))

    def check_against(self, truth, schedule):
        """The profile is true, and the plan gives at least 85 % of what the true profile allows."""
        check_profile(self.records[0].latest["profile"], truth)
        self.check_plan(least_saved_fraction=0.85 * best_saving(truth, schedule))

    def check_plan(self, least_saved_fraction):
        """The plan gives what was predicted, takes no longer, saves enough; and the clocks are as found in the end."""
        replayed, found = self.steps_of("replaying")[-20:], self.steps_of("baseline")
        predicted = self.records[0].latest["predicted"]
        assert len(replayed) == 20
        assert abs(self.joules(replayed) / predicted.energy_joules - 1) <= 0.03
        assert abs(self.seconds(replayed) / self.seconds(found) - 1) <= 0.01
        assert self.saved_fraction() >= least_saved_fraction, (self.saved_fraction(), least_saved_fraction)
        assert len({record.end_clock_mhz for record in self.records}) == 1
        assert self.records[0].end_clock_mhz in {1410, 1740}
