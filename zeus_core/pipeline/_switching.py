"""Plans whose clock switches have a price: few switches, each of which saves more than it costs.

One way for all of them: a bound with its prices of time (`_switch_bound.py`), clocks to begin with
(`_switch_starts.py`), and a local search (`_switch_search.py`) from the most promising, of which fewer and fewer go on
with more and more tries. The simple plans that `zeus_core.pipeline.baselines` knows are among the starts, so no plan is
worse than they are.

The plans for stricter prices are among the starts too: those with the next higher switch time of a ladder, and those
with the next longer dwell, which in turn start from theirs. So a plan is never worse than that of a stricter problem of
the ladder in the same time, if that one's plan keeps the dwell here too: shorter switches leave less time in between.

Time, energy and dwell are always those that `zeus_core.pipeline._execution` predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
from zeus_core.pipeline._switch_search import join_short_runs, search
from zeus_core.pipeline._switch_starts import one_clock_per_rank, starts_by_paces, starts_by_prices
from zeus_core.pipeline._switch_task import NumberedProblem, RunState, SwitchTask, run

__all__ = ["SwitchingPlan", "plan_switches"]

# All values below trade the quality of plans for the time to find them.
_LADDER_SECONDS = (0.005, 0.02)  # of a switch: about what NVIDIA GPUs need at their best, and through a slow driver
_LADDER_DWELLS = (0.5,)  # seconds
_KEPT = 2  # of each family of starts
# Of all starts of a problem: how many go on, and the instructions visited to improve each. All together take about half
# a second when compiled, and there are up to six problems on the way to one plan.
_ROUNDS = ((12, 400_000), (4, 1_500_000), (2, 3_000_000), (1, 8_000_000))
_SLOWER_WITHOUT_NUMBA = 20  # fewer visits without numba, whose loops take longer


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
    watts, arc_watts = point.price_watts[numbered.instruction], point.arc_price_watts[numbered.arc]
    simple = [numbered.chosen(options) for options in simple_plans(problem, limit_seconds)]
    plans: dict[SwitchPrice, Indices | None] = {}
    for each in _ladder(price):
        own = numbered.priced(limit_seconds, is_waiting, each)
        bound = find_bound(own, watts, arc_watts, effort)
        families = [
            _kept_dwell(own, (plans[stricter] for stricter in _next_on_ladder(each))),
            [*simple, one_clock_per_rank(own)],
            starts_by_prices(own, bound.price_watts),
            starts_by_paces(numbered, own, has_two_clocks=False),
            starts_by_paces(numbered, own, has_two_clocks=True),
        ]
        plans[each] = _best(own, families, effort)
    best = plans[price]
    if best is None:
        raise _too_short(problem, limit_seconds, price)
    bound_joules = bound.cost_joules + problem.transfer_joules
    if is_waiting:
        bound_joules += problem.blocking_power_watts * run(task, best, RunState.for_task(task))[0]
    else:
        bound_joules = max(bound_joules, point.energy_joules)
    return SwitchingPlan(numbered.options(best), bound_joules)


def _ladder(price: SwitchPrice) -> list[SwitchPrice]:
    """Return all prices of the ladder from which this one starts, the strictest first, and itself as the last."""
    found = dict.fromkeys(each for stricter in _next_on_ladder(price) for each in _ladder(stricter))
    return [*sorted(found, reverse=True), price]


def _next_on_ladder(price: SwitchPrice) -> list[SwitchPrice]:
    """Return the prices that are one step stricter."""
    longer = [price._replace(seconds=seconds) for seconds in _LADDER_SECONDS if seconds > price.seconds][:1]
    rarer = [price._replace(dwell_seconds=dwell) for dwell in _LADDER_DWELLS if dwell > price.dwell_seconds][:1]
    return longer + rarer


def _kept_dwell(task: SwitchTask, plans: Iterable[Indices | None]) -> Iterator[Indices]:
    """Yield copies of the plans of other prices; less time for switches may leave less between two of them."""
    state = RunState.for_task(task)
    for plan in plans:
        if plan is not None:
            chosen = plan.copy()
            join_short_runs(task, chosen, state)
            yield chosen


def _best(task: SwitchTask, families: Iterable[Iterable[Indices]], effort: float) -> Indices | None:
    """Return the best clocks that a search from these starts finds; None if no start keeps limit and dwell."""
    state = RunState.for_task(task)
    plans = [chosen.copy() for family in families for chosen in _cheapest_first(task, family, state)[:_KEPT]]
    for kept, visits in _ROUNDS:
        plans = _cheapest_first(task, plans, state)[:kept]
        for chosen in plans:
            search(task, chosen, state, int(effort * (visits if has_numba() else visits // _SLOWER_WITHOUT_NUMBA)))
    return next(iter(_cheapest_first(task, plans, state)), None)


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
