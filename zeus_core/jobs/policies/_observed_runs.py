"""The history of a job: observations of epochs and of the cost of an epoch, by batch size."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from zeus_core.jobs.policies._gaussian_process import Array, CensoredValue
from zeus_core.jobs.policies.batch_size_policy import BatchProblem, BatchRun

# Epochs to a target scatter by up to 14 % from seed to seed (Zeus, NSDI'23, section 2); taken as if it had been seen in
# so many pairs of runs.
_EPOCH_DEVIATION, _PRIOR_COUNT = 0.14, 4
_MAX_DEVIATION = 0.5  # of two runs in a row, for the estimate: more is a change of the work
_EPOCH_COST_DEVIATION = 0.02  # energy and time of an epoch repeat within 2 %
_KNOWN_DEVIATION = 0.05  # of epochs known from another GPU model: its mean of several seeds
_CENSORED_FACTOR = 2.0  # of the deviation: one unlucky run must not close a batch size for ever
_SURPRISE = 3.0  # standard deviations
_MIN_SURPRISE_RUNS = 2  # before a run can be a surprise
_MIN_SURPRISE = 0.2  # in the logarithm: a smaller change does not reorder batch sizes enough to pay for exploring
_AGE_STEP, _MAX_AGE = 0.05, 4.0  # half-lives: runs within a step are one observation, and older ones are alike
_FAILURE_CHANCE = 0.02  # of a training, before any has run; the first runs replace it
_LATELY = 3  # runs that reached the target; a run that ended short of it and cost less was not too dear, but failed
_MAX_FAILED_TRIES = 2  # of a batch size, as long as no run has reached the target


@dataclass(frozen=True)
class History:
    """The runs of a job, sorted by what is known by them.

    Attributes:
        problem: The facts that are the same for all runs.
        known: Runs by which epochs or costs are known, in order.
        ages: How long ago each was, in half-lives of the epochs.
        cost_ages: The same in half-lives of the cost of an epoch, which changes at other times.
        attempts: Runs that have ended, also those that failed, in order.
        running: Batch sizes of the runs that have not ended.
    """

    problem: BatchProblem
    known: tuple[BatchRun, ...]
    ages: tuple[float, ...]
    cost_ages: tuple[float, ...]
    attempts: tuple[BatchRun, ...]
    running: frozenset[int]

    @classmethod
    def from_runs(cls, problem: BatchProblem, runs: Sequence[BatchRun]) -> History:
        """Sort runs."""
        own = [run for run in runs if run.batch_size in problem.batch_sizes]
        known = tuple(run for run in own if run.outcome in ("reached", "stopped"))
        epochs = [math.log(run.epochs) if run.outcome == "reached" else None for run in known]
        costs = [_log_epoch_cost(problem, run) for run in known]
        return cls(
            problem,
            known,
            tuple(_ages(problem, known, epochs, _EPOCH_DEVIATION)),
            tuple(_ages(problem, known, costs, _EPOCH_COST_DEVIATION)),
            tuple(run for run in own if run.outcome in ("reached", "stopped", "failed")),
            frozenset(run.batch_size for run in own if run.outcome == "running"),
        )

    def is_here(self, run: BatchRun) -> bool:
        """Return whether costs of a run are those of the problem's GPU model."""
        return self.problem.gpu_model is None or run.gpu_model in (None, self.problem.gpu_model)

    @cached_property
    def tried(self) -> set[int]:
        """Batch sizes with a run on this GPU model that ended by itself, or several that failed."""
        failed = Counter(run.batch_size for run in self.attempts if run.outcome == "failed" and self.is_here(run))
        some = {size for size, count in failed.items() if count >= _MAX_FAILED_TRIES}
        return some | {run.batch_size for run in self.known if self.is_here(run)}

    @cached_property
    def proven(self) -> set[int]:
        """Batch sizes that have reached the target on this GPU model, within the last two half-lives."""
        return {
            run.batch_size
            for run, age, other in zip(self.known, self.ages, self.cost_ages, strict=True)
            if run.outcome == "reached" and self.is_here(run) and max(age, other) <= 2.0
        }

    @property
    def knows_epochs(self) -> bool:
        """Whether epochs to the target are known of any batch size."""
        return bool(self.problem.known_epochs) or any(run.outcome == "reached" for run in self.known)

    @property
    def knows_epoch_costs(self) -> bool:
        """Whether the cost of an epoch is known of at least two batch sizes on this GPU model."""
        sizes = {run.batch_size for run in self.known if self.is_here(run) and run.epochs > 0}
        return len(sizes | set(self.problem.epoch_costs)) > 1

    @cached_property
    def epoch_deviation(self) -> float:
        """Standard deviation of the logarithm of the epochs to the target, from run to run."""
        squares = [
            min((math.log(later.epochs / earlier.epochs)) ** 2 / 2, _MAX_DEVIATION**2)
            for some in _reached_by_size(self.known).values()
            for earlier, later in pairwise(some)
        ]
        return math.sqrt((_PRIOR_COUNT * _EPOCH_DEVIATION**2 + math.fsum(squares)) / (_PRIOR_COUNT + len(squares)))

    def failures(self, least_cost: float) -> tuple[Array, Array]:
        """Return the odds that a training falls short of its target for once, and what it costs then, by batch size.

        With f failures at a batch size and r runs that reached the target, both counting half after a half-life, the
        odds are (c + f) / (1 - c + r). The chance c is that of other batch sizes, which counts as one run; each counts
        half as much for each doubling between. A run that was stopped as too dear is none: its bound says what it
        needs to.

        Args:
            least_cost: That of a training at the best batch size. A failure counts as no less.
        """
        half_life = self.problem.half_life_runs or math.inf
        here = [run for run in self.attempts if self.is_here(run)]
        failed, reached = defaultdict[int, float](float), defaultdict[int, float](float)
        spent: dict[int, float] = defaultdict(lambda: least_cost)
        lately: list[float] = []
        for number, run in enumerate(here):
            weight = 0.5 ** ((len(here) - 1 - number) / half_life)
            if run.outcome == "reached":
                reached[run.batch_size] += weight
                lately = [*lately, run.cost][-_LATELY:]
            elif run.outcome == "failed" or run.cost < min(lately, default=math.inf):
                failed[run.batch_size] += weight
                spent[run.batch_size] = max(spent[run.batch_size], run.cost)
        odds = []
        for size in self.problem.batch_sizes:
            near = {other: 0.5 ** abs(math.log2(other / size)) for other in {*failed, *reached} - {size}}
            failures = math.fsum(near[other] * failed[other] for other in near)
            runs = math.fsum(near[other] * (failed[other] + reached[other]) for other in near)
            chance = (_FAILURE_CHANCE + failures) / (1.0 + runs)
            odds.append((chance + failed[size]) / (1.0 - chance + reached[size]))
        return np.array(odds), np.array([spent[size] for size in self.problem.batch_sizes])

    def epochs(self) -> list[CensoredValue]:
        """Return observations of the logarithm of the epochs to the target over log2 of the batch size."""
        deviation = self.epoch_deviation
        by_place: dict[tuple[int, bool, float], list[float]] = defaultdict(list)
        for run, age in zip(self.known, self.ages, strict=True):
            is_censored = run.outcome == "stopped"
            if is_censored and not self.is_here(run) and run.epochs < self.problem.max_epochs:
                continue  # too dear elsewhere; that bound says little here
            epochs = self._least_epochs(run) if is_censored else run.epochs
            by_place[run.batch_size, is_censored, _stepped(age)].append(math.log(epochs))
        observations = []
        for (size, is_censored, age), values in by_place.items():
            value = max(values) if is_censored else math.fsum(values) / len(values)
            error = (_CENSORED_FACTOR if is_censored else 1.0) * deviation / math.sqrt(len(values))
            observations.append(CensoredValue(math.log2(size), value, error, is_censored, age))
        for size, epochs in self.problem.known_epochs.items():
            is_never = epochs > self.problem.max_epochs
            value = math.log(self.problem.max_epochs if is_never else epochs)
            observations.append(CensoredValue(math.log2(size), value, _KNOWN_DEVIATION, is_never))
        return observations

    def _least_epochs(self, run: BatchRun) -> float:
        """Return the epochs that a run short of its target would have taken at least."""
        if run.epochs >= 1:
            return run.epochs + 0.5  # it was stopped before the next would have ended
        return float(self.problem.max_epochs) if run.epochs == 0 else 1.0  # even one epoch was too dear

    def epoch_costs(self) -> list[CensoredValue]:
        """Return observations of the logarithm of the cost of an epoch over log2 of the batch size.

        Costs that were measured beforehand are as old as the first run.
        """
        by_place: dict[tuple[int, float], list[float]] = defaultdict(list)
        for run, age in zip(self.known, self.cost_ages, strict=True):
            value = _log_epoch_cost(self.problem, run)
            if value is not None:
                by_place[run.batch_size, _stepped(age)].append(value)
        for size, cost in self.problem.epoch_costs.items():
            by_place[size, _stepped(max(self.cost_ages, default=0.0))].append(math.log(cost))
        return [
            CensoredValue(
                math.log2(size),
                math.fsum(values) / len(values),
                _EPOCH_COST_DEVIATION / math.sqrt(len(values)),
                age=age,
            )
            for (size, age), values in by_place.items()
        ]


def _log_epoch_cost(problem: BatchProblem, run: BatchRun) -> float | None:
    """Return the logarithm of the cost of an epoch; None if a run says nothing of it here."""
    is_here = problem.gpu_model is None or run.gpu_model in (None, problem.gpu_model)
    return math.log(run.cost / run.epochs) if is_here and run.epochs > 0 and run.cost > 0 else None


def _stepped(age: float) -> float:
    return min(round(age / _AGE_STEP) * _AGE_STEP, _MAX_AGE)


def _ages(
    problem: BatchProblem, known: Sequence[BatchRun], values: Sequence[float | None], deviation: float
) -> Iterable[float]:
    """Return how long ago each run was, in half-lives; each surprise among the values counts as one more."""
    if problem.half_life_runs is None:
        return [0.0] * len(known)
    surprises = _surprises(known, values, deviation)
    now = len(known) / problem.half_life_runs + len(surprises)
    times = []
    passed = 0
    for number in range(len(known)):
        passed += number in surprises
        times.append((number + 1) / problem.half_life_runs + passed)
    return [now - time for time in times]


def _surprises(known: Sequence[BatchRun], values: Sequence[float | None], deviation: float) -> set[int]:
    """Return the numbers of the runs whose value left the interval that earlier runs of their batch size gave."""
    found = set[int]()
    since: dict[int, list[float]] = defaultdict(list)
    for number, (run, value) in enumerate(zip(known, values, strict=True)):
        if value is None:
            continue
        before = since[run.batch_size]
        if len(before) >= _MIN_SURPRISE_RUNS:
            mean = math.fsum(before) / len(before)
            squares = math.fsum((one - mean) ** 2 for one in before)
            variance = (_PRIOR_COUNT * deviation**2 + squares) / (_PRIOR_COUNT + len(before) - 1)
            reach = _SURPRISE * math.sqrt(variance * (1 + 1 / len(before)))
            if abs(value - mean) > max(reach, _MIN_SURPRISE):
                found.add(number)
                since.clear()
        since[run.batch_size].append(value)
    return found


def _reached_by_size(known: Iterable[BatchRun]) -> Mapping[int, list[BatchRun]]:
    by_size: dict[int, list[BatchRun]] = defaultdict(list)
    for run in known:
        if run.outcome == "reached":
            by_size[run.batch_size].append(run)
    return by_size
