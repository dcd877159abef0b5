"""The default batch size, always."""

from collections.abc import Sequence

from zeus_core.search.batch_size._policy import BatchProblem, BatchProposal, BatchRun, feasible_sizes

__all__ = ["DefaultBatchSize"]


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
