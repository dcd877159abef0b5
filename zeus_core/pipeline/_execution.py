"""What comes of a choice of clocks: when each instruction runs, how long the iteration takes, and its energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline._dependencies import Numbers
from zeus_core.pipeline._hull import CostedOption
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._timing import earliest_starts

__all__ = ["Execution", "clock_switches", "execute"]


@dataclass(frozen=True)
class Execution:
    """One iteration with given clocks. Each instruction starts as soon as it can.

    A clock is switched as soon as the instruction before it on the rank has ended, and the next one waits for that. In
    every iteration but the very first, the clock at the beginning is that of the end of the iteration before.

    Attributes:
        start_seconds: When each instruction starts. [instructions]
        duration_seconds: How long each takes. [instructions]
        time_seconds: Iteration time.
        energy_joules: Energy of all GPUs until then.
        is_switch: Whether the clock is switched before each. [instructions]
        shortest_dwell_seconds: The least time on any rank from one switch to the next, the last of an iteration and
            the first of the following one included; infinite without two switches.
    """

    start_seconds: Numbers
    duration_seconds: Numbers
    time_seconds: float
    energy_joules: float
    is_switch: NDArray[np.bool_]
    shortest_dwell_seconds: float

    @property
    def switches(self) -> int:
        """How many times a clock is switched in an iteration, on all ranks together."""
        return int(self.is_switch.sum())


def execute(problem: Problem, chosen: Sequence[CostedOption], switch_seconds: float = 0.0) -> Execution:
    """Run an iteration on paper.

    Args:
        problem: What is run.
        chosen: The choice of each instruction, in the order of `problem.graph`. [instructions]
        switch_seconds: What a switch of the clock takes. The GPU draws its blocking power meanwhile.
    """
    graph = problem.graph
    is_switch = clock_switches(problem, [choice.clock_mhz for choice in chosen])
    durations = np.array([choice.time_seconds for choice in chosen])
    # A switch is on the arc from the instruction before; the first of a rank cannot start before it.
    to = np.repeat(np.arange(len(chosen)), np.diff(graph.first_arc))
    switching = np.where(is_switch, switch_seconds, 0.0)
    delays = problem.arc_delay_seconds + np.where(graph.arc_from == graph.before[to], switching[to], 0.0)
    releases = np.where(graph.before < 0, switching, 0.0)
    ends = earliest_starts(graph, delays, durations, releases) + durations
    time_seconds = float(ends.max())
    cost = float(np.sum([choice.cost_joules for choice in chosen]))
    return Execution(
        start_seconds=ends - durations,
        duration_seconds=durations,
        time_seconds=time_seconds,
        energy_joules=problem.energy_joules(cost, time_seconds),
        is_switch=is_switch,
        shortest_dwell_seconds=_shortest_dwell(problem, is_switch, ends, time_seconds),
    )


def clock_switches(problem: Problem, clocks_mhz: Sequence[int | None]) -> NDArray[np.bool_]:
    """Whether the clock is switched before each instruction, [instructions]."""
    is_switch = np.zeros(len(clocks_mhz), np.bool_)
    for order in _orders(problem):
        held = next((clocks_mhz[it] for it in reversed(order) if clocks_mhz[it] is not None), None)
        for it in order:
            clock = clocks_mhz[it]
            if clock is not None:
                is_switch[it] = clock != held
                held = clock
    return is_switch


def _orders(problem: Problem) -> Iterator[list[int]]:
    """The numbers of the instructions of each rank, in their order."""
    for rank in range(len(problem.schedule.ranks)):
        yield np.flatnonzero(problem.graph.rank == rank).tolist()


def _shortest_dwell(problem: Problem, is_switch: NDArray[np.bool_], ends: Numbers, time_seconds: float) -> float:
    before = problem.graph.before
    begins = np.where(before >= 0, ends[before], 0.0)
    shortest = np.inf
    for order in _orders(problem):
        times = begins[[it for it in order if is_switch[it]]]
        if len(times) > 1:
            shortest = min(shortest, float(np.diff(times).min()), float(times[0] + time_seconds - times[-1]))
    return float(shortest)
