"""The pipelines of a job, assembled from position, GPU and work of all ranks. Pure, so that all ranks agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule
from zeus_core.validate import checked_whole_number


@dataclass(frozen=True)
class PipelineRank:
    """Position of a rank among the pipelines of a job.

    Ranks at the same position (tensor parallelism) run the same work, at the same clocks.

    Attributes:
        rank: Position in the pipeline, from 0: the rank of a schedule.
        pipeline: Number of the data-parallel pipeline, from 0.

    Raises:
        UsageError: A value is not a whole number, or below 0.
    """

    rank: int
    pipeline: int = 0

    def __post_init__(self) -> None:
        """Check both numbers."""
        for name in ("rank", "pipeline"):
            object.__setattr__(self, name, checked_whole_number(f"PipelineRank.{name}", getattr(self, name), 0))


class StageGpu(NamedTuple):
    """The GPU of a rank, and the properties a profile depends on.

    Attributes:
        uuid: Identity of the GPU; no profile depends on it.
        name: Model.
        power_limit_watts: Power limit; None if it cannot be read.
        driver_version: Version of the driver; None if it cannot be read.
    """

    uuid: str
    name: str
    power_limit_watts: float | None
    driver_version: str | None


@dataclass(frozen=True)
class StageFacts:
    """Facts that a rank sends to all others at the end of warm-up.

    Attributes:
        pipeline_rank: Position among the pipelines.
        order: Computations of an iteration, in order.
        gpu: The GPU.
        counter_update_period_seconds: Period at which the energy counter of the GPU is updated.
        clocks_mhz: SM clocks that may be set, highest first.
        identity: Properties of the job that the profile depends on besides the GPU.
        settings: The user's settings.
        permission_problem: Why this rank may not set clocks; None if it may.
    """

    pipeline_rank: PipelineRank
    order: tuple[Instruction, ...]
    gpu: StageGpu
    counter_update_period_seconds: float
    clocks_mhz: tuple[int, ...]
    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    permission_problem: str | None

    @property
    def work(self) -> list[tuple[int, str]]:
        """The different computations, as pairs of stage and kind, sorted."""
        return sorted({(instruction.stage, instruction.kind) for instruction in self.order})


_Value = TypeVar("_Value")

_SCHEDULE_NAME = "as observed"


@dataclass(frozen=True)
class PipelineJob:
    """All pipelines of a job, each with the same number of ranks.

    Attributes:
        ranks: Information of all ranks, by rank.
        schedules: Schedule of each pipeline.
    """

    ranks: tuple[StageFacts, ...]
    schedules: tuple[Schedule, ...]

    @classmethod
    def from_ranks(cls, ranks: Sequence[StageFacts]) -> PipelineJob:
        """Assemble the job.

        Raises:
            UsageError: A position in a pipeline is missing, two ranks at one position run different work, two ranks
                share a GPU, the schedule is not valid, the settings differ, or the GPUs have no clock in common.
        """
        _check_own_gpus(ranks)
        _check_settings(ranks)
        pipelines = 1 + max(rank.pipeline_rank.pipeline for rank in ranks)
        schedules = tuple(_schedule(ranks, pipeline) for pipeline in range(pipelines))
        sizes = {len(schedule.ranks) for schedule in schedules}
        if len(sizes) > 1:
            raise UsageError(
                f"the pipelines of this job differ in size ({sorted(sizes)} ranks); pass each rank its own PipelineRank"
            )
        job = cls(tuple(ranks), schedules)
        if not job.clocks_mhz and not any(job.permission_problems):
            raise UsageError("the GPUs of this job have no SM clock in common; use GPUs of one model in a job")
        return job

    @property
    def pipelines(self) -> int:
        """Number of pipelines."""
        return len(self.schedules)

    def of_pipeline(self, values: Sequence[_Value], pipeline: int) -> list[_Value]:
        """Select the values of one pipeline from one value for each rank of the job."""
        pairs = zip(values, self.ranks, strict=True)
        return [value for value, rank in pairs if rank.pipeline_rank.pipeline == pipeline]

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """The clocks that every GPU supports, highest first."""
        common = set.intersection(*(set(rank.clocks_mhz) for rank in self.ranks))
        return tuple(sorted(common, reverse=True))

    @property
    def counter_update_period_seconds(self) -> float:
        """Update period of the slowest energy counter."""
        return max(rank.counter_update_period_seconds for rank in self.ranks)

    @property
    def permission_problems(self) -> list[str | None]:
        """Why each rank may not set clocks; None for a rank that may."""
        return [rank.permission_problem for rank in self.ranks]

    @property
    def fingerprint(self) -> list[dict[str, Any]]:
        """The facts that a profile is valid for, in JSON types: the same work on the same GPU models, by rank."""
        return [
            {
                "position": [rank.pipeline_rank.rank, rank.pipeline_rank.pipeline],
                "gpu": rank.gpu.name,
                "power limit": rank.gpu.power_limit_watts,
                "driver": rank.gpu.driver_version,
                "clocks": [*rank.clocks_mhz[:1], *rank.clocks_mhz[-1:], len(rank.clocks_mhz)],
                "work": sorted(f"{kind} of stage {stage}" for stage, kind in rank.work),
                "identity": dict(rank.identity),
            }
            for rank in self.ranks
        ]


def _check_own_gpus(ranks: Sequence[StageFacts]) -> None:
    owners: dict[str, int] = {}
    for number, rank in enumerate(ranks):
        owner = owners.setdefault(rank.gpu.uuid, number)
        if owner != number:
            raise UsageError(
                f"ranks {owner} and {number} share {rank.gpu.name} ({rank.gpu.uuid}); each rank of a pipeline needs a "
                "GPU of its own: select it, such as ZeusMonitor(gpu_indices=[local_rank])"
            )


def _check_settings(ranks: Sequence[StageFacts]) -> None:
    for number, rank in enumerate(ranks):
        for name, value in ranks[0].settings.items():
            if rank.settings[name] != value:
                raise UsageError(
                    f"{name} is {value!r} on rank 0 and {rank.settings[name]!r} on rank {number}; "
                    "use the same settings on every rank"
                )


def _schedule(ranks: Sequence[StageFacts], pipeline: int) -> Schedule:
    orders: dict[int, tuple[Instruction, ...]] = {}
    for rank in ranks:
        own = rank.pipeline_rank
        if own.pipeline == pipeline and orders.setdefault(own.rank, rank.order) != rank.order:
            raise UsageError(
                f"two ranks at position {own.rank} of pipeline {own.pipeline} report different work; pass each rank "
                "its own PipelineRank"
            )
    missing = set(range(max(orders, default=0) + 1)) - orders.keys()
    if missing:
        raise UsageError(
            f"pipeline {pipeline} has no rank {min(missing)}; pass each rank its own PipelineRank, counted from 0"
        )
    return Schedule(_SCHEDULE_NAME, tuple(orders[rank] for rank in range(len(orders))))
