"""The place of a rank among the pipelines of a job."""

from __future__ import annotations

from dataclasses import dataclass

from zeus_core._validate import checked_whole_number

__all__ = ["PipelineRank"]


@dataclass(frozen=True)
class PipelineRank:
    """The place of a rank. Ranks at the same place (tensor parallelism) run the same work, at the same clocks.

    Attributes:
        rank: Its position in its pipeline, from 0: what a schedule calls a rank.
        pipeline: Which of the data-parallel pipelines it belongs to, from 0.

    Raises:
        UsageError: A value is not a whole number, or below 0.
    """

    rank: int
    pipeline: int = 0

    def __post_init__(self) -> None:
        """Check both numbers."""
        for name in ("rank", "pipeline"):
            object.__setattr__(self, name, checked_whole_number(f"PipelineRank.{name}", getattr(self, name), 0))
