"""Batches that are equal, or in proportion to throughput, at the highest settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation._goal import Goal
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.mixed.allocation.device_options import DeviceOption, DeviceOptions, checked_global_batch
from zeus_core.search.objectives import Objective


def even_plan(
    devices: Sequence[DeviceOptions],
    global_batch: int,
    objective: Objective | None = None,
    *,
    multiple_of: int = 1,
    reduce_seconds: float = 0.0,
) -> AllocationPlan:
    """Return the plan of equal batches at the highest settings. The first ranks get what is left over.

    Raises:
        UsageError: An argument is wrong, or a device cannot hold its batch; the message names it.
    """
    units = checked_global_batch(global_batch, multiple_of)
    return _plan("even", devices, _shared(units, [1.0] * len(devices)), multiple_of, reduce_seconds, objective)


def proportional_plan(
    devices: Sequence[DeviceOptions],
    global_batch: int,
    objective: Objective | None = None,
    *,
    multiple_of: int = 1,
    reduce_seconds: float = 0.0,
) -> AllocationPlan:
    """Return the plan of batches in proportion to the throughput with equal batches, at the highest settings.

    Raises:
        UsageError: An argument is wrong, or a device cannot hold its batch; the message names it.
    """
    units = checked_global_batch(global_batch, multiple_of)
    equal = max(1, units * multiple_of // len(devices))
    throughputs = [equal / _highest(device).seconds(equal) for device in devices]
    return _plan("proportional", devices, _shared(units, throughputs), multiple_of, reduce_seconds, objective)


def _highest(device: DeviceOptions) -> DeviceOption:
    return device.options[0]


def _shared(units: int, weights: Sequence[float]) -> list[int]:
    """Return whole shares in proportion to the weights: rounded down, and one more for the largest remainders."""
    exact = [units * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda rank: shares[rank] - exact[rank])
    for rank in by_remainder[: units - sum(shares)]:
        shares[rank] += 1
    return shares


def _plan(
    name: str,
    devices: Sequence[DeviceOptions],
    units: Sequence[int],
    multiple_of: int,
    reduce_seconds: float,
    objective: Objective | None,
) -> AllocationPlan:
    batches = [share * multiple_of for share in units]
    for rank, (device, batch) in enumerate(zip(devices, batches, strict=True)):
        held = device.largest_batch(_highest(device))
        if batch > held:
            raise UsageError(f"rank {rank} ({device.name}) has a batch of {batch} in the {name} plan, but holds {held}")
    settings = [_highest(device).setting for device in devices]
    plan = AllocationPlan.from_shares(name, devices, batches, settings, reduce_seconds)
    if objective is None:
        return plan
    goal = Goal.from_objective(objective, devices)  # also checks it
    return replace(plan, objective=repr(objective), cost=goal.cost(plan))
