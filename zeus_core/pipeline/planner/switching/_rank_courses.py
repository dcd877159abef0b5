"""The cheapest clocks along one rank at given prices of time, by dynamic programming, for `_switch_bound.py`.

Along a rank, what no plan can do is left out:

- One clock all the time, or all along a run from one switch to the next, if the iteration ends too late even with all
  else at its fastest.
- A single switch: as an iteration begins at the clock at which it ends, there is none, or two at least.
- A switch sooner than the dwell D after the one before, if waits cannot make up for it: from the end of instruction i
  to that of j there are at most l(j) - e(i) seconds, where e and l are the earliest and latest ends if all
  instructions are at their fastest. And no switch at all if 2 D is longer than the limit.

All else is left in, so the cost is at most that of the rank in any plan that keeps limit and dwell. A run is a row of
instructions with one clock; its cost from place a to b is a difference of two sums, S(b) - S(a). So the cheapest run
that ends at b at a clock is that of the least B(a) - S(a), where B(a) is the least cost before a with a switch there.
Runs enter this minimum once they may end, by the dwell, and leave it once they must have ended.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline.planner.loops import call_compiled
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, SwitchTask


class ClockCourses(NamedTuple):
    """The courses of clocks that a rank can take, and the memory of its dynamic program.

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
    is_constant: Indices
    reach: Indices
    total: Numbers
    before: Numbers
    measured_from: Indices
    begun: Numbers
    is_first: Indices
    least: Numbers
    since: Indices
    best: Numbers
    best_clock: Indices
    best_since: Indices

    @classmethod
    def for_task(cls, numbered: NumberedProblem, task: SwitchTask) -> ClockCourses:
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
        is_constant = np.zeros((ranks, clocks), np.int64)
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
            is_first=np.zeros(n, np.int64),
            least=np.zeros(3 * clocks),
            since=np.zeros(3 * clocks, np.int64),
            best=np.zeros(3 * n),
            best_clock=np.zeros(3 * n, np.int64),
            best_since=np.zeros(3 * n, np.int64),
        )


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


def find_courses(p: Any, f: Any, c: Any, rank: int) -> None:
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


def choose_course(p: Any, f: Any, c: Any, rank: int) -> float:
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
