"""Interleaved 1F1B: each rank has several stages, so that the pipeline fills sooner (Narayanan et al., SC'21)."""

from __future__ import annotations

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule, checked_counts


def interleaved(ranks: int, microbatches: int, stages_per_rank: int = 2) -> Schedule:
    """Return the interleaved 1F1B schedule, as in Megatron-LM: rank r has the stages r, r + ranks, r + 2 * ranks, ...

    Args:
        ranks: Number of ranks.
        microbatches: A multiple of `ranks`.
        stages_per_rank: Stages on each rank.

    Raises:
        UsageError: A number is below 1, their product above a million, or `microbatches` is not a multiple of `ranks`.
    """
    ranks, microbatches, stages_per_rank = checked_counts(
        ranks=ranks, microbatches=microbatches, stages_per_rank=stages_per_rank
    )
    if microbatches % ranks:
        raise UsageError(f"microbatches is {microbatches}; interleaved 1F1B needs a multiple of the {ranks} ranks")
    return Schedule(
        "interleaved-1f1b", tuple(_rank(rank, ranks, microbatches, stages_per_rank) for rank in range(ranks))
    )


def _rank(rank: int, ranks: int, microbatches: int, chunks: int) -> tuple[Instruction, ...]:
    total = microbatches * chunks
    ahead = (ranks - rank - 1) * 2 + (chunks - 1) * ranks
    warm_up = total if microbatches == ranks else min(ahead, total)
    order = [_forward(position, rank, ranks, chunks) for position in range(warm_up)]
    for position in range(total):
        if position + warm_up < total:
            order.append(_forward(position + warm_up, rank, ranks, chunks))
        order.append(_backward(position, rank, ranks, chunks))
    return tuple(order)


def _forward(position: int, rank: int, ranks: int, chunks: int) -> Instruction:
    chunk, microbatch = _of_position(position, ranks, chunks)
    return Instruction("forward", chunk * ranks + rank, microbatch)


def _backward(position: int, rank: int, ranks: int, chunks: int) -> Instruction:
    chunk, microbatch = _of_position(position, ranks, chunks)
    return Instruction("backward", (chunks - 1 - chunk) * ranks + rank, microbatch)


def _of_position(position: int, ranks: int, chunks: int) -> tuple[int, int]:
    """Return chunk and microbatch: groups of as many microbatches as ranks go through all chunks in turn."""
    group, within = divmod(position, ranks * chunks)
    chunk, offset = divmod(within, ranks)
    return chunk, group * ranks + offset
