"""Predict an iteration from its clocks: start times, duration, energy, switches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import Numbers
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem


class SwitchPrice(NamedTuple):
    """The price of a clock switch.

    Attributes:
        seconds: Duration, during which the GPU draws its blocking power.
        joules: Energy of one GPU above that.
        dwell_seconds: The shortest allowed time between two switches of a rank.
    """

    seconds: float = 0.0
    joules: float = 0.0
    dwell_seconds: float = 0.0


FREE_SWITCHES = SwitchPrice()


@dataclass(frozen=True)
class Execution:
    """One predicted iteration. Each instruction starts as soon as it can.

    A rank switches its clock as soon as its last instruction has ended; the next instruction waits for the switch. The
    clock at the beginning is the one at the end of the iteration before; only the very first iteration differs.

    Attributes:
        start_seconds: Start of each instruction. [instructions]
        duration_seconds: Duration of each. [instructions]
        time_seconds: Iteration time.
        energy_joules: Energy of all GPUs until then.
        is_switch: Whether the clock is switched before each. [instructions]
        shortest_dwell_seconds: The shortest time on any rank from one switch to the next, the last of an iteration and
            the first of the following one included; infinite without two switches.
        waiting_switches: Switches more than these, to wait at other clocks; see `waiting_clocks.py`.
    """

    start_seconds: Numbers
    duration_seconds: Numbers
    time_seconds: float
    energy_joules: float
    is_switch: NDArray[np.bool_]
    shortest_dwell_seconds: float
    waiting_switches: int = 0

    @property
    def switches(self) -> int:
        """The number of clock switches in an iteration, on all ranks together."""
        return int(self.is_switch.sum()) + self.waiting_switches


def execute(problem: PipelineProblem, chosen: Sequence[CostedOption], price: SwitchPrice = FREE_SWITCHES) -> Execution:
    """Predict an iteration.

    Args:
        problem: The instructions.
        chosen: The option of each instruction, in the order of `problem.graph`. [instructions]
        price: That of a switch; its dwell does not matter.
    """
    graph = problem.graph
    is_switch = clock_switches(problem, [option.clock_mhz for option in chosen])
    durations = np.array([option.time_seconds for option in chosen])
    # A switch lies on the arc from the instruction before; the first instruction of a rank is released after it.
    to = np.repeat(np.arange(len(chosen)), np.diff(graph.first_arc))
    switching = np.where(is_switch, price.seconds, 0.0)
    delays = problem.arc_delay_seconds + np.where(graph.arc_from == graph.before[to], switching[to], 0.0)
    releases = np.where(graph.before < 0, switching, 0.0)
    ends = graph.earliest_starts(delays, durations, releases) + durations
    time_seconds = float(ends.max())
    cost = float(np.sum([option.cost_joules for option in chosen]))
    cost += price.joules * float(problem.rank_gpus[graph.rank[is_switch]].sum())
    return Execution(
        start_seconds=ends - durations,
        duration_seconds=durations,
        time_seconds=time_seconds,
        energy_joules=problem.energy_joules(cost, time_seconds),
        is_switch=is_switch,
        shortest_dwell_seconds=_shortest_dwell(problem, is_switch, ends, time_seconds),
    )


def clock_switches(problem: PipelineProblem, clocks_mhz: Sequence[int | None]) -> NDArray[np.bool_]:
    """Return whether the clock is switched before each instruction, [instructions]."""
    is_switch = np.zeros(len(clocks_mhz), np.bool_)
    for order in _rank_orders(problem):
        held = next((clocks_mhz[place] for place in reversed(order) if clocks_mhz[place] is not None), None)
        for place in order:
            clock = clocks_mhz[place]
            if clock is not None:
                is_switch[place] = clock != held
                held = clock
    return is_switch


def _rank_orders(problem: PipelineProblem) -> Iterator[list[int]]:
    """Yield for each rank the numbers of its instructions in their order."""
    for rank in range(len(problem.schedule.ranks)):
        yield np.flatnonzero(problem.graph.rank == rank).tolist()


def _shortest_dwell(
    problem: PipelineProblem, is_switch: NDArray[np.bool_], ends: Numbers, time_seconds: float
) -> float:
    before = problem.graph.before
    switch_times = np.where(before >= 0, ends[before], 0.0)
    shortest = np.inf
    for order in _rank_orders(problem):
        times = switch_times[[place for place in order if is_switch[place]]]
        if len(times) > 1:
            shortest = min(shortest, float(np.diff(times).min()), float(times[0] + time_seconds - times[-1]))
    return float(shortest)
