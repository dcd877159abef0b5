"""The oracle: an allocation as a mixed-integer program, given to HiGHS.

Variables are whether a piece of an option is used, the batch above its first one, and the duration of the slowest rank.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from zeus_core.mixed.allocation.allocation_plan import AllocationPlan


class Piece(NamedTuple):
    """A straight part of an option: its first and last batch, with seconds and cost above waiting of both."""

    rank: int
    setting: int
    first: int
    last: int
    seconds: tuple[float, float]
    cost: tuple[float, float]


class Found(NamedTuple):
    """The best plan within the limit, a bound of its cost, and whether HiGHS ended by itself."""

    plan: AllocationPlan
    bound: float
    has_ended: bool


def highs_plan(devices, global_batch, energy_weight, time_weight, limit_seconds):
    """Return what HiGHS has found; None if nothing."""
    parts = pieces(devices, global_batch, energy_weight)
    count, ranks = len(parts), len(devices)
    place, rank = np.arange(count), np.array([part.rank for part in parts])
    room = np.array([part.last - part.first for part in parts], float)
    first = np.array([part.first for part in parts], float)
    (seconds, costs), slopes = lines(parts)
    end = 2 * count
    entries = [
        (rank, place, np.ones(count)),  # at most one piece of each rank
        (ranks + place, place, -room),  # the batch of a piece only where it is used
        (ranks + place, count + place, np.ones(count)),
        (np.full(count, ranks + count), place, first),  # all samples
        (np.full(count, ranks + count), count + place, np.ones(count)),
        (ranks + count + 1 + rank, place, seconds),  # each rank is done in time
        (ranks + count + 1 + rank, count + place, slopes[0]),
        (ranks + count + 1 + np.arange(ranks), np.full(ranks, end), -np.ones(ranks)),
    ]
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    upper = np.concatenate([np.ones(ranks), np.zeros(count), [global_batch], np.zeros(ranks)])
    lower = np.full(len(upper), -np.inf)
    lower[ranks + count] = global_batch
    rate = energy_weight * sum(device.blocking_power_watts for device in devices) + time_weight
    matrix = coo_matrix((values, (rows, columns)), (len(upper), end + 1)).tocsr()
    result = milp(
        np.concatenate([costs, slopes[1], [rate]]),
        constraints=LinearConstraint(matrix, lower, upper),
        integrality=np.concatenate([np.ones(2 * count), [0]]),
        bounds=Bounds(0, np.concatenate([np.ones(count), room, [np.inf]])),
        options={"time_limit": limit_seconds},
    )
    if result.x is None:
        return None
    batches, settings = [0] * ranks, [device.options[-1].setting for device in devices]
    for part, used, further in zip(parts, result.x[:count], result.x[count:end], strict=True):
        if used > 0.5:
            batches[part.rank], settings[part.rank] = part.first + round(further), part.setting
    plan = AllocationPlan.from_shares("HiGHS", devices, batches, settings)
    return Found(plan, float(result.mip_dual_bound), result.status == 0)


def pieces(devices, global_batch, energy_weight):
    """The options of all devices, each cut where its cost bends."""
    found = []
    for rank, device in enumerate(devices):
        for option in device.options:
            last = min(device.largest_batch(option), global_batch)
            kink = min(max(math.floor(option.batch_at_floor), 0), last)
            for ends in ((1, kink), (kink + 1, last)):
                if ends[0] <= ends[1]:
                    seconds = tuple(map(option.seconds, ends))
                    blocking = [device.blocking_power_watts * one for one in seconds]
                    joules = [option.joules(batch) - waiting for batch, waiting in zip(ends, blocking, strict=True)]
                    cost = tuple(energy_weight * one for one in joules)
                    found.append(Piece(rank, option.setting, *ends, seconds, cost))
    return found


def lines(parts):
    """Return seconds and costs of the first batch of each piece, and of each further sample."""
    room = np.array([max(1, part.last - part.first) for part in parts])
    ends = np.array([(part.seconds, part.cost) for part in parts])
    starts = ends[:, :, 0].T
    slopes = (ends[:, :, 1] - ends[:, :, 0]).T / room
    return starts, slopes
