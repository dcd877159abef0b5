"""Plans for each pipeline, from what was measured. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from zeus_core.pipeline import Frontier, PipelineProfile, Plan, Problem, Schedule, make_plan

__all__ = ["PipelinePlanner", "Prediction", "highest_clocks_seconds"]

_LEAST_SWITCH_SECONDS = 0.001


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of an iteration of a pipeline with a plan.

    Attributes:
        step_seconds: Its duration.
        energy_joules: The energy of all GPUs of the pipeline over it.
    """

    step_seconds: float
    energy_joules: float


@dataclass(frozen=True)
class PipelinePlanner:
    """Plans for one pipeline.

    Times of an iteration are those of its work: from its beginning to its last computation.

    Attributes:
        profile: Time and energy of its instructions.
        schedule: The order of its instructions.
        work_seconds: How long the work took, as measured at the original clocks.
        tail_seconds: How long what follows the work took: exchanging gradients, the optimizer step, and the like.
        tail_joules: The energy of that above waiting as long, over all GPUs.
        switch_seconds: The cost of a change of the clock; less than a millisecond counts as nothing.
    """

    profile: PipelineProfile
    schedule: Schedule
    work_seconds: float
    tail_seconds: float
    tail_joules: float
    switch_seconds: float

    @cached_property
    def frontier(self) -> Frontier:
        """The time-energy frontier."""
        return Frontier.of(self.profile, self.schedule)

    @cached_property
    def overhead_seconds(self) -> float:
        """The time of the work beyond its instructions, at any clocks: transfers, and the program itself."""
        return max(self.work_seconds - self.frontier.highest_clock_point[0], 0.0)

    def plan(self, limit_seconds: float, is_waiting: bool = False) -> Plan:
        """The plan of minimum energy for a time of the work, or the fastest plan if none is fast enough.

        Args:
            limit_seconds: The maximum time of the work.
            is_waiting: Whether the pipeline waits until then regardless.
        """
        switch_seconds = self.switch_seconds if self.switch_seconds >= _LEAST_SWITCH_SECONDS else 0.0
        # With a cost of switching, the fastest plan is the highest clock everywhere, without switches.
        quickest_seconds = self.frontier.highest_clock_point[0] if switch_seconds else self.frontier.shortest_seconds
        seconds = max(limit_seconds - self.overhead_seconds, quickest_seconds)
        if is_waiting:
            return make_plan(self.frontier, straggler_seconds=seconds, switch_seconds=switch_seconds)
        return make_plan(self.frontier, time_seconds=seconds, switch_seconds=switch_seconds)

    def prediction(self, plan: Plan, until_seconds: float = 0.0) -> Prediction:
        """The predicted time and energy of a whole iteration.

        Args:
            plan: The plan.
            until_seconds: The pipeline waits until then if its work is done earlier.
        """
        seconds = max(until_seconds - self.overhead_seconds, plan.time_seconds)
        return self._whole(seconds, plan.energy_joules_until(seconds))

    def _whole(self, seconds: float, joules: float) -> Prediction:
        rest_seconds = self.overhead_seconds + self.tail_seconds
        waiting_joules = self.frontier.problem.blocking_power_watts * rest_seconds
        return Prediction(seconds + rest_seconds, joules + waiting_joules + self.tail_joules)


def highest_clocks_seconds(profile: PipelineProfile, schedule: Schedule) -> float:
    """How long the instructions of an iteration take at the highest clocks."""
    problem = Problem(profile, schedule)
    return problem.iteration_seconds(problem.durations_of(problem.highest_clocks))
