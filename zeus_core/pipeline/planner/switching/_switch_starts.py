"""Clocks to begin with where switches have a price. The search of `_switch_search.py` improves the best of them.

By prices: along each rank, the sequence of clocks of the lowest cost, where an instruction costs its energy and its
time at the price of that instruction in a dual solution (`_switch_bound.py`), and a switch costs its time at the same
price. All prices are multiplied by the lowest factor at which the sequences keep the time; or by less, and then runs on
the longest path are made faster until it does.

Two paces: at a pace, each rank has the clock of the lowest energy at which its work takes no longer than that pace; or
one clock for forward passes and one for all else, if their switches are worth it too. Each rank goes at one pace until
its k-th backward pass, and at another from there on. All pairs of paces are tried, of which one alone would keep the
limit and the other would not, with the k at which both together just keep it. A plan of one pace is one clock per rank,
or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline.planner.compiled import Kernels
from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline.planner.switching._switch_repair import join_short_runs, repair
from zeus_core.pipeline.planner.switching._switch_task import (
    NumberedProblem,
    RunState,
    SwitchTask,
    last_clock,
    run,
    run_iteration,
)

__all__ = ["one_clock_per_rank", "starts_by_paces", "starts_by_prices"]

# All values below trade the quality of plans for the time to find them.
_BISECTIONS = 6  # of the factor of prices: it is known to 12 %
_MAX_PRICE_FACTOR = 1000.0  # makes nearly every instruction its fastest
# Sequences made as if switches cost that much more have fewer of them, which fits a dwell.
_SWITCH_PRICE_FACTORS = (0.5, 1.0, 2.0, 4.0, 16.0)
# Of prices whose sequences need not keep the limit, and are repaired. The best plan often comes from those that were up
# to 6 % too slow, as the repair leaves time that the search then uses: hence the lower prices.
_REPAIRED_EXPONENTS = (-0.1, 0.0, 0.05)
_MIN_PRICED_SECONDS = 0.001  # a switch is priced at no less, so that a dwell alone already makes switches rare
_MAX_PACES = 64
_MAX_PAIRS = 40  # of those that promise the lowest energy, in both orders
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
    came_from, total = np.zeros(len(task.kind) * task.clocks, np.int64), np.zeros(task.clocks)
    for factor in _SWITCH_PRICE_FACTORS:
        switch_seconds = factor * max(task.switch_seconds, _MIN_PRICED_SECONDS)
        found = None
        low, high = 0.0, 2.0  # of the exponent of the factor of the prices: 0 is a factor of 1, 2 the highest
        for turn in range(_BISECTIONS):
            exponent = low if turn == 0 else (low + high) / 2
            chosen = np.zeros(len(task.kind), np.int64)
            prices = price_watts * _MAX_PRICE_FACTOR ** (exponent / 2)
            _KERNELS.call(_cheapest_sequences, task, prices, switch_seconds, came_from, total, chosen)
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
            _KERNELS.call(_cheapest_sequences, task, prices, switch_seconds, came_from, total, chosen)
            join_short_runs(task, chosen, state)
            repair(task, chosen, state)
            join_short_runs(task, chosen, state)
            yield chosen


class _Paces(NamedTuple):
    """Paces, and where a rank can change between two of them.

    Attributes:
        is_forward: Whether each instruction is a forward pass. [instructions]
        clock: The clock of each rank at each pace: first of all else, then of forward passes. [paces * ranks * 2]
        change: The place in the order at which each rank changes its pace after its k-th backward pass. [k * ranks]
    """

    is_forward: NDArray[np.bool_]
    clock: Indices
    change: Indices


def starts_by_paces(numbered: NumberedProblem, task: SwitchTask, has_two_clocks: bool) -> Iterator[Indices]:
    """Yield the cheapest plans found of one pace, and of two, that keep limit and dwell.

    Args:
        numbered: The problem.
        task: Its arrays.
        has_two_clocks: Whether forward passes may have a clock of their own at each pace.
    """
    paces = _paces(numbered, task, has_two_clocks)
    count = len(paces.clock) // (2 * len(task.switch_joules))
    state, chosen = RunState.for_task(task), np.zeros(len(task.kind), np.int64)
    seconds, costs = np.full(count, np.inf), np.zeros(count)
    for pace in range(count):
        _KERNELS.call(_change_pace, task, pace, pace, 0, paces, chosen)
        seconds[pace], dwell, costs[pace] = run(task, chosen, state)
        if seconds[pace] <= task.limit_seconds and dwell >= task.dwell_seconds:
            yield chosen.copy()
    if not (seconds <= task.limit_seconds).any():
        return
    pairs = _promising_pairs(seconds, costs, task)
    found, changes = np.full(len(pairs[0]), np.inf), np.zeros(len(pairs[0]), np.int64)
    _KERNELS.call(_pace_starts, task, *pairs, paces, chosen, state, found, changes)
    for pair in np.argsort(found, kind="stable")[:_PACE_STARTS].tolist():
        if np.isfinite(found[pair]):
            _KERNELS.call(_change_pace, task, pairs[0][pair], pairs[1][pair], changes[pair], paces, chosen)
            yield chosen.copy()


def _paces(numbered: NumberedProblem, task: SwitchTask, has_two_clocks: bool) -> _Paces:
    ranks = len(task.first_in_order) - 1
    instructions = numbered.problem.graph.instructions
    kinds = [instructions[number].kind for number in numbered.instruction.tolist()]
    is_forward = np.array([kind == "forward" for kind in kinds])
    seconds, joules = np.zeros((2, ranks, task.clocks)), np.zeros((2, ranks, task.clocks))
    switches, ends = np.zeros(ranks), []
    for rank, (first, last) in enumerate(zip(task.first_in_order[:-1], task.first_in_order[1:], strict=True)):
        members = task.order[first:last]
        for group in range(2):
            own = task.kind[members[is_forward[members] == group]]
            seconds[group, rank] = task.time.reshape(-1, task.clocks)[own].sum(axis=0)
            joules[group, rank] = task.cost.reshape(-1, task.clocks)[own].sum(axis=0)
        switches[rank] = np.count_nonzero(is_forward[members] != np.roll(is_forward[members], 1))
        backwards = (place for place, at in enumerate(members.tolist()) if kinds[at].startswith("backward"))
        ends.append([first, *(first + place + 1 for place in backwards)])
    total, cost = seconds.sum(axis=0), joules.sum(axis=0)
    has_clock = np.isfinite(total)
    if not has_clock.any(axis=1).all():
        return _Paces(is_forward, np.zeros(0, np.int64), np.zeros(0, np.int64))
    fastest = np.where(has_clock, total, np.inf).min(axis=1).max()
    paces = np.unique(total[has_clock & (total >= fastest) & (total <= max(fastest, task.limit_seconds))])
    paces = paces[np.unique(np.linspace(0, len(paces) - 1, min(len(paces), _MAX_PACES)).round().astype(int))]
    if has_two_clocks:
        is_other = ~np.eye(task.clocks, dtype=np.bool_) * switches[:, None, None]
        total = seconds[0][:, :, None] + seconds[1][:, None, :] + is_other * task.switch_seconds
        cost = joules[0][:, :, None] + joules[1][:, None, :] + is_other * task.switch_joules[:, None, None]
    else:
        total, cost = (np.where(np.eye(task.clocks), of[:, :, None], np.inf) for of in (total, cost))
    total, cost = total.reshape(ranks, -1), cost.reshape(ranks, -1)
    pair = np.array([np.where(total <= pace * (1 + ROUNDING), cost, np.inf).argmin(axis=1) for pace in paces])
    changes = max(map(len, ends))
    change = [[of_rank[round(k * (len(of_rank) - 1) / (changes - 1))] for of_rank in ends] for k in range(changes)]
    return _Paces(
        is_forward,
        np.stack([pair // task.clocks, pair % task.clocks], axis=-1).astype(np.int64).ravel(),
        np.array(change, np.int64).ravel(),
    )


def _promising_pairs(seconds: Numbers, costs: Numbers, task: SwitchTask) -> tuple[Indices, Indices]:
    """Return the first and the second of pairs of a pace that keeps the limit and one that does not, in both orders.

    They are those of the lowest cost if the iteration were divided between both so that it just keeps the limit.
    """
    work, limit = costs - task.time_watts * seconds, task.limit_seconds
    fast, slow = np.flatnonzero(seconds <= limit), np.flatnonzero(seconds > limit)
    share = (limit - seconds[fast, None]) / (seconds[slow] - seconds[fast, None])
    promised = work[fast, None] + share * (work[slow] - work[fast, None])
    best = np.argsort(promised, axis=None, kind="stable")[:_MAX_PAIRS]
    one, other = fast[best // max(1, len(slow))], slow[best % max(1, len(slow))]
    return np.concatenate([one, other]), np.concatenate([other, one])


def _cheapest_sequences(p: Any, prices: Any, switch_seconds: float, came_from: Any, total: Any, chosen: Any) -> None:
    """Find the clocks of the lowest energy and priced time along each rank, by dynamic programming.

    Args:
        p: The problem.
        prices: The price of time of each instruction.
        switch_seconds: The time of a switch.
        came_from: Memory: the clock before each instruction, for each of its own. [instructions * clocks]
        total: Memory. [clocks]
        chosen: The clocks that are found.
    """
    clocks = p.clocks
    for rank in range(len(p.first_in_order) - 1):
        for clock in range(clocks):
            total[clock] = 0.0
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
                came_from[at * clocks + clock] = clock
                if not p.is_kept[kind]:
                    if switched < total[clock]:
                        total[clock] = switched
                        came_from[at * clocks + clock] = cheapest
                    if p.time[kind * clocks + clock] < np.inf:  # a price of 0 times that is no number
                        total[clock] += p.cost[kind * clocks + clock] + prices[at] * p.time[kind * clocks + clock]
                    else:
                        total[clock] = np.inf
        clock = 0
        for other in range(clocks):
            if total[other] < total[clock]:
                clock = other
        for place in range(last - 1, first - 1, -1):
            at = p.order[place]
            chosen[at] = clock
            clock = came_from[at * clocks + clock]


def _pace_starts(
    p: Any, first_pace: Any, second_pace: Any, paces: Any, chosen: Any, s: Any, found: Any, changes: Any
) -> None:
    """Bisect for the change of each pair, towards the cheaper pace; set its cost and change."""
    latest = len(paces.change) // (len(p.first_in_order) - 1) - 1
    for pair in range(len(first_pace)):
        one, other = first_pace[pair], second_pace[pair]
        _change_pace(p, one, other, 0, paces, chosen)
        run_iteration(p, chosen, s)
        is_late_fast = s.result[0] <= p.limit_seconds
        _change_pace(p, one, other, latest, paces, chosen)
        run_iteration(p, chosen, s)
        if is_late_fast == (s.result[0] <= p.limit_seconds):
            continue
        early, late = 0, latest
        while early <= late:
            middle = (early + late) // 2
            _change_pace(p, one, other, middle, paces, chosen)
            run_iteration(p, chosen, s)
            is_in_time = s.result[0] <= p.limit_seconds
            if is_in_time and s.result[1] >= p.dwell_seconds and s.result[2] < found[pair]:
                found[pair] = s.result[2]
                changes[pair] = middle
            if is_in_time == is_late_fast:
                late = middle - 1
            else:
                early = middle + 1


def _change_pace(p: Any, one: int, other: int, change: int, paces: Any, chosen: Any) -> None:
    """Give each rank the clocks of a pace until a change, and of another one after it."""
    ranks = len(p.first_in_order) - 1
    for rank in range(ranks):
        for place in range(p.first_in_order[rank], p.first_in_order[rank + 1]):
            pace = one if place < paces.change[change * ranks + rank] else other
            at = p.order[place]
            chosen[at] = paces.clock[2 * (pace * ranks + rank) + (1 if paces.is_forward[at] else 0)]


_KERNELS = Kernels(_cheapest_sequences, last_clock, run_iteration, _change_pace, _pace_starts)
