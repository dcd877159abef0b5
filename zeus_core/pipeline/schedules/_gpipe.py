"""GPipe: all forward passes, then all backward passes (Huang et al., NeurIPS'19)."""

from __future__ import annotations

from zeus_core._validate import checked_whole_number
from zeus_core.pipeline._instruction import Instruction
from zeus_core.pipeline._schedule import Schedule

__all__ = ["gpipe"]


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Return the GPipe schedule: one stage per rank.

    Raises:
        UsageError: A number is below 1.
    """
    stages = checked_whole_number("stages", stages, 1)
    microbatches = checked_whole_number("microbatches", microbatches, 1)
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
