"""The dependency graph of an iteration: which instruction starts after which."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline._schedule import Instruction, Schedule

__all__ = ["DependencyGraph", "Indices", "Numbers", "dependency_graph"]

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class DependencyGraph:
    """Instructions as numbers 0 to n-1, each after everything it waits for.

    Attributes:
        instructions: All instructions, in an order in which they can run.
        rank: The rank of each. [n]
        before: What comes directly before it on its rank; -1 for the first. [n]
        first_arc: Arcs `first_arc[i]` to `first_arc[i + 1]` lead to instruction i. [n + 1]
        arc_from: The instruction each arc comes from. [arcs]
        arc_is_transfer: Whether it crosses ranks, so that a communication lies in between. [arcs]
    """

    instructions: tuple[Instruction, ...]
    rank: Indices
    before: Indices
    first_arc: Indices
    arc_from: Indices
    arc_is_transfer: NDArray[np.bool_]


def dependency_graph(schedule: Schedule) -> DependencyGraph:
    """The graph of a schedule. An arc within a rank is there only between neighbours: the order implies the others."""
    rank_of = schedule.rank_of_stage
    order = schedule.running_order
    number = {it: position for position, it in enumerate(order)}
    before = _before(schedule, number)
    first_arc, arc_from, arc_is_transfer = [0], [], []
    for position, it in enumerate(order):
        if before[position] >= 0:
            arc_from.append(before[position])
            arc_is_transfer.append(False)
        for needed in schedule.needs(it):
            if rank_of[needed.stage] != rank_of[it.stage]:
                arc_from.append(number[needed])
                arc_is_transfer.append(True)
        first_arc.append(len(arc_from))
    return DependencyGraph(
        instructions=order,
        rank=np.array([rank_of[it.stage] for it in order], np.int64),
        before=np.array(before, np.int64),
        first_arc=np.array(first_arc, np.int64),
        arc_from=np.array(arc_from, np.int64),
        arc_is_transfer=np.array(arc_is_transfer, np.bool_),
    )


def _before(schedule: Schedule, number: dict[Instruction, int]) -> list[int]:
    before = [-1] * len(number)
    for order in schedule.ranks:
        for it, following in pairwise(order):
            before[number[following]] = number[it]
    return before
