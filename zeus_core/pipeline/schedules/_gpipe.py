"""GPipe: all forward passes, then all backward passes (Huang et al., NeurIPS'19)."""

from __future__ import annotations

from zeus_core.pipeline._schedule import Instruction, Schedule
from zeus_core.pipeline.schedules._shape import check_count

__all__ = ["gpipe"]


def gpipe(stages: int, microbatches: int) -> Schedule:
    """The GPipe schedule: one stage per rank.

    Raises:
        UsageError: A number is below 1.
    """
    check_count("stages", stages)
    check_count("microbatches", microbatches)
    return Schedule(
        "gpipe",
        tuple(
            tuple(Instruction(kind, stage, it) for kind in ("forward", "backward") for it in range(microbatches))
            for stage in range(stages)
        ),
    )
