"""From a point of the frontier to real clocks: one measured option for each instruction, never slower than asked.

Dispatch: in running order, each instruction takes the slowest option that ends before its deadline at the point. As it
may start earlier than there, a remainder of time is handed on to what follows. The same is done backward from the end,
and both with all options and with those on the hull only.

Fill: where there is still time between when an instruction can start and when it must end, it takes slower options.

Polish: the best so far is shaken: a few instructions are made faster, and the time this frees is filled again,
favouring a random part of the instructions at first. A result is kept if it is cheaper, or dearer by less than a
tolerance that falls to 0; the cheapest of all is the outcome. The random numbers are the same in every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline._choice_arrays import ChoiceArrays
from zeus_core.pipeline._compiled import has_numba, kernels
from zeus_core.pipeline._dependencies import Indices, Numbers
from zeus_core.pipeline._frontier import FrontierPoint

__all__ = ["round_point"]

_VISITS = 6_000_000  # instructions visited while polishing, some 0.1 s when compiled
_TOLERANCES = (8.0, 2.0, 1.0)  # of each polish, over the median step between two choices
_MARGIN = 1e-12  # sums of durations in another order differ by less


def round_point(arrays: ChoiceArrays, point: FrontierPoint, effort: float = 1.0) -> Indices:
    """Choose an option for each instruction.

    Args:
        arrays: The problem.
        point: A point of its frontier. What is chosen takes at most the iteration time there.
        effort: How much to polish; 0 is not at all, 1 some 0.1 s of CPU time (1 s without numba, for fewer tries).

    Returns:
        The choice of each instruction, as a number in `arrays`. [instructions]
    """
    best = min((_dispatched(arrays, point, *how) for how in _WAYS), key=lambda it: float(arrays.cost[it].sum()))
    steps = np.diff(arrays.cost)[np.diff(arrays.time) > 0]  # not from one kind to the next
    visits = _VISITS if has_numba() else _VISITS // 20
    rounds = int(effort * visits / len(best) / len(_TOLERANCES))
    if rounds and len(steps):
        for seed, tolerance in enumerate(_TOLERANCES):
            shaken = _Shaken(np.empty_like(best), np.empty_like(best), *_scratch(len(best)))
            limit = (point.time_seconds, tolerance * float(np.median(np.abs(steps))))
            _KERNELS.call(_polish, arrays, *limit, best, shaken, rounds, seed + 1)
    return best


_WAYS = [(is_forward, corners_only) for corners_only in (False, True) for is_forward in (True, False)]


class _Shaken(NamedTuple):
    """What the polish works with: where it is, what it tries, and ends and deadlines of instructions."""

    current: Indices
    tried: Indices
    end: Numbers
    deadline: Numbers


def _scratch(size: int) -> tuple[Numbers, Numbers]:
    return np.zeros(size), np.zeros(size)


def _dispatched(arrays: ChoiceArrays, point: FrontierPoint, is_forward: bool, corners_only: bool) -> Indices:
    chosen = np.zeros(len(arrays.kind), np.int64)
    end, deadline = _scratch(len(chosen))
    limit = point.time_seconds
    if is_forward:
        deadlines = np.minimum(point.deadline_seconds, limit)
        _KERNELS.call(_dispatch_forward, arrays, deadlines, limit * _MARGIN, corners_only, chosen, end)
    else:
        _KERNELS.call(
            _dispatch_backward, arrays, point.start_seconds, limit, limit * _MARGIN, corners_only, chosen, deadline
        )
    _KERNELS.call(_keep_time, arrays, limit, chosen, end, deadline)
    for _ in range(3):
        for direction in (True, False):
            _KERNELS.call(_fill, arrays, limit * (1 - _MARGIN), chosen, end, deadline, direction, 0, 0)
    return chosen


def _dispatch_forward(p: Any, due: Any, margin: float, corners_only: bool, chosen: Any, end: Any) -> None:
    for it in range(len(chosen)):
        start = _ready(p, it, end)
        choice = p.first[p.kind[it]]
        for slower in range(choice + 1, p.first[p.kind[it] + 1]):
            if start + p.time[slower] > due[it] + margin:
                break
            if p.is_corner[slower] or not corners_only:
                choice = slower
        chosen[it] = choice
        end[it] = start + p.time[choice]


def _dispatch_backward(
    p: Any, due: Any, limit: float, margin: float, corners_only: bool, chosen: Any, deadline: Any
) -> None:
    for it in range(len(chosen)):
        deadline[it] = limit
    for it in range(len(chosen) - 1, -1, -1):
        choice = p.first[p.kind[it]]
        for slower in range(choice + 1, p.first[p.kind[it] + 1]):
            if deadline[it] - p.time[slower] < due[it] - margin:
                break
            if p.is_corner[slower] or not corners_only:
                choice = slower
        chosen[it] = choice
        _hand_back(p, it, deadline[it] - p.time[choice], deadline)


def _ready(p: Any, it: int, end: Any) -> float:
    """When all that an instruction waits for has arrived."""
    start = 0.0
    for arc in range(p.first_arc[it], p.first_arc[it + 1]):
        start = max(start, end[p.arc_from[arc]] + p.delay[arc])
    return start


def _hand_back(p: Any, it: int, start: float, deadline: Any) -> None:
    """If an instruction must start by then, what it waits for must end before."""
    for arc in range(p.first_arc[it], p.first_arc[it + 1]):
        before = p.arc_from[arc]
        deadline[before] = min(deadline[before], start - p.delay[arc])


def _keep_time(p: Any, limit: float, chosen: Any, end: Any, deadline: Any) -> None:
    """Make instructions faster until the iteration ends in time; rounding can have made it longer by a hair."""
    n = len(chosen)
    while True:
        last = 0.0
        for it in range(n):
            end[it] = _ready(p, it, end) + p.time[chosen[it]]
            last = max(last, end[it])
        if last <= limit:
            return
        for it in range(n):
            deadline[it] = last
        for it in range(n - 1, -1, -1):
            _hand_back(p, it, deadline[it] - p.time[chosen[it]], deadline)
        slack = limit  # of the most urgent instruction that can be faster
        found = -1
        for it in range(n):
            if chosen[it] > p.first[p.kind[it]] and deadline[it] - end[it] < slack:
                slack = deadline[it] - end[it]
                found = it
        if found < 0:
            return
        chosen[found] -= 1


def _fill(p: Any, limit: float, chosen: Any, end: Any, deadline: Any, is_forward: bool, mask: int, salt: int) -> None:
    """Slow down what has time left, in running order or against it; with a mask, only a random part of it.

    Written out in one piece, as nearly all of the planner's time is spent here.
    """
    first_arc, arc_from, delay, time = p.first_arc, p.arc_from, p.delay, p.time
    n = len(chosen)
    if not is_forward:
        for it in range(n):
            start = 0.0
            for arc in range(first_arc[it], first_arc[it + 1]):
                start = max(start, end[arc_from[arc]] + delay[arc])
            end[it] = start + time[chosen[it]]
    for it in range(n):
        deadline[it] = limit
    for it in range(n - 1, -1, -1):
        choice = chosen[it]
        if not is_forward and ((it * 40503 + salt) >> 7) & mask == 0:
            start, last = end[it] - time[choice], p.first[p.kind[it] + 1] - 1
            while choice < last and start + time[choice + 1] <= deadline[it]:
                choice += 1
            chosen[it] = choice
        due = deadline[it] - time[choice]
        for arc in range(first_arc[it], first_arc[it + 1]):
            before = arc_from[arc]
            deadline[before] = min(deadline[before], due - delay[arc])
    if is_forward:
        for it in range(n):
            start = 0.0
            for arc in range(first_arc[it], first_arc[it + 1]):
                start = max(start, end[arc_from[arc]] + delay[arc])
            choice = chosen[it]
            if ((it * 40503 + salt) >> 7) & mask == 0:
                last = p.first[p.kind[it] + 1] - 1
                while choice < last and start + time[choice + 1] <= deadline[it]:
                    choice += 1
                chosen[it] = choice
            end[it] = start + time[choice]


def _polish(p: Any, limit: float, tolerance: float, best: Any, shaken: Any, rounds: int, seed: int) -> None:
    n = len(best)
    current, tried = shaken.current, shaken.tried
    cost, random = 0.0, seed
    for it in range(n):
        current[it] = best[it]
        cost += p.cost[best[it]]
    least = cost
    filled_limit = limit * (1 - _MARGIN)
    for turn in range(rounds):
        for it in range(n):
            tried[it] = current[it]
        random = _next_random(random)
        count = 1 + (random >> 8) % 5
        is_forward = (random >> 12) % 2 == 0
        mask = (1 << ((random >> 14) % 4)) - 1
        random = _next_random(random)
        it = (random >> 8) % n
        for _ in range(count):
            random = _next_random(random)
            tried[it] = max(p.first[p.kind[it]], tried[it] - 1 - (random >> 8) % 4)
            it = (it + 1 + (random >> 10) % 8) % n if (random >> 14) % 2 == 0 else (random >> 9) % n
        random = _next_random(random)
        _fill(p, filled_limit, tried, shaken.end, shaken.deadline, is_forward, mask, random)
        _fill(p, filled_limit, tried, shaken.end, shaken.deadline, not is_forward, 0, 0)
        found = 0.0
        for it in range(n):
            found += p.cost[tried[it]]
        if found <= cost + tolerance * (1 - turn / rounds):
            cost = found
            for it in range(n):
                current[it] = tried[it]
            if found < least:
                least = found
                for it in range(n):
                    best[it] = tried[it]


def _next_random(random: int) -> int:
    """The next of a linear congruential sequence; its higher bits are the better ones."""
    return (random * 1103515245 + 12345) & 0x7FFFFFFF


_KERNELS = kernels(
    *(_ready, _hand_back, _next_random, _dispatch_forward, _dispatch_backward, _keep_time, _fill, _polish)
)
