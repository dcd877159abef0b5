"""The planning problem: a profile and a schedule, the options of each instruction, and the power of waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import CostedOption, MeasuredOption, lower_hull, pareto_options
from zeus_core.pipeline.planner.dependencies import DependencyGraph, Indices, Numbers
from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile
from zeus_core.pipeline.planner.pipeline_schedule import BLOCKING_KIND, TRANSFER_KINDS, Schedule


class WaitingPower(NamedTuple):
    """The power that waiting draws above `PipelineProfile.blocking_power_watts`, which is then the lowest of the stage.

    Attributes:
        measured: For each stage its measured clocks, rising, and the watts of all its GPUs at each above the lowest;
            empty if they were not measured.
    """

    measured: Mapping[int, tuple[Numbers, Numbers]]

    @classmethod
    def from_profile(cls, profile: PipelineProfile) -> WaitingPower:
        """Return the power in the `blocking` rows of a profile."""
        measured = {}
        for of_kind in profile.instructions:
            if of_kind.kind == BLOCKING_KIND:
                rising, stage = of_kind.options[::-1], of_kind.stage
                clocks = np.array([option.clock_mhz for option in rising], np.float64)
                watts = np.array([option.energy_joules / option.time_seconds for option in rising])
                measured[stage] = clocks, profile.gpus[stage] * (watts - profile.blocking_power_watts[stage])
        return cls(measured)

    def watts(self, stage: int, clock_mhz: int | None) -> float:
        """Return what all GPUs of a stage draw above the lowest; between two measured clocks in proportion.

        Args:
            stage: The stage.
            clock_mhz: Their clock; None for the highest.
        """
        if not self.measured:
            return 0.0
        return float(np.interp(np.inf if clock_mhz is None else clock_mhz, *self.measured[stage]))

    def cheapest_clock_mhz(self, stage: int) -> int:
        """Return the highest of the measured clocks at which waiting draws least."""
        clocks, watts = self.measured[stage]
        return int(clocks[watts == watts.min()].max())


_NOTHING = (CostedOption(None, 0.0, 0.0),)


@dataclass(frozen=True)
class PipelineProblem:
    """The instructions of one iteration, and the options of each.

    The energy of an iteration is the sum of the effective costs of its instructions, the energy of its transfers, and
    the blocking power of all GPUs times the iteration time (Perseus, SOSP'24, section 4).

    Raises:
        UsageError: An argument is of another type; the profile lacks a stage or a kind of the schedule; or two stages
            of a rank differ in blocking power or GPUs.
    """

    profile: PipelineProfile
    schedule: Schedule

    def __post_init__(self) -> None:
        """Check that profile and schedule fit."""
        if self.profile.stages != self.schedule.stages:
            raise UsageError(
                f"the profile has {self.profile.stages} stages, but the schedule {self.schedule.name} has "
                f"{self.schedule.stages}; profile the pipeline as it is scheduled"
            )
        for stage, rank in enumerate(self.schedule.rank_of_stage):
            first = self.schedule.rank_of_stage.index(rank)
            for name in ("blocking_power_watts", "gpus"):
                one, other = getattr(self.profile, name)[first], getattr(self.profile, name)[stage]
                if one != other:
                    raise UsageError(
                        f"{name} is {one} for stage {first} and {other} for stage {stage} on the same rank"
                    )
        for stage, kind in sorted(self.kinds):
            if kind not in TRANSFER_KINDS:
                self.profile.get(stage, kind)
        self._check_communication()

    def _check_communication(self) -> None:
        has = [self.profile.find(stage, "communication") is not None for stage in range(self.profile.stages)]
        if any(has):
            for stage in self.transfer_counts.nonzero()[0].tolist():
                self.profile.get(stage, "communication")

    @cached_property
    def graph(self) -> DependencyGraph:
        """The dependencies. All arrays of instructions are in its order."""
        return DependencyGraph.from_schedule(self.schedule)

    @cached_property
    def kinds(self) -> tuple[tuple[int, str], ...]:
        """The stages and kinds in the schedule, each once."""
        return tuple(dict.fromkeys((each.stage, each.kind) for each in self.graph.instructions))

    @cached_property
    def kind_of(self) -> Indices:
        """The place of each instruction's kind in `kinds`, [instructions]."""
        number = {kind: position for position, kind in enumerate(self.kinds)}
        return np.array([number[each.stage, each.kind] for each in self.graph.instructions], np.int64)

    @cached_property
    def options(self) -> tuple[tuple[CostedOption, ...], ...]:
        """All options of each of `kinds`, the highest clock first."""
        return tuple(
            tuple(CostedOption(option.clock_mhz, option.time_seconds, cost) for option, cost in costs.items())
            or _NOTHING
            for costs in self._costs
        )

    @cached_property
    def pareto_options(self) -> tuple[tuple[CostedOption, ...], ...]:
        """The options of each of `kinds` that no other option beats in both time and cost, the fastest first."""
        return tuple(pareto_options(costs) if costs else _NOTHING for costs in self._costs)

    @cached_property
    def _costs(self) -> tuple[dict[MeasuredOption, float], ...]:
        """The effective cost of each option of each of `kinds`; empty for transfers, which take nothing."""
        return tuple(
            {}
            if kind in TRANSFER_KINDS
            else {
                option: self.profile.effective_cost_joules(stage, option)
                for option in self.profile.get(stage, kind).options
            }
            for stage, kind in self.kinds
        )

    @cached_property
    def hulls(self) -> tuple[tuple[CostedOption, ...], ...]:
        """The lower hull of the options of each of `kinds`, the fastest first."""
        return tuple(map(lower_hull, self.pareto_options))

    @cached_property
    def highest_clock_options(self) -> tuple[CostedOption, ...]:
        """The option of each of `kinds` at its highest clock."""
        return tuple(of_kind[0] for of_kind in self.options)

    @cached_property
    def highest_clock_point(self) -> tuple[float, float]:
        """Seconds and joules of an iteration with all instructions at their highest clocks."""
        options = self.highest_clock_options
        seconds = self.iteration_seconds(self.durations_of(options))
        cost = float(np.array([option.cost_joules for option in options]) @ np.bincount(self.kind_of))
        return seconds, self.energy_joules(cost, seconds) + self._waiting_joules_at_highest_clocks(seconds)

    def _waiting_joules_at_highest_clocks(self, seconds: float) -> float:
        """Return what waiting takes at the highest clocks above the lowest power of waiting."""
        power, durations = WaitingPower.from_profile(self.profile), self.durations_of(self.highest_clock_options)
        busy = np.bincount(self.graph.rank, durations)
        watts = [power.watts(stage, None) for stage in self._first_stages]
        return float((seconds - busy) @ np.array(watts))

    def option_at(self, stage: int, kind: str, clock_mhz: int | None) -> CostedOption:
        """Return the option of a kind at a clock; None stands for the only option of a kind that keeps the clock.

        Raises:
            UsageError: It was not measured at that clock.
        """
        option = self._option_by_clock.get((stage, kind, clock_mhz))
        if option is None:
            raise UsageError(f"the profile has no {kind!r} of stage {stage} at {clock_mhz} MHz")
        return option

    @cached_property
    def _option_by_clock(self) -> dict[tuple[int, str, int | None], CostedOption]:
        return {
            (stage, kind, option.clock_mhz): option
            for (stage, kind), of_kind in zip(self.kinds, self.options, strict=True)
            for option in of_kind
        }

    @cached_property
    def arc_delay_seconds(self) -> Numbers:
        """The seconds of communication on each arc of the graph, [graph arcs]."""
        seconds = np.zeros(self.profile.stages)
        for stage in range(self.profile.stages):
            communication = self.profile.find(stage, "communication")
            if communication is not None:
                seconds[stage] = communication.at_highest_clock.time_seconds
        return np.where(self.graph.arc_is_transfer, seconds[self._arc_stage], 0.0)

    @cached_property
    def _arc_stage(self) -> Indices:
        stages = np.array([instruction.stage for instruction in self.graph.instructions], np.int64)
        return stages[self.graph.arc_from]

    @cached_property
    def transfer_counts(self) -> Indices:
        """The number of transfers from each stage to another rank, [stages]."""
        return np.bincount(self._arc_stage[self.graph.arc_is_transfer], minlength=self.profile.stages)

    @cached_property
    def transfer_joules(self) -> float:
        """The energy of all transfers of an iteration."""
        total = 0.0
        for stage, count in enumerate(self.transfer_counts.tolist()):
            communication = self.profile.find(stage, "communication")
            if communication is not None:
                total += count * self.profile.gpus[stage] * communication.at_highest_clock.energy_joules
        return total

    @cached_property
    def rank_gpus(self) -> Indices:
        """The number of GPUs of each rank, [ranks]."""
        return np.array([self.profile.gpus[stage] for stage in self._first_stages], np.int64)

    @cached_property
    def blocking_power_watts(self) -> float:
        """The power of all GPUs of all ranks together while they wait, with their share of the node's power."""
        return sum(
            (self.profile.blocking_power_watts[stage] + self.profile.node_power_watts) * self.profile.gpus[stage]
            for stage in self._first_stages
        )

    @cached_property
    def _first_stages(self) -> list[int]:
        """One stage of each rank."""
        return [self.schedule.rank_of_stage.index(rank) for rank in range(len(self.schedule.ranks))]

    def energy_joules(self, cost_joules: float, time_seconds: float) -> float:
        """Return the energy of all GPUs from the beginning of an iteration to its end, or to a later time.

        Args:
            cost_joules: Sum of the effective costs of the instructions.
            time_seconds: Seconds from the beginning.
        """
        return cost_joules + self.transfer_joules + self.blocking_power_watts * time_seconds

    def iteration_seconds(self, durations: Numbers) -> float:
        """Return the iteration time with these durations, [instructions]."""
        return float((self.start_seconds(durations) + durations).max())

    @cached_property
    def shortest_seconds(self) -> float:
        """The shortest iteration time: every instruction at its fastest option as measured."""
        return self.iteration_seconds(self.durations_of([of_kind[0] for of_kind in self.pareto_options]))

    @cached_property
    def slowest_seconds(self) -> float:
        """The iteration time with every instruction at its lowest effective cost."""
        return self.iteration_seconds(self.durations_of([of_kind[-1] for of_kind in self.pareto_options]))

    def start_seconds(self, durations: Numbers) -> Numbers:
        """Return the start of each instruction if each starts as soon as it can, [instructions]."""
        return self.graph.earliest_starts(self.arc_delay_seconds, durations)

    def durations_of(self, options: Sequence[CostedOption]) -> Numbers:
        """Return the durations with one option for each of `kinds`, [instructions]."""
        return np.array([option.time_seconds for option in options])[self.kind_of]
