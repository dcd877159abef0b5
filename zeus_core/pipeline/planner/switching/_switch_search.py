"""Better clocks where switches have a price: a local search from clocks that keep limit and dwell.

A run is a row of instructions of a rank with one clock. A move gives a run, or a part of it, another clock. Moves are
numbers, so that compiled code can loop over them:

- the whole run joins the run to its left, or right: one or two switches fewer;
- the whole run goes to a lower or a higher clock: the same switches;
- one instruction, an eighth or a third of the run joins the run on its side: a switch moves;
- the part that saves most goes to a lower clock, as long as it may last: one or two switches more.

A move that `_switch_moves.py` does not refuse is tried: the instructions from the first changed one to the last must
end before what comes after them is late (`fits`). Only then is the whole iteration run.

Once no move helps, `_switch_annealing.py` leads away from the plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zeus_core.pipeline.planner.dependencies import ROUNDING
from zeus_core.pipeline.planner.switching._switch_moves import (
    MOVES,
    PART_CLOCKS,
    largest_part,
    may_dwell,
    may_fit,
    move,
    part_clock,
    saves,
)
from zeus_core.pipeline.planner.switching._switch_task import last_clock, run_iteration

_PART_TRIES = 3  # of a part that may fit, each two thirds as long as the one before
_MOVE_VISITS = 6  # a move takes as long as visiting so many instructions, besides those that it looks at


def find_latest(p: Any, chosen: Any, s: Any) -> None:
    """Find the latest ends of all instructions, for the state that was run last."""
    for at in range(len(chosen)):
        s.latest[at] = p.limit_seconds
    for at in range(len(chosen) - 1, -1, -1):
        due = s.latest[at] - p.time[p.kind[at] * p.clocks + chosen[at]]
        for arc in range(p.first_arc[at], p.first_arc[at + 1]):
            before = p.arc_from[arc]
            delay = p.delay[arc] + (s.delay[at] if before == p.before[at] else 0.0)
            s.latest[before] = min(s.latest[before], due - delay)


def fits(p: Any, chosen: Any, s: Any, rank: int, begin: int, stop: int, late: float) -> bool:
    """Return whether the iteration ends in time after the clocks from `begin` to `stop` of the order have changed.

    In time is at most `late` seconds after the limit, or so much before it if that is negative.

    The state is that before. Instructions after the last one whose clock or switch has changed have the same latest
    ends as before: the rest fits if it ends before those.
    """
    late += p.limit_seconds * ROUNDING
    head, tail = p.first_in_order[rank], p.first_in_order[rank + 1]
    while stop < tail - 1 and p.is_kept[p.kind[p.order[stop]]]:
        stop += 1
    last = p.order[min(stop, tail - 1)]
    held = last_clock(p, chosen, rank)
    if begin > head and held == s.held[p.order[tail - 1]]:
        held = s.held[p.order[begin - 1]]
        first = p.order[begin]
    else:
        first = p.order[head]
    for at in range(first, last + 1):
        before = p.before[at]
        delay = s.delay[at]
        if p.rank[at] == rank and not p.is_kept[p.kind[at]]:
            delay = p.switch_seconds if chosen[at] != held else 0.0
            held = chosen[at]
        start = delay
        if before >= 0:
            start += s.tried[before] if before >= first else s.end[before]
        for arc in range(p.first_arc[at], p.first_arc[at + 1]):
            other = p.arc_from[arc]
            start = max(start, (s.tried[other] if other >= first else s.end[other]) + p.delay[arc])
        s.tried[at] = start + p.time[p.kind[at] * p.clocks + chosen[at]]
        if s.tried[at] > p.limit_seconds + late or not reaches(p, chosen, s, at, last, late):
            return False
    return True


def reaches(p: Any, chosen: Any, s: Any, at: int, last: int, late: float) -> bool:
    """Return whether an instruction that is tried ends early enough for those after the last changed one."""
    for out in range(p.first_out[at], p.first_out[at + 1]):
        to = p.out_to[out]
        if to > last:
            delay = p.out_delay[out] + (s.delay[to] if p.before[to] == at else 0.0)
            if s.tried[at] + delay + p.time[p.kind[to] * p.clocks + chosen[to]] > s.latest[to] + late:
                return False
    return True


def copy_clocks(values: Any, to: Any) -> None:
    """Copy the clocks of all instructions."""
    for at in range(len(values)):
        to[at] = values[at]


def improve_runs(p: Any, chosen: Any, s: Any, visits: int) -> int:
    """Try all moves of all runs, and keep each that helps, until none does or enough instructions were looked at.

    Returns the visits that are left.
    """
    run_iteration(p, chosen, s)
    if s.result[0] > p.limit_seconds or s.result[1] < p.dwell_seconds:
        return visits
    find_latest(p, chosen, s)
    cost, cost_before = s.result[2], np.inf
    while visits > 0 and cost < cost_before:
        cost_before = cost
        for rank in range(len(p.first_in_order) - 1):
            first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
            place = first
            while place < last and visits > 0:
                end = run_end(p, chosen, place, last)
                cost, seen = _improve_run(p, chosen, s, rank, place, end, cost)
                visits -= seen
                place = end
    return visits


def run_end(p: Any, chosen: Any, place: int, last: int) -> int:
    """Return where the run that begins at a place ends; `last` if that is the end of its rank."""
    end = place
    while end < last and chosen[p.order[end]] == chosen[p.order[place]]:
        end += 1
    return int(end)


def _improve_run(p: Any, chosen: Any, s: Any, rank: int, place: int, end: int, cost: float) -> tuple[float, int]:
    """Try the moves of a run until one divides it.

    Returns the cost, and how many instructions were visited.
    """
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    own = chosen[p.order[place]]
    left = chosen[p.order[place - 1]] if place > first else own
    right = chosen[p.order[end]] if end < last else own
    visits = 0
    for number in range(MOVES):
        begin, stop, clock = move(number, place, end, own, left, right)
        visits += _MOVE_VISITS
        if clock == own or not saves(p, rank, begin, stop, own, clock):
            continue
        # Switches that the move makes, less those that it saves at most; at the ends of an iteration that depends on
        # the other end too.
        before = 1 if begin > place else -1 if clock == left or place == first else 0
        after = 1 if stop < end else -1 if clock == right or end == last else 0
        visits += stop - begin
        if not may_fit(p, s, begin, stop, own, clock, before + after):
            continue
        has_dwell = p.dwell_seconds > 0.0 and place > first and end < last
        if has_dwell and not may_dwell(p, s, place, end, begin, stop, own, clock, clock in (left, right)):
            continue
        found, seen = _try(p, chosen, s, rank, begin, stop, clock, own, cost)
        visits += seen
        if found < cost:
            cost = found
            if begin != place or stop != end:
                return cost, visits
            own = clock
    next_end = run_end(p, chosen, end, last)
    for number in range(PART_CLOCKS):
        clock = part_clock(number, own, left, right)
        if clock <= own or clock >= p.clocks or (number > 1 and clock in (left, right)):
            continue
        begin, stop, seen = largest_part(p, s, rank, place, end, next_end, own, clock, left, right)
        visits += seen
        for _ in range(_PART_TRIES):
            if stop == begin or stop - begin == end - place:
                break
            found, seen = _try(p, chosen, s, rank, begin, stop, clock, own, cost)
            visits += seen
            if found < cost:
                return found, visits
            stop = begin + (stop - begin) * 2 // 3
    return cost, visits


def _try(
    p: Any, chosen: Any, s: Any, rank: int, begin: int, stop: int, clock: int, own: int, cost: float
) -> tuple[float, int]:
    """Give a part of a run a clock if that keeps limit and dwell and costs less than `cost`.

    Returns the cost, and how many instructions were visited.
    """
    for place in range(begin, stop):
        chosen[p.order[place]] = clock
    seen = p.order[stop - 1] - p.order[begin] + stop - begin
    is_in_time = fits(p, chosen, s, rank, begin, stop, 0.0)
    if is_in_time:
        seen += 2 * len(chosen)
        run_iteration(p, chosen, s)
        found = s.result[2]
        if s.result[0] <= p.limit_seconds and s.result[1] >= p.dwell_seconds and found < cost:
            find_latest(p, chosen, s)
            return found, seen
    for place in range(begin, stop):
        chosen[p.order[place]] = own
    if is_in_time:
        run_iteration(p, chosen, s)
    return cost, seen
