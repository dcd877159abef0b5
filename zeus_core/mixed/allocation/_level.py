"""Levelling: batches are given, and each device gets the setting that is enough for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation._goal import Goal
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan, checked_devices, checked_reduce_seconds
from zeus_core.mixed.allocation.device_options import MAX_BATCH, DeviceOptions, checked_kind
from zeus_core.search.objectives import MaxSlowdownConstraint, Objective
from zeus_core.validate import checked_number, checked_whole_number

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]
    _Places = NDArray[np.int64]

_HALVINGS = 60  # of the range that the price of a watt is in
_ROUNDING = 1e-9


def level(
    devices: Sequence[DeviceOptions],
    batches: Sequence[int],
    objective: Objective | None = None,
    *,
    budget_watts: float | None = None,
    reduce_seconds: float = 0.0,
) -> AllocationPlan:
    """Return the setting of each device that is best for given batches.

    By default steps are as short as possible, and each device takes the least energy that does not lengthen them.

    Args:
        devices: The device of each rank.
        batches: The batch of each rank.
        objective: As for `allocate`; if None, `MaxSlowdownConstraint(factor=1.0)`.
        budget_watts: The most that all devices may draw together: the sum of their power limits, or of their powers at
            the chosen clocks. The budget is shared so that steps are as short as it allows. If None, there is none.
        reduce_seconds: Duration of the exchange of gradients, in which all ranks wait.

    Raises:
        UsageError: An argument is wrong, a device cannot hold its batch, or the budget is too small; the message names
            it.
    """
    devices = checked_devices(devices)
    objective = MaxSlowdownConstraint(factor=1.0) if objective is None else objective
    goal = Goal.from_objective(objective, devices)
    wanted = f"a whole number of samples, 0 to {MAX_BATCH}"
    batches = [
        checked_whole_number(f"batches[{rank}]", batch, 0, wanted, MAX_BATCH) for rank, batch in enumerate(batches)
    ]
    if len(batches) != len(devices) or not any(batches):
        raise UsageError(
            f"batches has {len(batches)} entries, {sum(batches)} samples; there are {len(devices)} devices"
        )
    reduce_seconds = checked_reduce_seconds(reduce_seconds)
    choices = _Choices.from_batches(devices, batches, goal)
    budget = math.inf
    if budget_watts is not None:
        budget = checked_number(
            "budget_watts", budget_watts, 0.0, math.inf, "watts, such as 2000, or None", is_open=True
        )
    chosen, bound = _best(choices, goal, budget, reduce_seconds)
    settings = [device.options[place].setting for device, place in zip(devices, chosen, strict=True)]
    plan = AllocationPlan.from_shares("levelled", devices, batches, settings, reduce_seconds)
    cost = goal.cost(plan)
    return replace(plan, objective=repr(objective), cost=cost, bound_cost=max(0.0, min(bound, cost)))


class _Choices(NamedTuple):
    """The settings of each device for its batch: rows are devices, columns settings, the highest first.

    Attributes:
        seconds: How long the batch takes; infinite where there is no such setting, or it cannot hold the batch.
        costs: The cost above waiting for as long.
        watts: The most that the device draws.
        rate: Cost of a second of the slowest rank.
    """

    seconds: _Numbers
    costs: _Numbers
    watts: _Numbers
    rate: float

    @classmethod
    def from_batches(cls, devices: Sequence[DeviceOptions], batches: Sequence[int], goal: Goal) -> _Choices:
        shape = len(devices), max(len(device.options) for device in devices)
        seconds, costs, watts = np.full(shape, math.inf), np.zeros(shape), np.zeros(shape)
        for rank, (device, batch) in enumerate(zip(devices, batches, strict=True)):
            is_limit = checked_kind(device.knob).binds_power
            for place, option in enumerate(device.options):
                busy = option.seconds(batch) if batch else 0.0
                joules = option.joules(batch) if batch else 0.0
                watts[rank, place] = option.setting if is_limit else _mean_watts(device, joules, busy)
                costs[rank, place] = goal.energy_weight * (joules - device.blocking_power_watts * busy)
                if batch <= device.largest_batch(option):
                    seconds[rank, place] = busy
            if np.isinf(seconds[rank]).all():
                held = max(device.largest_batch(option) for option in device.options)
                raise UsageError(f"rank {rank} ({device.name}) has a batch of {batch}, but holds {held}")
        blocking = sum(device.blocking_power_watts for device in devices)
        return cls(seconds, costs, watts, goal.energy_weight * blocking + goal.time_weight)

    def least(self, values: _Numbers, longest_seconds: float) -> _Places:
        """Return the setting of each device with the least of some values within a time, the lowest of equal ones."""
        within = np.where(self.seconds <= longest_seconds, values, math.inf)
        places: _Places = within.shape[1] - 1 - np.argmin(within[:, ::-1], axis=1)
        return places

    def total(self, values: _Numbers, places: _Places) -> float:
        return float(values[np.arange(len(values)), places].sum())


def _mean_watts(device: DeviceOptions, joules: float, busy_seconds: float) -> float:
    return joules / busy_seconds if busy_seconds else device.blocking_power_watts


def _best(choices: _Choices, goal: Goal, budget_watts: float, reduce_seconds: float) -> tuple[_Places, float]:
    """Return the best setting of each device, and a bound of the cost."""
    ends = np.unique(choices.seconds[np.isfinite(choices.seconds)])
    ends = ends[ends >= choices.seconds.min(axis=1).max()]
    shortest = _shortest_within(choices, ends, budget_watts)
    longest = goal.longest_seconds(float(ends[shortest]), reduce_seconds)
    ends = ends[shortest : max(shortest + 1, int(np.searchsorted(ends, longest, side="right")))]
    if goal.is_time:
        chosen, _ = _within_budget(choices, float(ends[-1]), budget_watts)
        return chosen, float(ends[0]) + reduce_seconds
    bounds = _least_costs(choices, ends) + choices.rate * ends
    best, lowest, bound = None, math.inf, math.inf
    for place in np.argsort(bounds, kind="stable").tolist():
        if bounds[place] >= lowest:
            bound = min(bound, float(bounds[place]))
            break
        chosen, work_bound = _within_budget(choices, float(ends[place]), budget_watts)
        end = float(choices.seconds[np.arange(len(chosen)), chosen].max())
        bound = min(bound, work_bound + choices.rate * float(ends[place]))
        cost = choices.total(choices.costs, chosen) + choices.rate * end
        if cost < lowest:
            best, lowest = chosen, cost
    assert best is not None  # the first bound is finite
    return best, min(bound, lowest) + choices.rate * reduce_seconds


def _shortest_within(choices: _Choices, ends: _Numbers, budget_watts: float) -> int:
    """Return the place of the shortest time in which all can be done within the budget."""
    low, high = 0, len(ends) - 1
    lowest_watts = choices.total(choices.watts, choices.least(choices.watts, float(ends[high])))
    if lowest_watts > budget_watts:
        raise UsageError(f"budget_watts is {budget_watts:g}; the lowest settings together take {lowest_watts:g} W")
    while low < high:
        middle = (low + high) // 2
        if choices.total(choices.watts, choices.least(choices.watts, float(ends[middle]))) <= budget_watts:
            high = middle
        else:
            low = middle + 1
    return low


def _least_costs(choices: _Choices, ends: _Numbers) -> _Numbers:
    """Return the least cost of the work of all devices for each duration, without a budget."""
    total = np.zeros(len(ends))
    for seconds, costs in zip(choices.seconds, choices.costs, strict=True):
        order = np.argsort(seconds, kind="stable")
        least = np.minimum.accumulate(costs[order])
        total += least[np.searchsorted(seconds[order], ends, side="right") - 1]
    return total


def _within_budget(choices: _Choices, longest_seconds: float, budget_watts: float) -> tuple[_Places, float]:
    """Return settings with a low cost that the budget allows, and a bound of their cost.

    A price of a watt, added to the cost, makes every device choose for itself. The lowest price at which all keep
    within the budget is found by halving; less than the settings of one device are lost by that.
    """
    chosen = choices.least(choices.costs, longest_seconds)
    if choices.total(choices.watts, chosen) <= budget_watts:
        return chosen, choices.total(choices.costs, chosen)
    chosen = choices.least(choices.watts, longest_seconds)
    bound = -math.inf
    low, high = 0.0, 1.0 + float(np.abs(choices.costs).max()) * 1e6
    for _ in range(_HALVINGS):
        price = math.sqrt(low * high) if low else high / 1e6
        priced = choices.costs + price * choices.watts
        found = choices.least(priced, longest_seconds)
        watts = choices.total(choices.watts, found)
        bound = max(bound, choices.total(priced, found) - price * budget_watts)
        if watts <= budget_watts:
            chosen, high = found, price
        else:
            low = price
    return chosen, bound
