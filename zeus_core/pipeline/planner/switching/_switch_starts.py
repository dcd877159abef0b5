"""Clocks to begin with where switches have a price. The search of `_switch_search.py` improves the best of them.

By prices: along each rank, the sequence of clocks of the lowest cost, where an instruction costs its energy and its
time at the price of that instruction in a dual solution (`_switch_bound.py`), and a switch costs its time at the same
price. All prices are multiplied by the lowest factor at which the sequences keep the time; or by less, and then runs on
the longest path are made faster until it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from zeus_core.pipeline.planner.compiled import Kernels
from zeus_core.pipeline.planner.dependencies import Indices, Numbers
from zeus_core.pipeline.planner.switching._switch_repair import join_short_runs, repair
from zeus_core.pipeline.planner.switching._switch_task import RunState, SwitchTask, run

__all__ = ["one_clock_per_rank", "starts_by_prices"]

# All values below trade the quality of plans for the time to find them.
_BISECTIONS = 6  # of the factor of prices: it is known to 12 %
_MAX_PRICE_FACTOR = 1000.0  # makes nearly every instruction its fastest
# Sequences made as if switches cost that much more have fewer of them, which fits a dwell.
_SWITCH_PRICE_FACTORS = (0.5, 1.0, 2.0, 4.0, 16.0)
# Of prices whose sequences need not keep the limit, and are repaired. The best plan often comes from those that were up
# to 6 % too slow, as the repair leaves time that the search then uses: hence the lower prices.
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


_KERNELS = Kernels(_cheapest_sequences)
