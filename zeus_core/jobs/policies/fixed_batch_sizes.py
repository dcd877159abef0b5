"""Strategies to compare with: always the default, and each batch size once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zeus_core.jobs.policies.batch_size_policy import BatchProblem, BatchProposal, BatchRun, feasible_sizes

_STOP_FACTOR = 2.0  # as the published policy


class DefaultBatchSize:
    """A `BatchSizePolicy` that explores nothing: the baseline of comparisons, and the way to switch exploration off."""

    def __repr__(self) -> str:
        return "DefaultBatchSize()"

    def propose(self, problem: BatchProblem, runs: Sequence[BatchRun], seed: int) -> BatchProposal:
        """Return the default; the feasible batch size next to it if it is infeasible.

        Raises:
            UsageError: All batch sizes are infeasible.
        """
        feasible = feasible_sizes(problem, runs)
        if problem.default in feasible:
            return BatchProposal(problem.default, reason="it is the default")
        nearest = min(feasible, key=lambda size: abs(size - problem.default))
        return BatchProposal(nearest, reason=f"the default of {problem.default} is infeasible, and this is next to it")


class GridBatchSize:
    """A `BatchSizePolicy` that tries each batch size once, and then keeps to the cheapest: a baseline of comparisons.

    The default comes first, then the others from the lowest. A run is stopped at twice the lowest cost so far.
    """

    def __repr__(self) -> str:
        return "GridBatchSize()"

    def propose(self, problem: BatchProblem, runs: Sequence[BatchRun], seed: int) -> BatchProposal:
        """Return the first size without a run, or the one with the lowest mean cost.

        Raises:
            UsageError: All batch sizes are infeasible.
        """
        feasible = feasible_sizes(problem, runs)
        begun = {run.batch_size for run in runs if run.outcome in ("reached", "stopped", "running")}
        costs = [run.cost for run in runs if run.outcome == "reached" and run.batch_size in feasible]
        max_cost = _STOP_FACTOR * min(costs) if costs else None
        for size in sorted(feasible, key=lambda size: (size != problem.default, size)):
            if size not in begun:
                return BatchProposal(size, max_cost, reason="it has not been tried")
        means = {size: _mean_cost([run for run in runs if run.batch_size == size]) for size in feasible}
        best = min(feasible, key=means.__getitem__)
        if math.isinf(means[best]):
            best = min(feasible, key=lambda size: abs(size - problem.default))
            return BatchProposal(best, reason="no batch size has reached the target yet, and this is the default")
        return BatchProposal(best, reason="it cost least")


def _mean_cost(runs: Sequence[BatchRun]) -> float:
    """Return the cost of all runs over the number of those that reached the target; infinite if none did."""
    ended = [run for run in runs if run.outcome in ("reached", "stopped")]
    reached = sum(run.outcome == "reached" for run in ended)
    return math.fsum(run.cost for run in ended) / reached if reached else math.inf
