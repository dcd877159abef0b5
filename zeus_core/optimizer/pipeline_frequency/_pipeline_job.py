"""The pipelines of a job, assembled from what each rank has reported. Pure, so that all ranks agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from zeus_core.errors import UsageError
from zeus_core.optimizer.pipeline_frequency._clock_search import MeasuredPoint
from zeus_core.optimizer.pipeline_frequency._pipeline_rank import PipelineRank
from zeus_core.optimizer.pipeline_frequency._profiler import InstructionRow, RankProfile
from zeus_core.pipeline import (
    COMPUTE_KINDS,
    Instruction,
    InstructionProfile,
    MeasuredOption,
    PipelineProfile,
    Schedule,
)

__all__ = [
    "GpuFacts",
    "PipelineJob",
    "RankInformation",
    "check_clocks",
    "check_energies",
    "job_of",
    "measured_points",
    "pipeline_profile",
    "tail_joules",
]

_Value = TypeVar("_Value")

_NAME = "as observed"
_LEAST_SECONDS = 1e-6  # of an instruction too short to be measured


class GpuFacts(NamedTuple):
    """The GPU of a rank, and what a profile depends on of it.

    Attributes:
        uuid: Its identity, on which no profile depends.
        name: Its model.
        power_limit_watts: Its power limit; None where that cannot be read.
        driver_version: Its driver; None where that cannot be read.
    """

    uuid: str
    name: str
    power_limit_watts: float | None
    driver_version: str | None


@dataclass(frozen=True)
class RankInformation:
    """What the other ranks must know of a rank.

    Attributes:
        pipeline_rank: Its position among the pipelines.
        order: Its computations in an iteration, in order.
        gpu: Its GPU.
        counter_period_seconds: The period at which the energy counter of its GPU steps.
        clocks_mhz: The clocks that may be set there, highest first.
        identity: What its profile depends on besides its GPU.
        settings: The user's settings.
        permission_problem: Why it may not set clocks; None if it may.
    """

    pipeline_rank: PipelineRank
    order: tuple[Instruction, ...]
    gpu: GpuFacts
    counter_period_seconds: float
    clocks_mhz: tuple[int, ...]
    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    permission_problem: str | None

    def to_json(self) -> dict[str, Any]:
        """In JSON types."""
        return {
            "place": [self.pipeline_rank.rank, self.pipeline_rank.pipeline],
            "order": [list(it) for it in self.order],
            "gpu": list(self.gpu),
            "counter_period_seconds": self.counter_period_seconds,
            "clocks_mhz": list(self.clocks_mhz),
            "identity": dict(self.identity),
            "settings": dict(self.settings),
            "permission_problem": self.permission_problem,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> RankInformation:
        """What `to_json` made."""
        return cls(
            PipelineRank(*fields["place"]),
            tuple(Instruction(*it) for it in fields["order"]),
            GpuFacts(*fields["gpu"]),
            fields["counter_period_seconds"],
            tuple(fields["clocks_mhz"]),
            fields["identity"],
            fields["settings"],
            fields["permission_problem"],
        )


@dataclass(frozen=True)
class PipelineJob:
    """All pipelines, each with the same number of ranks.

    Attributes:
        rank_informations: Of all ranks.
        schedules: What each pipeline runs.
    """

    rank_informations: tuple[RankInformation, ...]
    schedules: tuple[Schedule, ...]

    @property
    def pipelines(self) -> int:
        """How many pipelines there are."""
        return len(self.schedules)

    def of_pipeline(self, values: Sequence[_Value], pipeline: int) -> list[_Value]:
        """The values of one pipeline's ranks, from one value for each rank of the job."""
        pairs = zip(values, self.rank_informations, strict=True)
        return [value for value, it in pairs if it.pipeline_rank.pipeline == pipeline]

    @property
    def clocks_mhz(self) -> tuple[int, ...]:
        """The clocks that every GPU supports, highest first."""
        common = set.intersection(*(set(it.clocks_mhz) for it in self.rank_informations))
        return tuple(sorted(common, reverse=True))

    @property
    def counter_period_seconds(self) -> float:
        """The period of the slowest energy counter."""
        return max(it.counter_period_seconds for it in self.rank_informations)

    @property
    def permission_problems(self) -> list[str | None]:
        """Why each rank may not set clocks; None for a rank that may."""
        return [it.permission_problem for it in self.rank_informations]

    @property
    def fingerprint(self) -> list[Any]:
        """What a profile is valid for, in JSON types: the same work on the same GPU models at the same places."""
        return [
            {
                "place": [it.pipeline_rank.rank, it.pipeline_rank.pipeline],
                "gpu": it.gpu.name,
                "power limit": it.gpu.power_limit_watts,
                "driver": it.gpu.driver_version,
                "clocks": [*it.clocks_mhz[:1], *it.clocks_mhz[-1:], len(it.clocks_mhz)],
                "work": sorted({f"{one.kind} of stage {one.stage}" for one in it.order}),
                "identity": dict(it.identity),
            }
            for it in self.rank_informations
        ]


def job_of(rank_informations: Sequence[RankInformation]) -> PipelineJob:
    """The job of ranks that have introduced themselves.

    Raises:
        UsageError: A place in a pipeline is missing, two ranks at one place run different work, two ranks share a GPU,
            what they run is not a valid schedule, their settings differ, or their GPUs have no clock in common.
    """
    _check_own_gpus(rank_informations)
    _check_settings(rank_informations)
    pipelines = 1 + max(it.pipeline_rank.pipeline for it in rank_informations)
    schedules = [_schedule(rank_informations, pipeline) for pipeline in range(pipelines)]
    ranks = {len(schedule.ranks) for schedule in schedules}
    if len(ranks) > 1:
        raise UsageError(
            f"the pipelines of this job differ in size ({sorted(ranks)} ranks); pass each rank its own PipelineRank"
        )
    job = PipelineJob(tuple(rank_informations), tuple(schedules))
    if not job.clocks_mhz and not any(job.permission_problems):
        raise UsageError("the GPUs of this job have no SM clock in common; use GPUs of one model in a job")
    return job


def _check_own_gpus(rank_informations: Sequence[RankInformation]) -> None:
    owners: dict[str, int] = {}
    for rank, it in enumerate(rank_informations):
        other = owners.setdefault(it.gpu.uuid, rank)
        if other != rank:
            raise UsageError(
                f"ranks {other} and {rank} share {it.gpu.name} ({it.gpu.uuid}); each rank of a pipeline needs a GPU of "
                "its own: select it, such as ZeusMonitor(gpu_indices=[local_rank])"
            )


def _check_settings(rank_informations: Sequence[RankInformation]) -> None:
    for rank, it in enumerate(rank_informations):
        for name, value in rank_informations[0].settings.items():
            if it.settings[name] != value:
                raise UsageError(
                    f"{name} is {value!r} on rank 0 and {it.settings[name]!r} on rank {rank}; "
                    "use the same settings on every rank"
                )


def _schedule(rank_informations: Sequence[RankInformation], pipeline: int) -> Schedule:
    orders: dict[int, tuple[Instruction, ...]] = {}
    for it in rank_informations:
        if it.pipeline_rank.pipeline == pipeline and orders.setdefault(it.pipeline_rank.rank, it.order) != it.order:
            raise UsageError(
                f"two ranks at {it.pipeline_rank} report different work; pass each rank its own PipelineRank"
            )
    missing = set(range(max(orders, default=0) + 1)) - orders.keys()
    if missing:
        raise UsageError(
            f"pipeline {pipeline} has no rank {min(missing)}; pass each rank its own PipelineRank, counted from 0"
        )
    return Schedule(_NAME, tuple(orders[rank] for rank in range(len(orders))))


def pipeline_profile(job: PipelineJob, profiles: Sequence[RankProfile], pipeline: int) -> PipelineProfile:
    """The profile of one pipeline; the mean over ranks at the same place.

    Args:
        job: The job.
        profiles: What each rank has measured.
        pipeline: Which pipeline.

    Raises:
        UsageError: Something was not measured.
    """
    members = [rank for rank, it in enumerate(job.rank_informations) if it.pipeline_rank.pipeline == pipeline]
    rows: dict[tuple[int, str], dict[int | None, list[InstructionRow]]] = {}
    for rank in members:
        for row in profiles[rank].rows:
            if row.kind in COMPUTE_KINDS and row.clock_mhz is not None and row.energy_joules is not None:
                rows.setdefault((row.stage, row.kind), {}).setdefault(row.clock_mhz, []).append(row)
    stage_ranks = _ranks_of_stages(job, members)
    return PipelineProfile(
        [InstructionProfile(*name, tuple(map(_option, by_clock.values()))) for name, by_clock in rows.items()],
        [_waiting_watts(profiles, ranks) for ranks in stage_ranks],
        [len(ranks) for ranks in stage_ranks],
    )


def tail_joules(job: PipelineJob, profiles: Sequence[RankProfile], pipeline: int) -> float:
    """The energy of one pipeline's optimizer steps above that of waiting as long, over all its ranks."""
    joules = 0.0
    for rank, it in enumerate(job.rank_informations):
        if it.pipeline_rank.pipeline == pipeline:
            waiting_watts = _waiting_watts(profiles, [rank])
            for row in profiles[rank].rows:
                if row.kind not in COMPUTE_KINDS and row.energy_joules is not None:
                    joules += row.energy_joules - waiting_watts * row.time_seconds
    return joules


def measured_points(job: PipelineJob, profiles: Sequence[RankProfile], clock_mhz: int) -> dict[object, MeasuredPoint]:
    """What each kind of instruction of every rank took at a clock, by rank, stage and kind."""
    points: dict[object, MeasuredPoint] = {}
    for rank, profile in enumerate(profiles):
        waiting_watts = _waiting_watts(profiles, [rank])
        for row in profile.rows:
            if row.clock_mhz == clock_mhz and row.energy_joules is not None:
                cost = row.energy_joules - waiting_watts * row.time_seconds
                points[rank, row.stage, row.kind] = MeasuredPoint(row.time_seconds, row.energy_joules, cost)
    return points


def check_energies(
    job: PipelineJob, profiles: Sequence[RankProfile], clock_mhz: int, faults: Sequence[str | None]
) -> None:
    """Check that everything was measured at a clock.

    Args:
        job: The job.
        profiles: What each rank has measured.
        clock_mhz: The clock.
        faults: What the GPU of each rank has said, if it has refused to tell its energy.

    Raises:
        UsageError: Something could not be measured; the message says what, and what to do.
    """
    for rank, (profile, it) in enumerate(zip(profiles, job.rank_informations, strict=True)):
        rows = {(row.stage, row.kind): row for row in profile.rows if row.clock_mhz == clock_mhz}
        for stage, kind in sorted({(one.stage, one.kind) for one in it.order}):
            row = rows.get((stage, kind))
            if row is None:
                raise UsageError(
                    f"{kind} of stage {stage} was not measured at {clock_mhz} MHz on rank {rank} ({it.gpu.name}): too "
                    "few of them ran; use a larger profile_instructions"
                )
            if row.energy_joules is None:
                guess = (
                    "its energy counter does not advance, or the instructions "
                    f"({row.time_seconds:.3g} s) are too short for one that advances every "
                    f"{job.counter_period_seconds:g} s; if so, measuring more of them may help: use a larger "
                    "profile_instructions"
                )
                raise UsageError(
                    f"the energy of {kind} of stage {stage} could not be measured on rank {rank} ({it.gpu.name}): "
                    f"{faults[rank] or guess}"
                )


def check_clocks(job: PipelineJob, profiles: Sequence[RankProfile]) -> None:
    """Check that a job can set all clocks of profiles that were kept.

    Raises:
        UsageError: It cannot.
    """
    unknown = {row.clock_mhz for it in profiles for row in it.rows if row.clock_mhz is not None} - {*job.clocks_mhz}
    if unknown:
        raise UsageError(f"it has clocks that this job cannot set: {sorted(unknown)} MHz")


def _ranks_of_stages(job: PipelineJob, members: Sequence[int]) -> list[list[int]]:
    by_stage: dict[int, list[int]] = {}
    for rank in members:
        for stage in sorted({it.stage for it in job.rank_informations[rank].order}):
            by_stage.setdefault(stage, []).append(rank)
    return [by_stage[stage] for stage in sorted(by_stage)]


def _waiting_watts(profiles: Sequence[RankProfile], ranks: Iterable[int]) -> float:
    """The mean waiting power of some ranks; of all ranks if none of these ever waits."""
    own = [watts for rank in ranks if (watts := profiles[rank].waiting_watts) is not None]
    others = [it.waiting_watts for it in profiles if it.waiting_watts is not None]
    return fmean(own or others or [0.0])


def _option(rows: Sequence[InstructionRow]) -> MeasuredOption:
    first = rows[0]
    seconds = max(fmean(row.time_seconds for row in rows), _LEAST_SECONDS)
    energies = [row.energy_joules or 0.0 for row in rows]  # all of them are known
    errors = max(row.time_error_seconds for row in rows), max(row.energy_error_joules for row in rows)
    return MeasuredOption(first.clock_mhz, seconds, fmean(energies), *errors)
