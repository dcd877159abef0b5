"""Which options of an instruction are worth having: the Pareto filter, and the lower convex hull.

Both look at time against effective cost: what the option takes more than waiting as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.pipeline._profile import InstructionProfile, PipelineProfile

__all__ = ["CostedOption", "lower_hull", "pareto_choices"]

_STANDARD_ERRORS = 2.0


class CostedOption(NamedTuple):
    """An option as the planner sees it.

    Attributes:
        clock_mhz: SM clock; None if it is left as it is.
        time_seconds: Duration.
        cost_joules: Effective cost: energy over that of waiting as long, summed over the GPUs of the stage.
    """

    clock_mhz: int | None
    time_seconds: float
    cost_joules: float


def pareto_choices(profile: PipelineProfile, instruction: InstructionProfile) -> tuple[CostedOption, ...]:
    """The options that no other one beats in both time and effective cost, the fastest first.

    Where the profile says how far its times can be off, an option that costs more must be faster by more than two
    standard errors: less is chance, and would buy nothing for its energy. The fastest as measured always stays, so
    that the shortest iteration time does not depend on the noise.
    """
    cost = {option: profile.effective_cost_joules(instruction.stage, option) for option in instruction.options}
    cheapest_first = sorted(cost, key=lambda option: (cost[option], option.time_seconds))
    kept = [cheapest_first[0]]
    for option in cheapest_first[1:]:
        error = math.hypot(option.time_stderr_seconds, kept[-1].time_stderr_seconds)
        if option.time_seconds < kept[-1].time_seconds - _STANDARD_ERRORS * error:
            kept.append(option)
    fastest = min(cost, key=lambda option: (option.time_seconds, cost[option]))
    if fastest.time_seconds < kept[-1].time_seconds:
        kept.append(fastest)
    return tuple(CostedOption(it.clock_mhz, it.time_seconds, cost[it]) for it in reversed(kept))


def lower_hull(choices: Sequence[CostedOption]) -> tuple[CostedOption, ...]:
    """The corners of the lower convex hull of time and cost.

    Args:
        choices: What `pareto_choices` returns: times rise, costs fall.

    Returns:
        A part of them, from the fastest to the cheapest; the slopes between neighbours strictly rise towards 0.
    """
    hull: list[CostedOption] = []
    for choice in choices:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], choice):
            hull.pop()
        hull.append(choice)
    return tuple(hull)


def _slope(first: CostedOption, second: CostedOption) -> float:
    return (second.cost_joules - first.cost_joules) / (second.time_seconds - first.time_seconds)
