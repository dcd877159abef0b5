"""Steps at the original clocks: those of warming up, in which the ranks exchange facts, and those of the baseline.

The baseline decides how to come by a plan, and later whether it stays.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from functools import partial

from zeus_core.device import Gpu
from zeus_core.device.gpu import read_or_none
from zeus_core.errors import UsageError
from zeus_core.pipeline.optimizer._deployment import Deployment
from zeus_core.pipeline.optimizer._planning import no_plan
from zeus_core.pipeline.optimizer._stage import RankContext, Stage
from zeus_core.pipeline.optimizer._watches import DelayVerdict, DelayWatch
from zeus_core.pipeline.optimizer.frequency_phases import (
    Conclusion,
    Delayed,
    Doubted,
    Forbidden,
    GivenUp,
    Introduced,
    Planned,
    PlanningPhase,
    Profiled,
    Unprofiled,
)
from zeus_core.pipeline.profile.iterations import IterationCost, StepWindow, WindowReport
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.pipeline_job import PipelineJob, StageFacts, StageGpu
from zeus_core.pipeline.profile.profile_store import kept_profile
from zeus_core.pipeline.profile.rank_profile import RankProfile
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.ports import DeviceEvent
from zeus_core.process.deadline import CALL_SECONDS, outside_of_hooks
from zeus_core.process.parallel import ParallelCalls
from zeus_core.units import duration_text, energy_text

_logger = logging.getLogger(__name__)

# Iterations at the original clocks. Their median is not moved by stalls in two of them; each costs an iteration's
# savings.
_BASELINE_STEPS = 5

# A kept profile is used if an iteration's work takes as long as its instructions do by the profile, within these
# factors. Transfers and the program itself make it longer; a power limit or a model that has changed does so by more.
_MIN_WORK_FACTOR, _MAX_WORK_FACTOR = 0.9, 1.5

# By what fraction an iteration's energy may differ from that by the profile, which is known to 1 %; a machine that has
# become a tenth slower is still planned for without measuring again.
_MAX_ENERGY_ERROR_FRACTION = 0.1


class MeasuringBaseline(Stage):
    """Measures a few iterations at the original clocks, and decides how to come by a plan.

    Args:
        context: This rank.
        job: The pipelines.
        profile: The profile to plan with, if it fits the measured iterations; None without one.
        phase: BASELINE or JUDGING.
    """

    def __init__(
        self,
        context: RankContext,
        job: PipelineJob,
        profile: JobProfile | None,
        phase: PlanningPhase = PlanningPhase.BASELINE,
    ) -> None:
        super().__init__(phase)
        self._context = context
        self._job = job
        self._profile = profile
        self._window = StepWindow(context.monitor)
        context.set_clock(None)

    def begin_step(self, begin: DeviceEvent) -> None:
        """Begin to measure the step."""
        self._window.begin_step()

    def end_step(self, step: RecordedStep) -> Conclusion | None:
        """After the last of them, exchange the measurements."""
        self._window.add(step)
        if len(self._window) < _BASELINE_STEPS:
            return None
        reports = self._context.gather(WindowReport, self._window.report, self.phase)
        baseline = IterationCost.from_reports(self._job, reports)
        if baseline is None:
            self._window = StepWindow(self._context.monitor)
            return None
        return self.conclude(baseline)

    def conclude(self, baseline: IterationCost) -> Conclusion:
        """Decide how to come by a plan."""
        if any(problems := self._job.permission_problems):
            return Forbidden(self._job, baseline, reason=self._context.exchange.complaint(problems))
        if (path := self._context.settings.plan_path) is not None:
            return Planned(self._job, baseline, self._read_plan(path, baseline), None)
        misfit = "" if self._profile is None else self.misfit(self._profile, baseline)
        if self._profile is not None and not misfit:
            return Profiled(self._profile, baseline)
        return Unprofiled(self._job, baseline, reason=misfit)

    def misfit(self, profile: JobProfile, baseline: IterationCost) -> str:
        """Return how iterations at the original clocks differ from the profile, and log it; empty if they do not."""
        reason = self._misfit(profile, baseline)
        if reason:
            reason = f"the profile no longer fits and is measured again: an iteration takes {reason} by the profile"
            self._context.warn(reason)
        return reason

    def _misfit(self, profile: JobProfile, baseline: IterationCost) -> str:
        for pipeline, seconds in enumerate(baseline.work_seconds):
            expected_seconds = profile.work_seconds(pipeline)
            if not _MIN_WORK_FACTOR * expected_seconds <= seconds <= _MAX_WORK_FACTOR * expected_seconds:
                return f"{duration_text(seconds)} at the original clocks, and {duration_text(expected_seconds)}"
        expected_joules = profile.joules(baseline.step_seconds)
        if baseline.energy_joules is None:
            return ""
        off_joules = abs(baseline.energy_joules - expected_joules)
        if off_joules > max(_MAX_ENERGY_ERROR_FRACTION * expected_joules, baseline.uncertainty_joules):
            return f"{energy_text(baseline.energy_joules)} at the original clocks, and {energy_text(expected_joules)}"
        return ""

    def _read_plan(self, path: str, baseline: IterationCost) -> list[Deployment]:
        """Return the plan of the user's file for all pipelines, as rank 0 reads it."""
        work_seconds = max(baseline.work_seconds)
        tail_seconds = baseline.step_seconds - work_seconds
        allowed_seconds = self._context.settings.slowdown_factor * baseline.step_seconds - tail_seconds

        def read() -> Deployment:
            deployment = Deployment.from_file(path, self._job, tail_seconds)
            deployment.check_time(path, work_seconds, allowed_seconds)
            return deployment

        return [self._context.decide(Deployment, read, self.phase)] * self._job.pipelines


class JudgingSaving(MeasuringBaseline):
    """Measures iterations at the original clocks again, to see whether a plan saves energy.

    Args:
        context: This rank.
        doubted: The plan.
    """

    def __init__(self, context: RankContext, doubted: Doubted) -> None:
        super().__init__(context, doubted.planned.job, doubted.planned.profile, PlanningPhase.JUDGING)
        self._doubted = doubted

    def conclude(self, baseline: IterationCost) -> Conclusion:
        """Keep the plan, measure the job again if its profile no longer fits, or withdraw the plan."""
        planned, savings = self._doubted.planned, self._doubted.savings
        if not savings.is_doubtful(baseline):
            return planned.compared_with(baseline)
        if planned.profile is not None and (misfit := self.misfit(planned.profile, baseline)):
            return Unprofiled(planned.job, baseline, reason=misfit)
        return no_plan(
            self._context, baseline, f"the plan is withdrawn, as it does not save: {savings.saving(baseline)}"
        )


class Judging(MeasuringBaseline):
    """Measures iterations at the original clocks after a delay, and decides which plan to follow.

    Args:
        context: This rank.
        delayed: The delay.
        delays: Judges it.
    """

    def __init__(self, context: RankContext, delayed: Delayed, delays: DelayWatch) -> None:
        super().__init__(context, delayed.planned.job, delayed.planned.profile, PlanningPhase.JUDGING)
        self._delayed = delayed
        self._delays = delays

    def conclude(self, baseline: IterationCost) -> Conclusion:
        """Keep the plan, make another one, or give up."""
        planned, verdict = self._delayed.planned, self._delays.judge(baseline.step_seconds)
        if verdict is DelayVerdict.TRANSIENT and (planned.profile is None or self._delayed.is_usual):
            return planned.compared_with(baseline)
        if verdict is DelayVerdict.EVERY_PLAN:
            settings = self._context.settings
            _logger.warning(
                "%s met the allowed iteration time of %s; the last took %s. Training continues at the "
                "original clocks; a larger slowdown_factor allows for more",
                "no plan" if settings.plan_path is None else f"the plan {settings.plan_path} has not",
                duration_text(settings.slowdown_factor * baseline.step_seconds),
                duration_text(self._delays.delayed_seconds),
            )
            return GivenUp(baseline, reason="none was fast enough")
        reason = f"{self._delayed.reason}: {verdict.value}"
        self._context.warn(f"planning anew: {reason}")
        if verdict is DelayVerdict.TRANSIENT and planned.profile is not None:
            return Profiled(planned.profile, baseline, reason=reason)
        conclusion = super().conclude(baseline)
        return replace(conclusion, reason=conclusion.reason or reason)


_logger = logging.getLogger(__name__)


class WarmingUp(Stage):
    """Lets steps pass; then exchanges the facts of the ranks.

    Args:
        context: This rank.
        steps: How many steps pass; at least one does.
        profile: The profile that was measured before the steps changed; None without one.
        checkpoint: The profile of a checkpoint, in JSON types; empty without one.
    """

    def __init__(self, context: RankContext, steps: int, profile: JobProfile | None, checkpoint: object) -> None:
        super().__init__(PlanningPhase.WARMING_UP)
        self._context = context
        self._steps_left = max(steps, 1)
        self._profile = profile
        self._checkpoint = checkpoint

    def end_step(self, step: RecordedStep) -> Introduced | None:
        """After the last step, exchange the facts, and look for a profile of an earlier run."""
        self._steps_left -= 1
        if self._steps_left > 0:
            return None
        context = self._context
        job = PipelineJob.from_ranks(context.gather(StageFacts, lambda: self._information(step), self.phase))
        if any(job.permission_problems):
            _logger.warning(
                "clocks will not be changed: %s. Training continues at the original clocks; "
                "its instructions are measured once",
                context.exchange.complaint(job.permission_problems),
            )
            return Introduced(job, None)
        if context.settings.plan_path is not None:
            return Introduced(job, None)
        if self._profile is not None and self._profile.job.fingerprint == job.fingerprint:
            return Introduced(job, JobProfile(job, self._profile.ranks))
        return Introduced(job, self._kept_profile(job))

    @outside_of_hooks()  # a first look at the GPU: its calls, quick where nothing is wrong, have a deadline each
    def _information(self, step: RecordedStep) -> StageFacts:
        context, gpu = self._context, self._context.gpu
        if not step.order:
            raise UsageError("a step of this rank reported no computation; report the instructions of every step")
        supported, lowest_mhz = context.setter.clocks_mhz, context.settings.lowest_clock_mhz or 0
        clocks = tuple(clock_mhz for clock_mhz in supported if clock_mhz >= lowest_mhz)
        if len(clocks) < 2 <= len(supported):
            raise UsageError(
                f"lowest_clock_mhz is {lowest_mhz!r}, which leaves only {len(clocks)} clock{'' if clocks else 's'} on "
                f"{gpu.name} (it has {supported[0]} down to {supported[-1]} MHz); choose a value that leaves at least "
                "two"
            )
        return StageFacts(
            pipeline_rank=context.pipeline_rank,
            order=step.order,
            gpu=ParallelCalls().call_one_within(CALL_SECONDS, 0, partial(_read_facts, gpu)),
            counter_update_period_seconds=gpu.energy_counter_period_seconds,
            clocks_mhz=clocks,
            identity=context.identity_now,
            settings=asdict(context.settings),
            permission_problem=context.setter.permission_problem(),
        )

    def _kept_profile(self, job: PipelineJob) -> JobProfile | None:
        """Return the profile of an earlier run, as rank 0 reads it."""

        def ranks_of_kept() -> tuple[RankProfile, ...]:
            profile = kept_profile(job, self._checkpoint, self._context.settings.profile_path)
            return () if profile is None else profile.ranks

        ranks = self._context.decide(tuple[RankProfile, ...], ranks_of_kept, self.phase)
        return JobProfile(job, ranks) if ranks else None


def _read_facts(gpu: Gpu) -> StageGpu:
    """Read what times and energies depend on; a limit that cannot be read is None."""
    return StageGpu(gpu.uuid, gpu.name, read_or_none(gpu.read_power_limit_watts), read_or_none(gpu.read_driver_version))
