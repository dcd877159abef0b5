"""The cost of an epoch by batch size, where it is known before a training has ended. Pure.

The policy takes it itself from runs that have ended. From the others of the history come two more: runs of
`RecurringJob.measure_epochs`, and trainings that were killed, or are under way.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from zeus_core.optimizer.batch_size._record import RunRecord
from zeus_core.search.batch_size import BatchProblem

__all__ = ["epoch_costs", "unknown_sizes"]


def epoch_costs(records: Sequence[RunRecord], problem: BatchProblem, ranks: int) -> dict[int, float]:
    """Return the cost of an epoch of the batch sizes of which no training has ended.

    A measured cost is multiplied by how much more, or less, trainings have cost that were measured as well: they also
    evaluate, and may have found a better power limit.

    Args:
        records: The history of the job.
        problem: Its batch sizes, and the GPU model that costs are wanted for.
        ranks: The number of ranks they are wanted for.
    """
    trained, measured = _by_size(records, problem, ranks)
    told = {record.batch_size for record in records if record.to_batch_run().outcome in {"reached", "stopped"}}
    ratios = [math.log(trained[size] / measured[size]) for size in trained.keys() & measured.keys()]
    factor = math.exp(statistics.fmean(ratios)) if ratios else 1.0
    costs = {**{size: factor * cost for size, cost in measured.items()}, **trained}
    return {size: costs[size] for size in problem.batch_sizes if size in costs and size not in told}


def unknown_sizes(records: Sequence[RunRecord], problem: BatchProblem, ranks: int) -> list[int]:
    """Return the batch sizes of which no epoch has a known cost, in ascending order. See `epoch_costs`."""
    known = set[int]().union(*_by_size(records, problem, ranks))
    return [size for size in problem.batch_sizes if size not in known]


def _by_size(
    records: Sequence[RunRecord], problem: BatchProblem, ranks: int
) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return the mean cost of an epoch by batch size, of trainings and of runs that measured."""
    here = [
        record
        for record in records
        if record.ranks == ranks
        and (problem.gpu_model is None or record.gpu_model in (None, problem.gpu_model))
        and record.outcome != "infeasible"
    ]
    return (
        _means(record for record in here if record.outcome != "measured"),
        _means(record for record in here if record.outcome == "measured"),
    )


def _means(records: Iterable[RunRecord]) -> Mapping[int, float]:
    by_size: dict[int, list[float]] = defaultdict(list)
    for record in records:
        cost = record.epoch_cost
        if cost is not None:
            by_size[record.batch_size].append(cost)
    return {size: statistics.fmean(costs) for size, costs in by_size.items()}
