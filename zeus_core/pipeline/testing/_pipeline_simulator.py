"""A discrete-event simulator of a training pipeline, which shares nothing with the planner but its input.

Each rank is a worker that takes its instructions in order. It waits until what the next one needs has arrived, switches
its clock if that is another, and runs it. Messages between ranks travel while the workers go on.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline import PipelineProfile
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.pipeline_schedule import Instruction
from zeus_core.validate import checked_number

_SENDS = ("send-activation", "send-gradient")
_RECEIVES = ("receive-activation", "receive-gradient")


@dataclass(frozen=True)
class SimulatedInstruction:
    """One instruction that was run: its rank, and when it began and ended."""

    instruction: Instruction
    rank: int
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class SimulatedIteration:
    """One iteration in the steady state.

    Attributes:
        time_seconds: From the beginning to the end of the last instruction.
        energy_joules: Energy of all GPUs over it.
        switches: Switches of clocks on all ranks.
        instructions: Everything that was run, in the order of ending.
    """

    time_seconds: float
    energy_joules: float
    switches: int
    instructions: tuple[SimulatedInstruction, ...]


def simulate_pipeline(profile: PipelineProfile, plan: Plan, switch_seconds: float | None = None) -> SimulatedIteration:
    """Run one iteration of a plan.

    Args:
        profile: Time and energy of each instruction.
        plan: The instructions and their clocks.
        switch_seconds: Time of a switch of a clock; that of the plan if None.

    Raises:
        UsageError: An argument is wrong, or the ranks wait for each other for ever.
    """
    seconds = plan.switch_seconds if switch_seconds is None else switch_seconds
    seconds = checked_number("switch_seconds", seconds, 0.0, math.inf, "a finite number, at least 0")
    run = _Run(profile, plan, seconds)
    return run.result()


class _Run:
    def __init__(self, profile: PipelineProfile, plan: Plan, switch_seconds: float) -> None:
        self._profile = profile
        self._orders = [
            list(zip(order, clocks, strict=True))
            for order, clocks in zip(plan.schedule.ranks, plan.clocks_mhz, strict=True)
        ]
        self._rank_of = {one.stage: rank for rank, order in enumerate(plan.schedule.ranks) for one in order}
        self._everything = {one for order in plan.schedule.ranks for one in order}
        self._sends_are_listed = any(one.kind in _SENDS for one in self._everything)
        self._switch_seconds = switch_seconds
        self._next = [0] * len(self._orders)
        self._clock = [_last_clock(order) for order in self._orders]
        self._arrived: dict[tuple[Instruction, int], float] = {}  # by what and at which rank
        self._free = [0.0] * len(self._orders)
        self._busy_joules = 0.0
        self._done: list[SimulatedInstruction] = []
        self._switch_joules = plan.switch_joules
        self._waiting = plan.waiting_clocks_mhz or [[None] * (len(order) + 1) for order in self._orders]
        self._waiting_joules = 0.0  # above the lowest power of waiting
        for rank, (first, *_, last) in enumerate(self._waiting):
            if first is not None and first == last:  # kept from one iteration to the next
                self._clock[rank] = first
        self._first_clock = list(self._clock)
        self.switches = 0

    def result(self) -> SimulatedIteration:
        events = [(0.0, rank) for rank in range(len(self._orders))]  # when a rank looks whether it can go on
        while events:
            now, rank = heapq.heappop(events)
            for when, other in self._go_on(now, rank):
                heapq.heappush(events, (when, other))
        for rank, order in enumerate(self._orders):
            if self._next[rank] < len(order):
                raise UsageError(f"rank {rank} waits for ever before {order[self._next[rank]][0]}")
        end = max(done.end_seconds for done in self._done)
        for rank in range(len(self._orders)):
            self._wait(rank, end, self._first_clock[rank])
        return SimulatedIteration(end, self._energy(end), self.switches, tuple(self._done))

    def _go_on(self, now: float, rank: int) -> Iterator[tuple[float, int]]:
        if now < self._free[rank] or self._next[rank] == len(self._orders[rank]):
            return
        instruction, clock = self._orders[rank][self._next[rank]]
        arrivals = [self._arrived.get((needed, rank)) for needed in self._needs(instruction)]
        if any(when is None for when in arrivals):
            return  # the missing message wakes this rank when it arrives
        start = max([self._free[rank], *(when for when in arrivals if when is not None)])
        start = self._wait(rank, start, self._clock[rank] if clock is None else clock)
        end = start + self._run(instruction, clock)
        self._next[rank] += 1
        self._free[rank] = end
        self._done.append(SimulatedInstruction(instruction, rank, start, end))
        yield end, rank
        yield from self._deliver(instruction, rank, end)

    def _wait(self, rank: int, until: float, clock: int | None) -> float:
        """Let a rank wait, at a clock of its own if it has one, and switch to the next; return when it goes on."""
        planned = self._waiting[rank][self._next[rank]]
        if planned is None and self._next[rank] == len(self._orders[rank]):
            clock = self._clock[rank]  # the switch is at the beginning of the next iteration
        own = clock if planned is None else planned
        stage, began = self._orders[rank][0][0].stage, self._free[rank]
        changes = [change for change in ((self._clock[rank], own), (own, clock)) if change[0] != change[1]]
        until = max(until, began + len(changes) * self._switch_seconds)
        seconds = until - began - len(changes) * self._switch_seconds
        self._waiting_joules += seconds * self._watts_above_lowest(stage, own)
        for change in changes:
            watts = max(self._watts_above_lowest(stage, each) for each in change)
            self._waiting_joules += watts * self._switch_seconds + self._profile.gpus[stage] * self._switch_joules
            self.switches += 1
        self._clock[rank] = clock
        return until

    def _watts_above_lowest(self, stage: int, clock: int | None) -> float:
        measured = self._profile.find(stage, "blocking")
        if measured is None:
            return 0.0
        watts = {each.clock_mhz or 0: each.energy_joules / each.time_seconds for each in reversed(measured.options)}
        one_gpu_watts = float(np.interp(clock or max(watts), [*watts], [*watts.values()])) - min(watts.values())
        return self._profile.gpus[stage] * one_gpu_watts

    def _run(self, instruction: Instruction, clock: int | None) -> float:
        """Return the duration, and add up the energy."""
        if instruction.kind in (*_SENDS, *_RECEIVES):
            return 0.0
        option = _option(self._profile, instruction, clock)
        watts = self._profile.blocking_power_watts[instruction.stage]
        self._busy_joules += self._profile.gpus[instruction.stage] * (
            option.energy_joules - watts * option.time_seconds
        )
        return option.time_seconds

    def _deliver(self, instruction: Instruction, rank: int, end: float) -> Iterator[tuple[float, int]]:
        """Let every rank that needs it have it; over to another rank it travels."""
        self._arrived[instruction, rank] = end
        for other in self._receivers(instruction, rank):
            link = self._profile.find(instruction.stage, "communication")
            arrival = end + (link.options[0].time_seconds if link else 0.0)
            self._busy_joules += self._profile.gpus[instruction.stage] * (
                link.options[0].energy_joules if link else 0.0
            )
            self._arrived[instruction, other] = arrival
            yield arrival, other

    def _receivers(self, instruction: Instruction, rank: int) -> list[int]:
        if self._sends_are_listed:
            towards = {"send-activation": 1, "send-gradient": -1}.get(instruction.kind)
        else:
            towards = {"forward": 1, "backward": -1, "backward-input": -1}.get(instruction.kind)
        other = self._rank_of.get(instruction.stage + towards) if towards else None
        return [] if other is None or other == rank else [other]

    def _needs(self, instruction: Instruction) -> list[Instruction]:
        """Return the messages that must have arrived. In a sound schedule, work on the same rank was run before."""
        here = self._rank_of[instruction.stage]
        if instruction.kind in _RECEIVES:
            offset, kind = (-1, "send-activation") if instruction.kind == "receive-activation" else (1, "send-gradient")
            return [Instruction(kind, instruction.stage + offset, instruction.microbatch)]
        if instruction.kind == "forward":
            needed = [Instruction("forward", instruction.stage - 1, instruction.microbatch)]
        elif instruction.kind in ("backward", "backward-input"):
            needed = [
                Instruction(kind, instruction.stage + 1, instruction.microbatch)
                for kind in ("backward", "backward-input")
            ]
        else:
            needed = []
        listed = [one for one in needed if one in self._everything]
        return [one for one in listed if not self._sends_are_listed or self._rank_of[one.stage] == here]

    def _energy(self, end: float) -> float:
        waiting_watts = 0.0
        for order in self._orders:
            stage = order[0][0].stage
            one_gpu_watts = self._profile.blocking_power_watts[stage] + self._profile.node_power_watts
            waiting_watts += self._profile.gpus[stage] * one_gpu_watts
        return self._busy_joules + self._waiting_joules + waiting_watts * end


def _option(profile: PipelineProfile, instruction: Instruction, clock: int | None) -> MeasuredOption:
    for option in profile.get(instruction.stage, instruction.kind).options:
        if option.clock_mhz == clock:
            return option
    raise UsageError(f"{instruction} was not measured at {clock} MHz")


def _last_clock(order: Sequence[tuple[Instruction, int | None]]) -> int | None:
    return next((clock for _, clock in reversed(order) if clock is not None), None)
