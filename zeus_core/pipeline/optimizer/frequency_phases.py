"""The phases of planning a pipeline's clocks during training: one table and one pure function.

The original clocks are those the GPUs ran at before. Rules, in the order of a run:

- RESTING changes nothing. The first step leads to WARMING UP.
- WARMING UP lets steps pass and records the instructions of the ranks. Then each rank sends its facts to the others.
- BASELINE measures iterations at the original clocks, which plans are compared with.
- OBSERVING measures all instructions at the original clocks, where clocks may not be set. It ends in OBSERVED.
- PROFILING measures all instructions at one clock after another. A profile that was kept by an earlier run, and still
  fits, is not measured again.
- PLANNING continues at the original clocks while rank 0 plans in the background. A plan from a file needs no planning.
- REPLAYING sets the clock of each instruction. Steps that no longer match the plan lead back to WARMING UP; the profile
  is kept if the instructions are of the same kinds.
- JUDGING follows an iteration that took too long, or some that seem to save no energy. It measures iterations at the
  original clocks again, to see whether the plan is at fault or the machine. A plan that is too slow is replaced by a
  faster one, and after several of these planning ends in OFF. So it does where a plan is predicted to save less than
  its error, or does not save as measured.
- The end of training leads to RESTING. A fault, at any time, ends planning for good: OFF.

All ranks go through the phases together: each outcome depends on values that were exchanged, and all judge these alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar

from zeus_core.events import Event, StepBegin, TrainEnd
from zeus_core.optimizer.phase_table import PhaseTable
from zeus_core.pipeline.optimizer._deployment import Deployment
from zeus_core.pipeline.profile.iterations import IterationCost, SavingWatch
from zeus_core.pipeline.profile.job_profile import JobProfile
from zeus_core.pipeline.profile.pipeline_job import PipelineJob


class PlanningPhase(Enum):
    """A phase of planning the clocks."""

    RESTING = "resting"
    WARMING_UP = "warming up"
    BASELINE = "baseline"
    OBSERVING = "observing"
    OBSERVED = "observed"
    PROFILING = "profiling"
    PLANNING = "planning"
    REPLAYING = "replaying"
    JUDGING = "judging"
    OFF = "off"

    @property
    def is_without_plan(self) -> bool:
        """Whether this is the end of planning, without a plan in force."""
        return self in {PlanningPhase.OBSERVED, PlanningPhase.OFF}


class PlanningEnd(Enum):
    """The end of a phase."""

    INTRODUCED = "the ranks know each other"
    FORBIDDEN = "a rank may not set clocks"
    UNPROFILED = "no profile fits the job"
    PROFILED = "the job is measured"
    PLANNED = "every pipeline has a plan"
    CHANGED = "the steps no longer match the plan"
    DELAYED = "an iteration took too long"
    DOUBTED = "a plan may save no energy"
    GIVEN_UP = "no plan is fast enough, or saves energy"
    FAULT = "something failed"


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """An outcome, with the facts that the next phase needs.

    Attributes:
        reason: The reason, for people; empty where the outcome is the usual one.
    """

    outcome: ClassVar[PlanningEnd]
    reason: str = ""


@dataclass(frozen=True)
class Introduced(Conclusion):
    """The ranks know each other.

    Attributes:
        job: The pipelines.
        profile: A profile of an earlier run, not yet compared with the baseline; None if there is none.
    """

    outcome = PlanningEnd.INTRODUCED
    job: PipelineJob
    profile: JobProfile | None


@dataclass(frozen=True)
class Unprofiled(Conclusion):
    """No profile fits the job."""

    outcome = PlanningEnd.UNPROFILED
    job: PipelineJob
    baseline: IterationCost


class Forbidden(Unprofiled):
    """Some rank may not set clocks."""

    outcome = PlanningEnd.FORBIDDEN


@dataclass(frozen=True)
class Profiled(Conclusion):
    """The job is measured."""

    outcome = PlanningEnd.PROFILED
    profile: JobProfile
    baseline: IterationCost


@dataclass(frozen=True)
class Planned(Conclusion):
    """Every pipeline has a plan.

    Attributes:
        job: The pipelines.
        baseline: An iteration at the original clocks.
        deployments: The plan of each pipeline.
        profile: The measurements it was made from; None for a plan that was made beforehand.
    """

    outcome = PlanningEnd.PLANNED
    job: PipelineJob
    baseline: IterationCost
    deployments: Sequence[Deployment]
    profile: JobProfile | None

    def compared_with(self, baseline: IterationCost) -> Planned:
        """Return the same plans with a later baseline, from which their predictions differ by as much as before."""
        seconds, before, after = baseline.step_seconds - self.baseline.step_seconds, self.baseline, baseline
        joules = 0.0
        if before.energy_joules is not None and after.energy_joules is not None:
            joules = (after.energy_joules - before.energy_joules) / len(self.deployments)
        moved = [
            deployment
            if deployment.is_waiting
            else replace(deployment, prediction=deployment.prediction.moved_by(seconds, joules))
            for deployment in self.deployments
        ]
        return replace(self, baseline=baseline, deployments=moved, reason="")


@dataclass(frozen=True)
class Changed(Conclusion):
    """The steps no longer match the plan."""

    outcome = PlanningEnd.CHANGED
    profile: JobProfile | None


@dataclass(frozen=True)
class Delayed(Conclusion):
    """An iteration took too long.

    Attributes:
        planned: The plans in force.
        is_usual: Whether no pipeline was slowed down for a slower one, or about to be.
    """

    outcome = PlanningEnd.DELAYED
    planned: Planned
    is_usual: bool


@dataclass(frozen=True)
class Doubted(Conclusion):
    """A plan may save no energy.

    Attributes:
        planned: The plans in force.
        savings: The energy of iterations with them.
    """

    outcome = PlanningEnd.DOUBTED
    planned: Planned
    savings: SavingWatch


@dataclass(frozen=True)
class GivenUp(Conclusion):
    """No plan is fast enough, or saves energy.

    Attributes:
        baseline: An iteration at the original clocks.
    """

    outcome = PlanningEnd.GIVEN_UP
    baseline: IterationCost


class Fault(Conclusion):
    """Something failed."""

    outcome = PlanningEnd.FAULT


_TRANSITIONS: dict[tuple[PlanningPhase, type[Event] | PlanningEnd], PlanningPhase] = {
    (PlanningPhase.RESTING, StepBegin): PlanningPhase.WARMING_UP,
    (PlanningPhase.WARMING_UP, PlanningEnd.INTRODUCED): PlanningPhase.BASELINE,
    (PlanningPhase.BASELINE, PlanningEnd.FORBIDDEN): PlanningPhase.OBSERVING,
    (PlanningPhase.BASELINE, PlanningEnd.UNPROFILED): PlanningPhase.PROFILING,
    (PlanningPhase.BASELINE, PlanningEnd.PROFILED): PlanningPhase.PLANNING,
    (PlanningPhase.BASELINE, PlanningEnd.PLANNED): PlanningPhase.REPLAYING,
    (PlanningPhase.OBSERVING, PlanningEnd.PROFILED): PlanningPhase.OBSERVED,
    (PlanningPhase.PROFILING, PlanningEnd.PROFILED): PlanningPhase.PLANNING,
    (PlanningPhase.PLANNING, PlanningEnd.PLANNED): PlanningPhase.REPLAYING,
    (PlanningPhase.PLANNING, PlanningEnd.GIVEN_UP): PlanningPhase.OFF,
    (PlanningPhase.REPLAYING, PlanningEnd.CHANGED): PlanningPhase.WARMING_UP,
    (PlanningPhase.REPLAYING, PlanningEnd.DELAYED): PlanningPhase.JUDGING,
    (PlanningPhase.REPLAYING, PlanningEnd.DOUBTED): PlanningPhase.JUDGING,
    (PlanningPhase.JUDGING, PlanningEnd.UNPROFILED): PlanningPhase.PROFILING,
    (PlanningPhase.JUDGING, PlanningEnd.PROFILED): PlanningPhase.PLANNING,
    (PlanningPhase.JUDGING, PlanningEnd.PLANNED): PlanningPhase.REPLAYING,
    (PlanningPhase.JUDGING, PlanningEnd.GIVEN_UP): PlanningPhase.OFF,
}

PHASES: PhaseTable[PlanningPhase, type[Event] | PlanningEnd] = PhaseTable(
    first=PlanningPhase.RESTING,
    last=PlanningPhase.OFF,
    transitions=_TRANSITIONS,
    from_every_phase={TrainEnd: PlanningPhase.RESTING, PlanningEnd.FAULT: PlanningPhase.OFF},
)
"""The table of the phases."""


def advance(phase: PlanningPhase, happening: type[Event] | Conclusion) -> PlanningPhase:
    """Return the phase after something has happened."""
    return PHASES.next(phase, happening.outcome if isinstance(happening, Conclusion) else happening)
