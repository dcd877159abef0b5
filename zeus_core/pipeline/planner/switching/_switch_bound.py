"""A lower bound on the energy of any plan where switches have a price, and the prices of time behind it.

The bound is Lagrangian. Each arc of the graph gets a price in watts, such that the prices form a flow: as much leaves
an instruction as enters it. Then the iteration may take any time if each instruction pays its duration, and each switch
its seconds, at the price of its arc; the total of these payments is at least the flow F times the iteration time.
Without the dependencies the ranks are independent, and dynamic programming finds the cheapest clocks of each exactly,
switches included. For every flow, the sum of these costs less F times the limit is below the energy of any plan that
keeps the limit.

Courses along a rank that no plan can take are left out (`_rank_courses.py`).

The first flow is that of a point of the frontier, for which the bound is that of the frontier or higher. Then some flow
is moved from all paths to the longest path at the mean durations of the last answers of the ranks (fictitious play, or
the method of Frank and Wolfe), and F rises or falls with the length of that path. The best bound of all is kept.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline.planner.frontier.frontier import FrontierPoint
from zeus_core.pipeline.planner.loops import call_compiled
from zeus_core.pipeline.planner.switching._rank_courses import ClockCourses, choose_course, find_courses
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, SwitchTask

# More rounds find higher bounds, later: by those of 400 and 1,600 rounds, which take 0.10 and 0.19 s, plans of 76
# problems of `benchmarks/plan_switching.py` (26 November 2026) save at most 13.85 and 13.78 % in the mean.
_ROUNDS = 800
_FIRST_STEP = 0.1  # the part of the flow that the first round moves
_STEP_DECAY = 0.02  # for each round: the steps add up to infinity, as they must


class Bound(NamedTuple):
    """A lower bound, and the prices behind it.

    Attributes:
        cost_joules: No clocks that keep the limit cost less; as in `RunState.result`.
        price_watts: Prices of time of the instructions. [instructions]
        limit_watts: The flow F: the price of the iteration time.
        flow: Memory for the answers of the ranks to other prices.
        course: The courses of clocks of these answers: all, whether or not they can keep limit and dwell.
    """

    cost_joules: float
    price_watts: Numbers
    limit_watts: float
    flow: _Flow
    course: ClockCourses

    def answer(self, task: SwitchTask, factor: float) -> Indices:
        """Return the clocks of the lowest cost along each rank at prices of so many times those of the bound."""
        price = self.price_watts * factor
        flow = self.flow._replace(price=price, arc_price=np.repeat(price, np.diff(task.first_arc)))
        call_compiled(_relaxed_cost, task._replace(dwell_seconds=0.0), flow, self.course)
        chosen: Indices = flow.chosen.copy()
        return chosen


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
    course = ClockCourses.for_task(numbered, task)
    # Sums of the same seconds in another order differ by less.
    task = task._replace(dwell_seconds=task.dwell_seconds - ROUNDING * task.limit_seconds)
    cost_joules = float(call_compiled(_ascend, task, flow, course, max(1, rounds)))
    limit_watts = float(flow.best_price[np.diff(task.first_arc) == 0].sum())
    course = course._replace(reach=np.full_like(course.reach, n), is_constant=np.ones_like(course.is_constant))
    return Bound(cost_joules, flow.best_price, limit_watts, flow, course)


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
        find_courses(p, f, c, rank)
        cost += choose_course(p, f, c, rank)
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
