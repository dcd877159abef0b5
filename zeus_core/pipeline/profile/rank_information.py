"""Identity of one rank: its position, its GPU and its work, as the other ranks learn them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zeus_core._validate import checked_whole_number
from zeus_core.pipeline import Instruction

__all__ = ["GpuFacts", "PipelineRank", "RankInformation"]


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


class GpuFacts(NamedTuple):
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
class RankInformation:
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
    gpu: GpuFacts
    counter_update_period_seconds: float
    clocks_mhz: tuple[int, ...]
    identity: Mapping[str, Any]
    settings: Mapping[str, Any]
    permission_problem: str | None

    @property
    def work(self) -> list[tuple[int, str]]:
        """The different computations, as pairs of stage and kind, sorted."""
        return sorted({(instruction.stage, instruction.kind) for instruction in self.order})
