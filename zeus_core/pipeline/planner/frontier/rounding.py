"""Rounding: from a point of the frontier to real clocks, one option for each instruction, never slower than the point.

Dispatch: in running order, each instruction takes the slowest option that ends before its deadline at the point. It may
start earlier than there, so a remainder of time is handed on to the next instructions. This is done with all options,
and with those on the hull only; the cheaper result is kept.

Fill: an instruction with time left between its earliest start and its latest end takes slower options.

Polish (threshold accepting, Dueck and Scheuer, 1990): a few random instructions are made faster, and the freed time is
filled again, at first by a random part of the instructions. A result is accepted if it is cheaper, or dearer by less
than a tolerance that falls to 0; the cheapest of all is kept. The random numbers are the same in every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline.planner.frontier.frontier import FrontierPoint
from zeus_core.pipeline.planner.loops import call_compiled
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem

# Instructions visited while polishing at effort 1: some 0.1 s when compiled. More visits find cheaper plans, later;
# `benchmarks/pipeline_frontier.py` prints the gap to the frontier and the time of a plan.
_VISITS = 6_000_000
# Initial tolerance of each polish, over the median cost between two neighbouring options of a kind: a wide search
# first, then a narrower one from its result. On 40 problems of `benchmarks/plan_switching.py` (seed 1, 2026-11-27)
# plans are 0.212 points of the energy above the frontier; 0.213 with a third tolerance, 2, and dispatch from the end as
# well, 0.207 with that and two tolerances, 0.257 with a tolerance of 4 alone.
_TOLERANCES = (8.0, 1.0)


class _Arrays(NamedTuple):
    """A problem as arrays.

    Attributes:
        first_arc: See `DependencyGraph`. [instructions + 1]
        arc_from: See `DependencyGraph`. [arcs]
        delay: Seconds on each arc. [arcs]
        kind: The kind of each instruction. [instructions]
        first: Options `first[k]` to `first[k + 1]` are those of kind k, from the fastest to the cheapest. [kinds + 1]
        time: Seconds of each option. [options]
        cost: Effective cost of each option, in joules. [options]
        is_corner: Whether it is on the lower hull. [options]
    """

    first_arc: Indices
    arc_from: Indices
    delay: Numbers
    kind: Indices
    first: Indices
    time: Numbers
    cost: Numbers
    is_corner: Indices


class _Memory(NamedTuple):
    """Memory of the loops: accepted and tried options, and ends and deadlines of instructions in seconds."""

    accepted: Indices
    tried: Indices
    end: Numbers
    deadline: Numbers


class Rounding:
    """Rounds points of the frontier of one problem.

    Args:
        problem: The instructions and their options.
        effort: Polishing relative to the default: 0 is none, 1 some 0.1 s of CPU time (10 s without a compiler).
    """

    def __init__(self, problem: PipelineProblem, effort: float = 1.0) -> None:
        self._options = [option for of_kind in problem.pareto_options for option in of_kind]
        is_corner = [
            option.clock_mhz in {corner.clock_mhz for corner in hull}
            for of_kind, hull in zip(problem.pareto_options, problem.hulls, strict=True)
            for option in of_kind
        ]
        self._arrays = arrays = _Arrays(
            first_arc=problem.graph.first_arc,
            arc_from=problem.graph.arc_from,
            delay=problem.arc_delay_seconds,
            kind=problem.kind_of,
            first=np.cumsum([0, *map(len, problem.pareto_options)]).astype(np.int64),
            time=np.array([option.time_seconds for option in self._options]),
            cost=np.array([option.cost_joules for option in self._options]),
            is_corner=np.array(is_corner, np.int64),
        )
        size = len(arrays.kind)
        self._memory = _Memory(np.empty(size, np.int64), np.empty(size, np.int64), np.zeros(size), np.zeros(size))
        self._rounds = int(effort * _VISITS / size / len(_TOLERANCES))

    def round(self, point: FrontierPoint) -> list[CostedOption]:
        """Return an option for each instruction, within the iteration time of a point, [instructions]."""
        arrays = self._arrays
        candidates = [self._dispatched(point, corners_only) for corners_only in (False, True)]
        best = min(candidates, key=lambda chosen: float(arrays.cost[chosen].sum()))
        steps = np.diff(arrays.cost)[np.diff(arrays.time) > 0]  # time falls from one kind to the next
        if self._rounds and len(steps):
            step_joules = float(np.median(np.abs(steps)))
            for seed, tolerance in enumerate(_TOLERANCES, start=1):
                limits = (point.time_seconds, tolerance * step_joules)
                call_compiled(_polish, arrays, *limits, best, self._memory, self._rounds, seed)
        return [self._options[number] for number in best.tolist()]

    def _dispatched(self, point: FrontierPoint, corners_only: bool) -> Indices:
        arrays, memory, limit = self._arrays, self._memory, point.time_seconds
        chosen = np.zeros(len(arrays.kind), np.int64)
        deadlines = np.minimum(point.deadline_seconds, limit)
        call_compiled(_dispatch, arrays, deadlines, limit * ROUNDING, corners_only, chosen, memory.end)
        call_compiled(_keep_time, arrays, limit, chosen, memory.end, memory.deadline)
        for _ in range(3):  # each fill leaves gaps that one in the other direction can use; the third finds little
            for fill_forward in (True, False):
                filled_limit = limit * (1 - ROUNDING)
                call_compiled(_fill, arrays, filled_limit, chosen, memory.end, memory.deadline, fill_forward, 0, 0)
        return chosen


def _dispatch(p: Any, due: Any, margin: float, corners_only: bool, chosen: Any, end: Any) -> None:
    for at in range(len(chosen)):
        start = _ready(p, at, end)
        choice = p.first[p.kind[at]]
        for slower in range(choice + 1, p.first[p.kind[at] + 1]):
            if start + p.time[slower] > due[at] + margin:
                break
            if p.is_corner[slower] or not corners_only:
                choice = slower
        chosen[at] = choice
        end[at] = start + p.time[choice]


def _ready(p: Any, at: int, end: Any) -> float:
    """Return the time at which everything that an instruction waits for has arrived."""
    start = 0.0
    for arc in range(p.first_arc[at], p.first_arc[at + 1]):
        start = max(start, end[p.arc_from[arc]] + p.delay[arc])
    return start


def _hand_back(p: Any, at: int, start: float, deadline: Any) -> None:
    """If an instruction must start by then, what at waits for must end before."""
    for arc in range(p.first_arc[at], p.first_arc[at + 1]):
        before = p.arc_from[arc]
        deadline[before] = min(deadline[before], start - p.delay[arc])


def _keep_time(p: Any, limit: float, chosen: Any, end: Any, deadline: Any) -> None:
    """Make the most urgent instructions faster until the iteration ends in time; rounding may have made it longer."""
    n = len(chosen)
    while True:
        last = 0.0
        for at in range(n):
            end[at] = _ready(p, at, end) + p.time[chosen[at]]
            last = max(last, end[at])
        if last <= limit:
            return
        for at in range(n):
            deadline[at] = last
        for at in range(n - 1, -1, -1):
            _hand_back(p, at, deadline[at] - p.time[chosen[at]], deadline)
        slack = limit  # of the most urgent instruction that can be faster
        urgent = -1
        for at in range(n):
            if chosen[at] > p.first[p.kind[at]] and deadline[at] - end[at] < slack:
                slack = deadline[at] - end[at]
                urgent = at
        if urgent < 0:
            return
        chosen[urgent] -= 1


def _fill(p: Any, limit: float, chosen: Any, end: Any, deadline: Any, is_forward: bool, mask: int, salt: int) -> None:
    """Slow down instructions with time left, in running order or against it.

    With a mask of n bits only about one in 2^n instructions is slowed down, chosen by a multiplicative hash of its
    number and the salt: 40503 is 2^16 over the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).

    Written out in one piece, as nearly all of the planner's time is spent here.
    """
    first_arc, arc_from, delay, time = p.first_arc, p.arc_from, p.delay, p.time
    n = len(chosen)
    if not is_forward:
        for at in range(n):
            start = 0.0
            for arc in range(first_arc[at], first_arc[at + 1]):
                start = max(start, end[arc_from[arc]] + delay[arc])
            end[at] = start + time[chosen[at]]
    for at in range(n):
        deadline[at] = limit
    for at in range(n - 1, -1, -1):
        choice = chosen[at]
        if not is_forward and ((at * 40503 + salt) >> 7) & mask == 0:
            start, last = end[at] - time[choice], p.first[p.kind[at] + 1] - 1
            while choice < last and start + time[choice + 1] <= deadline[at]:
                choice += 1
            chosen[at] = choice
        due = deadline[at] - time[choice]
        for arc in range(first_arc[at], first_arc[at + 1]):
            before = arc_from[arc]
            deadline[before] = min(deadline[before], due - delay[arc])
    if is_forward:
        for at in range(n):
            start = 0.0
            for arc in range(first_arc[at], first_arc[at + 1]):
                start = max(start, end[arc_from[arc]] + delay[arc])
            choice = chosen[at]
            if ((at * 40503 + salt) >> 7) & mask == 0:
                last = p.first[p.kind[at] + 1] - 1
                while choice < last and start + time[choice + 1] <= deadline[at]:
                    choice += 1
                chosen[at] = choice
            end[at] = start + time[choice]


def _polish(p: Any, limit: float, tolerance: float, best: Any, memory: Any, rounds: int, seed: int) -> None:
    """Improve `best`; each round makes 1 to 5 instructions faster by 1 to 4 options, and fills twice."""
    n = len(best)
    accepted, tried = memory.accepted, memory.tried
    accepted_cost, random = 0.0, seed
    for at in range(n):
        accepted[at] = best[at]
        accepted_cost += p.cost[best[at]]
    best_cost = accepted_cost
    filled_limit = limit * (1 - ROUNDING)
    for turn in range(rounds):
        for at in range(n):
            tried[at] = accepted[at]
        # One random number makes several choices, each of other bits as far as they reach. Choices that share bits are
        # correlated, which costs a little variety and saves time.
        random = next_random(random)
        count = 1 + (random >> 8) % 5
        is_forward = (random >> 12) % 2 == 0
        mask = (1 << ((random >> 14) % 4)) - 1
        random = next_random(random)
        at = (random >> 8) % n
        for _ in range(count):
            random = next_random(random)
            tried[at] = max(p.first[p.kind[at]], tried[at] - 1 - (random >> 8) % 4)
            is_near = (random >> 14) % 2 == 0  # the next one close by, where it may free the same time, or anywhere
            at = (at + 1 + (random >> 10) % 8) % n if is_near else (random >> 9) % n
        random = next_random(random)
        _fill(p, filled_limit, tried, memory.end, memory.deadline, is_forward, mask, random)
        _fill(p, filled_limit, tried, memory.end, memory.deadline, not is_forward, 0, 0)
        cost = 0.0
        for at in range(n):
            cost += p.cost[tried[at]]
        if cost <= accepted_cost + tolerance * (1 - turn / rounds):
            accepted_cost = cost
            for at in range(n):
                accepted[at] = tried[at]
            if cost < best_cost:
                best_cost = cost
                for at in range(n):
                    best[at] = tried[at]


def next_random(random: int) -> int:
    """Return the next number of the linear congruential sequence of the C standard's example `rand`, modulo 2^31.

    Its low bits repeat soon, so callers use bits 8 and above. A generator of numpy would be a call for each number, and
    compiled loops call nothing of it.
    """
    return (random * 1103515245 + 12345) & 0x7FFFFFFF
