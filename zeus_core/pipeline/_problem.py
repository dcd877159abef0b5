"""A profile and a schedule together: what there is to choose, and what follows whatever is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline._dependencies import DependencyGraph, Indices, Numbers, dependency_graph
from zeus_core.pipeline._hull import CostedOption, lower_hull, pareto_choices
from zeus_core.pipeline._kinds import TRANSFER_KINDS
from zeus_core.pipeline._profile import PipelineProfile
from zeus_core.pipeline._schedule import Schedule
from zeus_core.pipeline._timing import earliest_starts

__all__ = ["Problem"]

_NOTHING = (CostedOption(None, 0.0, 0.0),)


@dataclass(frozen=True)
class Problem:
    """What the planner plans: the instructions of one iteration, and the choices of each.

    The energy of an iteration is the sum of the effective costs of its instructions, the energy of its transfers, and
    the blocking power of all GPUs times the iteration time (Perseus, SOSP'24, section 4).

    Raises:
        UsageError: The profile has not the stages or kinds of the schedule, or two stages of a rank differ in blocking
            power or GPUs.
    """

    profile: PipelineProfile
    schedule: Schedule

    def __post_init__(self) -> None:
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
        """What waits for what; its numbers are those of the instructions everywhere below."""
        return dependency_graph(self.schedule)

    @cached_property
    def kinds(self) -> tuple[tuple[int, str], ...]:
        """All stages and kinds there are in the schedule."""
        return tuple(dict.fromkeys((it.stage, it.kind) for it in self.graph.instructions))

    @cached_property
    def kind_of(self) -> Indices:
        """Which of `kinds` each instruction is, [instructions]."""
        number = {kind: position for position, kind in enumerate(self.kinds)}
        return np.array([number[it.stage, it.kind] for it in self.graph.instructions], np.int64)

    @cached_property
    def choices(self) -> tuple[tuple[CostedOption, ...], ...]:
        """The choices worth having of each of `kinds`, the fastest first."""
        return tuple(
            _NOTHING if kind in TRANSFER_KINDS else pareto_choices(self.profile, self.profile.get(stage, kind))
            for stage, kind in self.kinds
        )

    @cached_property
    def hulls(self) -> tuple[tuple[CostedOption, ...], ...]:
        """The lower hull of the choices of each of `kinds`."""
        return tuple(lower_hull(choices) for choices in self.choices)

    @cached_property
    def all_choices(self) -> tuple[tuple[CostedOption, ...], ...]:
        """All choices of each of `kinds`, worth having or not, the highest clock first."""
        return tuple(
            _NOTHING
            if kind in TRANSFER_KINDS
            else tuple(
                CostedOption(it.clock_mhz, it.time_seconds, self.profile.effective_cost_joules(stage, it))
                for it in self.profile.get(stage, kind).options
            )
            for stage, kind in self.kinds
        )

    @cached_property
    def highest_clocks(self) -> tuple[CostedOption, ...]:
        """What each of `kinds` takes at its highest clock."""
        return tuple(of_kind[0] for of_kind in self.all_choices)

    def choice_at(self, stage: int, kind: str, clock_mhz: int | None) -> CostedOption:
        """What a kind takes at a clock; None for its only choice where the clock stays as it is.

        Raises:
            UsageError: It was not measured at that clock.
        """
        found = self._choice_by_clock.get((stage, kind, clock_mhz))
        if found is None:
            raise UsageError(f"the profile has no {kind!r} of stage {stage} at {clock_mhz} MHz")
        return found

    @cached_property
    def _choice_by_clock(self) -> dict[tuple[int, str, int | None], CostedOption]:
        return {
            (stage, kind, choice.clock_mhz): choice
            for (stage, kind), of_kind in zip(self.kinds, self.all_choices, strict=True)
            for choice in of_kind
        }

    @cached_property
    def arc_delay_seconds(self) -> Numbers:
        """The communication on each arc of the graph, [graph arcs]."""
        seconds = np.zeros(self.profile.stages)
        for stage in range(self.profile.stages):
            communication = self.profile.find(stage, "communication")
            if communication is not None:
                seconds[stage] = communication.at_highest_clock.time_seconds
        return np.where(self.graph.arc_is_transfer, seconds[self._arc_stage], 0.0)

    @cached_property
    def _arc_stage(self) -> Indices:
        stages = np.array([it.stage for it in self.graph.instructions], np.int64)
        return stages[self.graph.arc_from]

    @cached_property
    def transfer_counts(self) -> Indices:
        """How many transfers leave each stage for another rank, [stages]."""
        return np.bincount(self._arc_stage[self.graph.arc_is_transfer], minlength=self.profile.stages)

    @cached_property
    def transfer_joules(self) -> float:
        """Energy of all transfers of an iteration."""
        total = 0.0
        for stage, count in enumerate(self.transfer_counts.tolist()):
            communication = self.profile.find(stage, "communication")
            if communication is not None:
                total += count * self.profile.gpus[stage] * communication.at_highest_clock.energy_joules
        return total

    @cached_property
    def blocking_power_watts(self) -> float:
        """What all GPUs of all ranks together draw while they wait."""
        first_stages = {rank: stage for stage, rank in reversed(list(enumerate(self.schedule.rank_of_stage)))}
        return sum(self.profile.blocking_power_watts[it] * self.profile.gpus[it] for it in first_stages.values())

    def energy_joules(self, cost_joules: float, time_seconds: float) -> float:
        """Energy of all GPUs from the beginning of an iteration until `time_seconds` later, which is its end or later.

        Args:
            cost_joules: Sum of the effective costs of the instructions.
            time_seconds: How long.
        """
        return cost_joules + self.transfer_joules + self.blocking_power_watts * time_seconds

    def iteration_seconds(self, durations: Numbers) -> float:
        """The iteration time with these durations, [instructions]."""
        return float((self.start_seconds(durations) + durations).max())

    @cached_property
    def shortest_seconds(self) -> float:
        """The least iteration time there is: every instruction at its fastest, as measured."""
        return self.iteration_seconds(self.durations_of([of_kind[0] for of_kind in self.choices]))

    @cached_property
    def slowest_seconds(self) -> float:
        """The iteration time with every instruction at its least effective cost."""
        return self.iteration_seconds(self.durations_of([of_kind[-1] for of_kind in self.choices]))

    def start_seconds(self, durations: Numbers) -> Numbers:
        """When each instruction starts, if each starts as soon as it can, [instructions]."""
        return earliest_starts(self.graph, self.arc_delay_seconds, durations)

    def durations_of(self, chosen: Sequence[CostedOption]) -> Numbers:
        """Durations with one choice for each of `kinds`, [instructions]."""
        return np.array([choice.time_seconds for choice in chosen])[self.kind_of]
