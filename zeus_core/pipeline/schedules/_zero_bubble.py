"""Zero-bubble schedules: weight gradients fill the waits (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR'24)."""

from __future__ import annotations

from collections.abc import Iterator

from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule, checked_counts


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """Return ZB-H1: 1F1B with delayed weight gradients, holding no more activations than 1F1B; one stage per rank.

    A stage falls behind with weight gradients by at most as many microbatches as its distance from the first stage;
    the rest fills the waits of the cool-down.

    Raises:
        UsageError: A number is below 1, or their product above a million.
    """
    stages, microbatches = checked_counts(stages=stages, microbatches=microbatches)
    return Schedule("zb-h1", tuple(tuple(_zb_h1_rank(stage, stages, microbatches)) for stage in range(stages)))


def _zb_h1_rank(stage: int, stages: int, microbatches: int) -> Iterator[Instruction]:
    warm_up = min(stages - stage, microbatches)
    forwards = backwards = weights = 0
    for _ in range(warm_up):
        yield Instruction("forward", stage, forwards)
        forwards += 1
    while weights < microbatches:
        if backwards < microbatches:
            yield Instruction("backward-input", stage, backwards)
            backwards += 1
        # In the cool-down a rank waits between two input gradients: time for a weight gradient.
        if backwards - weights > stage or backwards == microbatches or forwards == microbatches:
            yield Instruction("backward-weight", stage, weights)
            weights += 1
        if forwards < microbatches:
            yield Instruction("forward", stage, forwards)
            forwards += 1


def zbv(ranks: int, microbatches: int) -> Schedule:
    """Return ZB-V: two stages per rank in a V; rank r has the stages r and 2 * ranks - 1 - r.

    The order of each rank comes from running the pipeline with all kinds equally long, as the paper does: an input
    gradient first, the deeper stage before the other; then a forward pass while at most 2 * ranks activations are held;
    a weight gradient if the rank would wait otherwise.

    Raises:
        UsageError: A number is below 1, or their product above a million.
    """
    ranks, microbatches = checked_counts(ranks=ranks, microbatches=microbatches)
    return Schedule("zbv", _ZbvRun(ranks, microbatches).orders())


class _ZbvRun:
    """Steps of equal length; in each, every rank runs one instruction or waits."""

    def __init__(self, ranks: int, microbatches: int) -> None:
        self._ranks = ranks
        self._microbatches = microbatches
        self._order: list[list[Instruction]] = [[] for _ in range(ranks)]
        self._count = {
            kind: [0] * (2 * ranks) for kind in ("forward", "backward-input", "backward-weight")
        }  # how many of each stage have run

    def orders(self) -> tuple[tuple[Instruction, ...], ...]:
        left = 6 * self._ranks * self._microbatches
        while left:
            step = [self._next(rank) for rank in range(self._ranks)]  # all before any has run
            assert any(step), "the pipeline is stuck"
            for rank, instruction in enumerate(step):
                if instruction is not None:
                    self._order[rank].append(instruction)
                    self._count[instruction.kind][instruction.stage] += 1
                    left -= 1
        return tuple(tuple(order) for order in self._order)

    def _next(self, rank: int) -> Instruction | None:
        for kind, stage in self._preferences(rank):
            done = self._count[kind][stage]
            if done < self._microbatches and done < self._available(kind, stage):
                return Instruction(kind, stage, done)
        return None

    def _preferences(self, rank: int) -> Iterator[tuple[str, int]]:
        first, second = rank, 2 * self._ranks - 1 - rank
        yield from (("backward-input", second), ("backward-input", first))
        forwards, weights = self._count["forward"], self._count["backward-weight"]
        held = {stage: forwards[stage] - weights[stage] for stage in (first, second)}
        if sum(held.values()) < 2 * self._ranks:
            yield ("forward", second)
            # Keep room for one activation of the second stage: a microbatch that enters must be able to return.
            if held[first] < 2 * self._ranks - 1 or self._ranks == 1:
                yield ("forward", first)
        yield from (("backward-weight", second), ("backward-weight", first))

    def _available(self, kind: str, stage: int) -> int:
        """Return how many of a kind the other instructions allow so far."""
        last = 2 * self._ranks - 1
        if kind == "forward":
            return self._microbatches if stage == 0 else self._count["forward"][stage - 1]
        if kind == "backward-weight":
            return self._count["backward-input"][stage]
        after = self._microbatches if stage == last else self._count["backward-input"][stage + 1]
        return min(after, self._count["forward"][stage])
