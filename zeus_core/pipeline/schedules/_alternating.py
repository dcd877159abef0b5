"""Schedules in which a rank is some forward passes ahead, and then alternates one forward and one backward pass.

GPipe is ahead by all of them (Huang et al., NeurIPS'19); 1F1B by one for each stage that follows (PipeDream-flush,
Narayanan et al., ICML'21); interleaved 1F1B has several stages on each rank, so that the pipeline fills sooner
(Narayanan et al., SC'21).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule, checked_counts


def gpipe(stages: int, microbatches: int) -> Schedule:
    """Return the GPipe schedule: all forward passes, then all backward passes; one stage per rank.

    Raises:
        UsageError: A number is below 1, or their product above a million.
    """
    stages, microbatches = checked_counts(stages=stages, microbatches=microbatches)
    return Schedule("gpipe", tuple(_one_stage(stage, microbatches, microbatches) for stage in range(stages)))


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Return the 1F1B schedule: one stage per rank; the earlier the stage, the more forward passes it is ahead.

    Raises:
        UsageError: A number is below 1, or their product above a million.
    """
    stages, microbatches = checked_counts(stages=stages, microbatches=microbatches)
    return Schedule("1f1b", tuple(_one_stage(stage, microbatches, stages - stage - 1) for stage in range(stages)))


def interleaved(ranks: int, microbatches: int, stages_per_rank: int = 2) -> Schedule:
    """Return the interleaved 1F1B schedule, as in Megatron-LM: rank r has the stages r, r + ranks, r + 2 * ranks, ...

    Args:
        ranks: Number of ranks.
        microbatches: A multiple of `ranks`.
        stages_per_rank: Stages on each rank.

    Raises:
        UsageError: A number is below 1, their product above a million, or `microbatches` is not a multiple of `ranks`.
    """
    ranks, microbatches, chunks = checked_counts(
        ranks=ranks, microbatches=microbatches, stages_per_rank=stages_per_rank
    )
    if microbatches % ranks:
        raise UsageError(f"microbatches is {microbatches}; interleaved 1F1B needs a multiple of the {ranks} ranks")
    total = microbatches * chunks

    def of_rank(rank: int) -> tuple[Instruction, ...]:
        def run(is_forward: bool, position: int) -> Instruction:
            # Groups of as many microbatches as ranks go through all chunks in turn.
            group, within = divmod(position, ranks * chunks)
            chunk, offset = divmod(within, ranks)
            stage = (chunk if is_forward else chunks - 1 - chunk) * ranks + rank
            return Instruction("forward" if is_forward else "backward", stage, group * ranks + offset)

        ahead = total if microbatches == ranks else (ranks - rank - 1) * 2 + (chunks - 1) * ranks
        return _alternated(total, ahead, partial(run, True), partial(run, False))

    return Schedule("interleaved-1f1b", tuple(map(of_rank, range(ranks))))


def _one_stage(stage: int, microbatches: int, ahead: int) -> tuple[Instruction, ...]:
    run = [partial(Instruction, kind, stage) for kind in ("forward", "backward")]
    return _alternated(microbatches, ahead, *run)


def _alternated(
    total: int, ahead: int, forward: Callable[[int], Instruction], backward: Callable[[int], Instruction]
) -> tuple[Instruction, ...]:
    """Return so many passes of each kind, by their positions, of which some forward passes come first."""
    warm_up = min(ahead, total)
    order = [forward(position) for position in range(warm_up)]
    for position in range(total):
        if position + warm_up < total:
            order.append(forward(position + warm_up))
        order.append(backward(position))
    return tuple(order)
