"""Plans whose clock switches cost time: few switches, each of which saves more than it costs.

Starts: along each rank, the sequence of clocks of the lowest cost, where an instruction costs its energy and its time
at the prices of a point of the frontier, and a switch costs its time at the price of the next instruction. The point is
the slowest one whose sequences keep the time. One clock per rank is a further start.

Improve: a run is a row of instructions of one clock. Moves give a run, or a part of it, another clock (see
`_switch_search.py`); a move that keeps time and dwell and lowers the cost is kept.

Time, energy and dwell are always those that `zeus_core.pipeline._execution` predicts.
"""

from __future__ import annotations

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline._compiled import has_numba
from zeus_core.pipeline._dependencies import Indices, Numbers
from zeus_core.pipeline._execution import execute
from zeus_core.pipeline._frontier import Frontier
from zeus_core.pipeline._options import CostedOption
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._switch_search import Clocks, RunState, cheapest_sequences, improve, join_short_runs, run

__all__ = ["plan_switches"]

# All values below trade the quality of plans for the time to find them.
_BISECTIONS = 10  # of the urgency: it is known to 1/512
_VISITS = 8_000_000  # instructions visited while improving one start, some 0.2 s when compiled
_SLOWER_WITHOUT_NUMBA = 20  # fewer visits without numba, whose loops take longer
_IMPROVED_STARTS = 2  # the cheapest ones
# One start for each factor: sequences made as if switches cost that much more have fewer of them, which fits a dwell.
_SWITCH_PRICE_FACTORS = (1.0, 4.0, 16.0, 64.0)
_MIN_PRICED_SECONDS = 0.001  # a switch is priced at no less, so that a dwell alone already makes switches rare
_MAX_PRICE_EXPONENT = 3.0  # of ten: prices up to 1000 times those at T_min make nearly every instruction its fastest


def plan_switches(
    frontier: Frontier, time_seconds: float, is_waiting: bool, switch_seconds: float, dwell_seconds: float
) -> list[CostedOption]:
    """Choose a clock for each instruction, so that the iteration with its switches keeps a time.

    Args:
        frontier: The frontier of the pipeline.
        time_seconds: The longest iteration time.
        is_waiting: See `Frontier.at`.
        switch_seconds: Duration of a switch.
        dwell_seconds: The shortest allowed time between two switches of a rank.

    Returns:
        The option of each instruction, in the order of `Problem.graph`.

    Raises:
        UsageError: Not even one clock per rank keeps the time.
    """
    problem = frontier.problem
    clocks, clocks_mhz = _numbered_clocks(problem)
    memory = _memory(clocks)
    starts = [_one_per_rank(clocks)]
    for factor in _SWITCH_PRICE_FACTORS:
        priced_seconds = factor * max(switch_seconds, _MIN_PRICED_SECONDS)
        starts += _by_prices(
            frontier, clocks, (time_seconds, is_waiting), (switch_seconds, dwell_seconds), priced_seconds
        )
    starts.sort(key=lambda start: run(clocks, switch_seconds, start, memory)[2])
    plans = []
    for start in starts[:_IMPROVED_STARTS]:
        tries = (_VISITS if has_numba() else _VISITS // _SLOWER_WITHOUT_NUMBA) // len(start)
        improve(clocks, time_seconds, switch_seconds, dwell_seconds, start, memory, tries)
        chosen = _options(problem, start, clocks_mhz)
        result = execute(problem, chosen, switch_seconds)
        if result.time_seconds <= time_seconds and result.shortest_dwell_seconds >= dwell_seconds:
            plans.append((sum(option.cost_joules for option in chosen), chosen))
    if not plans:
        return _at_highest(problem, time_seconds, switch_seconds, dwell_seconds)
    return min(plans, key=lambda plan: plan[0])[1]


def _at_highest(
    problem: Problem, time_seconds: float, switch_seconds: float, dwell_seconds: float
) -> list[CostedOption]:
    chosen = [problem.highest_clock_options[kind] for kind in problem.kind_of.tolist()]
    result = execute(problem, chosen, switch_seconds)
    if result.time_seconds > time_seconds or result.shortest_dwell_seconds < dwell_seconds:
        raise UsageError(
            f"time_seconds is {time_seconds!r}, but with {switch_seconds!r} s for each switch of a clock the shortest "
            f"iteration found takes {result.time_seconds!r} s, at the highest clocks, and has "
            f"{result.shortest_dwell_seconds!r} s between switches"
        )
    return chosen


def _numbered_clocks(problem: Problem) -> tuple[Clocks, list[int]]:
    """Return the problem with clocks by number, and the MHz of each number."""
    measured = {option.clock_mhz for of_kind in problem.options for option in of_kind if option.clock_mhz}
    clocks_mhz = sorted(measured, reverse=True)
    time = np.full((len(problem.kinds), max(1, len(clocks_mhz))), np.inf)
    cost = np.full_like(time, np.inf)
    is_kept = np.zeros(len(problem.kinds), np.bool_)
    for kind, of_kind in enumerate(problem.options):
        for option in of_kind:
            is_kept[kind] |= option.clock_mhz is None
            place = slice(None) if option.clock_mhz is None else clocks_mhz.index(option.clock_mhz)
            time[kind, place], cost[kind, place] = option.time_seconds, option.cost_joules
    graph = problem.graph
    clocks = Clocks(
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
        order=np.argsort(graph.rank, kind="stable"),
        first_in_order=np.concatenate([[0], np.cumsum(np.bincount(graph.rank))]).astype(np.int64),
    )
    return clocks, clocks_mhz


def _options(problem: Problem, chosen: Indices, clocks_mhz: list[int]) -> list[CostedOption]:
    options = []
    for kind, clock in zip(problem.kind_of.tolist(), chosen.tolist(), strict=True):
        is_kept = problem.options[kind][0].clock_mhz is None
        stage, name = problem.kinds[kind]
        options.append(problem.option_at(stage, name, None if is_kept else clocks_mhz[clock]))
    return options


def _one_per_rank(clocks: Clocks) -> Indices:
    """Return for each rank the highest clock that all its instructions have; if there is none, each its own highest."""
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
    time: tuple[float, bool],
    switching: tuple[float, float],
    priced_seconds: float,
) -> list[Indices]:
    """Bisect for the lowest urgency whose cheapest sequences keep time and dwell.

    Args:
        frontier: The frontier of the pipeline.
        clocks: The problem.
        time: The longest iteration time in seconds, and `is_waiting` of `Frontier.at`.
        switching: Seconds of a switch, and the shortest allowed dwell in seconds.
        priced_seconds: Seconds of a switch as the sequences price it.

    Returns:
        The sequences; none if no urgency tried keeps the time.
    """
    limit, is_waiting = time
    switch_seconds, dwell_seconds = switching
    starts: list[Indices] = []
    memory = _memory(clocks)
    low, high = 0.0, 2.0
    for turn in range(_BISECTIONS):
        urgency = low if turn == 0 else (low + high) / 2
        chosen = np.zeros(len(clocks.kind), np.int64)
        cheapest_sequences(clocks, _prices_watts(frontier, limit, is_waiting, urgency), priced_seconds, chosen)
        join_short_runs(clocks, switch_seconds, dwell_seconds, chosen, memory)
        seconds, dwell, _ = run(clocks, switch_seconds, chosen, memory)
        if seconds <= limit and dwell >= dwell_seconds:
            starts, high = [chosen], urgency
            if turn == 0:
                break
        else:
            low = urgency
    return starts


def _prices_watts(frontier: Frontier, limit: float, is_waiting: bool, urgency: float) -> Numbers:
    """Return prices of time that rise with the urgency, one scale for two means.

    From 0 to 1 they are the prices of a point of the frontier, which moves from the limit to T_min. From 1 to 2 they
    are those of T_min, times 1 to 1000: switches can take so much time that the prices at T_min do not suffice.
    """
    slowest = min(limit, frontier.slowest_seconds if is_waiting else frontier.least_energy_seconds)
    position, exponent = min(1.0, urgency), _MAX_PRICE_EXPONENT * max(0.0, urgency - 1.0)
    seconds = slowest + position * (frontier.shortest_seconds - slowest)
    point = frontier.at(max(seconds, frontier.shortest_seconds), is_waiting)
    return point.price_watts * float(10.0**exponent)


def _memory(clocks: Clocks) -> RunState:
    n, ranks = len(clocks.kind), len(clocks.first_in_order) - 1
    return RunState(np.zeros(n), np.zeros(n, np.int64), np.zeros(ranks), np.zeros(ranks), np.zeros(3))
