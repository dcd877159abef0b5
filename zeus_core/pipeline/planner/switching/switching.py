"""Plans whose clock switches have a price: few switches, each of which saves more than it costs.

A bound with its prices of time (`_switch_bound.py`), clocks to begin with, by these prices (`_switch_starts.py`), a
local search (`_switch_search.py`) from the cheapest of them, and simulated annealing (`_switch_annealing.py`) at some
temperatures from the best that it finds. The simple plans behind `zeus_core.pipeline.baselines` are among the starts,
and the cheapest plan of all is chosen, so none takes more energy than they do.
`benchmarks/plan_switching.py` measures what each part saves.

Time, energy and dwell are always those that `zeus_core.pipeline.planner.execution` predicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import Indices
from zeus_core.pipeline.planner.execution import SwitchPrice, execute
from zeus_core.pipeline.planner.frontier.frontier import Frontier
from zeus_core.pipeline.planner.loops import call_compiled
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.planner.simple_plans import simple_plans
from zeus_core.pipeline.planner.switching._switch_annealing import anneal
from zeus_core.pipeline.planner.switching._switch_bound import find_bound
from zeus_core.pipeline.planner.switching._switch_search import improve_runs
from zeus_core.pipeline.planner.switching._switch_starts import one_clock_per_rank, starts_by_prices
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, RunState, SwitchTask, run

_STARTS = 4  # the cheapest, each improved by a local search
# Annealing: which of the improved starts by its cost, and the first temperature, over the price of the seconds of a
# switch and a part of the energy of an instruction; and the instructions that each visits. On 25 problems of
# `benchmarks/plan_switching.py` (26 November 2026) temperatures of 0.4, 0.1 and 0.03 with 6 and 24 million visits save
# 12.75 and 12.82 %, 0.1 alone with 48 million 12.81 %, and 0.03 alone 12.74 %; random restarts of the local search with
# 24 million saved 12.59 %. Of two starts and of one, with the first at 1.0 and at 0.4, plans of 10 problems that are
# far from their bounds save 14.30 and 14.21 %.
_ANNEALED = ((0, 1.0), (1, 0.1), (0, 0.1), (0, 0.03))
_INSTRUCTION_HEAT = 0.1
_VISITS = 16_000_000
_VISITS_OF_LOCAL_SEARCH = _VISITS // 8


class SwitchingPlan(NamedTuple):
    """Clocks, and how far they can be from the best.

    Attributes:
        options: The option of each instruction, in the order of `PipelineProblem.graph`.
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
    problem, point = frontier.problem, frontier.at(limit_seconds, is_waiting)
    numbered = NumberedProblem.from_problem(problem)
    task = numbered.priced(limit_seconds, is_waiting, price)
    bound = find_bound(numbered, task, point, effort)
    simple = [numbered.chosen(options) for options in simple_plans(problem, limit_seconds)]
    starts = _cheapest_first(task, [*simple, one_clock_per_rank(task), *starts_by_prices(task, bound)])
    if not starts:
        raise _too_short(problem, limit_seconds, price)
    state = RunState.for_task(task)
    visits, local_visits = (int(effort * visits) for visits in (_VISITS, _VISITS_OF_LOCAL_SEARCH))
    for chosen in (found := [start.copy() for start in starts[:_STARTS]]):
        call_compiled(improve_runs, task, chosen, state, local_visits)
    found = _cheapest_first(task, [*found, starts[0]])
    late_watts = max(bound.limit_watts, task.time_watts) or 1.0  # any price if time has none
    hot_joules = late_watts * price.seconds + float(task.switch_joules.max())
    hot_joules += _INSTRUCTION_HEAT * problem.highest_clock_point[1] / len(task.kind)
    annealed = []
    for seed, (number, heat) in enumerate(_ANNEALED if visits else (), start=1):
        annealed.append(found[min(number, len(found) - 1)].copy())
        call_compiled(anneal, task, annealed[-1], state, late_watts, heat * hot_joules, visits, seed)
        call_compiled(improve_runs, task, annealed[-1], state, local_visits)
    best = _cheapest_first(task, [*annealed, found[0]])[0]
    joules = bound.cost_joules + problem.transfer_joules
    if is_waiting:
        joules += problem.blocking_power_watts * run(task, best, state)[0]
    else:
        joules = max(joules, float(frontier.energy_joules(limit_seconds)))
    return SwitchingPlan(numbered.options(best), joules)


def _cheapest_first(task: SwitchTask, plans: Iterable[Indices]) -> list[Indices]:
    """Return the plans that keep limit and dwell, each once, by their cost."""
    costs: dict[bytes, tuple[float, Indices]] = {}
    state = RunState.for_task(task)
    for chosen in plans:
        seconds, dwell, cost = run(task, chosen, state)
        if seconds <= task.limit_seconds and dwell >= task.dwell_seconds:
            costs[chosen.tobytes()] = cost, chosen
    return [chosen for _, chosen in sorted(costs.values(), key=lambda found: found[0])]


def _too_short(problem: PipelineProblem, limit_seconds: float, price: SwitchPrice) -> UsageError:
    result = execute(problem, [problem.highest_clock_options[kind] for kind in problem.kind_of.tolist()], price)
    return UsageError(
        f"time_seconds is {limit_seconds!r}, but with {price.seconds!r} s for each switch of a clock the shortest "
        f"iteration found takes {result.time_seconds!r} s, at the highest clocks, and has "
        f"{result.shortest_dwell_seconds!r} s between switches"
    )
