"""Plans for one pipeline, from its measured profile. Pure; it runs in a child process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from zeus_core.pipeline.optimizer._deployment import Deployment, PlanPrediction
from zeus_core.pipeline.optimizer._plan_follower import Wait
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.frontier.frontier import Frontier
from zeus_core.pipeline.planner.pipeline_problem import WaitingPower
from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, Schedule
from zeus_core.pipeline.planner.plan_making import make_plan, with_waiting_clocks
from zeus_core.pipeline.planner.waiting_clocks import waiting_seconds
from zeus_core.pipeline.profile.iterations import Saving

# A change of the clock, or a call of the driver, that takes less counts as nothing: planning with costs takes much
# longer, and a millisecond is lost in the scatter of instructions, most of which take tens of them.
_MIN_SWITCH_SECONDS = 0.001

_STANDARD_ERRORS = 1.96  # hold the truth in 95 % of cases


@dataclass(frozen=True)
class PipelinePlanner:
    """Plans for one pipeline.

    Times of an iteration are those of its work: from its beginning to its last computation.

    Attributes:
        profile: Time and energy of its instructions. Its power of the node is paid for too, and not in predictions.
        schedule: The order of its instructions.
        work_seconds: How long the work took, as measured at the original clocks.
        tail_seconds: How long the rest of the iteration took: exchanging gradients, the optimizer step, and the like.
        tail_joules: The energy of that rest above waiting as long, over all GPUs.
        switch_seconds: The cost of a change of the clock; less than a millisecond counts as nothing.
        latency_seconds: How long the driver takes to change it. Changes are requested that much before they are due,
            which costs nothing, unless instructions are shorter: then the plan leaves as much time between two of them.
    """

    profile: PipelineProfile
    schedule: Schedule
    work_seconds: float
    tail_seconds: float
    tail_joules: float
    switch_seconds: float
    latency_seconds: float = 0.0

    @cached_property
    def frontier(self) -> Frontier:
        """The time-energy frontier."""
        return Frontier.from_profile(self.profile, self.schedule)

    @property
    def residual_seconds(self) -> float:
        """The measured time of the work less that of its instructions: the overhead, or the error of the model."""
        return self.work_seconds - self.frontier.highest_clock_point[0]

    @property
    def overhead_seconds(self) -> float:
        """The time of the work beyond its instructions, at any clocks: transfers, and the program itself."""
        return max(self.residual_seconds, 0.0)

    def deployment(self, limit_seconds: float, until_seconds: float | None = None) -> Deployment:
        """Make the plan of minimum energy.

        Args:
            limit_seconds: The maximum time of the work of a pipeline that does not wait.
            until_seconds: Until when the pipeline waits regardless; None if it does not wait.
        """
        is_waiting = until_seconds is not None
        plan = self.plan(limit_seconds if until_seconds is None else until_seconds, is_waiting)
        return Deployment(
            plan.clocks_mhz,
            plan.time_seconds + self.residual_seconds,
            self.prediction(plan, until_seconds or 0.0),
            is_waiting,
            excess_seconds=max(-self.residual_seconds, 0.0),
            saving=self.saving(plan),
            waits=self._waits(plan, until_seconds),
        )

    def _waits(self, plan: Plan, until_seconds: float | None) -> tuple[tuple[Wait | None, ...], ...]:
        """Return the waits of each rank that have a clock of their own; nothing if there are none."""
        if not plan.waiting_clocks_mhz:
            return ()
        seconds = waiting_seconds(self.frontier.problem, plan.execution(self.profile))
        for of_rank in seconds:
            of_rank[-1] += max((until_seconds or 0.0) - self.overhead_seconds - plan.time_seconds, 0.0)
        return tuple(
            tuple(None if clock is None else Wait(clock, lasts) for clock, lasts in zip(clocks, of_rank, strict=True))
            for clocks, of_rank in zip(plan.waiting_clocks_mhz, seconds, strict=True)
        )

    def plan(self, limit_seconds: float, is_waiting: bool = False) -> Plan:
        """Make the plan of minimum energy for a time of the work, or the fastest plan if none is fast enough.

        Args:
            limit_seconds: The maximum time of the work.
            is_waiting: Whether the pipeline waits until then regardless.
        """
        switch_seconds = self.switch_seconds if self.switch_seconds >= _MIN_SWITCH_SECONDS else 0.0
        dwell_seconds = self._dwell_seconds
        # With a cost of switching, the fastest plan is the highest clock everywhere, without switches.
        is_free = not (switch_seconds or dwell_seconds)
        quickest_seconds = self.frontier.shortest_seconds if is_free else self.frontier.highest_clock_point[0]
        seconds = max(limit_seconds - self.overhead_seconds, quickest_seconds)
        until, limit = (seconds, None) if is_waiting else (None, seconds)
        plan = make_plan(
            self.frontier,
            time_seconds=limit,
            straggler_seconds=until,
            switch_seconds=switch_seconds,
            dwell_seconds=dwell_seconds,
        )
        # The driver takes that long to lower the clock, and begins that much earlier to raise it.
        price = SwitchPrice(max(switch_seconds, self.latency_seconds), 0.0, dwell_seconds)
        return with_waiting_clocks(self.frontier.problem, plan, price, until)

    @property
    def _dwell_seconds(self) -> float:
        """The shortest time between two changes of the clock that the driver can follow; 0 if it always can."""
        shortest = min(
            option.time_seconds
            for instruction in self.profile.instructions
            if instruction.kind in COMPUTE_KINDS
            for option in instruction.options
        )
        is_followed = self.latency_seconds < max(shortest, _MIN_SWITCH_SECONDS)
        return 0.0 if is_followed else self.latency_seconds

    def saving(self, plan: Plan) -> Saving:
        """Predict the saving over the highest clocks, and how far it can be off by the errors of the profile.

        The errors of all kinds of instructions are added up: the plan prefers those that happen to look cheap.
        """
        watts, gpus = self.profile.blocking_power_watts, self.profile.gpus
        costs = {
            (one.stage, one.kind, option.clock_mhz): (
                gpus[one.stage] * (option.energy_joules - watts[one.stage] * option.time_seconds),
                gpus[one.stage] * option.energy_stderr_joules,
            )
            for one in self.profile.instructions
            for option in one.options
        }
        highest = {(one.stage, one.kind): one.options[0].clock_mhz for one in self.profile.instructions}
        saved_joules, error_joules = 0.0, 0.0
        for order, clocks_mhz in zip(plan.schedule.ranks, plan.clocks_mhz, strict=True):
            for (kind, stage, _), clock_mhz in zip(order, clocks_mhz, strict=True):
                highest_mhz = highest.get((stage, kind))
                if clock_mhz is not None and clock_mhz != highest_mhz:
                    before, after = costs[stage, kind, highest_mhz], costs[stage, kind, clock_mhz]
                    saved_joules += before[0] - after[0]
                    error_joules += _STANDARD_ERRORS * math.hypot(before[1], after[1])
        longer_seconds = max(plan.time_seconds - self.frontier.highest_clock_point[0], 0.0)
        saved_joules -= self.frontier.problem.blocking_power_watts * longer_seconds
        if plan.waiting_clocks_mhz:  # the power of waiting depends on the clocks
            saved_joules = self.frontier.highest_clock_point[1] - plan.energy_joules
        return Saving(saved_joules, error_joules)

    def prediction(self, plan: Plan, until_seconds: float = 0.0) -> PlanPrediction:
        """Predict the time and energy of a whole iteration, as that at the original clocks was measured.

        Args:
            plan: The plan.
            until_seconds: The pipeline waits until then if its work is done earlier.
        """
        seconds = max(until_seconds - self.residual_seconds, plan.time_seconds)
        rest_seconds = self.residual_seconds + self.tail_seconds
        problem, power = self.frontier.problem, WaitingPower.from_profile(self.profile)
        above = sum(power.watts(order[0].stage, None) for order in self.schedule.ranks)  # at the original clocks
        rest_joules = (problem.blocking_power_watts + above) * rest_seconds + self.tail_joules
        step_seconds = seconds + rest_seconds
        node_joules = self.profile.node_power_watts * sum(self.profile.gpus) * step_seconds
        return PlanPrediction(step_seconds, plan.energy_joules_until(seconds) + rest_joules - node_joules)


def plan_all(asked: Sequence[tuple[PipelinePlanner, float, float | None]]) -> tuple[Deployment, ...]:
    """Make the plan of each pipeline. Pure; runs in a child process.

    Args:
        asked: For each pipeline its planner, and the two arguments of `PipelinePlanner.deployment`.
    """
    return tuple(planner.deployment(limit, until) for planner, limit, until in asked)
