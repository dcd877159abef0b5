"""Plans whose clock switches have a price: few switches, each of which saves more than it costs.

One way for all of them: a bound with its prices of time (`_switch_bound.py`), clocks to begin with
(`_switch_starts.py`), a local search (`_switch_search.py`) from the most promising, of which fewer and fewer go on, and
crossings of the best of these (`_switch_crossing.py`). The simple plans (`simple_plans.py`) are
among the starts, so no plan is worse than they are.

**Ladder.** The plans for stricter prices are among the starts too: those with the next higher switch time of a ladder,
and those with the next longer dwell, which in turn start from theirs. Then the plan is compared with that for the next
shorter time of the ladder, which in turn was compared with its next; unless a bound says that no plan for that time,
and so none for an even shorter one, takes less. So no plan takes more than that of a stricter problem of the ladder, if
that one keeps the dwell here too: shorter switches can leave less time in between. Each problem is searched once for
each frontier, and the result depends on nothing else.

Time, energy and dwell are always those that `zeus_core.pipeline.planner.execution` predicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.compiled import affordable
from zeus_core.pipeline.planner.dependencies import Indices
from zeus_core.pipeline.planner.execution import SwitchPrice, execute
from zeus_core.pipeline.planner.frontier.frontier import Frontier
from zeus_core.pipeline.planner.pipeline_problem import Problem
from zeus_core.pipeline.planner.simple_plans import simple_plans
from zeus_core.pipeline.planner.switching._switch_bound import Bound, find_bound
from zeus_core.pipeline.planner.switching._switch_crossing import cross
from zeus_core.pipeline.planner.switching._switch_repair import join_short_runs, mend
from zeus_core.pipeline.planner.switching._switch_search import search
from zeus_core.pipeline.planner.switching._switch_starts import one_clock_per_rank, starts_by_paces, starts_by_prices
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, RunState, SwitchTask, run

__all__ = ["SwitchingPlan", "plan_switches"]

# All values below trade the quality of plans for the time to find them.
_LADDER_SECONDS = (0.005, 0.02)  # of a switch: about what NVIDIA GPUs need at their best, and through a slow driver
_LADDER_DWELLS = (0.5,)  # seconds
_LADDER_FACTORS = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0)  # of the iteration time at the highest clocks
_KEPT = 8  # of each family of starts
_MAX_KEPT_SEARCHES = 200  # results on one frontier: 8 bytes for each instruction and result
# Of all starts of a problem: how many go on, and the instructions visited to improve each. With crossing, that takes
# some tenths of a second when compiled; four problems and more lie on the way to one plan. Which start leads to the
# best plan shows only when it is improved, so many get a little.
_ROUNDS = ((40, 200_000), (20, 500_000), (12, 500_000))
_SINGLE_VISITS = 6_000_000  # where one plan alone is improved


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
    key = is_waiting, effort
    if key not in frontier._kept:
        frontier._kept[key] = _Searches(frontier, is_waiting, effort)
    searches = frontier._kept[key]
    best = searches.best(limit_seconds, price)
    if best is None:
        raise _too_short(frontier.problem, limit_seconds, price)
    return SwitchingPlan(searches.numbered.options(best), searches.bound_joules(limit_seconds, price, best))


class _Searches:
    """The searches for plans on one frontier. Each problem is searched once, from those that are one step stricter.

    Args:
        frontier: The frontier of the pipeline.
        is_waiting: See `Frontier.at`.
        effort: Search effort relative to the default.
    """

    def __init__(self, frontier: Frontier, is_waiting: bool, effort: float) -> None:
        self.numbered = NumberedProblem.from_problem(frontier.problem)
        self._frontier, self._is_waiting, self._effort = frontier, is_waiting, effort
        self._found: dict[tuple[float, SwitchPrice], Indices | None] = {}
        self._bounds: dict[tuple[float, SwitchPrice], Bound] = {}
        self._simple_starts: dict[float, list[Indices]] = {}
        self._rungs = [factor * frontier.highest_clock_point[0] for factor in _LADDER_FACTORS]

    def best(self, limit_seconds: float, price: SwitchPrice) -> Indices | None:
        """Return the clocks of the lowest cost that are found; None if none keep limit and dwell."""
        if len(self._found) > _MAX_KEPT_SEARCHES:
            self._found.clear()
            self._bounds.clear()
            self._simple_starts.clear()
        key = limit_seconds, price
        if key not in self._found:
            self._found[key] = self._or_simple(limit_seconds, price, self._searched(limit_seconds, price))
        return self._found[key]

    def bound_joules(self, limit_seconds: float, price: SwitchPrice, plan: Indices) -> float:
        """Return a bound on the energy of any plan; see `SwitchingPlan`."""
        problem = self._frontier.problem
        joules = self._bound(limit_seconds, price).cost_joules + problem.transfer_joules
        if not self._is_waiting:
            return max(joules, float(self._frontier.energy_joules(limit_seconds)))
        task = self._task(limit_seconds, price)
        return joules + problem.blocking_power_watts * run(task, plan, RunState.for_task(task))[0]

    def _searched(self, limit_seconds: float, price: SwitchPrice) -> Indices | None:
        task, bound = self._task(limit_seconds, price), self._bound(limit_seconds, price)
        stricter = [self.best(limit_seconds, other) for other in _next_on_ladder(price)]
        families = [
            _kept_dwell(task, stricter, bound.iteration_watts),
            [*self._simple(limit_seconds), one_clock_per_rank(task)],
            starts_by_prices(task, bound.price_watts),
            starts_by_paces(self.numbered, task, has_two_clocks=False),
            starts_by_paces(self.numbered, task, has_two_clocks=True),
        ]
        found = _best(task, families, bound.iteration_watts, self._effort)
        rung = max((rung for rung in self._rungs if rung < limit_seconds), default=None)
        if rung is None or not self._may_be_cheaper(rung, price, _cost(task, found)):
            return found
        quicker = self.best(rung, price)
        if quicker is None or _cost(task, quicker) >= _cost(task, found):
            return found
        improved = _improved(task, [quicker], self._effort, _SINGLE_VISITS)
        return improved[0] if improved else quicker

    def _may_be_cheaper(self, limit_seconds: float, price: SwitchPrice, cost_joules: float) -> bool:
        """Return whether no bound says that all plans for a limit cost at least as much."""
        problem = self._frontier.problem
        until_seconds = limit_seconds if self._is_waiting else None
        least = float(self._frontier.energy_joules(limit_seconds, until_seconds)) - problem.transfer_joules
        if self._is_waiting:
            least -= problem.blocking_power_watts * limit_seconds
        return least < cost_joules and self._bound(limit_seconds, price).cost_joules < cost_joules

    def _task(self, limit_seconds: float, price: SwitchPrice) -> SwitchTask:
        if price.dwell_seconds > 0.0:
            # Longer by what a switch takes more than on the first rung, so that the plan usually keeps the dwell there.
            added = max(0.0, price.seconds - _LADDER_SECONDS[0])
            price = price._replace(dwell_seconds=price.dwell_seconds + added)
        return self.numbered.priced(limit_seconds, self._is_waiting, price)

    def _or_simple(self, limit_seconds: float, price: SwitchPrice, found: Indices | None) -> Indices | None:
        """Return what was found, or a simple plan that costs less: it need not keep the longer dwell of the search."""
        task = self.numbered.priced(limit_seconds, self._is_waiting, price)
        plans = [*self._simple(limit_seconds), one_clock_per_rank(task)]
        if found is not None:
            plans.insert(0, found)
        cheapest = _cheapest_first(task, plans, RunState.for_task(task))
        return cheapest[0] if cheapest else None

    def _simple(self, limit_seconds: float) -> list[Indices]:
        if limit_seconds not in self._simple_starts:
            plans = simple_plans(self._frontier.problem, limit_seconds)
            self._simple_starts[limit_seconds] = [self.numbered.chosen(options) for options in plans]
        return self._simple_starts[limit_seconds]

    def _bound(self, limit_seconds: float, price: SwitchPrice) -> Bound:
        """Return the bound for a price; the dwell does not matter to it."""
        key = limit_seconds, price._replace(dwell_seconds=0.0)
        if key not in self._bounds:
            point = self._frontier.at(limit_seconds, self._is_waiting)
            watts, arc_watts = point.price_watts[self.numbered.instruction], point.arc_price_watts[self.numbered.arc]
            self._bounds[key] = find_bound(self._task(*key), watts, arc_watts, self._effort)
        return self._bounds[key]


def _next_on_ladder(price: SwitchPrice) -> list[SwitchPrice]:
    """Return the prices that are one step stricter."""
    longer = [price._replace(seconds=seconds) for seconds in _LADDER_SECONDS if seconds > price.seconds][:1]
    rarer = [price._replace(dwell_seconds=dwell) for dwell in _LADDER_DWELLS if dwell > price.dwell_seconds][:1]
    return longer + rarer


def _kept_dwell(task: SwitchTask, plans: Iterable[Indices | None], iteration_watts: float) -> Iterator[Indices]:
    """Yield copies of the plans of other prices, mended in two ways: shorter switches may leave less between two."""
    state = RunState.for_task(task)
    for plan in plans:
        if plan is not None:
            mended, joined = plan.copy(), plan.copy()
            mend(task, mended, state, iteration_watts)
            join_short_runs(task, joined, state)
            yield from (mended, joined)


def _best(
    task: SwitchTask, families: Iterable[Iterable[Indices]], iteration_watts: float, effort: float
) -> Indices | None:
    """Return the best clocks that a search from these starts finds; None if no start keeps limit and dwell."""
    state = RunState.for_task(task)
    starts = [chosen.copy() for family in families for chosen in _cheapest_first(task, family, state)[:_KEPT]]
    plans = _cheapest_first(task, starts, state)
    for kept, visits in _ROUNDS:
        plans = _improved(task, plans[:kept], effort, visits)
    return cross(task, plans, iteration_watts, effort)[0] if plans else None


def _improved(task: SwitchTask, plans: Iterable[Indices], effort: float, visits: int) -> list[Indices]:
    """Return what a search from each of these plans, which keep limit and dwell, finds, the cheapest first."""
    state = RunState.for_task(task)
    improved = [chosen.copy() for chosen in plans]
    for seed, chosen in enumerate(improved):
        search(task, chosen, state, int(effort * affordable(visits)), seed)
    return _cheapest_first(task, improved, state)


def _cost(task: SwitchTask, plan: Indices | None) -> float:
    """Return the cost of a plan; without a plan that of the worst."""
    return math.inf if plan is None else run(task, plan, RunState.for_task(task))[2]


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
