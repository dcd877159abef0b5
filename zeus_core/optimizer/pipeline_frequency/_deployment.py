"""The plan that one pipeline follows, and its predicted time and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency._pipeline_job import PipelineJob
from zeus_core.optimizer.pipeline_frequency._planner import PipelinePlanner, Prediction
from zeus_core.pipeline import COMPUTE_KINDS, Instruction, Schedule, read_plan

__all__ = ["Deployment", "check_time", "read_deployment"]

_MOST_ALLOWED = 1.1  # of the allowed time, by the plan of a file: profiles of other runs differ a little


@dataclass(frozen=True)
class Deployment:
    """A plan as sent to the ranks of a pipeline.

    Attributes:
        clocks_mhz: The clocks of each rank, in the order of its computations; None where the clock stays as it is.
        work_seconds: How long the work of an iteration takes, up to its last computation.
        prediction: What a whole iteration takes.
        is_waiting: Whether the pipeline waits for something slower regardless, and uses that time.
    """

    clocks_mhz: tuple[tuple[int | None, ...], ...]
    work_seconds: float
    prediction: Prediction
    is_waiting: bool = False

    @classmethod
    def of(cls, planner: PipelinePlanner, limit_seconds: float, is_waiting: bool) -> Deployment:
        """The plan of minimum energy.

        Args:
            planner: The planner of the pipeline.
            limit_seconds: The maximum time of the work.
            is_waiting: Whether the pipeline waits until then regardless.
        """
        plan = planner.plan(limit_seconds, is_waiting)
        prediction = planner.prediction(plan, limit_seconds if is_waiting else 0.0)
        return cls(plan.clocks_mhz, plan.time_seconds + planner.overhead_seconds, prediction, is_waiting)

    def to_json(self) -> dict[str, Any]:
        """In JSON types."""
        return {
            "clocks_mhz": [list(clocks) for clocks in self.clocks_mhz],
            "work_seconds": self.work_seconds,
            "prediction": [self.prediction.step_seconds, self.prediction.energy_joules],
            "is_waiting": self.is_waiting,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Deployment:
        """What `to_json` made."""
        clocks = tuple(tuple(of_rank) for of_rank in fields["clocks_mhz"])
        return cls(clocks, fields["work_seconds"], Prediction(*fields["prediction"]), fields["is_waiting"])


def read_deployment(path: str, job: PipelineJob, tail_seconds: float) -> Deployment:
    """A plan made beforehand, for all pipelines of a job.

    Args:
        path: Its file.
        job: The job.
        tail_seconds: How long what follows the work in an iteration takes; its energy is not in the prediction.

    Raises:
        UsageError: The file cannot be read, is not a plan, or is one for another job; the message names it.
    """
    plan = read_plan(path)
    ranks = [
        [(it, clock) for it, clock in zip(order, clocks, strict=True) if it.kind in COMPUTE_KINDS]
        for order, clocks in zip(plan.schedule.ranks, plan.clocks_mhz, strict=True)
    ]
    for schedule in job.schedules:
        _check_schedule(path, [[it for it, _ in pairs] for pairs in ranks], schedule)
    clocks_mhz = tuple(tuple(clock for _, clock in pairs) for pairs in ranks)
    unknown = {it for of_rank in clocks_mhz for it in of_rank if it is not None} - set(job.clocks_mhz)
    if unknown:
        raise UsageError(
            f"plan_path is {path!r}, which uses clocks this job cannot set: {sorted(unknown)} MHz; it can set "
            f"{job.clocks_mhz[0]} down to {job.clocks_mhz[-1]} MHz"
        )
    prediction = Prediction(plan.time_seconds + tail_seconds, plan.energy_joules)
    return Deployment(clocks_mhz, plan.time_seconds, prediction)


def check_time(path: str, deployment: Deployment, work_seconds: float, allowed_seconds: float) -> None:
    """Check that a plan made beforehand is not for much slower work than this job may do.

    Args:
        path: Its file.
        deployment: The plan.
        work_seconds: How long the work of an iteration takes at the original clocks.
        allowed_seconds: How long it may take.

    Raises:
        UsageError: It is; the message names the file.
    """
    if deployment.work_seconds > _MOST_ALLOWED * allowed_seconds:
        raise UsageError(
            f"plan_path is {path!r}, a plan for iterations of {deployment.work_seconds:.4g} s; here they take "
            f"{work_seconds:.4g} s at the original clocks, and may take {allowed_seconds:.4g} s; plan it for this "
            "job's model and partition, or allow for it with a larger slowdown_factor"
        )


def _check_schedule(path: str, planned_ranks: Sequence[Sequence[Instruction]], schedule: Schedule) -> None:
    if len(planned_ranks) != len(schedule.ranks):
        raise UsageError(
            f"plan_path is {path!r}, a plan for {len(planned_ranks)} pipeline ranks; this job has "
            f"{len(schedule.ranks)}: make a plan for this job"
        )
    for rank, (planned, run) in enumerate(zip(planned_ranks, schedule.ranks, strict=True)):
        if tuple(planned) != run:
            raise UsageError(
                f"plan_path is {path!r}, which does not match this job: rank {rank} has {len(planned)} instructions in "
                f"the plan and {len(run)} in this job, and the two lists differ; make a plan for this job's schedule, "
                "partition and microbatches"
            )
