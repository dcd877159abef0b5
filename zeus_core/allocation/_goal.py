"""Goals: the weights that an objective gives to the energy and the time of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core._validate import shown
from zeus_core.allocation._options import DeviceOptions
from zeus_core.allocation._plan import AllocationPlan
from zeus_core.errors import UsageError
from zeus_core.search._objectives import Energy, MaxSlowdownConstraint, Objective, Time, ZeusCost

__all__ = ["Goal"]

_ROUNDING = 1e-9  # durations are sums of floats: closer than this, relatively, they are equal


class Goal(NamedTuple):
    """An objective, as weights.

    Attributes:
        energy_weight: Cost of a joule.
        time_weight: Cost of a second.
        max_slowdown: Longest accepted step over the shortest possible; infinite if any is accepted.
        is_time: Whether the cost is the duration itself: `max_slowdown` is 1, and the weights tell among the shortest.
    """

    energy_weight: float
    time_weight: float
    max_slowdown: float = math.inf
    is_time: bool = False

    @classmethod
    def from_objective(cls, objective: Objective, devices: Sequence[DeviceOptions]) -> Goal:
        """Return the weights of one of the four objectives.

        `ZeusCost` weighs time by the highest power of all devices: their own, or its `max_power_watts` for each.

        Raises:
            UsageError: It is none of them.
        """
        if type(objective) is Time:
            return cls(1.0, 0.0, 1.0, is_time=True)
        if type(objective) is Energy:
            return cls(1.0, 0.0)
        if type(objective) is MaxSlowdownConstraint:
            return cls(1.0, 0.0, objective.factor)
        if type(objective) is not ZeusCost:
            raise UsageError(
                f"objective is {shown(objective)}; it must be Energy(), Time(), ZeusCost(eta_knob=0.5) or "
                "MaxSlowdownConstraint(factor=1.1)"
            )
        watts = objective.max_power_watts
        all_watts = sum(device.max_power_watts if watts is None else watts for device in devices)
        eta = objective.eta_knob
        return cls(eta, (1.0 - eta) * all_watts) if eta else cls(1.0, 0.0, 1.0, is_time=True)

    def longest_seconds(self, shortest_seconds: float, reduce_seconds: float) -> float:
        """Return how long the slowest rank may take, if it takes this long at the shortest."""
        if math.isinf(self.max_slowdown):
            return math.inf
        longest = self.max_slowdown * (shortest_seconds + reduce_seconds) * (1.0 + _ROUNDING) - reduce_seconds
        return max(longest, shortest_seconds)

    def cost(self, plan: AllocationPlan) -> float:
        """Return what a step of a plan costs."""
        if self.is_time:
            return plan.step_seconds
        return self.energy_weight * plan.energy_joules + self.time_weight * plan.step_seconds
