"""The plan that one pipeline follows, and its predicted time and energy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.pipeline.optimizer._plan_follower import Wait
from zeus_core.pipeline.planner.clock_plan import read_plan
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, Instruction, Schedule
from zeus_core.pipeline.profile.iterations import IterationCost, Saving
from zeus_core.pipeline.profile.pipeline_job import PipelineJob
from zeus_core.units import duration_text

# Work of a plan from a file over the allowed time: profiles of other runs differ a little, by less than 10 %; a plan
# for another partition or model usually by more.
_MAX_ALLOWED_FACTOR = 1.1


@dataclass(frozen=True)
class PlanPrediction:
    """Predicted cost of an iteration of a pipeline with a plan.

    Attributes:
        step_seconds: Duration.
        energy_joules: Energy of all GPUs of the pipeline over it.
    """

    step_seconds: float
    energy_joules: float

    def moved_by(self, seconds: float, joules: float) -> PlanPrediction:
        """Return the prediction from a baseline that is longer by some time, and takes more energy."""
        return PlanPrediction(self.step_seconds + seconds, self.energy_joules + joules)


@dataclass(frozen=True)
class Deployment:
    """A plan as sent to the ranks of a pipeline.

    Attributes:
        clocks_mhz: The clocks of each rank, in the order of its computations; None where the clock stays as it is.
        work_seconds: How long the work of an iteration takes, up to its last computation.
        prediction: Cost of a whole iteration.
        is_waiting: Whether the pipeline waits for something slower regardless, and uses that time.
        excess_seconds: How much longer the instructions take by the profile than all work was measured to take, which
            the prediction is from; 0 if they do not.
        saving: The predicted saving, with the error of the profile; None for a plan that was made beforehand.
        waits: For each rank its waits before each computation and after the last, as far as they have a clock of their
            own; empty without any.
    """

    clocks_mhz: tuple[tuple[int | None, ...], ...]
    work_seconds: float
    prediction: PlanPrediction
    is_waiting: bool = False
    excess_seconds: float = 0.0
    saving: Saving | None = None
    waits: tuple[tuple[Wait | None, ...], ...] = ()

    @classmethod
    def at_original_clocks(cls, job: PipelineJob, baseline: IterationCost, pipeline: int) -> Deployment:
        """Return the deployment of no plan: every clock stays at the original.

        Args:
            job: The job.
            baseline: An iteration at the original clocks.
            pipeline: The pipeline.
        """
        clocks_mhz = tuple((None,) * len(rank) for rank in job.schedules[pipeline].ranks)
        prediction = PlanPrediction(baseline.step_seconds, (baseline.energy_joules or 0.0) / job.pipelines)
        return cls(clocks_mhz, baseline.work_seconds[pipeline], prediction)

    @classmethod
    def from_file(cls, path: str, job: PipelineJob, tail_seconds: float) -> Deployment:
        """Read a plan made beforehand, for all pipelines of a job.

        Args:
            path: Its file.
            job: The job.
            tail_seconds: How long an iteration goes on after the work; its energy is not in the prediction.

        Raises:
            UsageError: The file cannot be read, is not a plan, or is one for another job; the message names it.
        """
        plan = read_plan(path)
        ranks = [
            [pair for pair in zip(order, clocks, strict=True) if pair[0].kind in COMPUTE_KINDS]
            for order, clocks in zip(plan.schedule.ranks, plan.clocks_mhz, strict=True)
        ]
        for schedule in job.schedules:
            _check_schedule(path, [[instruction for instruction, _ in rank] for rank in ranks], schedule)
        clocks_mhz = tuple(tuple(clock for _, clock in rank) for rank in ranks)
        unknown = {clock for clocks in clocks_mhz for clock in clocks if clock is not None} - set(job.clocks_mhz)
        if unknown:
            raise UsageError(
                f"plan_path is {path!r}, which uses clocks this job cannot set: {sorted(unknown)} MHz; it can set "
                f"{job.clocks_mhz[0]} down to {job.clocks_mhz[-1]} MHz"
            )
        prediction = PlanPrediction(plan.time_seconds + tail_seconds, plan.energy_joules)
        return cls(clocks_mhz, plan.time_seconds, prediction)

    def check_time(self, path: str, work_seconds: float, allowed_seconds: float) -> None:
        """Check that a plan made beforehand is not for much slower work than this job may do.

        Args:
            path: Its file.
            work_seconds: How long the work of an iteration takes at the original clocks.
            allowed_seconds: How long it may take.

        Raises:
            UsageError: It is; the message names the file.
        """
        if self.work_seconds > _MAX_ALLOWED_FACTOR * allowed_seconds:
            raise UsageError(
                f"plan_path is {path!r}, a plan for iterations of {duration_text(self.work_seconds)}; here they take "
                f"{duration_text(work_seconds)} at the original clocks, and may take "
                f"{duration_text(allowed_seconds)}; plan it for this job's model and partition, or allow for it with a "
                "larger slowdown_factor"
            )


def total_saving(deployments: Sequence[Deployment]) -> Saving | None:
    """Return the predicted saving of all pipelines, whose errors are added up; None if it is not known."""
    savings = [deployment.saving for deployment in deployments if deployment.saving is not None]
    if len(savings) < len(deployments):
        return None
    return Saving(sum(saving.joules for saving in savings), sum(saving.uncertainty_joules for saving in savings))


def _check_schedule(path: str, planned_ranks: Sequence[Sequence[Instruction]], schedule: Schedule) -> None:
    sizes, planned_sizes = ([len(order) for order in ranks] for ranks in (schedule.ranks, planned_ranks))
    if [tuple(planned) for planned in planned_ranks] != list(schedule.ranks):
        raise UsageError(
            f"plan_path is {path!r}, which does not match this job: its ranks have {planned_sizes} instructions, those "
            f"of this job {sizes}, and the lists differ; make a plan for this job's schedule, partition and "
            "microbatches"
        )
