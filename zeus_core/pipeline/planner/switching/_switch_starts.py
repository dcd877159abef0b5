"""Clocks to begin with where switches have a price. The search of `_switch_search.py` improves the cheapest of them.

Along each rank, the clocks of the lowest cost at the prices of time of the bound (`_switch_bound.py`), multiplied by
the lowest factor at which the iteration keeps the time; or by less, and then runs on the longest path are made faster
until it does. A run is a row of instructions of a rank with one clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from zeus_core.pipeline.planner.dependencies import Indices
from zeus_core.pipeline.planner.loops import call_compiled
from zeus_core.pipeline.planner.switching._switch_bound import Bound
from zeus_core.pipeline.planner.switching._switch_search import run_end
from zeus_core.pipeline.planner.switching._switch_task import RunState, SwitchTask, run, run_iteration

# All values below trade the quality of plans for the time to find them.
_BISECTIONS = 6  # of the factor of prices: it is known to 12 %
_MAX_PRICE_FACTOR = 1000.0  # makes nearly every instruction its fastest
# Clocks found as if switches cost that much more have fewer of them, which fits a dwell.
_SWITCH_PRICE_FACTORS = (0.5, 1.0, 2.0, 4.0, 16.0)
# Of prices whose clocks need not keep the limit, and are repaired. The best plan often comes from those that were up to
# 6 % too slow, as the repair leaves time that the search then uses: hence the lower prices.
_REPAIRED_EXPONENTS = (-0.1, 0.0, 0.05)
_MIN_PRICED_SECONDS = 0.001  # a switch is priced at no less, so that a dwell alone already makes switches rare


def one_clock_per_rank(task: SwitchTask) -> Indices:
    """Return for each rank the highest clock that all its instructions have; if there is none, each its own highest."""
    chosen = np.zeros(len(task.kind), np.int64)
    is_measured = np.isfinite(task.time).reshape(-1, task.clocks)
    for first, last in zip(task.first_in_order[:-1], task.first_in_order[1:], strict=True):
        members = task.order[first:last]
        common = is_measured[np.unique(task.kind[members])].all(axis=0)
        own = is_measured[task.kind[members]].argmax(axis=1)
        chosen[members] = common.argmax() if common.any() else own
    return chosen


def starts_by_prices(task: SwitchTask, bound: Bound) -> Iterator[Indices]:
    """Yield clocks of the lowest cost at prices of time, the first for each factor that keep limit and dwell."""
    state = RunState.for_task(task)
    for factor in _SWITCH_PRICE_FACTORS:
        asked = task._replace(switch_seconds=factor * max(task.switch_seconds, _MIN_PRICED_SECONDS))
        found = None
        low, high = 0.0, 2.0  # of the exponent of the factor of the prices: 0 is a factor of 1, 2 the highest
        for turn in range(_BISECTIONS):
            exponent = low if turn == 0 else (low + high) / 2
            chosen = bound.answer(asked, _MAX_PRICE_FACTOR ** (exponent / 2))
            join_short_runs(task, chosen, state)
            seconds, dwell, _ = run(task, chosen, state)
            if seconds <= task.limit_seconds and dwell >= task.dwell_seconds:
                found, high = chosen, exponent
                if turn == 0:
                    break
            else:
                low = exponent
        if found is not None:
            yield found
        for exponent in _REPAIRED_EXPONENTS:
            chosen = bound.answer(asked, _MAX_PRICE_FACTOR ** (exponent / 2))
            join_short_runs(task, chosen, state)
            repair(task, chosen, state)
            join_short_runs(task, chosen, state)
            yield chosen


# Each makes a run faster; most plans need some tens, those of 1,000 switches some hundreds.
_MAX_REPAIRS = 250


def join_short_runs(task: SwitchTask, chosen: Indices, state: RunState) -> None:
    """Change `chosen` until no clock is left before the dwell, if possible."""
    call_compiled(_join_short_runs, task, chosen, state)


def repair(task: SwitchTask, chosen: Indices, state: RunState) -> None:
    """Make runs on the longest path faster, one after another, until the iteration keeps its limit, if possible."""
    call_compiled(_repair, task, chosen, state, _MAX_REPAIRS)


def _join_short_runs(p: Any, chosen: Any, s: Any) -> None:
    """Give runs that are too short the higher of the clocks beside them, until none is too short."""
    for _ in range(len(chosen)):
        run_iteration(p, chosen, s)
        if s.result[1] >= p.dwell_seconds:
            return
        joined = False
        for rank in range(len(p.first_in_order) - 1):
            joined = _join_first_short_run(p, chosen, s, rank) or joined
        if not joined:
            return


def _join_first_short_run(p: Any, chosen: Any, s: Any, rank: int) -> bool:
    place, end = _first_short_run(p, s, rank)
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    if place == last:
        return False
    left = s.held[p.order[place - 1 if place > first else last - 1]]
    right = s.held[p.order[end if end < last else first]]
    return set_run(p, chosen, place, end, min(left, right)) or set_run(p, chosen, place, end, max(left, right))


def _first_short_run(p: Any, s: Any, rank: int) -> tuple[int, int]:
    """Return where the first run of a rank that is left before the dwell begins and ends; the rank's end if none is."""
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    head = run_end(p, s.held, first, last)
    if head == last:
        return last, last
    goes_on = s.held[p.order[last - 1]] == s.held[p.order[first]]  # from the end of an iteration into the next
    place = head if goes_on else first
    while place < last:
        end = run_end(p, s.held, place, last)
        seconds = 0.0 if place == first else -s.end[p.order[place - 1]]
        if end < last:
            seconds += s.end[p.order[end - 1]]
        else:
            seconds += s.result[0] + (s.end[p.order[head - 1]] if goes_on else 0.0)
        if seconds < p.dwell_seconds:
            return place, end
        place = end
    return last, last


def _repair(p: Any, chosen: Any, s: Any, max_repairs: int) -> None:
    """Give runs on the longest path faster clocks, at each turn where a second costs least."""
    for _ in range(max_repairs):
        run_iteration(p, chosen, s)
        if s.result[0] <= p.limit_seconds:
            return
        _mark_longest_path(p, chosen, s)
        least, begin, stop, to = np.inf, 0, 0, 0
        for rank in range(len(p.first_in_order) - 1):
            first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
            place = first
            while place < last:
                own, end, is_on_path = s.held[p.order[place]], run_end(p, s.held, place, last), False
                for position in range(place, end):
                    is_on_path = is_on_path or s.tried[p.order[position]] > 0.0
                left = s.held[p.order[place - 1]] if place > first else own
                right = s.held[p.order[end]] if end < last else own
                for number in range(6):
                    clock = (left, right, own - 1, own - 2, own - 4, 0)[number]
                    if is_on_path and clock >= 0 and clock != own:
                        price = _price_of_second(p, s, place, end, last, own, clock, least)
                        if price < least:
                            least, begin, stop, to = price, place, end, clock
                place = end
        if least == np.inf:
            return
        set_run(p, chosen, begin, stop, to)


def _mark_longest_path(p: Any, chosen: Any, s: Any) -> None:
    """Set `tried` to 1 for instructions on the longest path, 2 if it goes through the switch before; else to 0."""
    at = 0
    for other in range(len(chosen)):
        s.tried[other] = 0.0
        if s.end[other] > s.end[at]:
            at = other
    while at >= 0:
        before = p.before[at]
        start = (s.end[before] if before >= 0 else 0.0) + s.delay[at]
        latest = before
        for arc in range(p.first_arc[at], p.first_arc[at + 1]):
            if s.end[p.arc_from[arc]] + p.delay[arc] > start:
                start = s.end[p.arc_from[arc]] + p.delay[arc]
                latest = p.arc_from[arc]
        s.tried[at] = 2.0 if latest == before and s.delay[at] > 0.0 else 1.0
        at = latest


def _price_of_second(p: Any, s: Any, place: int, end: int, last: int, own: int, clock: int, least: float) -> float:
    """Return what a second less on the longest path costs if a run goes to another clock.

    It is infinite if the run cannot go there, or if it costs at least `least` even with all of the run on the path.
    """
    head, tail = place * p.clocks, end * p.clocks
    if p.missing_before[tail + clock] != p.missing_before[head + clock]:
        return float(np.inf)
    cost = p.cost_before[tail + clock] - p.cost_before[head + clock]
    cost -= p.cost_before[tail + own] - p.cost_before[head + own]
    most = p.time_before[tail + own] - p.time_before[head + own] + 2.0 * p.switch_seconds
    most -= p.time_before[tail + clock] - p.time_before[head + clock]
    if cost >= least * most:
        return float(np.inf)
    seconds = 0.0
    for position in range(place, end):
        at = p.order[position]
        option = p.kind[at] * p.clocks
        if s.tried[at] > 0.0:
            seconds += p.time[option + own] - p.time[option + clock]
    if s.tried[p.order[place]] == 2.0 and s.held[p.order[max(0, place - 1)]] == clock:
        seconds += p.switch_seconds
    if end < last and s.tried[p.order[end]] == 2.0 and s.held[p.order[end]] == clock:
        seconds += p.switch_seconds
    return float(cost / seconds) if seconds > 0.0 else float(np.inf)


def set_run(p: Any, chosen: Any, place: int, end: int, clock: int) -> bool:
    """Give instructions a clock if all of them have it; return whether they do."""
    if clock < 0 or clock >= p.clocks:
        return False
    for position in range(place, end):
        if p.time[p.kind[p.order[position]] * p.clocks + clock] == np.inf:
            return False
    for position in range(place, end):
        chosen[p.order[position]] = clock
    return True
