"""A plan: a clock for each instruction of each rank, the same in every iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.pipeline._execution import Execution, execute
from zeus_core.pipeline._hull import CostedOption
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._profile import PipelineProfile
from zeus_core.pipeline._schedule import Schedule

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """Clocks, and what they are predicted to give.

    Attributes:
        name: How it was made, such as "frontier".
        schedule: What is run.
        clocks_mhz: SM clock of each instruction of each rank, in the order of `schedule.ranks`; None where the clock
            stays as it is. All GPUs of a stage use the same.
        time_seconds: Iteration time.
        energy_joules: Energy of all GPUs over it.
        switches: How many times a clock is switched in an iteration, on all ranks together (one GPU of each stage).
        switch_seconds: What each switch was taken to cost; it is in `time_seconds`.
        blocking_power_watts: What all GPUs together draw while they wait.
        profile_fingerprint: The profile it was made from; see `PipelineProfile.fingerprint`.
    """

    name: str
    schedule: Schedule
    clocks_mhz: tuple[tuple[int | None, ...], ...]
    time_seconds: float
    energy_joules: float
    switches: int
    switch_seconds: float
    blocking_power_watts: float
    profile_fingerprint: str

    @classmethod
    def of(cls, name: str, problem: Problem, chosen: Sequence[CostedOption], switch_seconds: float = 0.0) -> Plan:
        """The plan that makes these choices.

        Args:
            name: How it was made.
            problem: What is run.
            chosen: The choice of each instruction, in the order of `problem.graph`. [instructions]
            switch_seconds: What a switch of the clock takes.
        """
        result = execute(problem, chosen, switch_seconds)
        clocks = {it: choice.clock_mhz for it, choice in zip(problem.graph.instructions, chosen, strict=True)}
        return cls(
            name=name,
            schedule=problem.schedule,
            clocks_mhz=tuple(tuple(clocks[it] for it in rank) for rank in problem.schedule.ranks),
            time_seconds=result.time_seconds,
            energy_joules=result.energy_joules,
            switches=result.switches,
            switch_seconds=switch_seconds,
            blocking_power_watts=problem.blocking_power_watts,
            profile_fingerprint=problem.profile.fingerprint,
        )

    @property
    def average_power_watts(self) -> float:
        """Mean power of all GPUs together."""
        return self.energy_joules / self.time_seconds

    def energy_joules_until(self, time_seconds: float) -> float:
        """Energy of all GPUs from the beginning of an iteration, which is followed by waiting, until then.

        Raises:
            UsageError: The iteration is not over by then.
        """
        if not time_seconds >= self.time_seconds * (1 - 1e-12):
            raise UsageError(
                f"time_seconds is {time_seconds!r}, before the end of the iteration, {self.time_seconds!r}"
            )
        return self.energy_joules + self.blocking_power_watts * (time_seconds - self.time_seconds)

    def execution(self, profile: PipelineProfile) -> Execution:
        """When each instruction runs, in the order of `Problem(profile, schedule).graph`.

        Raises:
            UsageError: The profile is not the one the plan was made from.
        """
        if profile.fingerprint != self.profile_fingerprint:
            raise UsageError("the plan was made from another profile; make it again from this one")
        problem = Problem(profile, self.schedule)
        return execute(problem, self.choices(problem), self.switch_seconds)

    def choices(self, problem: Problem) -> list[CostedOption]:
        """The choice of each instruction, in the order of `problem.graph`."""
        clocks = {
            it: clock
            for order, of_rank in zip(self.schedule.ranks, self.clocks_mhz, strict=True)
            for it, clock in zip(order, of_rank, strict=True)
        }
        return [problem.choice_at(it.stage, it.kind, clocks[it]) for it in problem.graph.instructions]
