"""One recurring job on recorded runs: a policy decides, the record answers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.jobs.policies import BatchProblem, BatchProposal, BatchRun, BatchSizePolicy
from zeus_core.jobs.replay._workload import EpochAtLimit, Workload
from zeus_core.jobs.replay.traces import Submission

_MAX_TRIES = 20  # of a recurrence, as in the published simulation
_ROUNDING = 1e-9  # a cost is a sum of floats: an epoch that just fits into its bound fits


@dataclass(frozen=True)
class Contestant:
    """A policy, and what it may know.

    Attributes:
        name: For tables.
        policy: The policy.
        measured_epoch_fraction: If above 0, the cost of an epoch is measured at every batch size when the job begins,
            each for as long as this fraction of an epoch at the default takes, over all power limits.
        knows_epochs: Whether the epochs to the target are known, as from another GPU model.
        half_life_runs: That of `BatchProblem`.
    """

    name: str
    policy: BatchSizePolicy
    measured_epoch_fraction: float = 0.0
    knows_epochs: bool = False
    half_life_runs: float | None = None


@dataclass(frozen=True)
class ReplayedRun:
    """One training of a replay.

    Attributes:
        recurrence: Which recurrence it belongs to, from 0.
        run: As the policy sees it.
        limit_watts: The power limit that was chosen for its batch size.
        charged_cost: Its cost, with the search for that limit, if it was the first at its batch size.
        reason: The reason of the policy.
    """

    recurrence: int
    run: BatchRun
    limit_watts: int
    charged_cost: float
    reason: str


@dataclass(frozen=True)
class Replay:
    """A replayed job.

    Attributes:
        runs: All runs, in the order in which they began.
        measuring_cost: Cost of measuring epochs when the job began.
        least_costs: Expected cost of the best training of each recurrence.
    """

    runs: tuple[ReplayedRun, ...]
    measuring_cost: float
    least_costs: tuple[float, ...]

    def regrets(self) -> list[float]:
        """Return the cumulative regret after each recurrence, in units of one optimal training."""
        costs = [0.0] * len(self.least_costs)
        for each in self.runs:
            costs[each.recurrence] += each.charged_cost
        costs[0] += self.measuring_cost
        steps = [cost / least - 1.0 for cost, least in zip(costs, self.least_costs, strict=True)]
        return list(np.cumsum(steps))

    @property
    def tried(self) -> int:
        """How many batch sizes were tried."""
        return len({each.run.batch_size for each in self.runs})

    @property
    def short_of_target(self) -> int:
        """How many runs ended short of the target."""
        return sum(each.run.outcome != "reached" for each in self.runs)


def replay(
    workloads: Sequence[Workload],
    contestant: Contestant,
    seed: int,
    *,
    recurrences: int = 50,
    submissions: Sequence[Submission] | None = None,
    earlier: Sequence[BatchRun] = (),
) -> Replay:
    """Replay a recurring job.

    The draws depend on the seed, the recurrence and the try, and on nothing else: all policies get the same luck. The
    first epoch of the first run at a batch size tries all of its power limits; the best one is used from then on.

    Args:
        workloads: The job at each recurrence, if it changes; the last one stays.
        contestant: The policy.
        seed: The seed of the draws, and of the policy.
        recurrences: How often the job recurs, each time after it has ended; not used with submissions.
        submissions: When each recurrence is submitted. Recurrences may overlap: a policy sees those that have ended,
            and which are running.
        earlier: Runs that the policy knows when the job begins, such as those on another GPU model.

    Raises:
        UsageError: The policy proposes what is none of the batch sizes.
    """
    count = recurrences if submissions is None else len(submissions)
    job = _Job(workloads, contestant, seed, earlier)
    # The events to come: (time, order, recurrence, try). A try that fell short is followed by another at its end.
    order = 0
    events = [(0.0, 0, 0, 0)] if submissions is None else []
    for number, submission in enumerate(submissions or ()):
        order = number
        events.append((submission.seconds, number, number, 0))
    heapq.heapify(events)
    while events:
        seconds, _, recurrence, attempt = heapq.heappop(events)
        factor = 1.0 if submissions is None else submissions[recurrence].runtime_factor
        ended_at, is_reached = job.run(recurrence, attempt, seconds, factor)
        order += 1
        if not is_reached and attempt + 1 < _MAX_TRIES:
            heapq.heappush(events, (ended_at, order, recurrence, attempt + 1))
        elif submissions is None and recurrence + 1 < count:
            heapq.heappush(events, (ended_at, order, recurrence + 1, 0))
    least_costs = tuple(job.workload(number).least_cost for number in range(count))
    return Replay(tuple(job.runs), job.measuring_cost, least_costs)


class _Job:
    """A job in the course of its replay."""

    def __init__(
        self, workloads: Sequence[Workload], contestant: Contestant, seed: int, earlier: Sequence[BatchRun]
    ) -> None:
        self.runs: list[ReplayedRun] = []
        self._earlier, self._ends = list(earlier), list[float]()
        self._workloads, self._contestant, self._seed = workloads, contestant, seed
        self._limits: dict[int, int] = {}  # the power limit of each batch size that has run
        first = workloads[0]
        fraction = contestant.measured_epoch_fraction
        self.measuring_cost: float = (
            fraction * len(first.sizes) * first.epoch_cost(first.searching_epoch(first.default))
        )
        self._problem = BatchProblem(
            tuple(first.sizes),
            first.default,
            first.max_epochs,
            half_life_runs=contestant.half_life_runs,
            known_epochs=first.known_epochs() if contestant.knows_epochs else {},
            epoch_costs={size: first.best_epoch_cost(size) for size in first.sizes} if fraction else {},
            gpu_model=first.gpu_model,
        )

    def workload(self, recurrence: int) -> Workload:
        """Return the job as it is at a recurrence."""
        return self._workloads[min(recurrence, len(self._workloads) - 1)]

    def run(self, recurrence: int, attempt: int, seconds: float, factor: float) -> tuple[float, bool]:
        """Train once, and return when that ends, and whether it reaches the target."""
        history = [self._as_seen(each.run, end, seconds) for each, end in zip(self.runs, self._ends, strict=True)]
        proposal = self._contestant.policy.propose(self._problem, [*self._earlier, *history], self._seed)
        size, workload = proposal.batch_size, self.workload(recurrence)
        if size not in workload.sizes:
            raise UsageError(f"{self._contestant.name} proposes the batch size {size!r}, which is none of the job's")
        is_first = size not in self._limits
        limit = self._limits.setdefault(size, workload.best_limit(size))
        epoch = workload.sizes[size].limits[limit]
        luck = float(np.random.default_rng([self._seed, recurrence, attempt]).random())
        epochs, is_reached = _epochs(workload, proposal, workload.epoch_cost(epoch), luck)
        spent = charged = _times(epoch, epochs)
        if is_first and epochs:
            searching, rest = workload.searching_epoch(size), _times(epoch, epochs - 1)
            charged = EpochAtLimit(rest.seconds + searching.seconds, rest.joules + searching.joules)
        run = BatchRun(
            size,
            "reached" if is_reached else "stopped",
            epochs,
            spent.seconds * factor,
            spent.joules * factor,
            workload.epoch_cost(spent),
            seconds,
            workload.gpu_model,
        )
        self._ends.append(seconds + charged.seconds * factor)
        cost = workload.epoch_cost(charged)
        self.runs.append(ReplayedRun(recurrence, run, limit, cost, proposal.reason))
        return self._ends[-1], is_reached

    @staticmethod
    def _as_seen(run: BatchRun, end: float, now: float) -> BatchRun:
        """Return a run as a policy sees it at a time."""
        if end <= now:
            return run
        return BatchRun(run.batch_size, "running", started_at=run.started_at, gpu_model=run.gpu_model)


def _times(epoch: EpochAtLimit, count: int) -> EpochAtLimit:
    return EpochAtLimit(epoch.seconds * count, epoch.joules * count)


def _epochs(workload: Workload, proposal: BatchProposal, epoch_cost: float, luck: float) -> tuple[int, bool]:
    """Return the epochs of a training that draws one of the recorded ones, and whether it reaches the target."""
    recorded = sorted(workload.sizes[proposal.batch_size].epochs, key=lambda epochs: epochs or math.inf)
    needed = recorded[int(luck * len(recorded))]
    affordable = workload.max_epochs
    if proposal.max_cost is not None:
        affordable = min(math.floor(proposal.max_cost / epoch_cost * (1 + _ROUNDING)), affordable)
    if needed is not None and needed <= affordable:
        return needed, True
    return affordable, False
