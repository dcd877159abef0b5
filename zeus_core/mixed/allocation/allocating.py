"""Plans from the options of devices: the best by an objective, equal batches, and those in proportion to throughput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation._allocation_problem import AllocationProblem
from zeus_core.mixed.allocation._goal import Goal
from zeus_core.mixed.allocation._solver import solve
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan, checked_devices, checked_reduce_seconds
from zeus_core.mixed.allocation.device_options import MAX_BATCH, DeviceOption, DeviceOptions, checked_global_batch
from zeus_core.mixed.allocation.trial_windows import split_in_proportion
from zeus_core.search.objectives import Objective, ZeusCost
from zeus_core.validate import checked_whole_number


def allocate(
    devices: Sequence[DeviceOptions],
    global_batch: int,
    objective: Objective | None = None,
    *,
    multiple_of: int = 1,
    min_batch: int = 0,
    reduce_seconds: float = 0.0,
) -> AllocationPlan:
    """Return the batch of each rank and the setting of each device that are best by an objective.

    A step lasts until the slowest rank is done, and then until gradients are exchanged; a rank that is done earlier
    waits at its blocking power. The plan states how near to the best one it is (`gap_fraction`): for up to 32 devices
    it is usually the best one, and for more it usually costs less than 0.02 % more. The search ends after about 0.7 CPU
    seconds, and 2 ms more for each device, counted in its steps.

    Args:
        devices: The device of each rank.
        global_batch: Samples of a step on all ranks together.
        objective: `ZeusCost`, `Energy`, `Time` (the lowest energy among the shortest steps), `EnergyWithin` or
            `MaxSlowdownConstraint` (the lowest energy of the steps that last at most a factor times the shortest
            possible), or one of your own whose cost is a weighted sum of energy and time. If None,
            `ZeusCost(eta_knob=0.5)`.
        multiple_of: Each batch is a multiple of this number of samples.
        min_batch: The smallest batch of a rank. With 0, a rank may get no samples, and waits.
        reduce_seconds: Duration of the exchange of gradients, in which all ranks wait.

    Raises:
        UsageError: An argument is wrong, or the devices cannot hold the batch; the message names it.
    """
    devices = checked_devices(devices)
    objective = ZeusCost(eta_knob=0.5) if objective is None else objective
    goal = Goal.from_objective(objective, devices)
    units = checked_global_batch(global_batch, multiple_of)
    min_batch = checked_whole_number("min_batch", min_batch, 0, "a number of samples, 0 to 1e9", MAX_BATCH)
    reduce_seconds = checked_reduce_seconds(reduce_seconds)
    min_units = -(-min_batch // multiple_of)
    _check_room(devices, units, multiple_of, min_units)
    problem = AllocationProblem(devices, units, multiple_of, min_units, goal.energy_weight, goal.time_weight)
    shortest = problem.shortest_seconds()
    solution = solve(problem, shortest, goal.longest_seconds(shortest, reduce_seconds))
    batches = (solution.units * multiple_of).tolist()
    settings = [device.options[place].setting for device, place in zip(devices, solution.options, strict=True)]
    plan = AllocationPlan.from_shares("allocation", devices, batches, settings, reduce_seconds)
    cost = goal.cost(plan)
    bound = (
        shortest * (1.0 - 1e-12) + reduce_seconds if goal.is_time else solution.bound + problem.rate * reduce_seconds
    )
    return replace(plan, objective=repr(objective), cost=cost, bound_cost=max(0.0, min(bound, cost)))


def _check_room(devices: Sequence[DeviceOptions], units: int, multiple_of: int, min_units: int) -> None:
    if min_units * len(devices) > units:
        raise UsageError(
            f"global_batch is {units * multiple_of}, too small for min_batch={min_units * multiple_of} on each of "
            f"{len(devices)} ranks; with min_batch=0 some may get no samples"
        )
    rooms = [max(device.largest_batch(option) for option in device.options) // multiple_of for device in devices]
    for rank, room in enumerate(rooms):
        if room < min_units:
            raise UsageError(
                f"rank {rank} ({devices[rank].name}) holds a batch of {room * multiple_of}, below "
                f"min_batch={min_units * multiple_of}"
            )
    if sum(rooms) < units:
        shown = ", ".join(
            f"{room * multiple_of} on {device.name}" for room, device in zip(rooms[:4], devices, strict=False)
        )
        more = ", ..." if len(rooms) > 4 else ""
        raise UsageError(
            f"global_batch is {units * multiple_of}, but the devices hold {sum(rooms) * multiple_of} together ({shown}"
            f"{more}): without max_batch, each holds the largest batch that was measured"
        )


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
    return _usual_plan(
        "even", devices, split_in_proportion(units, [1] * len(devices)), multiple_of, reduce_seconds, objective
    )


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
    return _usual_plan(
        "proportional", devices, split_in_proportion(units, throughputs), multiple_of, reduce_seconds, objective
    )


def _highest(device: DeviceOptions) -> DeviceOption:
    return device.options[0]


def _usual_plan(
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
