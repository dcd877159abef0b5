"""A lower bound on the energy of any plan where switches have a price, and the prices of time behind it.

The bound is Lagrangian. Each arc of the graph gets a price in watts, such that the prices form a flow: as much leaves
an instruction as enters it. Then the iteration may take any time if each instruction pays its duration, and each switch
its seconds, at the price of its arc; the total of these payments is at least the flow F times the iteration time.
Without the dependencies the ranks are independent, and dynamic programming finds the cheapest clocks of each exactly,
switches included. For every flow, the sum of these costs less F times the limit is below the energy of any plan that
keeps the limit.

Along a rank, what no plan can do is left out:

- One clock all the time, or all along a run from one switch to the next, if the iteration ends too late even with all
  else at its fastest.
- A single switch: as an iteration begins at the clock at which it ends, there is none, or two at least.
- A switch sooner than the dwell D after the one before, if waits cannot make up for it: from the end of instruction i
  to that of j there are at most l(j) - e(i) seconds, where e and l are the earliest and latest ends if all
  instructions are at their fastest. And no switch at all if 2 D is longer than the limit.

The first flow is that of a point of the frontier, for which the bound is that of the frontier or higher. Then some flow
is moved from all paths to the longest path at the mean durations of the last answers of the ranks (fictitious play, or
the method of Frank and Wolfe), and F rises or falls with the length of that path. The best bound of all is kept.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline.planner.frontier.frontier import FrontierPoint
from zeus_core.pipeline.planner.loops.compiled import call_compiled
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, SwitchTask

# More rounds find higher bounds, later: on 76 problems of `benchmarks/plan_switching.py` (26 November 2026) plans save at
# most 13.85 and 13.78 % in the mean by bounds of 400 and 1,600 rounds, which take 0.10 and 0.19 s.
_ROUNDS = 800
_FIRST_STEP = 0.1  # the part of the flow that the first round moves
_STEP_DECAY = 0.02  # for each round: the steps add up to infinity, as they must


class Bound(NamedTuple):
    """A lower bound, and the prices behind it.

    Attributes:
        cost_joules: No clocks that keep the limit cost less; as in `RunState.result`.
        price_watts: Prices of time of the instructions. [instructions]
        limit_watts: The flow F: the price of the iteration time.
    """

    cost_joules: float
    price_watts: Numbers
    limit_watts: float


class _Flow(NamedTuple):
    """A flow and memory of its ascent.

    Attributes:
        price: Flow through each instruction, in watts. [instructions]
        arc_price: Flow on each arc. [arcs]
        best_price: That of the best bound. [instructions]
        rank_arc: The arc from the instruction before on the rank; -1 for the first. [instructions]
        mean_time: Mean duration of each instruction in the last answers. [instructions]
        mean_delay: Mean seconds of the switch before each. [instructions]
        end: Ends at these. [instructions]
        last_arc: The arc that each waits for. [instructions]
        chosen: The clocks of the last answer. [instructions]
    """

    price: Numbers
    arc_price: Numbers
    best_price: Numbers
    rank_arc: Indices
    mean_time: Numbers
    mean_delay: Numbers
    end: Numbers
    last_arc: Indices
    chosen: Indices


class _Course(NamedTuple):
    """What a rank can do, and memory of its dynamic program.

    A layer is a number of switches so far: 0, 1, or 2 and more. Places are those of `SwitchTask.order`.

    Attributes:
        earliest_end: See above, by place. [instructions]
        latest_end: See above, by place. [instructions]
        is_constant: Whether each rank can stay at each clock. [ranks * clocks]
        reach: The place before which a run must end that begins at each place, by clock. [instructions * clocks]
        total: Cost of a rank at each clock from its beginning to a place. [clocks]
        before: That before each place of a rank. [places of a rank * clocks]
        measured_from: The place from which on each clock was measured without a gap. [clocks]
        begun: Cost until a switch before each place, that switch included, by layer. [3 * instructions]
        is_first: Whether layer 2 is best reached at each place from layer 1. [instructions]
        least: The least of `begun` less `before`, of runs that may end at a place, by layer and clock. [3 * clocks]
        since: The place that such a run begins at. [3 * clocks]
        best: Least cost up to each place, by layer. [3 * instructions]
        best_clock: The clock there. [3 * instructions]
        best_since: The place that its run begins at. [3 * instructions]
    """

    earliest_end: Numbers
    latest_end: Numbers
    is_constant: NDArray[np.bool_]
    reach: Indices
    total: Numbers
    before: Numbers
    measured_from: Indices
    begun: Numbers
    is_first: NDArray[np.bool_]
    least: Numbers
    since: Indices
    best: Numbers
    best_clock: Indices
    best_since: Indices

    @classmethod
    def of_task(cls, numbered: NumberedProblem, task: SwitchTask) -> _Course:
        """Return what the ranks of a task can do."""
        problem, n, clocks = numbered.problem, len(task.kind), task.clocks
        time = task.time.reshape(-1, clocks)
        fastest = time.min(axis=1)
        durations = fastest[problem.kind_of]
        earliest = (problem.start_seconds(durations) + durations)[numbered.instruction]
        latest = [task.limit_seconds] * n
        first_arc, arc_from, delays = task.first_arc.tolist(), task.arc_from.tolist(), task.delay.tolist()
        for at, duration in reversed(list(enumerate(fastest[task.kind].tolist()))):
            for arc in range(first_arc[at], first_arc[at + 1]):
                before = arc_from[arc]
                latest[before] = min(latest[before], latest[at] - duration - delays[arc])
        ranks = len(task.first_in_order) - 1
        is_constant = np.zeros((ranks, clocks), np.bool_)
        for rank in range(ranks):
            of_rank = problem.graph.rank == rank
            for clock in np.flatnonzero(np.isfinite(time[np.unique(problem.kind_of[of_rank])]).all(axis=0)).tolist():
                seconds = problem.iteration_seconds(np.where(of_rank, time[problem.kind_of, clock], durations))
                is_constant[rank, clock] = seconds <= task.limit_seconds * (1 + ROUNDING)
        longest = int(np.diff(task.first_in_order).max())
        earliest_end, latest_end = earliest[task.order], np.array(latest)[task.order]
        reach = np.zeros(n * clocks, np.int64)
        call_compiled(_find_reach, task, fastest, earliest_end, latest_end, reach)
        return cls(
            earliest_end=earliest_end,
            latest_end=latest_end,
            is_constant=is_constant.ravel(),
            reach=reach,
            total=np.zeros(clocks),
            before=np.zeros(longest * clocks),
            measured_from=np.zeros(clocks, np.int64),
            begun=np.zeros(3 * n),
            is_first=np.zeros(n, np.bool_),
            least=np.zeros(3 * clocks),
            since=np.zeros(3 * clocks, np.int64),
            best=np.zeros(3 * n),
            best_clock=np.zeros(3 * n, np.int64),
            best_since=np.zeros(3 * n, np.int64),
        )


def find_bound(numbered: NumberedProblem, task: SwitchTask, point: FrontierPoint, effort: float = 1.0) -> Bound:
    """Return the best bound found.

    Args:
        numbered: The problem by numbers.
        task: The problem with its limit and prices.
        point: The point of the frontier with the first flow.
        effort: Below 1, that part of the usual rounds.
    """
    n = len(task.kind)
    to = np.repeat(np.arange(n), np.diff(task.first_arc))
    rank_arc = np.full(n, -1)
    along = np.flatnonzero(task.arc_from == task.before[to])
    rank_arc[to[along]] = along
    price = point.price_watts[numbered.instruction]
    flow = _Flow(
        price=price,
        arc_price=point.arc_price_watts[numbered.arc],
        best_price=price.copy(),
        rank_arc=rank_arc,
        mean_time=np.zeros(n),
        mean_delay=np.zeros(n),
        end=np.zeros(n),
        last_arc=np.zeros(n, np.int64),
        chosen=np.zeros(n, np.int64),
    )
    rounds = int(min(1.0, effort) * _ROUNDS)
    course = _Course.of_task(numbered, task)
    # Sums of the same seconds in another order differ by less.
    task = task._replace(dwell_seconds=task.dwell_seconds - ROUNDING * task.limit_seconds)
    cost_joules = float(call_compiled(_ascend, task, flow, course, max(1, rounds)))
    return Bound(cost_joules, flow.best_price, float(flow.best_price[np.diff(task.first_arc) == 0].sum()))


def _ascend(p: Any, f: Any, c: Any, rounds: int) -> float:
    n = len(f.price)
    total = 0.0
    for at in range(n):
        if p.first_arc[at] == p.first_arc[at + 1]:
            total += f.price[at]
    _relaxed_cost(p, f, c)
    last = _longest_path(p, f, 1.0)
    if total < p.time_watts:  # as at T*: more time would be free
        _add_flow(p, f, last, p.time_watts - total)
        total = p.time_watts
    best = -np.inf
    for turn in range(rounds):
        bound = _relaxed_cost(p, f, c) + min(0.0, p.time_watts - total) * p.limit_seconds
        for arc in range(len(f.arc_price)):
            bound += f.arc_price[arc] * p.delay[arc]
        if bound > best:
            best = bound
            for at in range(n):
                f.best_price[at] = f.price[at]
        if total == 0.0:  # neither limit nor waiting costs anything: each instruction is at its cheapest
            return float(best)
        step = _FIRST_STEP / (1.0 + _STEP_DECAY * turn)
        last = _longest_path(p, f, step)
        excess = 20.0 * (f.end[last] / p.limit_seconds - 1.0)  # a path 5 % too long raises the flow at full speed
        raised = total * math.exp(2.0 * step * min(1.0, max(-1.0, excess)))
        for at in range(n):
            f.price[at] *= (1.0 - step) * raised / total
        for arc in range(len(f.arc_price)):
            f.arc_price[arc] *= (1.0 - step) * raised / total
        total = raised
        _add_flow(p, f, last, step * total)
    return float(best)


def _add_flow(p: Any, f: Any, last: int, watts: float) -> None:
    """Add a flow along the path that `_longest_path` has found."""
    at = last
    f.price[at] += watts
    while f.last_arc[at] >= 0:
        f.arc_price[f.last_arc[at]] += watts
        at = p.arc_from[f.last_arc[at]]
        f.price[at] += watts


def _relaxed_cost(p: Any, f: Any, c: Any) -> float:
    """Find the clocks of the lowest cost along each rank, into `chosen`; return the cost of all ranks."""
    cost = 0.0
    for rank in range(len(p.first_in_order) - 1):
        _find_courses(p, f, c, rank)
        cost += _choose_course(p, f, c, rank)
    return cost


def _find_reach(p: Any, fastest: Any, earliest_end: Any, latest_end: Any, reach: Any) -> None:
    """Find how far a run from each place can last at each clock, with all else at its fastest."""
    late = p.limit_seconds * ROUNDING
    for rank in range(len(p.first_in_order) - 1):
        first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
        for begin in range(first, last):
            for clock in range(p.clocks):
                end = earliest_end[begin - 1] + p.switch_seconds if begin > first else 0.0
                stop = begin
                while stop < last:
                    kind = p.kind[p.order[stop]]
                    end = max(end, earliest_end[stop] - fastest[kind]) + p.time[kind * p.clocks + clock]
                    if not end <= latest_end[stop] + late:
                        break
                    stop += 1
                reach[begin * p.clocks + clock] = stop


def _find_courses(p: Any, f: Any, c: Any, rank: int) -> None:
    """Find the lowest cost up to each place of a rank, in each layer, and the last run behind it."""
    n, clocks = len(p.order), p.clocks
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    for clock in range(clocks):
        c.total[clock], c.measured_from[clock] = 0.0, first
        for layer in range(3):
            c.least[layer * clocks + clock] = 0.0 if layer == 0 else np.inf
            c.since[layer * clocks + clock] = first
    entered = first + 1  # the first run that cannot end yet
    for place in range(first, last):
        at = p.order[place]
        option, price = p.kind[at] * clocks, f.price[at]
        if place > first:
            switch = np.inf
            if not p.is_kept[p.kind[at]]:
                switch = p.switch_seconds * f.arc_price[f.rank_arc[at]] + p.switch_joules[rank]
            once, often = c.best[n + place - 1], c.best[2 * n + place - 1]
            c.begun[n + place] = c.best[place - 1] + switch
            c.begun[2 * n + place] = min(once, often) + switch
            c.is_first[place] = once <= often
        for clock in range(clocks):
            c.before[(place - first) * clocks + clock] = c.total[clock]
            time = p.time[option + clock]
            if time < np.inf:
                c.total[clock] += p.cost[option + clock] + price * time
            else:
                c.measured_from[clock] = place + 1
                for layer in range(3):
                    c.least[layer * clocks + clock] = np.inf
        while entered <= place and (
            place == last - 1 or c.latest_end[place] - c.earliest_end[entered - 1] >= p.dwell_seconds
        ):
            for clock in range(clocks):
                if entered >= c.measured_from[clock]:
                    before = c.before[(entered - first) * clocks + clock]
                    for layer in range(1, 3):
                        begun = c.begun[layer * n + entered] - before
                        if begun < c.least[layer * clocks + clock] and c.reach[entered * clocks + clock] > place:
                            c.least[layer * clocks + clock] = begun
                            c.since[layer * clocks + clock] = entered
            entered += 1
        for layer in range(3):
            for clock in range(clocks):
                run = layer * clocks + clock
                if c.least[run] < np.inf and c.reach[c.since[run] * clocks + clock] <= place:
                    c.least[run] = np.inf
                    for since in range(max(first + 1, c.measured_from[clock]), entered if layer > 0 else 0):
                        begun = c.begun[layer * n + since] - c.before[(since - first) * clocks + clock]
                        if begun < c.least[run] and c.reach[since * clocks + clock] > place:
                            c.least[run], c.since[run] = begun, since
        for layer in range(3):
            least, found = np.inf, 0
            for clock in range(clocks):
                cost = c.least[layer * clocks + clock] + c.total[clock]
                if cost < least:
                    least, found = cost, clock
            c.best[layer * n + place], c.best_clock[layer * n + place] = least, found
            c.best_since[layer * n + place] = c.since[layer * clocks + found]


def _choose_course(p: Any, f: Any, c: Any, rank: int) -> float:
    """Set the clocks of the lowest cost along a rank; return that cost."""
    n, clocks = len(p.order), p.clocks
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    cost, layer, clock = np.inf, 0, 0
    for other in range(clocks):
        if c.is_constant[rank * clocks + other] and c.total[other] < cost:
            cost, clock = c.total[other], other
    if 2.0 * p.dwell_seconds <= p.limit_seconds:
        head = p.order[first]
        once = c.best[n + last - 1] + p.switch_joules[rank]  # and the switch back, before the first instruction
        if p.first_arc[head] == p.first_arc[head + 1]:
            once += p.switch_seconds * f.price[head]
        if once < cost:
            cost, layer = once, 1
        if c.best[2 * n + last - 1] < cost:
            cost, layer = c.best[2 * n + last - 1], 2
    stop = last
    while stop > first:
        begin = first
        if layer > 0:
            begin, clock = c.best_since[layer * n + stop - 1], c.best_clock[layer * n + stop - 1]
            layer = 2 if layer == 2 and not c.is_first[begin] else layer - 1
        elif stop < last:
            clock = c.best_clock[stop - 1]
        for place in range(begin, stop):
            f.chosen[p.order[place]] = clock
        stop = begin
    return cost


def _longest_path(p: Any, f: Any, step: float) -> int:
    """Move the means by a step to the last answer; find the longest path at the means, and return its last."""
    last = 0
    for at in range(len(f.price)):
        kind, before = p.kind[at], p.before[at]
        is_switch = before >= 0 and f.chosen[at] != f.chosen[before]
        f.mean_time[at] += step * (p.time[kind * p.clocks + f.chosen[at]] - f.mean_time[at])
        f.mean_delay[at] += step * ((p.switch_seconds if is_switch else 0.0) - f.mean_delay[at])
        start = 0.0
        f.last_arc[at] = -1
        for arc in range(p.first_arc[at], p.first_arc[at + 1]):
            ready = f.end[p.arc_from[arc]] + p.delay[arc]
            if arc == f.rank_arc[at]:
                ready += f.mean_delay[at]
            if f.last_arc[at] < 0 or ready > start:
                start = ready
                f.last_arc[at] = arc
        f.end[at] = start + f.mean_time[at]
        if f.end[at] > f.end[last]:
            last = at
    return last
