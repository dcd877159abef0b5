"""Better clocks where switches have a price: a local search from clocks that keep limit and dwell.

A run is a row of instructions of a rank with one clock. A move gives a run, or a part of it, another clock. Moves are
numbers, so that compiled code can loop over them:

- the whole run joins the run to its left, or right: one or two switches fewer;
- the whole run goes to a lower or a higher clock: the same switches;
- one instruction, an eighth or a third of the run joins the run on its side: a switch moves;
- a part of the run, bounded at eighths, goes to a lower clock: one or two switches more.

Most moves are refused, so refusing is quick: a move must save cost, and could keep limit and dwell by sums that are
known (`_saves`, `_may_fit`, `_may_dwell`); then the instructions from the first changed one to the last must end before
what comes after them is late (`_fits`). Only then is the whole iteration run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zeus_core.pipeline._compiled import Kernels
from zeus_core.pipeline._dependencies import ROUNDING, Indices
from zeus_core.pipeline._rounding import next_random
from zeus_core.pipeline._switch_repair import set_run
from zeus_core.pipeline._switch_task import RunState, SwitchTask, last_clock, run_iteration

__all__ = ["search"]

# More or finer values find cheaper clocks for more tries, whose number is limited.
_RUN_SHIFTS = (1, 2, 4, -1)  # of a whole run, in clocks; only one that is higher, as time left allows it seldom
_PART_SHIFTS = (1, 4, 10)  # of a part of a run, in clocks: a long shift can pay for a short part
_PARTS = tuple((begin, end) for begin in range(8) for end in range(begin + 1, 9) if end - begin < 8)  # in eighths

_FIRST_RUN_SHIFT = 2  # moves 0 and 1: join the run to the left, right
_FIRST_SIDE = _FIRST_RUN_SHIFT + len(_RUN_SHIFTS)
_FIRST_PART = _FIRST_SIDE + 6  # 3 lengths, each on the left and on the right
_MAX_FAILS = 1000  # random changes in a row without a gain, after which few gain anything
_MOVE_VISITS = 2  # a move takes as long as visiting so many instructions, besides those that it looks at
_MOVES = _FIRST_PART + len(_PART_SHIFTS) * len(_PARTS)


def search(task: SwitchTask, chosen: Indices, state: RunState, visits: int) -> None:
    """Change `chosen`, which keeps limit and dwell, for less cost within limit and dwell.

    Args:
        task: The problem.
        chosen: The clocks.
        state: Memory.
        visits: How many instructions to look at, at most.
    """
    _KERNELS.call(_search, task, chosen, state, visits, 1)


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


def _move(move: int, place: int, end: int, own: int, left: int, right: int) -> tuple[int, int, int]:
    """Return the part of a run (begin, end) that a move changes, and its new clock.

    Args:
        move: The number of the move; see the top of this file.
        place: Where the run begins in the order.
        end: Where at ends.
        own: Its clock.
        left: The clock of the run before at.
        right: The clock of the run after at.
    """
    length = end - place
    if move < _FIRST_RUN_SHIFT:
        return place, end, left if move == 0 else right
    if move < _FIRST_SIDE:
        return place, end, own + _RUN_SHIFTS[move - _FIRST_RUN_SHIFT]
    if move < _FIRST_PART:
        size = (1, length // 8, length // 3)[(move - _FIRST_SIDE) // 2]
        return (place, place + size, left) if (move - _FIRST_SIDE) % 2 == 0 else (end - size, end, right)
    part, shift = (move - _FIRST_PART) // len(_PART_SHIFTS), (move - _FIRST_PART) % len(_PART_SHIFTS)
    begin, stop = _PARTS[part]
    return place + begin * length // 8, place + stop * length // 8, own + _PART_SHIFTS[shift]


def _search(p: Any, chosen: Any, s: Any, visits: int, seed: int) -> None:
    """Improve; then make a random part of a run faster, improve again, and keep the result if it costs no more."""
    visits = _improve(p, chosen, s, visits)
    cost, random = s.result[2], seed
    kept = chosen.copy()
    fails = 0
    while visits > 0 and fails < _MAX_FAILS:
        fails += 1
        for _ in range(1 + (random >> 9) % 2):
            random = _kick(p, chosen, random)
        run_iteration(p, chosen, s)
        visits = _improve(p, chosen, s, visits - len(chosen))
        if s.result[0] <= p.limit_seconds and s.result[1] >= p.dwell_seconds and s.result[2] <= cost:
            if s.result[2] < cost:
                fails = 0
            cost = s.result[2]
            kept[:] = chosen
        else:
            chosen[:] = kept
    run_iteration(p, chosen, s)


def _kick(p: Any, chosen: Any, random: int) -> int:
    """Make a random run, or a part of it, faster; return the next random number."""
    random = next_random(random)
    at = (random >> 8) % len(chosen)
    rank = p.rank[at]
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    random = next_random(random)
    place = first + (random >> 8) % (last - first)
    begin, end = place, place + 1
    own = chosen[p.order[place]]
    while begin > first and chosen[p.order[begin - 1]] == own:
        begin -= 1
    while end < last and chosen[p.order[end]] == own:
        end += 1
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
                end = place + 1
                while end < last and chosen[p.order[end]] == chosen[p.order[place]]:
                    end += 1
                own = chosen[p.order[place]]
                left = chosen[p.order[place - 1]] if place > first else own
                right = chosen[p.order[end]] if end < last else own
                for move in range(_MOVES):
                    begin, stop, clock = _move(move, place, end, own, left, right)
                    visits -= _MOVE_VISITS
                    if clock == own or not _saves(p, rank, begin, stop, own, clock):
                        continue
                    # Switches that the move makes, less those that it saves at most; at the ends of an iteration that
                    # depends on the other end too.
                    before = 1 if begin > place else -1 if clock == left or place == first else 0
                    after = 1 if stop < end else -1 if clock == right or end == last else 0
                    if not _may_fit(p, s, begin, stop, clock, before + after):
                        continue
                    if p.dwell_seconds > 0.0 and place > first and end < last:
                        is_joined = clock in (left, right)
                        if not _may_dwell(p, s, place, end, begin, stop, own, clock, is_joined):
                            continue
                    found, seen = _try(p, chosen, s, rank, begin, stop, clock, own, cost)
                    visits -= seen
                    if found < cost:
                        cost = found
                        if begin != place or stop != end:
                            break
                        own = clock
                place = end
    return visits


def _saves(p: Any, rank: int, begin: int, stop: int, own: int, clock: int) -> bool:
    """Return whether a part of a run would cost less with another clock, if it has that clock at all."""
    if clock < 0 or clock >= p.clocks or begin >= stop:
        return False
    head, tail = begin * p.clocks, stop * p.clocks
    if p.missing_before[tail + clock] != p.missing_before[head + clock]:
        return False
    change = p.cost_before[tail + clock] - p.cost_before[head + clock]
    change -= p.cost_before[tail + own] - p.cost_before[head + own]
    return bool(change < 2.0 * p.switch_joules[rank])  # at most two switches fewer


def _may_fit(p: Any, s: Any, begin: int, stop: int, clock: int, switches: int) -> bool:
    """Return whether a part of a run could still end in time if all waits before and in it were given up."""
    first, last = p.order[begin], p.order[stop - 1]
    before = p.before[first]
    ready = (s.end[before] if before >= 0 else 0.0) + s.delay[first] + switches * p.switch_seconds
    works = p.time_before[stop * p.clocks + clock] - p.time_before[begin * p.clocks + clock]
    return bool(ready + works <= s.latest[last] + p.limit_seconds * ROUNDING)


def _may_dwell(
    p: Any, s: Any, place: int, end: int, begin: int, stop: int, own: int, clock: int, is_joined: bool
) -> bool:
    """Return whether a run (place, end) could keep the dwell if its part (begin, stop) goes to another clock."""
    if begin > place and _lasts(p, s, place, begin) < p.dwell_seconds:
        return False
    if stop < end and _lasts(p, s, stop, end) < p.dwell_seconds:
        return False
    head, tail = begin * p.clocks, stop * p.clocks
    longer = p.time_before[tail + clock] - p.time_before[head + clock]
    longer -= p.time_before[tail + own] - p.time_before[head + own]
    return bool(is_joined or _lasts(p, s, begin, stop) + longer >= p.dwell_seconds)


def _lasts(p: Any, s: Any, begin: int, stop: int) -> float:
    """Return the seconds from the end of what is before a part of a rank to its own end."""
    before = p.before[p.order[begin]]
    return float(s.end[p.order[stop - 1]] - (s.end[before] if before >= 0 else 0.0))


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


_KERNELS = Kernels(
    *(_find_latest, last_clock, run_iteration, next_random, _reaches, _fits, _saves, _may_fit, _lasts, _may_dwell),
    *(_try, _move, set_run, _improve, _kick, _search),
)
