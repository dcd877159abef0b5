"""Goals: the weights that an objective gives to the energy and the time of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.mixed.allocation.device_options import DeviceOptions
from zeus_core.search.objectives import Objective, PowerLimitMeasurement
from zeus_core.validate import shown

_WANTED = (
    "an Objective whose cost is a weighted sum of energy and time, such as Energy(), Time(), ZeusCost(eta_knob=0.5) or "
    "EnergyWithin(factor=1.1)"
)
_ROUNDING = 1e-9  # durations are sums of floats: closer than this, relatively, they are equal


class Goal(NamedTuple):
    """An objective, as weights.

    Attributes:
        energy_weight: Cost of a joule.
        time_weight: Cost of a second.
        max_slowdown: Longest accepted step over the shortest possible; infinite if any is accepted.
        is_time: Whether the cost is the duration itself: `max_slowdown` is 1, and the weights choose among these.
    """

    energy_weight: float
    time_weight: float
    max_slowdown: float = math.inf
    is_time: bool = False

    @classmethod
    def from_objective(cls, objective: Objective, devices: Sequence[DeviceOptions]) -> Goal:
        """Return the weights in the cost of an objective, which the least energy has if its cost is the setting itself.

        `ZeusCost` weighs time by the highest power of all devices: their own, or its `max_power_watts` for each.

        Raises:
            UsageError: It is no objective, or its cost is no weighted sum of energy and time.
        """
        energy_weight, time_weight = (1.0, 0.0) if objective.prefers_lowest else _weights(objective, devices)
        if not energy_weight:
            return cls(1.0, 0.0, 1.0, is_time=True)
        return cls(energy_weight, time_weight, objective.bound_factor or math.inf)

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


def _weights(objective: Objective, devices: Sequence[DeviceOptions]) -> tuple[float, float]:
    """Return the cost of a joule and of a second.

    Raises:
        UsageError: The cost is no weighted sum of both.
    """
    mean_watts = sum(device.max_power_watts for device in devices) / len(devices)
    known = objective.completed(mean_watts, len(devices)).objective
    if known is None:
        raise UsageError(f"objective is {shown(objective)}; it must be {_WANTED}")

    def cost(joules: float, seconds: float) -> float:
        original = PowerLimitMeasurement(round(mean_watts), 1.0, 1.0)
        return float(known.cost(PowerLimitMeasurement(round(mean_watts), joules, seconds), original))

    try:
        fixed = cost(0.0, 0.0)
        energy_weight, time_weight = cost(1.0, 0.0) - fixed, cost(0.0, 1.0) - fixed
        # Durations of up to 1 keep any bound, so that a longer one shows a bound that the objective does not answer.
        probes = [(0.5, 0.25)] + ([(7.0, 30.0)] if objective.bound_factor is None else [])
        errors = [cost(*probe) - fixed - energy_weight * probe[0] - time_weight * probe[1] for probe in probes]
    except Exception as error:  # a cost of the user's may raise anything
        raise UsageError(
            f"objective is {shown(objective)}, whose cost fails ({error!r}); it must be {_WANTED}"
        ) from error
    largest = max(energy_weight, time_weight)
    if not (min(energy_weight, time_weight) >= 0 < largest) or max(map(abs, errors)) > _ROUNDING * largest:
        raise UsageError(f"objective is {shown(objective)}; it must be {_WANTED}")
    return energy_weight, time_weight
