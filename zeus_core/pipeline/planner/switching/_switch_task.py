"""A problem with a price of switches as arrays, and the loop that predicts an iteration from its clocks.

Clocks are numbers, 0 for the highest, one for each instruction. The number of an instruction that leaves the clock as
it is has no meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import Indices, Numbers
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.loops import call_compiled
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem


class SwitchTask(NamedTuple):
    """A problem with a price of switches as arrays.

    Instructions are numbered by their starts at the highest clocks, so that those of a part of a run are close.

    Attributes:
        first_arc: Arcs `first_arc[i]` to `first_arc[i + 1]` lead to instruction i. [instructions + 1]
        arc_from: The instruction each arc comes from. [arcs]
        delay: Seconds on each arc. [arcs]
        first_out: Places `first_out[i]` to `first_out[i + 1]` of `out_to` are what waits for i. [instructions + 1]
        out_to: The instructions that wait. [arcs]
        out_delay: Seconds in between. [arcs]
        before: The instruction before each on its rank; -1 for the first. [instructions]
        rank: The rank of each. [instructions]
        kind: The kind of each. [instructions]
        clocks: Number of clocks.
        time: Seconds of each kind at each clock; infinite if it was not measured. [kinds * clocks]
        cost: Effective cost in joules; infinite if it was not measured. [kinds * clocks]
        is_kept: Whether a kind leaves the clock as it is. [kinds]
        order: The instructions rank by rank. [instructions]
        first_in_order: Place in `order` at which each rank begins. [ranks + 1]
        time_before: Seconds of all instructions before each place of `order`, at each clock; those that were not
            measured there count 0. [(instructions + 1) * clocks]
        cost_before: The same of the costs.
        missing_before: Number of those that were not measured.
        limit_seconds: The longest iteration time.
        switch_seconds: Duration of a switch.
        switch_joules: Energy of a switch of each rank above blocking. [ranks]
        dwell_seconds: The shortest allowed time between two switches of a rank.
        time_watts: Price of the iteration time: the power of waiting, or 0 if that is drawn in any case.
    """

    first_arc: Indices
    arc_from: Indices
    delay: Numbers
    first_out: Indices
    out_to: Indices
    out_delay: Numbers
    before: Indices
    rank: Indices
    kind: Indices
    clocks: int
    time: Numbers
    cost: Numbers
    is_kept: Indices
    order: Indices
    first_in_order: Indices
    time_before: Numbers
    cost_before: Numbers
    missing_before: Indices
    limit_seconds: float
    switch_seconds: float
    switch_joules: Numbers
    dwell_seconds: float
    time_watts: float


class RunState(NamedTuple):
    """Memory of `run`, and its result.

    Attributes:
        end: End of each instruction, in seconds. [instructions]
        held: The clock during each. [instructions]
        delay: Seconds of the switch before each. [instructions]
        latest: The latest end of each for the iteration to end in time. [instructions]
        tried: Ends of instructions while a move is tried. [instructions]
        kept: The best clocks so far, while a search runs. [instructions]
        begin: Where the part of each rank that a move changes begins in the order. [ranks]
        stop: Where it ends. [ranks]
        was: Its clock before. [ranks]
        last_switch: Time of each rank's last switch; below 0 if it has not switched. [ranks]
        first_switch: Time of its first switch. [ranks]
        result: Iteration time, shortest dwell (both in seconds), and cost in joules, iteration time and switches
            included. [3]
    """

    end: Numbers
    held: Indices
    delay: Numbers
    latest: Numbers
    tried: Numbers
    kept: Indices
    begin: Indices
    stop: Indices
    was: Indices
    last_switch: Numbers
    first_switch: Numbers
    result: Numbers

    @classmethod
    def for_task(cls, task: SwitchTask) -> RunState:
        """Return memory for a task."""
        n, ranks = len(task.kind), len(task.first_in_order) - 1
        return cls(
            end=np.zeros(n),
            held=np.zeros(n, np.int64),
            delay=np.zeros(n),
            latest=np.zeros(n),
            tried=np.zeros(n),
            kept=np.zeros(n, np.int64),
            begin=np.zeros(ranks, np.int64),
            stop=np.zeros(ranks, np.int64),
            was=np.zeros(ranks, np.int64),
            last_switch=np.zeros(ranks),
            first_switch=np.zeros(ranks),
            result=np.zeros(3),
        )


@dataclass(frozen=True)
class NumberedProblem:
    """A problem with clocks and instructions by number.

    Attributes:
        problem: The instructions and their options.
        clocks_mhz: The MHz of each clock, the highest first.
        instruction: The number in `problem.graph` of each instruction of a task. [instructions]
        arc: The number in `problem.graph` of each arc. [arcs]
        task: The arrays, with a limit and prices of 0.
    """

    problem: PipelineProblem
    clocks_mhz: tuple[int, ...]
    instruction: Indices
    arc: Indices
    task: SwitchTask

    @classmethod
    def from_problem(cls, problem: PipelineProblem) -> NumberedProblem:
        """Number the clocks and instructions of a problem."""
        graph, delay = problem.graph, problem.arc_delay_seconds
        n = len(graph.instructions)
        starts = problem.start_seconds(problem.durations_of(problem.highest_clock_options))
        instruction = np.lexsort((np.arange(n), starts))
        number = np.empty(n + 1, np.int64)
        number[instruction], number[n] = np.arange(n), -1  # the last for "no instruction before"
        counts = np.diff(graph.first_arc)[instruction]
        first_arc = _offsets(counts)
        arc = np.repeat(graph.first_arc[instruction] - first_arc[:-1], counts) + np.arange(len(graph.arc_from))
        arc_from, to = number[graph.arc_from[arc]], np.repeat(np.arange(n), counts)
        out = np.argsort(arc_from, kind="stable")
        rank = graph.rank[instruction]
        clocks_mhz, time, cost, is_kept = _by_clock(problem)
        order, kind = np.argsort(rank, kind="stable"), problem.kind_of[instruction]
        is_measured = np.isfinite(time)
        task = SwitchTask(
            first_arc=first_arc,
            arc_from=arc_from,
            delay=delay[arc],
            first_out=_offsets(np.bincount(arc_from, minlength=n)),
            out_to=to[out],
            out_delay=delay[arc][out],
            before=number[graph.before[instruction]],
            rank=rank,
            kind=kind,
            clocks=time.shape[1],
            time=time.ravel(),
            cost=cost.ravel(),
            is_kept=is_kept,
            order=order,
            first_in_order=_offsets(np.bincount(rank)),
            time_before=_sums_before(np.where(is_measured, time, 0.0)[kind[order]]),
            cost_before=_sums_before(np.where(is_measured, cost, 0.0)[kind[order]]),
            missing_before=_sums_before((~is_measured).astype(np.int64)[kind[order]]),
            limit_seconds=np.inf,
            switch_seconds=0.0,
            switch_joules=np.zeros(int(rank.max()) + 1),
            dwell_seconds=0.0,
            time_watts=0.0,
        )
        return cls(problem, clocks_mhz, instruction, arc, task)

    def priced(self, limit_seconds: float, is_waiting: bool, price: SwitchPrice) -> SwitchTask:
        """Return the arrays with a limit and the prices of switches and of time; see `plan_switches`."""
        return self.task._replace(
            limit_seconds=limit_seconds,
            switch_seconds=price.seconds,
            switch_joules=(price.joules * self.problem.rank_gpus).astype(np.float64),
            dwell_seconds=price.dwell_seconds,
            time_watts=0.0 if is_waiting else self.problem.blocking_power_watts,
        )

    def options(self, chosen: Indices) -> list[CostedOption]:
        """Return the option of each instruction of `problem.graph` at these clocks."""
        clocks = np.empty_like(chosen)
        clocks[self.instruction] = chosen
        options = []
        for kind, clock in zip(self.problem.kind_of.tolist(), clocks.tolist(), strict=True):
            stage, name = self.problem.kinds[kind]
            is_kept = self.problem.options[kind][0].clock_mhz is None
            options.append(self.problem.option_at(stage, name, None if is_kept else self.clocks_mhz[clock]))
        return options

    def chosen(self, options: Sequence[CostedOption]) -> Indices:
        """Return the clocks, by number, of an option for each instruction of `problem.graph`."""
        number = {clock: place for place, clock in enumerate(self.clocks_mhz)}
        clocks = np.array([number.get(option.clock_mhz or 0, -1) for option in options], np.int64)[self.instruction]
        for first, last in zip(self.task.first_in_order[:-1], self.task.first_in_order[1:], strict=True):
            held = 0
            for place in self.task.order[first:last].tolist():
                held = clocks[place] = clocks[place] if clocks[place] >= 0 else held
        return clocks


def _by_clock(problem: PipelineProblem) -> tuple[tuple[int, ...], Numbers, Numbers, Indices]:
    """Return the clocks, the times and costs of each kind at each, [kinds, clocks], and which kinds keep the clock."""
    measured = {option.clock_mhz for of_kind in problem.options for option in of_kind if option.clock_mhz}
    clocks_mhz = sorted(measured, reverse=True)
    place = {clock: number for number, clock in enumerate(clocks_mhz)}
    time = np.full((len(problem.kinds), max(1, len(clocks_mhz))), np.inf)
    cost, is_kept = np.full_like(time, np.inf), np.zeros(len(problem.kinds), np.int64)
    for kind, of_kind in enumerate(problem.options):
        for option in of_kind:
            is_kept[kind] |= option.clock_mhz is None
            places = slice(None) if option.clock_mhz is None else place[option.clock_mhz]
            time[kind, places], cost[kind, places] = option.time_seconds, option.cost_joules
    return tuple(clocks_mhz), time, cost, is_kept


def _sums_before(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sums of all rows before each place, and of all rows, in one row after the other."""
    return np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)]).ravel()


def _offsets(counts: Indices) -> Indices:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def run(task: SwitchTask, chosen: Indices, state: RunState) -> tuple[float, float, float]:
    """Return iteration time and shortest dwell, in seconds, and the cost in joules with these clocks."""
    call_compiled(run_iteration, task, chosen, state)
    seconds, dwell, cost = state.result.tolist()
    return seconds, dwell, cost


def run_iteration(p: Any, chosen: Any, s: Any) -> None:
    """Do the same as `execute`, into `end`, `held`, `delay` and `result`."""
    longest, cost, dwell = 0.0, 0.0, np.inf
    for rank in range(len(p.first_in_order) - 1):
        s.first_switch[rank] = -1.0
        s.last_switch[rank] = -1.0
        s.held[p.order[p.first_in_order[rank]]] = last_clock(p, chosen, rank)
    for at in range(len(chosen)):
        kind, before = p.kind[at], p.before[at]
        held = s.held[at] if before < 0 else s.held[before]
        now = 0.0 if before < 0 else s.end[before]
        s.delay[at] = 0.0
        if p.is_kept[kind]:
            s.held[at] = held
        else:
            s.held[at] = chosen[at]
            if chosen[at] != held:
                rank = p.rank[at]
                s.delay[at] = p.switch_seconds
                cost += p.switch_joules[rank]
                if s.last_switch[rank] >= 0.0:
                    dwell = min(dwell, now - s.last_switch[rank])
                else:
                    s.first_switch[rank] = now
                s.last_switch[rank] = now
        start = now + s.delay[at]
        for arc in range(p.first_arc[at], p.first_arc[at + 1]):
            start = max(start, s.end[p.arc_from[arc]] + p.delay[arc])
        s.end[at] = start + p.time[kind * p.clocks + chosen[at]]
        longest = max(longest, s.end[at])
        cost += p.cost[kind * p.clocks + chosen[at]]
    for rank in range(len(p.first_in_order) - 1):
        if s.last_switch[rank] > s.first_switch[rank]:
            dwell = min(dwell, s.first_switch[rank] + longest - s.last_switch[rank])
    s.result[0], s.result[1], s.result[2] = longest, dwell, cost + p.time_watts * longest


def last_clock(p: Any, chosen: Any, rank: int) -> int:
    """Return the clock at the end of an iteration, and so at its beginning: that of the last instruction with one."""
    for place in range(p.first_in_order[rank + 1] - 1, p.first_in_order[rank] - 1, -1):
        if not p.is_kept[p.kind[p.order[place]]]:
            return int(chosen[p.order[place]])
    return 0
