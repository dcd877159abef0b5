"""Simulated annealing of clocks where switches have a price, between local searches (`_switch_search.py`).

A move gives a random run of a rank, or a part of it, another clock: that of the run beside it, or one up to three
clocks away. One move in eight does so on several neighbouring ranks, as one rank alone gains little from another pace.

Meanwhile the iteration may end after its limit: nothing else leads away from a plan that has no time left. With joules
E, iteration time T and limit L, a plan costs E + w max(0, T - L), where the weight w rises from about the price of the
limit in the bound (`_switch_bound.py`) to a hundred times that. A move is accepted if this rises by at most
t ln(1 / u), where u is random between 0 and 1 and the temperature t falls geometrically (Kirkpatrick, Gelatt, Vecchi:
"Optimization by Simulated Annealing", Science 220, 1983). u is drawn before the move is tried, so that most moves are
refused by their energy alone, or at the first instruction that ends too late.
"""

from __future__ import annotations

import math
from typing import Any

from zeus_core.pipeline.planner.frontier.rounding import next_random
from zeus_core.pipeline.planner.switching._switch_search import (
    copy_clocks,
    find_latest,
    fits,
    run_end,
)
from zeus_core.pipeline.planner.switching._switch_task import run_iteration

# On 25 problems of `benchmarks/plan_switching.py` (26 November 2026) last weights of 5, 20 and 100 gave ever better
# plans, as those with lower ones often end after the limit.
_FIRST_WEIGHT, _LAST_WEIGHT = 1.2, 100.0
_COLD = 0.03  # the last temperature over the first
_SEVERAL_RANKS_IN = 8
_MOVE_VISITS = 6  # drawing a move takes as long as visiting so many instructions


def anneal(p: Any, chosen: Any, s: Any, late_watts: float, hot_joules: float, visits: int, seed: int) -> None:
    """Change `chosen`, which keeps limit and dwell, for less cost within limit and dwell.

    Args:
        p: The `SwitchTask`.
        chosen: The clocks.
        s: The `RunState`: memory.
        late_watts: The price of time beyond the limit, above 0.
        hot_joules: The first temperature, above 0.
        visits: How many instructions to look at, at most.
        seed: That of the random moves.
    """
    run_iteration(p, chosen, s)
    find_latest(p, chosen, s)
    joules, seconds, random, left = s.result[2], s.result[0], seed, visits
    least = joules
    copy_clocks(chosen, s.kept)
    while left > 0:
        progress = 1.0 - left / visits
        weight = late_watts * _FIRST_WEIGHT * (_LAST_WEIGHT / _FIRST_WEIGHT) ** progress
        random = next_random(random)
        heat = -math.log((random + 1.0) / 2147483648.0)
        allowed = joules + weight * max(0.0, seconds - p.limit_seconds) + hot_joules * _COLD**progress * heat
        random = next_random(random)
        rank = (random >> 8) % (len(p.first_in_order) - 1)
        ranks = 1
        random = next_random(random)
        if (random >> 8) % _SEVERAL_RANKS_IN == 0:
            ranks += (random >> 12) % (len(p.first_in_order) - 1 - rank)
        random, most_seconds, seen = _change(p, chosen, s, rank, ranks, random, allowed, joules, seconds, weight)
        left -= _MOVE_VISITS + seen
        if seen == 0:
            continue
        is_in_time = ranks > 1 or fits(p, chosen, s, rank, s.begin[rank], s.stop[rank], most_seconds - p.limit_seconds)
        if is_in_time:
            left -= 2 * len(chosen)
            run_iteration(p, chosen, s)
            cost = s.result[2] + weight * max(0.0, s.result[0] - p.limit_seconds)
            if cost <= allowed and s.result[1] >= p.dwell_seconds:
                joules, seconds = s.result[2], s.result[0]
                find_latest(p, chosen, s)
                if joules < least and seconds <= p.limit_seconds:
                    least = joules
                    copy_clocks(chosen, s.kept)
                continue
        for other in range(rank, rank + ranks):
            for place in range(s.begin[other], s.stop[other]):
                chosen[p.order[place]] = s.was[other]
        if is_in_time:
            run_iteration(p, chosen, s)
    copy_clocks(s.kept, chosen)
    run_iteration(p, chosen, s)


def _change(
    p: Any,
    chosen: Any,
    s: Any,
    rank: int,
    ranks: int,
    random: int,
    allowed: float,
    joules: float,
    seconds: float,
    weight: float,
) -> tuple[int, float, int]:
    """Give a part of a run another clock, on each of some ranks, unless that costs more than is allowed in any case.

    The parts are noted in `begin`, `stop` and `was`.

    Returns the next random number, the longest iteration time for which the change costs no more than `allowed`, and
    how many instructions have changed or will be visited by `fits`: 0 if none has.
    """
    random = next_random(random)
    at = (random >> 6) / 33554432.0  # of the order of a rank
    random = next_random(random)
    size = (random >> 6) / 33554432.0
    random = next_random(random)
    sort, is_left = (random >> 8) % 8, (random >> 18) % 2 == 0
    step = 1 + (random >> 14) % 3 if (random >> 20) % 2 == 0 else 1
    step *= 1 - 2 * ((random >> 12) % 2)
    change, faster = 0.0, 0.0
    for other in range(rank, rank + ranks):
        begin, stop, own, clock = _part(p, chosen, other, at, size, sort, is_left, step)
        if clock < 0 or clock >= p.clocks or clock == own:
            stop = begin
        head, tail = begin * p.clocks, stop * p.clocks
        if stop <= begin or p.missing_before[tail + clock] != p.missing_before[head + clock]:
            stop, tail, clock = begin, head, own
        s.begin[other], s.stop[other], s.was[other] = begin, stop, own
        if stop > begin:
            change += p.cost_before[tail + clock] - p.cost_before[head + clock] - 2.0 * p.switch_joules[other]
            change -= p.cost_before[tail + own] - p.cost_before[head + own]
            gain = p.time_before[tail + own] - p.time_before[head + own]
            gain -= p.time_before[tail + clock] - p.time_before[head + clock]
            faster += max(0.0, gain) + 2.0 * p.switch_seconds  # at most two switches fewer
            for place in range(begin, stop):
                chosen[p.order[place]] = clock
    # Without the price of the iteration time, whose change is not known yet.
    least = joules - p.time_watts * seconds + change
    soonest = max(0.0, seconds - faster)
    spent = allowed - least - p.time_watts * soonest - weight * max(0.0, soonest - p.limit_seconds)
    seen = 0
    for other in range(rank, rank + ranks):
        seen += s.stop[other] - s.begin[other]
        if spent < 0.0:
            for place in range(s.begin[other], s.stop[other]):
                chosen[p.order[place]] = s.was[other]
    if seen == 0 or spent < 0.0:
        return random, 0.0, 0
    beyond = allowed - least - p.time_watts * p.limit_seconds
    if beyond >= 0.0:
        most_seconds = p.limit_seconds + beyond / (weight + p.time_watts)
    else:
        most_seconds = (allowed - least) / p.time_watts if p.time_watts > 0.0 else 0.0
    if ranks == 1:
        seen += p.order[s.stop[rank] - 1] - p.order[s.begin[rank]]
    return random, most_seconds, seen


def _part(
    p: Any, chosen: Any, rank: int, at: float, size: float, sort: int, is_left: bool, step: int
) -> tuple[int, int, int, int]:
    """Return where the part of a run of a rank begins and ends, its clock, and another one, which may not exist."""
    first, last = p.first_in_order[rank], p.first_in_order[rank + 1]
    place = first + int(at * (last - first))
    begin, end = place, run_end(p, chosen, place, last)
    own = chosen[p.order[place]]
    while begin > first and chosen[p.order[begin - 1]] == own:
        begin -= 1
    # The iteration begins at the clock at its end.
    left = chosen[p.order[begin - 1 if begin > first else last - 1]]
    right = chosen[p.order[end if end < last else first]]
    if sort < 2:  # the whole run
        return begin, end, own, own + step
    if sort == 2:
        return begin, end, own, left if is_left else right
    if sort < 6:  # a switch moves
        moved = int((end - begin) ** size)
        if is_left:
            return begin, begin + moved, own, left
        return end - moved, end, own, right
    if sort == 6 and is_left:  # the run is divided
        return begin, place, own, own + step
    if sort == 6:
        return place, end, own, own + step
    return place, place + int((end - place) ** size), own, own + step
