"""The plan that one pipeline follows, and what it is predicted to give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency.job import Job
from zeus_core.optimizer.pipeline_frequency.planner import PipelinePlanner, Prediction
from zeus_core.pipeline import Plan, read_plan

__all__ = ["Deployment", "read_deployment"]


@dataclass(frozen=True)
class Deployment:
    """What the ranks of a pipeline are told.

    Attributes:
        clocks_mhz: Of each rank, in the order it runs its instructions; None where the clock stays as it is.
        work_seconds: How long the work of an iteration takes, up to its last computation.
        prediction: What a whole iteration takes.
    """

    clocks_mhz: tuple[tuple[int | None, ...], ...]
    work_seconds: float
    prediction: Prediction

    @classmethod
    def of(cls, planner: PipelinePlanner, limit_seconds: float, is_waiting: bool) -> Deployment:
        """The plan of least energy.

        Args:
            planner: That of the pipeline.
            limit_seconds: The longest time of the work.
            is_waiting: Whether the pipeline waits until then in any case.
        """
        plan = planner.plan(limit_seconds, is_waiting)
        prediction = planner.prediction(plan, limit_seconds if is_waiting else 0.0)
        return cls(plan.clocks_mhz, plan.time_seconds + planner.overhead_seconds, prediction)

    def to_json(self) -> dict[str, Any]:
        """In JSON's types."""
        return {
            "clocks_mhz": [list(clocks) for clocks in self.clocks_mhz],
            "work_seconds": self.work_seconds,
            "prediction": [self.prediction.time_seconds, self.prediction.energy_joules],
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Deployment:
        """What `to_json` made."""
        clocks = tuple(tuple(of_rank) for of_rank in fields["clocks_mhz"])
        return cls(clocks, fields["work_seconds"], Prediction(*fields["prediction"]))


def read_deployment(path: str, job: Job) -> Deployment:
    """A plan made beforehand, for all pipelines of a job.

    Raises:
        UsageError: The file cannot be read, is no plan, or one for another job; the message names it.
    """
    plan = read_plan(path)
    _check(path, plan, job)
    return Deployment(plan.clocks_mhz, plan.time_seconds, Prediction(plan.time_seconds, plan.energy_joules))


def _check(path: str, plan: Plan, job: Job) -> None:
    schedule = job.schedules[0]
    if len(plan.schedule.ranks) != len(schedule.ranks):
        raise UsageError(
            f"plan_path is {path!r}, a plan for {len(plan.schedule.ranks)} pipeline ranks, and this job has "
            f"{len(schedule.ranks)}; plan it for this job"
        )
    for rank, (planned, run) in enumerate(zip(plan.schedule.ranks, schedule.ranks, strict=True)):
        if planned != run:
            raise UsageError(
                f"plan_path is {path!r}, whose rank {rank} runs {len(planned)} instructions in another order than the "
                f"{len(run)} of this job; plan it for this job's schedule, partition and microbatches"
            )
    unknown = {it for clocks in plan.clocks_mhz for it in clocks if it is not None} - set(job.clocks_mhz)
    if unknown:
        raise UsageError(
            f"plan_path is {path!r}, with clocks that the GPUs of this job do not support: {sorted(unknown)} MHz"
        )
