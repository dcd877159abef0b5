"""The loops behind `_switching.py`: predict an iteration with switches, and search for better clocks.

Clocks are numbers, 0 for the highest, one for each instruction; `_run` tells whether they keep time and dwell. The
number of an instruction that leaves the clock as it is has no meaning.

A run is a row of instructions of a rank with one clock. A move gives a run, or a part of it, another clock. Moves are
numbers, so that compiled code can loop over them:

- the whole run joins the run to its left, or right: one or two switches fewer;
- the whole run goes to a lower or a higher clock: the same switches;
- one instruction, an eighth or a third of the run joins the run on its side: a switch moves;
- a part of the run, bounded at eighths, goes to a lower clock: one or two switches more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline._compiled import Kernels
from zeus_core.pipeline._dependencies import Indices, Numbers

__all__ = ["Clocks", "RunState", "cheapest_sequences", "improve", "join_short_runs", "run"]

# More or finer values find cheaper clocks for more tries, whose number is limited.
_RUN_SHIFTS = (1, 2, 4, -1)  # of a whole run, in clocks; only one that is higher, as time left allows it seldom
_PART_SHIFTS = (1, 4, 10)  # of a part of a run, in clocks: a long shift can pay for a short part
_PARTS = tuple((begin, end) for begin in range(8) for end in range(begin + 1, 9) if end - begin < 8)  # in eighths

_FIRST_RUN_SHIFT = 2  # moves 0 and 1: join the run to the left, right
_FIRST_SIDE = _FIRST_RUN_SHIFT + len(_RUN_SHIFTS)
_FIRST_PART = _FIRST_SIDE + 6  # 3 lengths, each on the left and on the right
_MOVES = _FIRST_PART + len(_PART_SHIFTS) * len(_PARTS)


class Clocks(NamedTuple):
    """The problem with clocks numbered from the highest; instructions without a choice of clock keep what is set.

    Attributes:
        first_arc: See `DependencyGraph`. [instructions + 1]
        arc_from: See `DependencyGraph`. [arcs]
        delay: Seconds on each arc. [arcs]
        before: See `DependencyGraph`. [instructions]
        rank: See `DependencyGraph`. [instructions]
        kind: The kind of each instruction. [instructions]
        clocks: Number of clocks.
        time: Seconds of each kind at each clock; infinite if it was not measured. [kinds * clocks]
        cost: Effective cost in joules; infinite if it was not measured. [kinds * clocks]
        is_kept: Whether a kind leaves the clock as it is. [kinds]
        order: The instructions rank by rank. [instructions]
        first_in_order: Place in `order` at which each rank begins. [ranks + 1]
    """

    first_arc: Indices
    arc_from: Indices
    delay: Numbers
    before: Indices
    rank: Indices
    kind: Indices
    clocks: int
    time: Numbers
    cost: Numbers
    is_kept: NDArray[np.bool_]
    order: Indices
    first_in_order: Indices


class RunState(NamedTuple):
    """Memory of `run`, and its result.

    Attributes:
        end: End of each instruction, in seconds. [instructions]
        held: The clock during each. [instructions]
        last_switch: Time of each rank's last switch; below 0 if it has not switched. [ranks]
        first_switch: Time of its first switch. [ranks]
        result: Iteration time, shortest dwell (both in seconds), and cost in joules. [3]
    """

    end: Numbers
    held: Indices
    last_switch: Numbers
    first_switch: Numbers
    result: Numbers


def run(clocks: Clocks, switch_seconds: float, chosen: Indices, state: RunState) -> tuple[float, float, float]:
    """Return iteration time and shortest dwell, in seconds, and cost in joules with these clocks."""
    _KERNELS.call(_run, clocks, switch_seconds, chosen, state)
    seconds, dwell, cost = state.result.tolist()
    return seconds, dwell, cost


def cheapest_sequences(clocks: Clocks, price_watts: Numbers, switch_seconds: float, chosen: Indices) -> None:
    """Fill `chosen` with the clocks of the lowest energy and priced time along each rank."""
    _KERNELS.call(_cheapest_sequences, clocks, price_watts, switch_seconds, chosen)


def join_short_runs(
    clocks: Clocks, switch_seconds: float, dwell_seconds: float, chosen: Indices, state: RunState
) -> None:
    """Change `chosen` until no clock is left before `dwell_seconds`, if possible."""
    _KERNELS.call(_join_short_runs, clocks, switch_seconds, dwell_seconds, chosen, state)


def improve(
    clocks: Clocks,
    limit: float,
    switch_seconds: float,
    dwell_seconds: float,
    chosen: Indices,
    state: RunState,
    tries: int,
) -> None:
    """Change `chosen`, which keeps limit and dwell, for less energy within limit and dwell."""
    _KERNELS.call(_improve, clocks, limit, switch_seconds, dwell_seconds, chosen, state, tries)


def _run(p: Any, switch_seconds: float, chosen: Any, s: Any) -> None:
    """Do the same as `execute`, into `result`: iteration time, shortest dwell, cost."""
    longest, cost, dwell = 0.0, 0.0, np.inf
    for rank in range(len(p.first_in_order) - 1):
        s.first_switch[rank] = -1.0
        s.last_switch[rank] = -1.0
        # The clock at the beginning is that of the last instruction that has one.
        for place in range(p.first_in_order[rank + 1] - 1, p.first_in_order[rank] - 1, -1):
            if not p.is_kept[p.kind[p.order[place]]]:
                s.held[p.order[p.first_in_order[rank]]] = chosen[p.order[place]]
                break
    for at in range(len(chosen)):
        kind, before = p.kind[at], p.before[at]
        held = s.held[at] if before < 0 else s.held[before]
        now = 0.0 if before < 0 else s.end[before]
        start = now
        if p.is_kept[kind]:
            s.held[at] = held
        else:
            s.held[at] = chosen[at]
            if chosen[at] != held:
                start = now + switch_seconds
                rank = p.rank[at]
                if s.last_switch[rank] >= 0.0:
                    dwell = min(dwell, now - s.last_switch[rank])
                else:
                    s.first_switch[rank] = now
                s.last_switch[rank] = now
        for arc in range(p.first_arc[at], p.first_arc[at + 1]):
            start = max(start, s.end[p.arc_from[arc]] + p.delay[arc])
        s.end[at] = start + p.time[kind * p.clocks + chosen[at]]
        longest = max(longest, s.end[at])
        cost += p.cost[kind * p.clocks + chosen[at]]
    for rank in range(len(p.first_in_order) - 1):
        if s.last_switch[rank] > s.first_switch[rank]:
            dwell = min(dwell, s.first_switch[rank] + longest - s.last_switch[rank])
    s.result[0], s.result[1], s.result[2] = longest, dwell, cost


def _cheapest_sequences(p: Any, prices: Any, switch_seconds: float, chosen: Any) -> None:
    """Find the clocks of the lowest energy and priced time along each rank, by dynamic programming."""
    clocks = p.clocks
    came_from = np.zeros((len(chosen), clocks), np.int64)
    for rank in range(len(p.first_in_order) - 1):
        total = np.zeros(clocks)
        first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
        for place in range(first, last):
            at = p.order[place]
            kind = p.kind[at]
            cheapest = 0
            for clock in range(clocks):
                if total[clock] < total[cheapest]:
                    cheapest = clock
            switched = total[cheapest] + switch_seconds * prices[at]
            for clock in range(clocks):
                came_from[at, clock] = clock
                if not p.is_kept[kind]:
                    if switched < total[clock]:
                        total[clock] = switched
                        came_from[at, clock] = cheapest
                    total[clock] += p.cost[kind * p.clocks + clock] + prices[at] * p.time[kind * p.clocks + clock]
        clock = 0
        for other in range(clocks):
            if total[other] < total[clock]:
                clock = other
        for place in range(last - 1, first - 1, -1):
            at = p.order[place]
            chosen[at] = clock
            clock = came_from[at, clock]


def _join_short_runs(p: Any, switch_seconds: float, dwell_seconds: float, chosen: Any, s: Any) -> None:
    """Give runs that are too short the higher of the clocks beside them, until none is too short."""
    for _ in range(len(chosen)):
        _run(p, switch_seconds, chosen, s)
        if s.result[1] >= dwell_seconds:
            return
        joined = False
        for rank in range(len(p.first_in_order) - 1):
            joined = _join_first_short_run(p, dwell_seconds, chosen, s, rank) or joined
        if not joined:
            return


def _join_first_short_run(p: Any, dwell_seconds: float, chosen: Any, s: Any, rank: int) -> bool:
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    head = _run_end(p, s, first, last)
    if head == last:
        return False
    goes_on = s.held[p.order[last - 1]] == s.held[p.order[first]]  # from the end of an iteration into the next
    place = head if goes_on else first
    while place < last:
        end = _run_end(p, s, place, last)
        seconds = 0.0 if place == first else -s.end[p.order[place - 1]]
        if end < last:
            seconds += s.end[p.order[end - 1]]
        else:
            seconds += s.result[0] + (s.end[p.order[head - 1]] if goes_on else 0.0)
        if seconds < dwell_seconds:
            left = s.held[p.order[place - 1 if place > first else last - 1]]
            right = s.held[p.order[end if end < last else first]]
            if _set_run(p, chosen, place, end, min(left, right)) or _set_run(p, chosen, place, end, max(left, right)):
                return True
        place = end
    return False


def _run_end(p: Any, s: Any, place: int, last: int) -> int:
    """Return the end of the run that begins at a place of the order."""
    end = place + 1
    while end < last and s.held[p.order[end]] == s.held[p.order[place]]:
        end += 1
    return int(end)


def _set_run(p: Any, chosen: Any, place: int, end: int, clock: int) -> bool:
    """Give instructions a clock if all of them have it; return whether they do."""
    if clock < 0 or clock >= p.clocks:
        return False
    for position in range(place, end):
        if p.time[p.kind[p.order[position]] * p.clocks + clock] == np.inf:
            return False
    for position in range(place, end):
        chosen[p.order[position]] = clock
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


def _improve(
    p: Any, limit: float, switch_seconds: float, dwell_seconds: float, chosen: Any, s: Any, tries: int
) -> None:
    """Try all moves of all runs, and keep each that helps, until none does or no try is left."""
    _run(p, switch_seconds, chosen, s)
    if s.result[0] > limit or s.result[1] < dwell_seconds:
        return
    cost = s.result[2]
    kept = chosen.copy()
    while tries > 0:
        cost_before = cost
        for rank in range(len(p.first_in_order) - 1):
            first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
            place = first
            while place < last and tries > 0:
                end = place + 1
                while end < last and chosen[p.order[end]] == chosen[p.order[place]]:
                    end += 1
                own = chosen[p.order[place]]
                left = chosen[p.order[place - 1]] if place > first else own
                right = chosen[p.order[end]] if end < last else own
                for move in range(_MOVES):
                    begin, stop, clock = _move(move, place, end, own, left, right)
                    if clock == own or begin >= stop or not _set_run(p, chosen, begin, stop, clock):
                        continue
                    tries -= 1
                    _run(p, switch_seconds, chosen, s)
                    if s.result[0] <= limit and s.result[1] >= dwell_seconds and s.result[2] < cost:
                        cost = s.result[2]
                        for position in range(begin, stop):
                            kept[p.order[position]] = clock
                        if begin != place or stop != end:
                            break
                        own = clock
                    else:
                        for position in range(begin, stop):
                            chosen[p.order[position]] = kept[p.order[position]]
                place = end
        if cost >= cost_before:
            return


_KERNELS = Kernels(
    _move, _set_run, _run_end, _run, _join_first_short_run, _join_short_runs, _cheapest_sequences, _improve
)
