"""Which global batch size the next training of a recurring job uses. Pure: a policy sees the history and a seed.

    from zeus_core.jobs.policies import AdaptiveBatchSize, BatchProblem, BatchRun

    problem = BatchProblem(batch_sizes=(64, 128, 256), default=128, max_epochs=20)
    runs = [BatchRun(128, "reached", epochs=9, seconds=900.0, energy_joules=2e5, cost=3e5)]
    proposal = AdaptiveBatchSize().propose(problem, runs, seed=0)   # its batch size, and the cost at which to stop

A policy keeps nothing: restarts, several processes and replays give the same proposals for the same history.
"""

from zeus_core.jobs.policies._adaptive_batch_size import AdaptiveBatchSize
from zeus_core.jobs.policies.batch_size_policy import BatchProblem, BatchProposal, BatchRun, BatchSizePolicy

__all__ = [
    "AdaptiveBatchSize",
    "BatchProblem",
    "BatchProposal",
    "BatchRun",
    "BatchSizePolicy",
]
