"""The effects of REPLAYING: the clock of each instruction is set, and the result is compared with the prediction."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, cast

from zeus_core.pipeline.optimizer._deployment import Deployment, PlanPrediction, total_saving
from zeus_core.pipeline.optimizer._plan_follower import PlanFollower
from zeus_core.pipeline.optimizer._planning import PlanningTask, RequestedPlans
from zeus_core.pipeline.optimizer._stage import RankContext, Stage
from zeus_core.pipeline.optimizer._watches import (
    MIN_WAIT_FRACTION,
    Announcement,
    AnnouncementBoard,
    DelayWatch,
    PipelineTimes,
    StragglerWatch,
    WorkWatch,
    is_other_work,
)
from zeus_core.pipeline.optimizer.frequency_phases import Changed, Conclusion, Delayed, Doubted, Planned, PlanningPhase
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, Instruction
from zeus_core.pipeline.profile.iterations import IterationCost, SavingWatch, StepWindow, WindowReport
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.ports import DeviceEvent
from zeus_core.units import duration_text

# Steps in which the latest one that the device has finished is looked for. Training rarely runs further ahead of its
# device; stragglers are not detected where it does.
_RECENT_STEPS = 4

# Time between two exchanges of pipelines that may wait for each other. An exchange takes milliseconds, under 1 % of it;
# a longer time leaves the energy of a wait unused for longer.
_MIN_EXCHANGE_SECONDS = 0.5

# By how much less than expected pipelines may take by plans that are made ahead: times scatter by less. Those for all
# of the time are made next.
_AHEAD_FRACTION = 0.02

# Iterations between two exchanges in which other work, such as longer sequences, is noticed within five: it shows after
# three. An exchange takes milliseconds: 1 or 2 % of that time.
_NOTICING_STEPS = 3
_MIN_NOTICING_SECONDS = 0.2


@dataclass(frozen=True)
class _ReplayReport:
    """Observations of one rank since the last exchange.

    Attributes:
        change_factor: By what factor its work takes longer or shorter than before; 1.0 if it does not.
        is_changed: Whether the steps no longer match the plan.
        announcement: The latest announcement of a straggler that the rank knows of.
        work_seconds: The work of its latest finished step; None if no recent one is finished.
        window: All steps since the last comparison, if they are to be compared.
        deployments: New plans, on rank 0; empty until they are made.
    """

    change_factor: float
    is_changed: bool
    announcement: Announcement
    work_seconds: float | None
    window: WindowReport | None
    deployments: tuple[Deployment, ...]


class MeasuredIterations(NamedTuple):
    """Iterations as measured.

    Attributes:
        before: At the original clocks.
        after: With the plan.
    """

    before: IterationCost
    after: IterationCost


class Replaying(Stage):
    """Follows a plan.

    Args:
        context: This rank.
        planned: The plans, and the facts they were made from.
        delays: Detects iterations that take too long.
        board: Holds the announcements of stragglers.
    """

    def __init__(self, context: RankContext, planned: Planned, delays: DelayWatch, board: AnnouncementBoard) -> None:
        super().__init__(PlanningPhase.REPLAYING)
        self._context = context
        self._planned = planned
        self._delays = delays
        delays.begin_replaying()
        own = context.pipeline_rank
        self._order = planned.job.schedules[own.pipeline].ranks[own.rank]
        profile, rank = planned.profile, context.exchange.rank
        seconds = {} if profile is None else profile.seconds(rank)
        latency_seconds = 0.0 if profile is None else profile.ranks[rank].switch_seconds
        self._follower = PlanFollower(context.setter, self._order, seconds, latency_seconds)
        self._usual_seconds = [deployment.work_seconds for deployment in planned.deployments]
        self._allowed_seconds = self._usual_seconds
        self._stragglers: StragglerWatch | None = None
        if profile is not None and context.settings.follow_stragglers:
            task = PlanningTask(context, profile, planned.baseline, delays.time_budget_factor)
            self._stragglers, self._requested = StragglerWatch(), RequestedPlans(task, self._usual_seconds)
        self._exchange_steps = self._steps_between_exchanges()
        self._steps_since_exchange = 0
        self._recent: deque[RecordedStep] = deque(maxlen=_RECENT_STEPS)
        self._unfinished: deque[RecordedStep] = deque(maxlen=_RECENT_STEPS)
        self._board = board
        self.comparison: MeasuredIterations | None = None
        """The latest comparison; None before it."""
        self._followed: object = None
        self._is_awaited = False  # the requested plans are followed once they are made, and not only expected
        self._savings = SavingWatch(total_saving(planned.deployments))
        self._deploy(planned.deployments)

    @property
    def prediction(self) -> PlanPrediction:
        """The predicted cost of an iteration of all pipelines."""
        predictions = [deployment.prediction for deployment in self._deployments]
        return PlanPrediction(
            max(prediction.step_seconds for prediction in predictions),
            sum(prediction.energy_joules for prediction in predictions),
        )

    @property
    def clocks_mhz(self) -> tuple[int | None, ...]:
        """The clocks of this rank's computations, in order; None where the clock stays as it is."""
        own = self._context.pipeline_rank
        return self._deployments[own.pipeline].clocks_mhz[own.rank]

    def begin_step(self, begin: DeviceEvent) -> None:
        """Set the first clock."""
        self._window.begin_step()
        self._follower.begin_step(begin)

    def begin_computation(self, instruction: Instruction, begin: DeviceEvent) -> None:
        """Set the clocks that are due, and check that the computation matches the plan."""
        self._follower.begin_computation(instruction, begin)

    def end_computation(self, end: DeviceEvent) -> None:
        """Set the clock of the next one, where its time was not known."""
        self._follower.end_computation(end)

    def pause(self, now: DeviceEvent) -> None:
        """Let the other work run at the original clock."""
        self._context.setter.request(None, now)

    def end_step(self, step: RecordedStep) -> Conclusion | None:
        """Compare the time with the allowed one from time to time, and see whether pipelines wait for each other."""
        self._follower.end_step()
        self._window.add(step)
        self._recent.append(step)
        self._unfinished.append(step)
        self._steps_since_exchange += 1
        is_comparison = len(self._window) == self._context.settings.check_steps
        if self._steps_since_exchange < self._exchange_steps and not is_comparison:
            return None
        self._steps_since_exchange = 0
        self._context.setter.guard()
        self._follower.learn(self._recent)
        return self._conclude(self._context.gather(_ReplayReport, self._report, self.phase))

    def _steps_between_exchanges(self) -> int:
        """Return a number of steps, the same on all ranks: pipelines that may wait for each other exchange often."""
        check_steps = self._context.settings.check_steps
        step_seconds = self._planned.baseline.step_seconds
        waits = self._stragglers is not None and self._planned.job.pipelines > 1
        often = math.ceil(_MIN_EXCHANGE_SECONDS / step_seconds) if waits else check_steps
        noticing = max(_NOTICING_STEPS, math.ceil(_MIN_NOTICING_SECONDS / step_seconds))
        return min(often, noticing, check_steps)

    def _deploy(self, deployments: Sequence[Deployment]) -> None:
        self._deployments = deployments
        self._is_awaited = False
        if self._stragglers is not None:
            self._requested.drop()
        own = self._context.pipeline_rank
        waits = self._deployments[own.pipeline].waits
        followed = self.clocks_mhz, waits[own.rank] if waits else ()
        is_usual = deployments is self._planned.deployments
        if followed != self._followed or is_usual:  # a straggler, whose clocks stay, goes on with its own durations
            self._followed = followed
            self._follower.follow(*followed)
        self._recent.clear()
        self._unfinished.clear()
        self._work = WorkWatch()
        self._window = StepWindow(self._context.monitor)
        self._delays.change_plans()

    def _report(self) -> _ReplayReport:
        self._context.check_clocks()
        while self._unfinished and self._unfinished[0].whole is not None:
            spans = self._unfinished.popleft().spans()
            self._work.add(sum(span.seconds for span in spans if cast(Instruction, span.label).kind in COMPUTE_KINDS))
        done = (seconds for step in reversed(self._recent) if (seconds := step.work_seconds) is not None)
        is_over = len(self._window) >= self._context.settings.check_steps
        return _ReplayReport(
            change_factor=self._work.change_factor,
            is_changed=self._follower.is_changed or self._is_other_job,
            announcement=self._board.latest,
            work_seconds=next(done, None),
            window=self._window.report() if is_over else None,
            deployments=() if self._stragglers is None else self._requested.result(),
        )

    def _conclude(self, reports: Sequence[_ReplayReport]) -> Conclusion | None:
        agreed = max(report.announcement for report in reports)
        self._board.learn(agreed)
        if any(report.is_changed for report in reports):
            reason = "the steps no longer match the plan, such as by their number of microbatches or other shapes"
            self._context.warn(f"planning anew: {reason}")
            self._context.set_clock(None)
            return Changed(self._planned.profile, reason=reason)
        if reports[0].deployments:
            self._requested.made = reports[0].deployments
        if is_other_work([report.change_factor for report in reports]):
            factor = median(report.change_factor for report in reports)
            self._delays.note_delay(factor * self.prediction.step_seconds)
            return self._delayed(f"the work of an iteration takes {factor:.2f} times as long as before")
        windows = [report.window for report in reports if report.window is not None]
        measured = IterationCost.from_reports(self._planned.job, windows) if len(windows) == len(reports) else None
        if measured is not None:  # or the window grows until every device has finished a step of it
            self._window = StepWindow(self._context.monitor)
            waiting = [plan.prediction.step_seconds for plan in self._deployments if plan.is_waiting]
            if self._delays.is_too_slow(measured.step_seconds, self._planned.baseline.step_seconds, waiting):
                return self._delayed(
                    f"an iteration took {duration_text(measured.step_seconds)}, longer than is allowed"
                )
            self.comparison = MeasuredIterations(
                self._planned.baseline, measured
            )  # of iterations that nothing has delayed
            if self._is_saving_doubtful(measured):
                reason = f"it seems not to save: {self._savings.saving(self._planned.baseline)}"
                return Doubted(self._planned, self._savings, reason=reason)
        works = [report.work_seconds for report in reports if report.work_seconds is not None]
        if len(works) == len(reports):
            self._follow_stragglers(works, agreed)
        return None

    @property
    def _is_other_job(self) -> bool:
        """Whether the facts of this rank's work have changed; those that were not known before have not."""
        planned = self._planned.job.ranks[self._context.exchange.rank].identity
        return any(planned.get(name, value) != value for name, value in self._context.work.items())

    def _delayed(self, reason: str) -> Delayed:
        is_waiting = any(plan.is_waiting for plan in self._deployments)
        is_usual = not is_waiting and not self._is_awaited
        return Delayed(replace(self._planned, deployments=self._deployments), is_usual, reason=reason)

    def _is_saving_doubtful(self, measured: IterationCost) -> bool:
        """Return whether the usual plans may save no energy."""
        is_usual = self._deployments == self._planned.deployments and not self._is_awaited
        if not is_usual or self.is_at_original_clocks:
            return False
        self._savings.add(measured)
        return self._savings.is_doubtful(self._planned.baseline)

    @property
    def is_at_original_clocks(self) -> bool:
        """Whether the plans change no clock."""
        values = (rank for plan in self._deployments for rank in (*plan.clocks_mhz, *plan.waits))
        return all(value is None for rank in values for value in rank)

    def _follow_stragglers(self, work_seconds: Sequence[float], announcement: Announcement) -> None:
        """Follow other plans if pipelines may take another time from now on; request them once that is expected."""
        if self._stragglers is None:
            return
        job, baseline = self._planned.job, self._planned.baseline
        measured = [max(job.of_pipeline(work_seconds, pipeline)) for pipeline in range(job.pipelines)]
        planned = [deployment.work_seconds for deployment in self._deployments]
        times = [PipelineTimes(*pipeline) for pipeline in zip(measured, planned, self._usual_seconds, strict=True)]
        announced_seconds = None
        if announcement.time_seconds is not None:  # of a whole iteration
            announced_seconds = announcement.time_seconds - (baseline.step_seconds - max(baseline.work_seconds))
        allowed = self._stragglers.allow(times, announced_seconds)
        if allowed == self._usual_seconds != self._allowed_seconds:
            self._allowed_seconds = allowed
            self._deploy(self._planned.deployments)  # kept: they need not be made again
        elif self._is_awaited or _is_other(allowed, self._allowed_seconds):
            self._allowed_seconds, self._is_awaited = allowed, True
            if not self._requested.serve(allowed):
                self._requested.request(allowed)
            if self._requested.made:
                are_ahead = self._requested.are_ahead
                self._deploy(self._requested.made)
                if are_ahead:  # for a little less
                    self._requested.request(allowed)
                    self._is_awaited = True
        elif _is_other(expected := self._stragglers.expected_seconds, self._allowed_seconds):
            ahead = [(1 - _AHEAD_FRACTION) * seconds for seconds in expected]
            if not self._requested.serve(ahead):
                ahead = [max(seconds) for seconds in zip(ahead, self._usual_seconds, strict=True)]
                self._requested.request(ahead, are_ahead=True)
        else:
            self._requested.drop()


def _is_other(allowed_seconds: Sequence[float], earlier_seconds: Sequence[float]) -> bool:
    """Return whether some pipeline may take another time than before, by more than is worth a plan."""
    pairs = zip(allowed_seconds, earlier_seconds, strict=True)
    return any(abs(new - old) > MIN_WAIT_FRACTION * old for new, old in pairs)
