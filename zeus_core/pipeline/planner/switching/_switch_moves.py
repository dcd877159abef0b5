"""Moves of the search in `_switch_search.py`: which part of a run gets which clock, and which of them are worth a try.

A run is a row of instructions of a rank with one clock, from a place of `SwitchTask.order` to another. Most moves are
refused, so refusing is quick: a move must save cost (`saves`), and could keep limit and dwell as far as its own rank
can tell (`may_fit`, `may_dwell`). The search finds out what it delays on other ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zeus_core.pipeline.planner.dependencies import ROUNDING

# More or finer values find cheaper clocks for more tries, whose number is limited.
_RUN_SHIFTS = (1, 2, 4, -1)  # of a whole run, in clocks; only one that is higher, as time left allows it seldom
_PART_SHIFTS = (1, 2, 4, 10)  # of a part of a run, in clocks: a long shift can pay for a short part

_FIRST_RUN_SHIFT = 2  # moves 0 and 1: join the run to the left, right
_FIRST_SIDE = _FIRST_RUN_SHIFT + len(_RUN_SHIFTS)
MOVES = _FIRST_SIDE + 6  # 3 lengths, each on the left and on the right
PART_CLOCKS = 2 + len(_PART_SHIFTS)  # those of the runs on the left and right, and lower ones


def move(number: int, place: int, end: int, own: int, left: int, right: int) -> tuple[int, int, int]:
    """Return the part of a run (begin, stop) that a move changes, and its new clock.

    Args:
        number: The number of the move, below `MOVES`: the run joins the run on its left, or right; goes to another
            clock; or one instruction, an eighth or a third of it joins the run on that side.
        place: Where the run begins in the order.
        end: Where it ends.
        own: Its clock.
        left: The clock of the run before it.
        right: The clock of the run after it.
    """
    length = end - place
    if number < _FIRST_RUN_SHIFT:
        return place, end, left if number == 0 else right
    if number < _FIRST_SIDE:
        return place, end, own + _RUN_SHIFTS[number - _FIRST_RUN_SHIFT]
    size = (1, length // 8, length // 3)[(number - _FIRST_SIDE) // 2]
    if (number - _FIRST_SIDE) % 2 == 0:
        return place, place + size, left
    return end - size, end, right


def part_clock(number: int, own: int, left: int, right: int) -> int:
    """Return the clock that a part of a run may go to, number 0 to `PART_CLOCKS` - 1."""
    if number < 2:
        return left if number == 0 else right
    return own + _PART_SHIFTS[number - 2]


def saves(p: Any, rank: int, begin: int, stop: int, own: int, clock: int) -> bool:
    """Return whether a part of a run would cost less with another clock, if it has that clock at all."""
    if clock < 0 or clock >= p.clocks or begin >= stop:
        return False
    head, tail = begin * p.clocks, stop * p.clocks
    if p.missing_before[tail + clock] != p.missing_before[head + clock]:
        return False
    change = p.cost_before[tail + clock] - p.cost_before[head + clock]
    change -= p.cost_before[tail + own] - p.cost_before[head + own]
    return bool(change < 2.0 * p.switch_joules[rank])  # at most two switches fewer


def may_fit(p: Any, s: Any, begin: int, stop: int, own: int, clock: int, switches: int) -> bool:
    """Return whether a part of a run could still end in time at another clock, by its own rank alone.

    Args:
        p: The problem.
        s: Its state before the change, with the latest ends.
        begin: Where the part begins in the order.
        stop: Where it ends.
        own: The clock of the run.
        clock: The other clock.
        switches: How many more switches there are at its ends, at most.
    """
    first, last = p.order[begin], p.order[stop - 1]
    before, tolerance = p.before[first], p.limit_seconds * ROUNDING
    now = (s.end[before] if before >= 0 else 0.0) + s.delay[first] + switches * p.switch_seconds
    works = p.time_before[stop * p.clocks + clock] - p.time_before[begin * p.clocks + clock]
    if now + works > s.latest[last] + tolerance:  # without any wait
        return False
    if clock <= own:
        return True
    for place in range(begin, stop):  # at a lower, slower clock nothing begins earlier than before
        at = p.order[place]
        option = p.kind[at] * p.clocks
        if place > begin:
            now = max(now, s.end[at] - p.time[option + own])
        now += p.time[option + clock]
        if now > s.latest[at] + tolerance:
            return False
    return True


def may_dwell(
    p: Any, s: Any, place: int, end: int, begin: int, stop: int, own: int, clock: int, is_joined: bool
) -> bool:
    """Return whether a run (place, end) could keep the dwell if its part (begin, stop) goes to another clock."""
    if begin > place and lasts(p, s, place, begin) < p.dwell_seconds:
        return False
    if stop < end and lasts(p, s, stop, end) < p.dwell_seconds:
        return False
    head, tail = begin * p.clocks, stop * p.clocks
    longer = p.time_before[tail + clock] - p.time_before[head + clock]
    longer -= p.time_before[tail + own] - p.time_before[head + own]
    return bool(is_joined or lasts(p, s, begin, stop) + longer >= p.dwell_seconds)


def lasts(p: Any, s: Any, begin: int, stop: int) -> float:
    """Return the seconds from the end of what is before a part of a rank to its own end."""
    before = p.before[p.order[begin]]
    return float(s.end[p.order[stop - 1]] - (s.end[before] if before >= 0 else 0.0))


def largest_part(
    p: Any, s: Any, rank: int, place: int, end: int, next_end: int, own: int, clock: int, left: int, right: int
) -> tuple[int, int, int]:
    """Find the part of a run that saves most at a lower clock: of the longest from each place that may fit.

    A part of the right length uses up the time that is left at once. With parts between eighths of a run, 40 plans for
    published profiles were 1.74 points of the energy at the highest clocks from their bounds in the mean, and 1.57 with
    these.

    Args:
        p: The problem.
        s: Its state, with the latest ends.
        rank: The rank of the run.
        place: Where the run begins in the order.
        end: Where it ends.
        next_end: Where the run after it ends.
        own: The clock of the run.
        clock: The lower clock.
        left: The clock of the run before it.
        right: The clock of the run after it.

    Returns:
        Where the part begins and ends, the same place if there is none, and how many instructions were visited.
    """
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    most, best_begin, best_stop, seen = 0.0, place, place, 0
    tolerance = p.limit_seconds * ROUNDING
    at_begin, at_end = s.held[p.order[first]], s.held[p.order[last - 1]]  # a run at the end of an iteration may go on
    for begin in range(place, end):
        rest_before = lasts(p, s, place, begin) if begin > place else np.inf
        if rest_before < p.dwell_seconds and (place > first or at_end != own):
            continue
        before = p.before[p.order[begin]]
        came = s.end[before] if before >= 0 else 0.0
        now, lower, switches = came, 0.0, 0  # the switches that this part makes at its begin, less those that it saves
        if begin > place:
            now, switches = came + p.switch_seconds, 1
        elif clock == left:
            switches = -1
        else:
            now = came + s.delay[p.order[place]]
        for stop in range(begin + 1, end + 1):
            at = p.order[stop - 1]
            option = p.kind[at] * p.clocks
            seen += 2  # as long as two visits of `_fits`
            if p.time[option + clock] == np.inf:
                break
            now = max(now, s.end[at] - p.time[option + own]) + p.time[option + clock]
            lower += p.cost[option + own] - p.cost[option + clock]
            if now > s.latest[at] + tolerance:
                break
            made = 1 if stop < end else -1 if clock == right else 0
            saved = lower - (switches + made) * p.switch_joules[rank]
            if saved <= most:
                continue
            if stop < end:
                to = p.order[stop]
                if now + p.switch_seconds + p.time[p.kind[to] * p.clocks + own] > s.latest[to] + tolerance:
                    continue
            if stop == last and rest_before < p.dwell_seconds:
                continue
            if stop < last:
                rest_end = end if stop < end else next_end
                rest = own if stop < end else right
                rest_after = s.end[p.order[rest_end - 1]] - now
                if clock == rest or (rest_end == last and at_begin == rest and place > first):
                    rest_after = np.inf  # it goes on in the part, or in a run at the begin of the iteration
                elif begin > place and place == first and rest_end == last:
                    rest_after += rest_before
                if rest_after < p.dwell_seconds:
                    break  # a longer part leaves less
            is_joined = (begin == place and clock == left) or (stop == end and clock == right)
            is_joined = is_joined or (begin == first and at_end == clock) or (stop == last and at_begin == clock)
            if is_joined or now - came >= p.dwell_seconds:
                most, best_begin, best_stop = saved, begin, stop
    return best_begin, best_stop, seen
