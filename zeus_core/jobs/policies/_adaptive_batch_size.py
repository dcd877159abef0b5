"""The default strategy: walk from the default, and try what is expected to gain more than its trial costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from zeus_core.jobs.policies._gaussian_process import Array, Kernel, posterior
from zeus_core.jobs.policies._observed_runs import History
from zeus_core.jobs.policies.batch_size_policy import BatchProblem, BatchProposal, BatchRun, feasible_sizes
from zeus_core.validate import checked_number

# Epochs are constant below the critical batch size and proportional to it above (McCandlish et al. 2018), and the cost
# of an epoch falls at most in proportion. So each changes by 0 to 0.7 in the logarithm per doubling: by these kernels,
# 0.3 either way. The slopes are mild, as neither is known to change near the default.
_EPOCHS = Kernel(deviation=1.5, length=5.0, own_deviation=0.1, slope=0.1)
_EPOCH_COSTS = Kernel(deviation=1.5, length=5.0, own_deviation=0.05, slope=-0.1)
_MAX_STRIDE = 1.0  # doublings beyond what was tried, or the next size: further than that, the curve says little
_MAX_RISE = 0.7  # standard deviations by which the last size in a direction may be dearer than the best one

_QUANTILES = np.array([NormalDist().inv_cdf((number + 0.5) / 64) for number in range(64)])


@dataclass(frozen=True)
class _Costs:
    """The expected cost of reaching the target by batch size, in the logarithm.

    Trainings that fail before one succeeds count, o of them in the mean where the odds are o.
    """

    sizes: tuple[int, ...]
    means: Array
    covariance: Array
    run_deviation: float
    failure_chances: Array  # of the next run

    def over(self, number: int, best: int) -> Array:
        """Return quantiles of the cost of one batch size over that of another."""
        variance = self.covariance[number, number] + self.covariance[best, best] - 2 * self.covariance[number, best]
        difference: Array = self.means[number] - self.means[best] + math.sqrt(max(variance, 0.0)) * _QUANTILES
        return np.exp(np.clip(difference, -20.0, 20.0))

    def may_fall_beyond(self, size: int, best: int) -> bool:
        """Return whether a size beyond an end of those tried may cost less than the best one.

        Both the epochs and the cost of an epoch are convex over the batch size on logarithmic axes: where their product
        has risen towards the end, it goes on to rise.
        """
        if size not in self.sizes:
            return True
        end = self.sizes.index(size)
        variance = self.covariance[end, end] + self.covariance[best, best] - 2 * self.covariance[end, best]
        rise = float(self.means[end] - self.means[best])
        return rise <= _MAX_RISE * math.sqrt(max(float(variance), 0.0))

    def gain(self, number: int, best: int, proven: Collection[int]) -> float:
        """Return how much less a training is expected to cost once a run at a batch size has been seen.

        The run moves the means of all sizes, unless it fails. Where another one than the best is then the lowest, it
        is taken.
        """
        others = sorted({*proven, number, best})
        moves = self.covariance[others, number] / math.sqrt(self.covariance[number, number] + self.run_deviation**2)
        means = self.means[others] - self.means[best]
        costs = np.exp(np.clip(means[:, None] + moves[:, None] * _QUANTILES, -20.0, 20.0))
        gain = (costs[others.index(best)] - costs.min(axis=0)).mean()
        return float(gain * (1.0 - self.failure_chances[number]))


class AdaptiveBatchSize:
    """A `BatchSizePolicy` that needs few trials: a Gaussian process, and trials that pay.

    Epochs to the target and the cost of an epoch are smooth over the logarithm of the batch size. It begins with the
    default and tries the sizes next to what was tried, where a trial is expected to gain more over the next `horizon`
    runs than it costs. A run at a size that has not reached the target before is stopped once it costs `stop_factor`
    times a training at the best size; its cost is then a lower bound. A size that has succeeded is never stopped.

    Epochs do not depend on the GPU model, so runs on other models, and `BatchProblem.known_epochs`, count for them.
    A run that fails, or ends short of the target before it is too dear, costs at least a training at the best size, and
    makes it likelier that the next one does so too, also at the sizes beside it. With a half-life, what was observed
    fades as far as epochs or their costs are seen to change, and sizes are tried anew.

    Args:
        stop_factor: Cost of a first run at a size over the expected cost of the best one, at which it is stopped.
        horizon: Runs over which a better size is to pay for its trial; with a half-life, no more than that of the work.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(self, stop_factor: float = 1.4, horizon: float = 25.0) -> None:
        wanted = "a factor above 1, such as 1.4"
        self.stop_factor: float = checked_number("stop_factor", stop_factor, 1.0, math.inf, wanted, is_open=True)
        self.horizon: float = checked_number("horizon", horizon, 1.0, math.inf, "a number of runs, such as 25")

    def __repr__(self) -> str:
        return f"AdaptiveBatchSize(stop_factor={self.stop_factor:g}, horizon={self.horizon:g})"

    def propose(self, problem: BatchProblem, runs: Sequence[BatchRun], seed: int) -> BatchProposal:
        """Return the batch size that promises most. It draws nothing at random, so the seed does not matter.

        Raises:
            UsageError: All batch sizes are infeasible.
        """
        feasible = feasible_sizes(problem, runs)
        history = History.from_runs(problem, runs)
        costs = _expected(problem, history)
        proven = history.proven & set(feasible)
        if not proven:
            return self._without_success(problem, history, costs, feasible)
        best = min((costs.sizes.index(size) for size in proven), key=costs.means.__getitem__)
        numbers = {costs.sizes.index(size) for size in proven}
        worth = {
            number: self._worth(costs, number, best, numbers, problem.half_life_runs)
            for number in map(costs.sizes.index, _candidates(history, feasible, costs, best))
        }
        chosen = max(worth, key=lambda number: (worth[number], number == best))
        size = costs.sizes[chosen]
        if size in proven:
            reason = "it is expected to cost least" if chosen == best else "it may cost less than the best so far"
            return BatchProposal(size, reason=reason)
        max_cost = self.stop_factor * math.exp(costs.means[best])
        return BatchProposal(size, max_cost, reason=f"it may cost less than {costs.sizes[best]}, the best so far")

    def _worth(
        self, costs: _Costs, number: int, best: int, proven: Collection[int], half_life_runs: float | None
    ) -> float:
        """Return what a run at a size is expected to gain over the next runs, in trainings at the best size."""
        horizon = self.horizon if half_life_runs is None else min(self.horizon, half_life_runs / math.log(2))
        factors = costs.over(number, best)
        excess = factors - 1.0
        if number not in proven:
            excess = np.where(factors > self.stop_factor, self.stop_factor, excess)  # and then it is trained again
        return horizon * costs.gain(number, best, proven) - float(excess.mean())

    def _without_success(
        self, problem: BatchProblem, history: History, costs: _Costs, feasible: Collection[int]
    ) -> BatchProposal:
        """Return where to begin, or to try next as long as no run has reached the target."""
        is_default_open = problem.default in feasible and problem.default not in history.tried
        if is_default_open and not (history.knows_epochs and history.knows_epoch_costs):
            return BatchProposal(problem.default, reason="the default is tried first")
        candidates = _candidates(history, feasible, costs)
        untried = [size for size in candidates if size not in history.tried]
        unsure = costs.means + np.sqrt(np.diag(costs.covariance))
        size = min(untried or candidates or feasible, key=lambda size: float(unsure[costs.sizes.index(size)]))
        if history.tried:
            return BatchProposal(size, reason="no batch size has reached the target yet, and this is the likeliest")
        return BatchProposal(size, reason="it is expected to cost least, by the epochs that are known from elsewhere")


def _expected(problem: BatchProblem, history: History) -> _Costs:
    """Return the expected costs of all batch sizes, from the epochs to the target and the cost of an epoch."""
    places = np.log2(problem.batch_sizes)
    means, covariance = np.zeros(len(places)), np.zeros((len(places), len(places)))
    for kernel, observations in ((_EPOCHS, history.epochs()), (_EPOCH_COSTS, history.epoch_costs())):
        after = posterior(kernel.drifting(observations), observations, places)
        means, covariance = means + after[0], covariance + after[1]
    least = min((means[problem.batch_sizes.index(size)] for size in history.proven), default=means.min())
    odds, spent = history.failures(math.exp(least))
    means = means + np.log1p(odds * np.exp(np.clip(np.log(spent) - means, -20.0, 20.0)))
    return _Costs(problem.batch_sizes, means, covariance, history.epoch_deviation, odds / (1.0 + odds))


def _candidates(history: History, feasible: Collection[int], costs: _Costs, best: int | None = None) -> list[int]:
    """Return the sizes that may be tried: those between the ends of what is known, and the next ones beyond.

    A size that has not reached the target, and is running, is left to that run.
    """
    anywhere = {run.batch_size for run in history.known}
    known = anywhere | set(history.problem.known_epochs) or {history.problem.default}
    lowest, highest = min(known), max(known)
    some = [size for size in feasible if lowest <= size <= highest]
    if best is None or costs.may_fall_beyond(lowest, best):
        below = [size for size in feasible if size < lowest]
        some += [size for size in below if size == below[-1] or math.log2(lowest / size) <= _MAX_STRIDE]
    if best is None or costs.may_fall_beyond(highest, best):
        above = [size for size in feasible if size > highest]
        some += [size for size in above if size == above[0] or math.log2(size / highest) <= _MAX_STRIDE]
    return [size for size in some if size in history.proven or size not in history.running]
