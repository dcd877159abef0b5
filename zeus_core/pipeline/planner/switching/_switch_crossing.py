"""Better clocks where switches have a price, from pairs of good plans.

A child has the clocks of one plan and, on some neighbouring ranks or from some instruction on, those of another. It is
made to keep limit and dwell, then improved. This leads where no move of `_switch_search.py` does: plans that it cannot
improve further differ in which parts of the iteration they do well. On 40 problems for published profiles the plans
were 1.4 points of the energy at the highest clocks from their bounds in the mean without children, and 1.1 with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.pipeline.planner.compiled import affordable
from zeus_core.pipeline.planner.dependencies import Indices
from zeus_core.pipeline.planner.frontier.rounding import next_random
from zeus_core.pipeline.planner.switching._switch_repair import mend
from zeus_core.pipeline.planner.switching._switch_search import search
from zeus_core.pipeline.planner.switching._switch_task import RunState, SwitchTask, run

__all__ = ["cross"]

# All values below trade the quality of plans for the time to find them.
_PARENTS = 12  # the cheapest plans; with 8, plans were .03 points further from their bounds in the mean
_CHILDREN = 150
_CROSSINGS = 5  # of which the cheapest becomes a child: most are so late that they would have to be made much faster
_MAX_REPAIRS = 30  # few children that need more are worth it
_VISITS = 150_000  # to improve a child


class _Plan(NamedTuple):
    """Clocks that keep limit and dwell, and their cost in joules."""

    cost: float
    chosen: Indices


def cross(task: SwitchTask, plans: Sequence[Indices], iteration_watts: float, effort: float) -> list[Indices]:
    """Return the best of plans and their descendants, the cheapest first.

    Args:
        task: The problem.
        plans: Clocks that keep limit and dwell.
        iteration_watts: The charge for a second beyond the limit, added to the cost.
        effort: Search effort relative to the default.
    """
    state, random = RunState.for_task(task), 1
    parents = _cheapest([_Plan(run(task, chosen, state)[2], chosen) for chosen in plans])
    for _ in range(int(effort * affordable(_CHILDREN))):
        if len(parents) < 2:
            break
        least, child = math.inf, None
        for _ in range(_CROSSINGS):
            random = next_random(random)
            crossed, random = _crossed(task, parents, random)
            seconds, _, cost = run(task, crossed, state)
            cost += iteration_watts * max(0.0, seconds - task.limit_seconds)
            if cost < least and not any((crossed == parent.chosen).all() for parent in parents):
                least, child = cost, crossed
        if child is None:
            continue
        mend(task, child, state, iteration_watts, _MAX_REPAIRS)
        seconds, dwell, _ = run(task, child, state)
        if seconds <= task.limit_seconds and dwell >= task.dwell_seconds:
            search(task, child, state, _VISITS, random)
            parents = _cheapest([*parents, _Plan(run(task, child, state)[2], child)])
    return [parent.chosen for parent in parents]


def _crossed(task: SwitchTask, parents: Sequence[_Plan], random: int) -> tuple[Indices, int]:
    """Return a random crossing of two random parents, and the next random number."""
    one = (random >> 8) % len(parents)
    other = (one + 1 + (random >> 20) % (len(parents) - 1)) % len(parents)
    crossed, source = parents[one].chosen.copy(), parents[other].chosen
    random = next_random(random)
    if (random >> 8) % 2 == 0:
        ranks = len(task.first_in_order) - 1
        head = (random >> 12) % ranks
        tail = head + 1 + (random >> 24) % (ranks - head)
        taken = task.order[task.first_in_order[head] : task.first_in_order[tail]]
        crossed[taken] = source[taken]
    else:
        moment = (random >> 12) % len(crossed)
        crossed[moment:] = source[moment:]
    return crossed, random


def _cheapest(plans: Sequence[_Plan]) -> list[_Plan]:
    """Return the cheapest plans, each once."""
    distinct = {plan.chosen.tobytes(): plan for plan in plans}
    return sorted(distinct.values(), key=lambda plan: plan.cost)[:_PARENTS]
