"""The published strategy: pruning from the default, then Thompson sampling (Zeus, NSDI'23), with its defects mended."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from zeus_core.jobs.policies.batch_size_policy import BatchProblem, BatchProposal, BatchRun, feasible_sizes
from zeus_core.validate import checked_number, checked_whole_number

_PRIOR_DEVIATION, _PRIOR_COUNT = 0.1, 1  # of a cost, relative: seeds scatter by a tenth, as if that had been seen once


class PublishedBatchSize:
    """A `BatchSizePolicy` by the published rules.

    It explores from the default downwards, then upwards, each direction up to the first run that does not reach the
    target; again from the best size among those that reached it, as often as there are rounds; then it draws from a
    Gaussian for the mean cost of each size left, and takes the lowest. Every run is stopped at `stop_factor` times the
    lowest cost of a recurrence.

    Four things differ from the published service. A run that was killed does not hold up the exploration. A run that
    was stopped does not lower the lowest cost: it adds to that of its recurrence, and counts as no less than its bound.
    The seed is that of the job, and another one for each run. The variance of a few samples is not taken as known: it
    is pooled over the sizes.

    Args:
        rounds: Rounds of exploration.
        stop_factor: Cost of a run over the lowest cost of a recurrence, at which it is stopped.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(self, rounds: int = 2, stop_factor: float = 2.0) -> None:
        self.rounds: int = checked_whole_number("rounds", rounds, 1)
        wanted = "a factor above 1, such as 2"
        self.stop_factor: float = checked_number("stop_factor", stop_factor, 1.0, math.inf, wanted, is_open=True)

    def __repr__(self) -> str:
        return f"PublishedBatchSize(rounds={self.rounds}, stop_factor={self.stop_factor:g})"

    def propose(self, problem: BatchProblem, runs: Sequence[BatchRun], seed: int) -> BatchProposal:
        """Return the size to explore, or one drawn by its costs.

        Raises:
            UsageError: All batch sizes are infeasible.
        """
        feasible = feasible_sizes(problem, runs)
        known = [
            run
            for run in runs
            if run.batch_size in feasible
            and run.outcome in ("reached", "stopped")
            and (problem.gpu_model is None or run.gpu_model in (None, problem.gpu_model))
        ]
        default = min(feasible, key=lambda size: abs(size - problem.default))
        lowest = lowest_recurrence_cost(known)
        max_cost = None if lowest is None else self.stop_factor * lowest
        missing, left = self._explored(feasible, default, _by_size(known))
        if missing is not None:
            running = {run.batch_size for run in runs if run.outcome == "running"}
            if missing not in running:
                return BatchProposal(missing, max_cost, reason="it is explored")
            best = _best_size(known, default)
            return BatchProposal(best, max_cost, reason=f"{missing} is being explored, and this is the best so far")
        if not left:
            return BatchProposal(default, max_cost, reason="no batch size has reached the target")
        costs = {size: [_cost(run, max_cost) for run in _by_size(known)[size]] for size in left}
        size = _drawn(costs, np.random.default_rng([seed, len(known)]))
        return BatchProposal(size, max_cost, reason="it is the lowest of the costs drawn")

    def _explored(
        self, sizes: Sequence[int], default: int, runs: Mapping[int, Sequence[BatchRun]]
    ) -> tuple[int | None, list[int]]:
        """Go through the rounds: return the size that lacks a run, None if none does; and the sizes that are left."""
        left = list(sizes)
        for number in range(self.rounds):
            good: dict[int, float] = {}
            at = left.index(default)
            for direction in (left[at::-1], left[at + 1 :]):
                for size in direction:
                    some = runs.get(size, ())
                    if len(some) <= number:
                        return size, left
                    if some[number].outcome != "reached":
                        break
                    good[size] = some[number].cost
            if not good:
                return None, []
            left = sorted(good)
            default = min(good, key=good.__getitem__)
        return None, left


def lowest_recurrence_cost(known: Iterable[BatchRun]) -> float | None:
    """Return the lowest cost of a recurrence: of a run that reached the target, and those short of it just before."""
    lowest, cost = None, 0.0
    for run in known:
        cost += run.cost
        if run.outcome == "reached":
            lowest = cost if lowest is None else min(lowest, cost)
            cost = 0.0
    return lowest


def _cost(run: BatchRun, max_cost: float | None) -> float:
    return run.cost if run.outcome == "reached" else max(run.cost, max_cost or 0.0)


def _by_size(known: Iterable[BatchRun]) -> Mapping[int, list[BatchRun]]:
    by_size: dict[int, list[BatchRun]] = defaultdict(list)
    for run in known:
        by_size[run.batch_size].append(run)
    return by_size


def _best_size(known: Iterable[BatchRun], default: int) -> int:
    """Return the size of the run that reached the target at the lowest cost."""
    reached = [run for run in known if run.outcome == "reached"]
    return min(reached, key=lambda run: run.cost).batch_size if reached else default


def _drawn(costs: Mapping[int, Sequence[float]], random: np.random.Generator) -> int:
    """Draw the mean cost of each size, and return the size of the lowest."""
    means = {size: math.fsum(some) / len(some) for size, some in costs.items()}
    squares = [(cost / means[size] - 1) ** 2 for size, some in costs.items() for cost in some]
    freedom = _PRIOR_COUNT + len(squares) - len(costs)
    deviation = math.sqrt((_PRIOR_COUNT * _PRIOR_DEVIATION**2 + math.fsum(squares)) / freedom)
    drawn = {
        size: mean * (1 + deviation / math.sqrt(len(costs[size])) * random.standard_normal())
        for size, mean in means.items()
    }
    return min(drawn, key=drawn.__getitem__)
