"""Which batch size the next run of a job has, by the records of the runs before it."""

from __future__ import annotations

import logging
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from zeus_core.errors import UsageError
from zeus_core.jobs._job_records import JobRun
from zeus_core.jobs.policies import BatchProblem, BatchProposal, BatchRun, BatchSizePolicy
from zeus_core.jobs.policies.batch_size_policy import feasible_sizes

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class NextBatchSize:
    """Chooses the batch size of a run that is about to begin.

    Attributes:
        problem: The batch sizes that its ranks can share, and their GPU model.
        ranks: The number of its ranks.
        policy: The strategy.
        seed: For policies that draw at random.
    """

    problem: BatchProblem
    ranks: int
    policy: BatchSizePolicy
    seed: int

    def proposal(self, records: Sequence[JobRun], killed: JobRun | None) -> BatchProposal:
        """Return the batch size: that of a run that was killed, or the one that the policy proposes.

        Args:
            records: The history of the job.
            killed: A run that was killed, whose batch size is to be tried again; None without one.

        Raises:
            UsageError: No batch size is left, or the policy has proposed another one.
        """
        sizes, runs = self.problem.batch_sizes, self._runs(records)
        is_barred = killed is not None and any(
            run.batch_size == killed.batch_size and run.outcome in {"infeasible", "running"} for run in runs
        )
        if killed is not None and killed.batch_size in sizes and not is_barred:
            proposal = BatchProposal(killed.batch_size, killed.max_cost, "the run that had it was killed")
        else:
            costs = epoch_costs(records, self.problem, self.ranks)
            proposal = self.policy.propose(replace(self.problem, epoch_costs=costs), runs, self.seed)
        if proposal.batch_size not in sizes:
            raise UsageError(
                f"policy is a {type(self.policy).__name__}, which proposed a batch size of {proposal.batch_size!r}; "
                f"it must be one of {', '.join(map(str, sizes))}"
            )
        return proposal

    def unmeasured(self, records: Sequence[JobRun]) -> list[int]:
        """Return the batch sizes that may be proposed, and of which no epoch has a known cost, the lowest first.

        Args:
            records: The history of the job.

        Raises:
            UsageError: No batch size is left.
        """
        feasible = feasible_sizes(self.problem, self._runs(records))
        return [size for size in unknown_sizes(records, self.problem, self.ranks) if size in feasible]

    def _runs(self, records: Sequence[JobRun]) -> list[BatchRun]:
        return [run for record in records for run in self._evidence_of(record)]

    def _evidence_of(self, record: JobRun) -> list[BatchRun]:
        """Return the runs that a record stands for. Where a batch size is out of memory, so are those above it.

        None stands for one that only measured, or that reached its target at a cost that is not known.
        """
        run, gpu_model = record.to_batch_run(), self.problem.gpu_model
        if run.outcome == "failed" and record.outcome in {"measured", "reached"}:
            return []
        if run.outcome != "infeasible":
            return [run]
        is_elsewhere = None not in (record.gpu_model, gpu_model) and record.gpu_model != gpu_model
        if is_elsewhere or record.ranks != self.ranks:
            return []
        return [replace(run, batch_size=size) for size in self.problem.batch_sizes if size >= run.batch_size]


def divisible_sizes(batch_sizes: Sequence[int], default: int, ranks: int) -> tuple[int, ...]:
    """Return the batch sizes that the ranks can share evenly; a warning names the others.

    Raises:
        UsageError: The default is none of them.
    """
    if default % ranks:
        raise UsageError(f"default is {default}, which {ranks} ranks cannot share; give a multiple of {ranks}")
    left_out = [size for size in batch_sizes if size % ranks]
    if left_out:
        _logger.warning("%d ranks cannot share batches of %s: left out", ranks, ", ".join(map(str, left_out)))
    return tuple(size for size in batch_sizes if not size % ranks)


def epoch_costs(records: Sequence[JobRun], problem: BatchProblem, ranks: int) -> dict[int, float]:
    """Return the cost of an epoch of the batch sizes of which no training has ended; of the others a policy knows it.

    It comes from runs of `RecurringJob.measure_epochs`, and from trainings that were killed or are under way. A
    measured cost is multiplied by how much more, or less, trainings have cost that were measured as well: they also
    evaluate, and may have found a better power limit.

    Args:
        records: The history of the job.
        problem: Its batch sizes, and the GPU model that costs are wanted for.
        ranks: The number of ranks they are wanted for.
    """
    trained, measured = _by_size(records, problem, ranks)
    ended = {record.batch_size for record in records if record.to_batch_run().outcome in {"reached", "stopped"}}
    ratios = [math.log(trained[size] / measured[size]) for size in trained.keys() & measured.keys()]
    factor = math.exp(statistics.fmean(ratios)) if ratios else 1.0
    costs = {**{size: factor * cost for size, cost in measured.items()}, **trained}
    return {size: costs[size] for size in problem.batch_sizes if size in costs and size not in ended}


def unknown_sizes(records: Sequence[JobRun], problem: BatchProblem, ranks: int) -> list[int]:
    """Return the batch sizes of which no epoch has a known cost, in ascending order. See `epoch_costs`."""
    known = set[int]().union(*_by_size(records, problem, ranks))
    return [size for size in problem.batch_sizes if size not in known]


def _by_size(
    records: Sequence[JobRun], problem: BatchProblem, ranks: int
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
        _means((record for record in here if record.outcome != "measured"), problem.half_life_runs is not None),
        _means(record for record in here if record.outcome == "measured"),
    )


def _means(records: Iterable[JobRun], is_first_only: bool = False) -> Mapping[int, float]:
    """Return the mean cost of an epoch by batch size, or that of its first run.

    Where costs change, the first compares with what was measured when the job began.
    """
    by_size: dict[int, list[float]] = defaultdict(list)
    for record in records:
        cost = record.epoch_cost
        if cost is not None and not (is_first_only and by_size[record.batch_size]):
            by_size[record.batch_size].append(cost)
    return {size: statistics.fmean(costs) for size, costs in by_size.items() if costs}
