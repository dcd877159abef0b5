"""Planning: a pure planner, the task that runs it in the background, and the stage that waits for its plans."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from zeus_core.pipeline import COMPUTE_KINDS, Frontier, PipelineProfile, Plan, Schedule, make_plan
from zeus_core.pipeline.optimizer._deployment import Deployment, Prediction, total_saving
from zeus_core.pipeline.optimizer._plan_follower import Wait
from zeus_core.pipeline.optimizer._stage import RankContext, Stage
from zeus_core.pipeline.optimizer._watches import DelayWatch
from zeus_core.pipeline.optimizer.frequency_phases import Conclusion, GivenUp, Phase, Planned, Profiled
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.pipeline_problem import WaitingPower
from zeus_core.pipeline.planner.plan_making import with_waiting_clocks
from zeus_core.pipeline.planner.waiting_clocks import waiting_seconds
from zeus_core.pipeline.profile.iterations import Iteration, Saving
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.step_timeline import RecordedStep

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

    def prediction(self, plan: Plan, until_seconds: float = 0.0) -> Prediction:
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
        return Prediction(step_seconds, plan.energy_joules_until(seconds) + rest_joules - node_joules)


class PlanningTask:
    """Plans for all pipelines, in the background of rank 0; does nothing on the other ranks.

    Args:
        context: This rank.
        profile: The measured profile.
        baseline: An iteration at the original clocks.
        time_budget_factor: The maximum iteration time to plan for, over the time the user allows: below 1 if an earlier
            plan was too slow.
    """

    def __init__(
        self, context: RankContext, profile: JobProfile, baseline: Iteration, time_budget_factor: float
    ) -> None:
        self._context = context
        self._profile = profile
        self._baseline = baseline
        self._slowdown_factor = time_budget_factor * context.settings.slowdown_factor
        self._result: tuple[Deployment, ...] = ()
        self._error: Exception | None = None
        self._requests = 0

    def begin(self, until_seconds: Sequence[float | None]) -> None:
        """Start planning. Plans that were requested before, and are not made yet, are not needed any more.

        Args:
            until_seconds: How long the work of each pipeline may take because it waits for another one regardless;
                None for a pipeline that does not wait.
        """
        self._result, self._error = (), None
        self._requests += 1
        if self._context.is_first:
            soon, number = self._context.planning_background.soon, self._requests
            self._context.exchange.attempt(lambda: soon(lambda: self._plan(until_seconds, number)))

    def result(self) -> tuple[Deployment, ...]:
        """Return the plan of each pipeline, on rank 0; empty until they are made.

        Raises:
            Exception: Planning has failed.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def _plan(self, until_seconds: Sequence[float | None], number: int) -> None:
        """Runs in the background, once for each request."""
        if number < self._requests:
            return
        try:
            allowed = self._baseline.allowed_work_seconds(self._slowdown_factor)
            asked = [
                (self._planner(pipeline), allowed[pipeline], until) for pipeline, until in enumerate(until_seconds)
            ]
            result = self._context.planning_background.run_in_child(plan_all, asked)
            if number == self._requests:
                self._result = result
        except Exception as error:
            self._error = error

    def _planner(self, pipeline: int) -> PipelinePlanner:
        settings = self._context.settings
        return PipelinePlanner(
            replace(self._profile.planning_options(pipeline), node_power_watts=settings.node_power_watts),
            self._profile.job.schedules[pipeline],
            self._baseline.work_seconds[pipeline],
            self._baseline.tail_seconds(pipeline),
            self._profile.tail_joules(pipeline),
            settings.switch_seconds or 0.0,
            self._profile.switch_seconds,
        )


def plan_all(asked: Sequence[tuple[PipelinePlanner, float, float | None]]) -> tuple[Deployment, ...]:
    """Make the plan of each pipeline. Pure; runs in a child process.

    Args:
        asked: For each pipeline its planner, and the two arguments of `PipelinePlanner.deployment`.
    """
    return tuple(planner.deployment(limit, until) for planner, limit, until in asked)


# Excess of the instructions by the profile over all measured work, as a fraction of it, that is more than the scatter
# of both: the model is wrong by as much, which is logged.
_MAX_EXCESS_FRACTION = 0.02

_logger = logging.getLogger(__name__)


class Planning(Stage):
    """Waits at the original clocks for the plans.

    Args:
        context: This rank.
        profiled: The measurements to plan with.
        delays: Knows how much time the plans may take.
    """

    def __init__(self, context: RankContext, profiled: Profiled, delays: DelayWatch) -> None:
        super().__init__(Phase.PLANNING)
        self._context = context
        self._profiled = profiled
        self._task = PlanningTask(context, profiled.profile, profiled.baseline, delays.time_budget_factor)
        delays.begin_planning()
        self._task.begin([None] * profiled.profile.job.pipelines)

    def end_step(self, step: RecordedStep) -> Conclusion | None:
        """Check whether the plans are made, and save more than the prediction can be off."""
        deployments = self._context.decide(tuple[Deployment, ...], self._task.result, self.phase)
        if not deployments:
            return None
        profile, baseline = self._profiled.profile, self._profiled.baseline
        for pipeline, deployment in enumerate(deployments):
            work_seconds = baseline.work_seconds[pipeline]
            if self._context.is_first and deployment.excess_seconds > _MAX_EXCESS_FRACTION * work_seconds:
                _logger.warning(
                    "the instructions of pipeline %d take %.4g s by the profile, and all work of an iteration took "
                    "%.4g s, which is what times are predicted from",
                    pipeline,
                    work_seconds + deployment.excess_seconds,
                    work_seconds,
                )
        saving = total_saving(deployments)
        if saving is None or saving.joules >= saving.uncertainty_joules:  # 0 if it is the original clocks
            return Planned(profile.job, baseline, deployments, profile)
        job, settings = profile.job, self._context.settings
        reason = f"the predicted saving is within its error: {saving}"
        if job.pipelines > 1 and settings.follow_stragglers:  # one that waits for another can save all the same
            reason = f"the clocks stay as they are until a pipeline waits for another one: {reason}"
            _logger.info(reason)
            usual = [Deployment.at_original_clocks(job, baseline, pipeline) for pipeline in range(job.pipelines)]
            return Planned(job, baseline, usual, profile, reason=reason)
        return no_plan(self._context, baseline, reason)


def no_plan(context: RankContext, baseline: Iteration, reason: str) -> GivenUp:
    """Say why no plan is followed any more."""
    if context.is_first:
        _logger.warning("no plan is deployed; training continues at the original clocks: %s", reason)
    return GivenUp(baseline, reason=reason)
