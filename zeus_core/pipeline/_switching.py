"""Plans whose clock switches have a price: few switches, each of which saves more than it costs.

One way for all of them: a bound with its prices of time (`_switch_bound.py`), clocks to begin with
(`_switch_starts.py`), and a local search from the best of these (`_switch_search.py`). The simple plans that
`zeus_core.pipeline.baselines` knows are among the starts, so no plan is worse than they are.

The same is done first for a stricter problem, with a higher price and a longer dwell; what it finds is a start too. A
strict problem is the easier one, and a plan made for it must not be better than that of this problem.

Time, energy and dwell are always those that `zeus_core.pipeline._execution` predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.pipeline._compiled import has_numba
from zeus_core.pipeline._dependencies import Indices
from zeus_core.pipeline._execution import SwitchPrice, execute
from zeus_core.pipeline._frontier import Frontier
from zeus_core.pipeline._options import CostedOption
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._simple_plans import simple_plans
from zeus_core.pipeline._switch_bound import find_bound
from zeus_core.pipeline._switch_search import search
from zeus_core.pipeline._switch_starts import one_clock_per_rank, starts_by_paces, starts_by_prices
from zeus_core.pipeline._switch_task import NumberedProblem, RunState, SwitchTask, run

__all__ = ["SwitchingPlan", "plan_switches"]

# All values below trade the quality of plans for the time to find them.
_VISITS = 2_000_000  # instructions visited to improve each start; all together take about a second when compiled
_SLOWER_WITHOUT_NUMBA = 20  # fewer visits without numba, whose loops take longer
_KEPT = 3  # of each family of starts, and of the results, which are improved further
_STRICTER = 4.0  # by how much the stricter problem is: in price and in dwell


class SwitchingPlan(NamedTuple):
    """Clocks, and how far they can be from the best.

    Attributes:
        options: The option of each instruction, in the order of `Problem.graph`.
        bound_joules: No plan for the same problem takes less energy than this over its iteration time, or, if the GPUs
            wait until a later time, than this and the waiting after that of this plan.
    """

    options: list[CostedOption]
    bound_joules: float


def plan_switches(
    frontier: Frontier, limit_seconds: float, is_waiting: bool, price: SwitchPrice, effort: float = 1.0
) -> SwitchingPlan:
    """Choose a clock for each instruction, so that the iteration with its switches keeps a time.

    Args:
        frontier: The frontier of the pipeline.
        limit_seconds: The longest iteration time.
        is_waiting: See `Frontier.at`.
        price: That of a switch.
        effort: Search effort relative to the default.

    Raises:
        UsageError: Not even one clock per rank keeps the time.
    """
    problem = frontier.problem
    numbered = NumberedProblem.from_problem(problem)
    task = numbered.priced(limit_seconds, is_waiting, price)
    point = frontier.at(limit_seconds, is_waiting)
    bound = find_bound(task, point.price_watts[numbered.instruction], point.arc_price_watts[numbered.arc], effort)
    strict = numbered.priced(limit_seconds, is_waiting, SwitchPrice(*(_STRICTER * number for number in price)))
    simple = [numbered.chosen(options) for options in simple_plans(problem, limit_seconds)]
    visits = int(effort * (_VISITS if has_numba() else _VISITS // _SLOWER_WITHOUT_NUMBA))
    found: list[Indices] = []
    for each in (strict, task):
        families = [
            found,
            [*simple, one_clock_per_rank(each)],
            starts_by_prices(each, bound.price_watts),
            starts_by_paces(numbered, each),
        ]
        state = RunState.for_task(each)
        starts = [chosen for family in families for chosen in _cheapest_first(each, family, state)[:_KEPT]]
        found = _improved(each, starts, visits)
    if not found:
        raise _too_short(problem, limit_seconds, price)
    best = _improved(task, _improved(task, found[:_KEPT], 4 * visits)[:1], 16 * visits)[0]
    bound_joules = bound.cost_joules + problem.transfer_joules
    if is_waiting:
        bound_joules += problem.blocking_power_watts * run(task, best, RunState.for_task(task))[0]
    else:
        bound_joules = max(bound_joules, point.energy_joules)
    return SwitchingPlan(numbered.options(best), bound_joules)


def _improved(task: SwitchTask, plans: Sequence[Indices], visits: int) -> list[Indices]:
    """Improve each plan, which keeps limit and dwell, in place; return them, the cheapest first."""
    state = RunState.for_task(task)
    for chosen in plans:
        search(task, chosen, state, visits)
    return _cheapest_first(task, plans, state)


def _cheapest_first(task: SwitchTask, plans: Iterable[Indices], state: RunState) -> list[Indices]:
    """Return the plans that keep limit and dwell, each once, by their cost."""
    costs: dict[bytes, tuple[float, Indices]] = {}
    for chosen in plans:
        seconds, dwell, cost = run(task, chosen, state)
        if seconds <= task.limit_seconds and dwell >= task.dwell_seconds:
            costs[chosen.tobytes()] = cost, chosen
    return [chosen for _, chosen in sorted(costs.values(), key=lambda found: found[0])]


def _too_short(problem: Problem, limit_seconds: float, price: SwitchPrice) -> UsageError:
    result = execute(problem, [problem.highest_clock_options[kind] for kind in problem.kind_of.tolist()], price)
    return UsageError(
        f"time_seconds is {limit_seconds!r}, but with {price.seconds!r} s for each switch of a clock the shortest "
        f"iteration found takes {result.time_seconds!r} s, at the highest clocks, and has "
        f"{result.shortest_dwell_seconds!r} s between switches"
    )
