"""Interleaved 1F1B: each rank has several stages, so that the pipeline fills sooner (Narayanan et al., SC'21)."""

from __future__ import annotations

from zeus_core.errors import UsageError
from zeus_core.pipeline._schedule import Instruction, Schedule
from zeus_core.pipeline.schedules._shape import check_count

__all__ = ["interleaved"]


def interleaved(ranks: int, microbatches: int, stages_per_rank: int = 2) -> Schedule:
    """The interleaved 1F1B schedule, as in Megatron-LM: rank r has the stages r, r + ranks, r + 2 * ranks, ...

    Args:
        ranks: How many ranks there are.
        microbatches: A multiple of `ranks`.
        stages_per_rank: Stages on each rank.

    Raises:
        UsageError: A number is below 1, or `microbatches` is not a multiple of `ranks`.
    """
    for name, value in (("ranks", ranks), ("microbatches", microbatches), ("stages_per_rank", stages_per_rank)):
        check_count(name, value)
    if microbatches % ranks:
        raise UsageError(f"microbatches is {microbatches}; interleaved 1F1B needs a multiple of the {ranks} ranks")
    return Schedule(
        "interleaved-1f1b", tuple(_rank(rank, ranks, microbatches, stages_per_rank) for rank in range(ranks))
    )


def _rank(rank: int, ranks: int, microbatches: int, chunks: int) -> tuple[Instruction, ...]:
    total = microbatches * chunks
    ahead = (ranks - rank - 1) * 2 + (chunks - 1) * ranks
    warm_up = total if microbatches == ranks else min(ahead, total)
    order = [_forward(it, rank, ranks, chunks) for it in range(warm_up)]
    for it in range(total):
        if it + warm_up < total:
            order.append(_forward(it + warm_up, rank, ranks, chunks))
        order.append(_backward(it, rank, ranks, chunks))
    return tuple(order)


def _forward(position: int, rank: int, ranks: int, chunks: int) -> Instruction:
    chunk, microbatch = _of_position(position, ranks, chunks)
    return Instruction("forward", chunk * ranks + rank, microbatch)


def _backward(position: int, rank: int, ranks: int, chunks: int) -> Instruction:
    chunk, microbatch = _of_position(position, ranks, chunks)
    return Instruction("backward", (chunks - 1 - chunk) * ranks + rank, microbatch)


def _of_position(position: int, ranks: int, chunks: int) -> tuple[int, int]:
    """Groups of as many microbatches as ranks go through all chunks in turn."""
    group, within = divmod(position, ranks * chunks)
    chunk, offset = divmod(within, ranks)
    return chunk, group * ranks + offset
