"""1F1B: each rank alternates one forward and one backward pass (PipeDream-flush, Narayanan et al., ICML'21)."""

from __future__ import annotations

from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule, checked_counts


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Return the 1F1B schedule: one stage per rank; the earlier the stage, the more forward passes it is ahead.

    Raises:
        UsageError: A number is below 1, or their product above a million.
    """
    stages, microbatches = checked_counts(stages=stages, microbatches=microbatches)
    return Schedule("1f1b", tuple(_rank(stage, stages - stage - 1, microbatches) for stage in range(stages)))


def _rank(stage: int, ahead: int, microbatches: int) -> tuple[Instruction, ...]:
    warm_up = min(ahead, microbatches)
    order = [Instruction("forward", stage, microbatch) for microbatch in range(warm_up)]
    for microbatch in range(microbatches):
        if microbatch + warm_up < microbatches:
            order.append(Instruction("forward", stage, microbatch + warm_up))
        order.append(Instruction("backward", stage, microbatch))
    return tuple(order)
