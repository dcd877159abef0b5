"""The course of a training: from one phase to the next, with the facts that were found on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zeus_core.events import Event
from zeus_core.pipeline.optimizer._baseline import Judging, JudgingSaving, MeasuringBaseline, WarmingUp
from zeus_core.pipeline.optimizer._planning import Planning
from zeus_core.pipeline.optimizer._profiling import Profiling
from zeus_core.pipeline.optimizer._replaying import MeasuredIterations, Replaying
from zeus_core.pipeline.optimizer._stage import RankContext, Resting, Stage
from zeus_core.pipeline.optimizer._watches import AnnouncementBoard, DelayWatch
from zeus_core.pipeline.optimizer.frequency_phases import (
    Changed,
    Conclusion,
    Delayed,
    Doubted,
    GivenUp,
    Introduced,
    Planned,
    PlanningPhase,
    Profiled,
    Unprofiled,
    advance,
)
from zeus_core.pipeline.profile.iterations import IterationCost
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.profile_store import profile_to_json
from zeus_core.pipeline.profile.rank_profile import RankProfile
from zeus_core.pipeline.profile.step_timeline import RecordedStep

# The taps report the shapes of tensors once they were the same in as many steps, and a kept profile has to fit them.
_MIN_WARMUP_STEPS = 3


class PlanningCourse:
    """Enters and leaves the phases.

    Args:
        make_context: Makes what the phases of one rank share: anew for each training, as a setter that has restored the
            original clock can set no other.
        board: Holds the announcements of stragglers.
    """

    context: RankContext
    """State that the phases of this training share."""
    baseline: IterationCost | None
    """The latest measured iteration at the original clocks; None until it is known."""
    profile: JobProfile | None
    """The measurements; None until they are known, or while they are made again."""
    observations: Sequence[RankProfile]
    """Each rank's measurements at the original clocks, if clocks may not be set; empty until then."""
    reason: str
    """The reason why there is no plan, why it is judged, or why another one is made; empty without one."""
    comparison: MeasuredIterations | None
    """The latest measurement with the latest plan; None before the first."""
    earlier: MeasuredIterations | None
    """The latest measurement with a plan before that; None without one."""
    has_replayed: bool
    """Whether an iteration has run with the latest plan."""
    profiling_steps: int
    """How many iterations were profiled in."""
    profiling_seconds: float
    """How long they took."""
    _delays: DelayWatch

    def __init__(self, make_context: Callable[[], RankContext], board: AnnouncementBoard) -> None:
        self._make_context = make_context
        self._board = board
        self.stage: Stage = Resting(PlanningPhase.RESTING)
        """The effects of the current phase."""
        self.checkpoint: Any = None
        """The profile of an earlier training, in JSON types; empty without one."""
        self._begin_training()

    def end_step(self, step: RecordedStep | None, seconds: float) -> None:
        """End a step, and the phase if it concludes.

        Args:
            step: The step; None if none had begun.
            seconds: How long it took.

        Raises:
            Exception: Something has failed on some rank.
        """
        if self.stage.phase is PlanningPhase.PROFILING:
            self.profiling_steps += 1
            self.profiling_seconds += seconds
        conclusion = None if step is None else self.stage.end_step(step)
        if isinstance(self.stage, Replaying):
            self.has_replayed = True
            self.comparison = self.stage.comparison or self.comparison
        if conclusion is not None:
            self.follow(conclusion)

    def follow(self, happening: type[Event] | Conclusion) -> None:
        """Advance by what happened."""
        if isinstance(happening, Unprofiled | Profiled | Planned | GivenUp):
            self.baseline = happening.baseline
        if isinstance(happening, Conclusion) and (happening.reason or isinstance(happening, Planned)):
            self.reason = happening.reason
        phase = advance(self.stage.phase, happening)
        if phase is not self.stage.phase:
            if phase is PlanningPhase.REPLAYING and self.stage.phase is not PlanningPhase.JUDGING:  # with another plan
                self.earlier, self.comparison = self.comparison or self.earlier, None
                self.has_replayed = False
            left, self.stage = self.stage, Resting(phase)  # in force if the next stage fails to begin
            left.leave()
            self.stage = self._enter(phase, happening)

    def kept(self) -> Any:
        """Return the measured profile in JSON types, or that of an earlier training."""
        return self.checkpoint if self.profile is None else profile_to_json(self.profile)

    def _enter(self, phase: PlanningPhase, happening: type[Event] | Conclusion) -> Stage:
        """Begin a phase with the facts of the last conclusion, and keep those that the user may ask for."""
        context = self.context
        match phase, happening:
            case PlanningPhase.WARMING_UP, Changed(profile):
                return WarmingUp(context, 1, profile, self.checkpoint)
            case PlanningPhase.WARMING_UP, _:
                self._begin_training()
                steps = max(self.context.settings.warmup_steps, _MIN_WARMUP_STEPS)
                return WarmingUp(self.context, steps, None, self.checkpoint)
            case PlanningPhase.BASELINE, Introduced(job, profile):
                self.profile = profile
                return MeasuringBaseline(context, job, profile)
            case PlanningPhase.JUDGING, (Delayed() | Doubted()) as doubt:
                return self._judge(doubt)
            case ((PlanningPhase.PROFILING | PlanningPhase.OBSERVING), Unprofiled(job, baseline)):
                self.profile = None
                return Profiling(context, job, baseline, phase)
            case PlanningPhase.OBSERVED, Profiled(profile, _):
                self.observations = profile.ranks
            case PlanningPhase.PLANNING, Profiled(profile, _) as profiled:
                self.profile = profile
                return Planning(context, profiled, self._delays)
            case PlanningPhase.REPLAYING, Planned() as planned:
                return Replaying(context, planned, self._delays, self._board)
            case ((PlanningPhase.RESTING | PlanningPhase.OFF), _):
                context.restore()
        return Resting(phase)

    def _judge(self, doubt: Delayed | Doubted) -> Stage:
        if isinstance(doubt, Doubted):
            return JudgingSaving(self.context, doubt)
        return Judging(self.context, doubt, self._delays)

    def _begin_training(self) -> None:
        """Forget everything but the profile of an earlier training."""
        self.context = self._make_context()
        self._delays = DelayWatch(self.context.settings.slowdown_factor, self.context.settings.tolerance_fraction)
        self.baseline = self.profile = None
        self.reason = ""
        self.comparison = self.earlier = None
        self.has_replayed = False
        self.observations = ()
        self.profiling_steps, self.profiling_seconds = 0, 0.0
