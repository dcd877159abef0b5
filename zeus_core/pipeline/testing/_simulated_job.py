"""A job of training pipelines on simulated GPUs, each rank a thread with virtual time of its own.

Each message between ranks carries the time it was sent at, and its receiver waits until then. Nothing depends on how
busy the machine is, and an hour takes a second.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from zeus_core.device import SimulatedGpu, SimulatedNoise, Work, find_preset
from zeus_core.device.cpu import CpuDiscovery
from zeus_core.monitor import ZeusMonitor
from zeus_core.pipeline.pipeline_observer import PipelineObserver
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule
from zeus_core.ports import World
from zeus_core.testing import ThreadWorld, VirtualBackground, VirtualTime
from zeus_core.validate import checked_whole_number

_Kind = tuple[int, str]  # stage and kind


@dataclass
class SimulatedRank:
    """One rank of a simulated job.

    Attributes:
        rank: Its position in its pipeline.
        pipeline: Its pipeline.
        world: All ranks of the job.
        time_source: Its own time.
        gpu: Its GPU.
        monitor: Measures it.
        step_seconds: How long each of its steps took.
        step_joules: The exact energy of its GPU in each.
    """

    rank: int
    pipeline: int
    world: World
    time_source: VirtualTime
    gpu: SimulatedGpu
    monitor: ZeusMonitor
    step_seconds: list[float] = field(default_factory=list)
    step_joules: list[float] = field(default_factory=list)

    def make_background(self) -> VirtualBackground:
        """Make a queue of work beside training, in its own time."""
        return VirtualBackground(self.time_source)


class SimulatedJob:
    """Data-parallel pipelines that run a schedule.

    Args:
        schedule: The instructions that each pipeline runs.
        work: The work of each kind of instruction of each stage.
        gpu_model: A simulated model.
        pipelines: How many pipelines.
        noise: Scatter of times and powers; none if None.
        grants_control: Whether this process may set clocks.
        slowed_by: Factor by which a pipeline is slowed in a step, both counted from 0.
        schedule_of: Schedule of a step, where it is not always `schedule`.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        schedule: Schedule,
        work: Mapping[_Kind, Work],
        gpu_model: str = "A100-SXM4-80GB",
        pipelines: int = 1,
        *,
        noise: SimulatedNoise | None = None,
        grants_control: bool = True,
        slowed_by: Callable[[int, int], float] = lambda pipeline, step: 1.0,
        schedule_of: Callable[[int], Schedule] | None = None,
    ) -> None:
        of_step = (lambda step: schedule) if schedule_of is None else schedule_of
        self._schedule_of = of_step
        self._work = work
        self._preset = find_preset(gpu_model)
        self._pipelines = checked_whole_number("pipelines", pipelines, 1)
        self._ranks = len(schedule.ranks)
        self._noise = noise
        self._grants_control = grants_control
        self._slowed_by = slowed_by
        self._timeout_seconds = 0.0
        self._transfers: dict[int, _Transfers] = {}
        self._links: dict[tuple[int, Instruction, int], queue.SimpleQueue[float]] = {}

    def run(
        self, steps: int, observe: Callable[[SimulatedRank], PipelineObserver], timeout_seconds: float = 60.0
    ) -> list[SimulatedRank]:
        """Train for some steps, each rank with an observer. Returns the ranks, pipeline by pipeline.

        Args:
            steps: How many.
            observe: Makes the observer of a rank.
            timeout_seconds: How long, in real time, a rank waits for another one.

        Raises:
            Exception: The first error, by rank.
        """
        self._timeout_seconds = timeout_seconds

        def rank_main(world: World) -> SimulatedRank:
            rank = self._rank(world)
            observer = observe(rank)
            try:
                for step in range(steps):
                    self._step(rank, observer, step)
            finally:
                observer.close()
            return rank

        return ThreadWorld.run(self._pipelines * self._ranks, rank_main, timeout_seconds)

    def _rank(self, world: World) -> SimulatedRank:
        time_source = VirtualTime()
        gpu = SimulatedGpu(
            self._preset, world.rank, time_source=time_source, noise=self._noise, grants_control=self._grants_control
        )
        monitor = ZeusMonitor(gpus=[gpu], cpus=CpuDiscovery(()), time_source=time_source, gpu_indices=[0])
        pipeline, rank = divmod(world.rank, self._ranks)
        return SimulatedRank(rank, pipeline, world, time_source, gpu, monitor)

    def _step(self, rank: SimulatedRank, observer: PipelineObserver, step: int) -> None:
        begin_seconds, begin_joules = rank.time_source.now(), rank.gpu.exact_energy_joules()
        observer.on_step_begin()
        schedule = self._schedule_of(step)
        transfers = self._transfers_of(schedule)
        factor = self._slowed_by(rank.pipeline, step)
        for instruction in schedule.ranks[rank.rank]:
            self._wait(rank, transfers, instruction)
            observer.on_instruction_begin(*instruction)
            work = self._work[instruction.stage, instruction.kind]
            rank.gpu.execute(work if factor == 1.0 else replace(work, seconds=work.seconds * factor))
            observer.on_instruction_end(instruction.kind)
            self._send(rank, transfers, instruction)
        observer.on_instruction_begin("all-reduce")
        _advance_to(rank.time_source, max(rank.world.gather(rank.time_source.now())))
        observer.on_instruction_end("all-reduce")
        rank.step_seconds.append(rank.time_source.now() - begin_seconds)
        rank.step_joules.append(rank.gpu.exact_energy_joules() - begin_joules)
        observer.on_step_end()

    def _transfers_of(self, schedule: Schedule) -> _Transfers:
        transfers = self._transfers.get(id(schedule))
        if transfers is None:  # it holds the schedule, so that no other one gets the same id
            transfers = self._transfers[id(schedule)] = _Transfers(schedule)
        return transfers

    def _wait(self, rank: SimulatedRank, transfers: _Transfers, instruction: Instruction) -> None:
        for needed in transfers.received_before[instruction]:
            _advance_to(rank.time_source, self._link(rank, needed, rank.rank).get(timeout=self._timeout_seconds))

    def _send(self, rank: SimulatedRank, transfers: _Transfers, instruction: Instruction) -> None:
        for receiver in transfers.receivers[instruction]:
            self._link(rank, instruction, receiver).put(rank.time_source.now())

    def _link(self, rank: SimulatedRank, instruction: Instruction, receiver: int) -> queue.SimpleQueue[float]:
        # setdefault is atomic: sender and receiver get the same one
        return self._links.setdefault((rank.pipeline, instruction, receiver), queue.SimpleQueue())


class _Transfers:
    """The instructions of a schedule that wait for one of another rank.

    Attributes:
        schedule: The schedule.
        received_before: The instructions of other ranks that each instruction waits for.
        receivers: The ranks that wait for each instruction.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.received_before: dict[Instruction, list[Instruction]] = {}
        self.receivers: dict[Instruction, set[int]] = {instruction: set() for instruction in schedule.instructions}
        for rank, instructions in enumerate(schedule.ranks):
            for instruction in instructions:
                received = [
                    needed for needed in schedule.needs(instruction) if schedule.rank_of_stage[needed.stage] != rank
                ]
                self.received_before[instruction] = received
                for needed in received:
                    self.receivers[needed].add(rank)


def _advance_to(time_source: VirtualTime, seconds: float) -> None:
    time_source.advance(seconds - time_source.now())
