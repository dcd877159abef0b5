"""GPipe: all forward passes, then all backward passes (Huang et al., NeurIPS'19)."""

from __future__ import annotations

from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule, checked_counts


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Return the GPipe schedule: one stage per rank.

    Raises:
        UsageError: A number is below 1, or their product above a million.
    """
    stages, microbatches = checked_counts(stages=stages, microbatches=microbatches)
    return Schedule(
        "gpipe",
        tuple(
            tuple(
                Instruction(kind, stage, microbatch)
                for kind in ("forward", "backward")
                for microbatch in range(microbatches)
            )
            for stage in range(stages)
        ),
    )
