"""The dependency graph of an iteration, and the earliest starts that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline.planner.loops import call_compiled
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule

Indices = NDArray[np.int64]
Numbers = NDArray[np.float64]

ROUNDING = 1e-12
"""Sums of the same durations in another order differ by less than this, relatively: below it, times are equal."""


@dataclass(frozen=True)
class DependencyGraph:
    """Instructions numbered 0 to n-1, each after everything it waits for.

    An arc within a rank joins neighbours only: the order of the rank implies the others.

    Attributes:
        instructions: All instructions, in an order in which they can run.
        rank: The rank of each. [n]
        before: The instruction directly before it on its rank; -1 for the first. [n]
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

    @classmethod
    def from_schedule(cls, schedule: Schedule) -> DependencyGraph:
        """Return the graph of a schedule."""
        rank_of = schedule.rank_of_stage
        order = schedule.running_order
        number = {instruction: position for position, instruction in enumerate(order)}
        before = [-1] * len(order)
        for of_rank in schedule.ranks:
            for instruction, following in pairwise(of_rank):
                before[number[following]] = number[instruction]
        first_arc, arc_from, arc_is_transfer = [0], [], []
        for position, instruction in enumerate(order):
            if before[position] >= 0:
                arc_from.append(before[position])
                arc_is_transfer.append(False)
            for needed in schedule.needs(instruction):
                if rank_of[needed.stage] != rank_of[instruction.stage]:
                    arc_from.append(number[needed])
                    arc_is_transfer.append(True)
            first_arc.append(len(arc_from))
        return cls(
            instructions=order,
            rank=np.array([rank_of[instruction.stage] for instruction in order], np.int64),
            before=np.array(before, np.int64),
            first_arc=np.array(first_arc, np.int64),
            arc_from=np.array(arc_from, np.int64),
            arc_is_transfer=np.array(arc_is_transfer, np.bool_),
        )

    def earliest_starts(
        self, arc_delay_seconds: Numbers, durations: Numbers, releases: Numbers | None = None
    ) -> Numbers:
        """Return the start of each instruction if each starts as soon as it can, in seconds: longest paths, [n].

        Args:
            arc_delay_seconds: Time between the two instructions of each arc. [arcs]
            durations: Duration of each instruction, in seconds. [n]
            releases: Time before which each does not start, in seconds; 0 if None. [n]
        """
        starts = np.zeros(len(durations)) if releases is None else releases.astype(np.float64)
        call_compiled(_earliest_starts, self.first_arc, self.arc_from, arc_delay_seconds, durations, starts)
        return starts


def _earliest_starts(first_arc: Any, arc_from: Any, delay: Any, durations: Any, starts: Any) -> None:
    for position in range(len(durations)):
        start = starts[position]
        for arc in range(first_arc[position], first_arc[position + 1]):
            start = max(start, starts[arc_from[arc]] + durations[arc_from[arc]] + delay[arc])
        starts[position] = start
