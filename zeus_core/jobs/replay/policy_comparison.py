"""Many replays: policies against recorded jobs, over seeds, groups of submissions and processes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zeus_core.adapters import install_command
from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.jobs.replay._workload import SearchFactory, Workload
from zeus_core.jobs.replay.job_replay import Contestant, Replay, replay
from zeus_core.jobs.replay.traces import Submission
from zeus_core.search import GridSearch

_COLUMNS = (
    *("job", "gpu_model", "policy", "seed", "group", "recurrence", "batch_size", "power_limit", "outcome", "epochs"),
    *("started_at", "seconds", "energy_joules", "cost", "charged_cost", "reason"),
)


@dataclass(frozen=True)
class PolicyResult:
    """All replays of one policy on one recorded job.

    Attributes:
        policy: The name of the policy.
        job: The name of the job.
        gpu_model: Where it was recorded.
        replays: By seed, and by group of submissions.
    """

    policy: str
    job: str
    gpu_model: str
    replays: tuple[tuple[Replay, ...], ...]

    def regrets(self) -> list[float]:
        """Return the mean cumulative regret after each recurrence, in units of one optimal training.

        Where groups have different numbers of recurrences, a shorter one counts with its last regret.
        """
        all_regrets = [one.regrets() for groups in self.replays for one in groups]
        longest = max(map(len, all_regrets))
        return [
            math.fsum(some[min(number, len(some) - 1)] for some in all_regrets) / len(all_regrets)
            for number in range(longest)
        ]

    def regret(self, recurrences: int) -> float:
        """Return the mean cumulative regret after some recurrences, at least 1."""
        regrets = self.regrets()
        return regrets[min(recurrences, len(regrets)) - 1]

    def regrets_by_seed(self, recurrences: int) -> list[float]:
        """Return the cumulative regret after some recurrences with each seed, the mean over its groups."""
        by_seed = ([one.regrets() for one in groups] for groups in self.replays)
        return [math.fsum(some[min(recurrences, len(some)) - 1] for some in groups) / len(groups) for groups in by_seed]

    @property
    def mean_tried(self) -> float:
        """How many batch sizes were tried, in the mean."""
        return self._mean([one.tried for groups in self.replays for one in groups])

    @property
    def mean_short_of_target(self) -> float:
        """How many trainings ended short of the target, in the mean."""
        return self._mean([one.short_of_target for groups in self.replays for one in groups])

    @staticmethod
    def _mean(values: Sequence[int]) -> float:
        return sum(values) / len(values)


def compare_policies(
    jobs: Sequence[Sequence[Workload]],
    contestants: Sequence[Contestant],
    *,
    seeds: int = 20,
    recurrences: int = 50,
    groups: Sequence[Sequence[Submission]] | None = None,
    make_search: SearchFactory = GridSearch,
    workers: int = 1,
) -> list[PolicyResult]:
    """Replay each job with each policy, with the same luck for all policies.

    Args:
        jobs: The workloads of each job, as `read_workloads` returns them.
        contestants: The policies.
        seeds: How many seeds.
        recurrences: How often a job recurs, one after another; not used with groups.
        groups: Submissions of recurrences that may overlap; each group is a job of its own.
        make_search: The search for the power limit of a batch size.
        workers: Processes. More than one need joblib; within its `parallel_config`, they are those of the backend
            chosen there, such as Ray or Dask.

    Raises:
        UsageError: Several workers are asked for, and joblib is not installed.
    """
    tasks = [
        (workloads, contestant, seed, recurrences, groups, make_search)
        for workloads in jobs
        for contestant in contestants
        for seed in range(seeds)
    ]
    replays = _parallel(tasks, workers)
    results = []
    for number, (workloads, contestant, *_) in enumerate(tasks[::seeds]):
        some = tuple(replays[number * seeds : (number + 1) * seeds])
        results.append(PolicyResult(contestant.name, workloads[0].name, workloads[0].gpu_model, some))
    return results


def write_runs(results: Iterable[PolicyResult], path: Path) -> None:
    """Write every training of some replays as CSV, one a line.

    Raises:
        OSError: The file cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for result in results:
        for seed, groups in enumerate(result.replays):
            for group, one in enumerate(groups):
                for each in one.runs:
                    run = each.run
                    writer.writerow(
                        [result.job, result.gpu_model, result.policy, seed, group, each.recurrence, run.batch_size]
                        + [each.limit_watts, run.outcome, f"{run.epochs:g}", f"{run.started_at:.3f}"]
                        + [f"{value:.3f}" for value in (run.seconds, run.energy_joules, run.cost, each.charged_cost)]
                        + [each.reason]
                    )
    write_atomically(path, text.getvalue().encode())


_Task = tuple[Sequence[Workload], Contestant, int, int, Sequence[Sequence[Submission]] | None, SearchFactory]


def _parallel(tasks: Sequence[_Task], workers: int) -> list[tuple[Replay, ...]]:
    if workers == 1:
        return [_replay_groups(*task) for task in tasks]
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise UsageError(
            f"workers is {workers}, which needs joblib: {install_command('replay')}; or leave it at 1"
        ) from error
    found: list[tuple[Replay, ...]] = list(Parallel(n_jobs=workers)(delayed(_replay_groups)(*task) for task in tasks))
    return found


def _replay_groups(
    workloads: Sequence[Workload],
    contestant: Contestant,
    seed: int,
    recurrences: int,
    groups: Sequence[Sequence[Submission]] | None,
    make_search: SearchFactory,
) -> tuple[Replay, ...]:
    if groups is None:
        return (replay(workloads, contestant, seed, recurrences=recurrences, make_search=make_search),)
    return tuple(replay(workloads, contestant, seed, submissions=group, make_search=make_search) for group in groups)
