"""Better clocks where switches have a price: a local search from clocks that keep limit and dwell.

A run is a row of instructions of a rank with one clock. A move gives a run, or a part of it, another clock. Moves are
numbers, so that compiled code can loop over them:

- the whole run joins the run to its left, or right: one or two switches fewer;
- the whole run goes to a lower or a higher clock: the same switches;
- one instruction, an eighth or a third of the run joins the run on its side: a switch moves;
- the part that saves most goes to a lower clock, as long as it may last: one or two switches more.

A move that `_switch_moves.py` does not refuse is tried: the instructions from the first changed one to the last must
end before what comes after them is late (`_fits`). Only then is the whole iteration run.

Once no move helps, random runs are made faster, of one rank or of several at one moment, and the time that this frees
is used up again. Nothing else leads away from a plan that has no time left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices
from zeus_core.pipeline.planner.frontier.rounding import next_random
from zeus_core.pipeline.planner.loops.compiled import call_compiled
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
from zeus_core.pipeline.planner.switching._switch_starts import set_run
from zeus_core.pipeline.planner.switching._switch_task import RunState, SwitchTask, last_clock, run_iteration

_ONE_OF_SEVERAL_RANKS_IN = 4  # random changes; one in 2 or 8 gave dearer plans
_PART_TRIES = 3  # of a part that may fit, each two thirds as long as the one before
_MAX_FAILS = 1000  # random changes in a row without a gain, after which few gain anything
_MOVE_VISITS = 6  # a move takes as long as visiting so many instructions, besides those that it looks at


def search(task: SwitchTask, chosen: Indices, state: RunState, visits: int, seed: int) -> None:
    """Change `chosen`, which keeps limit and dwell, for less cost within limit and dwell.

    Args:
        task: The problem.
        chosen: The clocks.
        state: Memory.
        visits: How many instructions to look at, at most.
        seed: That of the random changes.
    """
    call_compiled(_search, task, chosen, state, visits, seed)


def _find_latest(p: Any, chosen: Any, s: Any) -> None:
    """Find the latest ends of all instructions, for the state that was run last."""
    for at in range(len(chosen)):
        s.latest[at] = p.limit_seconds
    for at in range(len(chosen) - 1, -1, -1):
        due = s.latest[at] - p.time[p.kind[at] * p.clocks + chosen[at]]
        for arc in range(p.first_arc[at], p.first_arc[at + 1]):
            before = p.arc_from[arc]
            delay = p.delay[arc] + (s.delay[at] if before == p.before[at] else 0.0)
            s.latest[before] = min(s.latest[before], due - delay)


def _fits(p: Any, chosen: Any, s: Any, rank: int, begin: int, stop: int) -> bool:
    """Return whether the iteration keeps its limit after the clocks from `begin` to `stop` of the order have changed.

    The state is that before. Instructions after the last one whose clock or switch has changed have the same latest
    ends as before: the rest fits if it ends before those.
    """
    tolerance = p.limit_seconds * ROUNDING
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
        if s.tried[at] > p.limit_seconds + tolerance or not _reaches(p, chosen, s, at, last, tolerance):
            return False
    return True


def _reaches(p: Any, chosen: Any, s: Any, at: int, last: int, tolerance: float) -> bool:
    """Return whether an instruction that is tried ends early enough for those after the last changed one."""
    for out in range(p.first_out[at], p.first_out[at + 1]):
        to = p.out_to[out]
        if to > last:
            delay = p.out_delay[out] + (s.delay[to] if p.before[to] == at else 0.0)
            if s.tried[at] + delay + p.time[p.kind[to] * p.clocks + chosen[to]] > s.latest[to] + tolerance:
                return False
    return True


def _search(p: Any, chosen: Any, s: Any, visits: int, seed: int) -> None:
    """Improve; then make a random part of a run faster, improve again, and keep the result if it costs no more."""
    visits = _improve(p, chosen, s, visits)
    cost, random = s.result[2], seed
    _copy(chosen, s.kept)
    fails = 0
    while visits > 0 and fails < _MAX_FAILS:
        fails += 1
        if (random >> 11) % _ONE_OF_SEVERAL_RANKS_IN == 0:
            random = _kick_ranks(p, chosen, random)
        else:
            for _ in range(1 + (random >> 9) % 2):
                random = _kick(p, chosen, random)
        run_iteration(p, chosen, s)
        # A copy, two runs of the iteration and its latest ends visit each instruction.
        visits = _improve(p, chosen, s, visits - 4 * len(chosen))
        if s.result[0] <= p.limit_seconds and s.result[1] >= p.dwell_seconds and s.result[2] <= cost:
            if s.result[2] < cost:
                fails = 0
            cost = s.result[2]
            _copy(chosen, s.kept)
        else:
            _copy(s.kept, chosen)
    run_iteration(p, chosen, s)


def _copy(values: Any, to: Any) -> None:
    for at in range(len(values)):
        to[at] = values[at]


def _kick(p: Any, chosen: Any, random: int) -> int:
    """Make a random run, or a part of it, faster; return the next random number."""
    random = next_random(random)
    at = (random >> 8) % len(chosen)
    rank = p.rank[at]
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    random = next_random(random)
    place = first + (random >> 8) % (last - first)
    begin, end = place, _run_end(p, chosen, place, last)
    own = chosen[p.order[place]]
    while begin > first and chosen[p.order[begin - 1]] == own:
        begin -= 1
    random = next_random(random)
    clock = own - 1 - (random >> 8) % 4
    if (random >> 12) % 2 == 0 and begin > first:
        clock = chosen[p.order[begin - 1]]
    if (random >> 13) % 2 == 0:
        begin = place
    elif (random >> 14) % 2 == 0:
        end = place + 1
    set_run(p, chosen, begin, end, max(0, clock))
    return random


def _kick_ranks(p: Any, chosen: Any, random: int) -> int:
    """Make the runs of some neighbouring ranks at a random moment faster; return the next random number."""
    random = next_random(random)
    moment = (random >> 8) % len(chosen)
    random = next_random(random)
    ranks = len(p.first_in_order) - 1
    head = (random >> 8) % ranks
    tail = head + 1 + (random >> 14) % (ranks - head)
    shift = 1 + (random >> 20) % 3
    for rank in range(head, tail):
        first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
        begin, end = first, _run_end(p, chosen, first, last)
        while end < last and p.order[end] <= moment:
            begin, end = end, _run_end(p, chosen, end, last)
        set_run(p, chosen, begin, end, max(0, chosen[p.order[begin]] - shift))
    return random


def _improve(p: Any, chosen: Any, s: Any, visits: int) -> int:
    """Try all moves of all runs, and keep each that helps, until none does or enough instructions were looked at.

    Returns the visits that are left.
    """
    run_iteration(p, chosen, s)
    if s.result[0] > p.limit_seconds or s.result[1] < p.dwell_seconds:
        return visits
    _find_latest(p, chosen, s)
    cost, cost_before = s.result[2], np.inf
    while visits > 0 and cost < cost_before:
        cost_before = cost
        for rank in range(len(p.first_in_order) - 1):
            first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
            place = first
            while place < last and visits > 0:
                end = _run_end(p, chosen, place, last)
                cost, seen = _improve_run(p, chosen, s, rank, place, end, cost)
                visits -= seen
                place = end
    return visits


def _run_end(p: Any, chosen: Any, place: int, last: int) -> int:
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
    next_end = _run_end(p, chosen, end, last)
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
    fits = _fits(p, chosen, s, rank, begin, stop)
    if fits:
        seen += 2 * len(chosen)
        run_iteration(p, chosen, s)
        found = s.result[2]
        if s.result[0] <= p.limit_seconds and s.result[1] >= p.dwell_seconds and found < cost:
            _find_latest(p, chosen, s)
            return found, seen
    for place in range(begin, stop):
        chosen[p.order[place]] = own
    if fits:
        run_iteration(p, chosen, s)
    return cost, seen
