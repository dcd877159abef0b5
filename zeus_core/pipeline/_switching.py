"""Plans whose clock switches cost time: fewer of them, each worth its while.

Start: along each rank, the sequence of clocks of least cost, where an instruction costs its energy and its time at the
prices of a point of the frontier, and a switch its time at the price of what follows. The point is the slowest one
whose sequences keep the time. One clock per rank is the other start.

Improve: a run of instructions of one clock takes over the clock of a neighbouring run, or another of its own; the
first and last instruction of a run join the run beside it. What keeps the time and the dwell and is cheaper stays.

The time, the energy and the dwell are always those of `zeus_core.pipeline._execution`.
"""

from __future__ import annotations

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline._compiled import has_numba
from zeus_core.pipeline._dependencies import Indices, Numbers
from zeus_core.pipeline._execution import execute
from zeus_core.pipeline._frontier import Frontier
from zeus_core.pipeline._hull import CostedOption
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._switch_search import Clocks, RunState, cheapest_sequences, improve, join_short_runs, run

__all__ = ["plan_switches"]

_BISECTIONS = 10
_VISITS = 8_000_000  # instructions visited while improving one start, some 0.2 s when compiled
_FACTORS = (1.0, 4.0, 16.0, 64.0)
_LEAST_PRICED_SECONDS = 0.001
_IMPROVED = 2


def plan_switches(
    frontier: Frontier, time_seconds: float, is_waiting: bool, switch_seconds: float, dwell_seconds: float
) -> list[CostedOption]:
    """Choose a clock for each instruction, so that the iteration with its switches takes at most so long.

    Args:
        frontier: What is planned.
        time_seconds: The longest iteration time.
        is_waiting: See `Frontier.at`.
        switch_seconds: What a switch takes.
        dwell_seconds: The least time between two switches of a rank.

    Returns:
        The choice of each instruction, in the order of `Problem.graph`.

    Raises:
        UsageError: Not even one clock per rank keeps the time.
    """
    problem = frontier.problem
    clocks, numbers = _clocks(problem)
    scratch = _scratch(clocks)
    starts = [_one_per_rank(clocks)]
    for factor in _FACTORS:
        starts += _by_prices(frontier, clocks, time_seconds, is_waiting, (switch_seconds, factor), dwell_seconds)
    starts.sort(key=lambda it: run(clocks, switch_seconds, it, scratch)[2])
    found = []
    for start in starts[:_IMPROVED]:
        tries = (_VISITS if has_numba() else _VISITS // 20) // len(start)
        improve(clocks, time_seconds, switch_seconds, dwell_seconds, start, scratch, tries)
        chosen = _choices(problem, start, numbers)
        result = execute(problem, chosen, switch_seconds)
        if result.time_seconds <= time_seconds and result.shortest_dwell_seconds >= dwell_seconds:
            found.append((sum(choice.cost_joules for choice in chosen), chosen))
    if not found:
        return _at_highest(problem, time_seconds, switch_seconds, dwell_seconds)
    return min(found, key=lambda it: it[0])[1]


def _at_highest(
    problem: Problem, time_seconds: float, switch_seconds: float, dwell_seconds: float
) -> list[CostedOption]:
    chosen = [problem.highest_clocks[kind] for kind in problem.kind_of.tolist()]
    result = execute(problem, chosen, switch_seconds)
    if result.time_seconds > time_seconds or result.shortest_dwell_seconds < dwell_seconds:
        raise UsageError(
            f"time_seconds is {time_seconds!r}, but with {switch_seconds!r} s for each switch of a clock the shortest "
            f"iteration that was found takes {result.time_seconds!r} s, at the highest clocks, and has "
            f"{result.shortest_dwell_seconds!r} s between switches"
        )
    return chosen


def _clocks(problem: Problem) -> tuple[Clocks, list[int]]:
    numbers = sorted({it.clock_mhz for of_kind in problem.all_choices for it in of_kind if it.clock_mhz}, reverse=True)
    time = np.full((len(problem.kinds), max(1, len(numbers))), np.inf)
    cost = np.full_like(time, np.inf)
    is_kept = np.zeros(len(problem.kinds), np.bool_)
    for kind, of_kind in enumerate(problem.all_choices):
        for choice in of_kind:
            is_kept[kind] |= choice.clock_mhz is None
            place = slice(None) if choice.clock_mhz is None else numbers.index(choice.clock_mhz)
            time[kind, place], cost[kind, place] = choice.time_seconds, choice.cost_joules
    graph = problem.graph
    order = np.argsort(graph.rank, kind="stable")
    return Clocks(
        first_arc=graph.first_arc,
        arc_from=graph.arc_from,
        delay=problem.arc_delay_seconds,
        before=graph.before,
        rank=graph.rank,
        kind=problem.kind_of,
        clocks=time.shape[1],
        time=time.ravel(),
        cost=cost.ravel(),
        is_kept=is_kept,
        order=order,
        first_in_order=np.concatenate([[0], np.cumsum(np.bincount(graph.rank))]).astype(np.int64),
    ), numbers


def _choices(problem: Problem, chosen: Indices, numbers: list[int]) -> list[CostedOption]:
    choices = []
    for kind, clock in zip(problem.kind_of.tolist(), chosen.tolist(), strict=True):
        is_kept = problem.all_choices[kind][0].clock_mhz is None
        stage, name = problem.kinds[kind]
        choices.append(problem.choice_at(stage, name, None if is_kept else numbers[clock]))
    return choices


def _one_per_rank(clocks: Clocks) -> Indices:
    """On each rank the highest clock that all its instructions have; where there is none, each its own highest."""
    chosen = np.zeros(len(clocks.kind), np.int64)
    is_measured = np.isfinite(clocks.time).reshape(-1, clocks.clocks)
    for rank in range(len(clocks.first_in_order) - 1):
        members = clocks.order[clocks.first_in_order[rank] : clocks.first_in_order[rank + 1]]
        common = is_measured[np.unique(clocks.kind[members])].all(axis=0)
        own = is_measured[clocks.kind[members]].argmax(axis=1)
        chosen[members] = common.argmax() if common.any() else own
    return chosen


def _by_prices(
    frontier: Frontier,
    clocks: Clocks,
    limit: float,
    is_waiting: bool,
    price: tuple[float, float],
    dwell_seconds: float,
) -> list[Indices]:
    """The cheapest sequences at the slowest frontier point whose sequences keep the time; none if there is none.

    With a factor above 1, sequences are made as if switches cost more than they do: there will be fewer of them.
    """
    switch_seconds, factor = price
    priced_seconds = factor * max(switch_seconds, _LEAST_PRICED_SECONDS)
    found: list[Indices] = []
    scratch = _scratch(clocks)
    low, high = 0.0, 1.0
    for turn in range(_BISECTIONS):
        haste = low if turn == 0 else (low + high) / 2
        chosen = np.zeros(len(clocks.kind), np.int64)
        prices = _prices(frontier, limit, is_waiting, haste)
        cheapest_sequences(clocks, prices, priced_seconds, chosen)
        join_short_runs(clocks, switch_seconds, dwell_seconds, chosen, scratch)
        seconds, dwell, _ = run(clocks, switch_seconds, chosen, scratch)
        if seconds <= limit and dwell >= dwell_seconds:
            found, high = [chosen], haste
            if turn == 0:
                break
        else:
            low = haste
    return found


def _prices(frontier: Frontier, limit: float, is_waiting: bool, haste: float) -> Numbers:
    """Prices of time: to a haste of 1/2 those of points from the limit down to T_min, beyond that times up to 1000."""
    slowest = min(limit, frontier.slowest_seconds if is_waiting else frontier.least_energy_seconds)
    seconds = slowest + min(1.0, 2 * haste) * (frontier.shortest_seconds - slowest)
    point = frontier.at(max(seconds, frontier.shortest_seconds), is_waiting)
    return point.price_watts * float(10.0 ** (6 * max(0.0, haste - 0.5)))


def _scratch(clocks: Clocks) -> RunState:
    n, ranks = len(clocks.kind), len(clocks.first_in_order) - 1
    return RunState(np.zeros(n), np.zeros(n, np.int64), np.zeros(ranks), np.zeros(ranks), np.zeros(3))
