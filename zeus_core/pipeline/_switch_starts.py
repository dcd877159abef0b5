"""Clocks to begin with where switches have a price. The search of `_switch_search.py` improves the best of them.

By prices: along each rank, the sequence of clocks of the lowest cost, where an instruction costs its energy and its
time at the price of that instruction in a dual solution (`_switch_bound.py`), and a switch costs its time likewise.
All prices are multiplied by the lowest factor at which the sequences keep the time; or by less, and then runs on the
longest path are made faster until it does.

Two paces: at a pace, each rank has the clock of the lowest energy at which its work takes no longer than that pace.
Each rank goes at one pace until its k-th backward pass, and at another from there on. All pairs of paces are tried, of
which one alone would keep the limit and the other would not, with the k at which both together just keep it. A plan of
one pace is one clock per rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline._compiled import Kernels
from zeus_core.pipeline._dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline._switch_search import join_short_runs, repair
from zeus_core.pipeline._switch_task import NumberedProblem, RunState, SwitchTask, last_clock, run, run_iteration

__all__ = ["one_clock_per_rank", "starts_by_paces", "starts_by_prices"]

# All values below trade the quality of plans for the time to find them.
_BISECTIONS = 8  # of the factor of prices: it is known to 3 %
_MAX_PRICE_FACTOR = 1000.0  # makes nearly every instruction its fastest
# One start for each factor: sequences made as if switches cost that much more have fewer of them, which fits a dwell.
_SWITCH_PRICE_FACTORS = (1.0, 6.0, 36.0)
_REPAIRED_EXPONENTS = (0.0, 0.2)  # of prices whose sequences need not keep the limit, and are repaired
_MIN_PRICED_SECONDS = 0.001  # a switch is priced at no less, so that a dwell alone already makes switches rare
_MAX_PACES = 64
_MAX_PAIRS = 150  # of those that promise the lowest energy, in both orders
_PACE_STARTS = 8


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


def starts_by_prices(task: SwitchTask, price_watts: Numbers) -> Iterator[Indices]:
    """Yield sequences of the lowest cost at these prices of time that keep limit and dwell, at most one per factor.

    Args:
        task: The problem.
        price_watts: The price of time of each instruction. [instructions]
    """
    state = RunState.for_task(task)
    for factor in _SWITCH_PRICE_FACTORS:
        switch_seconds = factor * max(task.switch_seconds, _MIN_PRICED_SECONDS)
        found = None
        low, high = 0.0, 2.0  # of the exponent of the factor of the prices: 0 is a factor of 1, 2 the highest
        for turn in range(_BISECTIONS):
            exponent = low if turn == 0 else (low + high) / 2
            chosen = np.zeros(len(task.kind), np.int64)
            prices = price_watts * _MAX_PRICE_FACTOR ** (exponent / 2)
            _KERNELS.call(_cheapest_sequences, task, prices, switch_seconds, chosen)
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
            chosen = np.zeros(len(task.kind), np.int64)
            prices = price_watts * _MAX_PRICE_FACTOR ** (exponent / 2)
            _KERNELS.call(_cheapest_sequences, task, prices, switch_seconds, chosen)
            join_short_runs(task, chosen, state)
            repair(task, chosen, state)
            join_short_runs(task, chosen, state)
            yield chosen


class _Paces(NamedTuple):
    """Paces, and where a rank can change between two of them.

    Attributes:
        clock: The clock of each rank at each pace. [paces, ranks]
        change: The place in the order at which each rank changes its pace after its k-th backward pass. [k, ranks]
    """

    clock: Indices
    change: Indices


def starts_by_paces(numbered: NumberedProblem, task: SwitchTask) -> Iterator[Indices]:
    """Yield the cheapest plans found of one pace, and of two, that keep limit and dwell."""
    paces = _paces(numbered, task)
    state, chosen = RunState.for_task(task), np.zeros(len(task.kind), np.int64)
    seconds, costs = np.zeros(len(paces.clock)), np.zeros(len(paces.clock))
    for pace in range(len(paces.clock)):
        seconds[pace], _, costs[pace] = run(task, _at_pace(task, paces, pace), state)
    is_in_time = seconds <= task.limit_seconds
    if not is_in_time.any():
        return
    yield _at_pace(task, paces, int(np.where(is_in_time, costs, np.inf).argmin()))
    pairs = _promising_pairs(seconds, costs, task)
    found = np.zeros((len(pairs), 2))
    _KERNELS.call(_pace_starts, task, pairs, paces.clock, paces.change, chosen, state, found)
    for pair in np.argsort(found[:, 0], kind="stable")[:_PACE_STARTS].tolist():
        if np.isfinite(found[pair, 0]):
            _KERNELS.call(_change_pace, task, pairs[pair], int(found[pair, 1]), paces.clock, paces.change, chosen)
            yield chosen.copy()


def _paces(numbered: NumberedProblem, task: SwitchTask) -> _Paces:
    ranks = len(task.first_in_order) - 1
    seconds, joules = np.zeros((ranks, task.clocks)), np.zeros((ranks, task.clocks))
    instructions = numbered.problem.graph.instructions
    ends: list[list[int]] = []
    for rank, (first, last) in enumerate(zip(task.first_in_order[:-1], task.first_in_order[1:], strict=True)):
        members = task.order[first:last]
        seconds[rank] = task.time.reshape(-1, task.clocks)[task.kind[members]].sum(axis=0)
        joules[rank] = task.cost.reshape(-1, task.clocks)[task.kind[members]].sum(axis=0)
        kinds = [instructions[number].kind for number in numbered.instruction[members].tolist()]
        ends.append([first, *(first + place + 1 for place, kind in enumerate(kinds) if kind.startswith("backward"))])
    has_clock = np.isfinite(seconds)
    if not has_clock.any(axis=1).all():
        return _Paces(np.zeros((0, ranks), np.int64), np.zeros((0, ranks), np.int64))
    fastest = np.where(has_clock, seconds, np.inf).min(axis=1).max()
    paces = np.unique(seconds[has_clock & (seconds >= fastest) & (seconds <= max(fastest, task.limit_seconds))])
    paces = paces[np.unique(np.linspace(0, len(paces) - 1, min(len(paces), _MAX_PACES)).round().astype(int))]
    clock = [np.where(seconds <= pace * (1 + ROUNDING), joules, np.inf).argmin(axis=1) for pace in paces]
    changes = max(map(len, ends))
    change = [[of_rank[round(k * (len(of_rank) - 1) / (changes - 1))] for of_rank in ends] for k in range(changes)]
    return _Paces(np.array(clock, np.int64), np.array(change, np.int64))


def _at_pace(task: SwitchTask, paces: _Paces, pace: int) -> Indices:
    chosen = np.empty(len(task.kind), np.int64)
    chosen[task.order] = np.repeat(paces.clock[pace], np.diff(task.first_in_order))
    return chosen


def _promising_pairs(seconds: Numbers, costs: Numbers, task: SwitchTask) -> Indices:
    """Return pairs of a pace that keeps the limit and one that does not, in both orders.

    They are those of the lowest cost if the iteration were divided between both so that it just keeps the limit.
    """
    work, limit = costs - task.time_watts * seconds, task.limit_seconds
    fast, slow = np.flatnonzero(seconds <= limit), np.flatnonzero(seconds > limit)
    share = (limit - seconds[fast, None]) / (seconds[slow] - seconds[fast, None])
    promised = work[fast, None] + share * (work[slow] - work[fast, None])
    best = np.argsort(promised, axis=None, kind="stable")[:_MAX_PAIRS]
    pairs = np.stack([fast[best // max(1, len(slow))], slow[best % max(1, len(slow))]], axis=1)
    return np.concatenate([pairs, pairs[:, ::-1]]).astype(np.int64)


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
            switched = total[cheapest] + switch_seconds * prices[at] + p.switch_joules[rank]
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


def _pace_starts(p: Any, pairs: Any, clock_of: Any, place_of: Any, chosen: Any, s: Any, found: Any) -> None:
    """Bisect for the change of each pair, towards the cheaper pace."""
    for pair in range(len(pairs)):
        early, late = 0, len(place_of) - 1
        found[pair][0] = np.inf
        ends = np.zeros((2, 2))
        for side in range(2):
            _change_pace(p, pairs[pair], side * late, clock_of, place_of, chosen)
            run_iteration(p, chosen, s)
            ends[side, 0], ends[side, 1] = s.result[0], s.result[2]
        is_early_fast = ends[0, 0] <= p.limit_seconds
        if is_early_fast == (ends[1, 0] <= p.limit_seconds):
            continue
        while early <= late:
            middle = (early + late) // 2
            _change_pace(p, pairs[pair], middle, clock_of, place_of, chosen)
            run_iteration(p, chosen, s)
            is_in_time = s.result[0] <= p.limit_seconds
            if is_in_time and s.result[1] >= p.dwell_seconds and s.result[2] < found[pair][0]:
                found[pair][0], found[pair][1] = s.result[2], middle
            if is_in_time == is_early_fast:
                early = middle + 1
            else:
                late = middle - 1


def _change_pace(p: Any, pair: Any, change: int, clock_of: Any, place_of: Any, chosen: Any) -> None:
    for rank in range(len(p.first_in_order) - 1):
        for place in range(p.first_in_order[rank], p.first_in_order[rank + 1]):
            chosen[p.order[place]] = clock_of[pair[0 if place < place_of[change][rank] else 1]][rank]


_KERNELS = Kernels(_cheapest_sequences, last_clock, run_iteration, _change_pace, _pace_starts)
