"""Many replays: policies against recorded jobs, over seeds, groups of submissions and processes."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

from zeus_core.jobs.replay._workload import Workload
from zeus_core.jobs.replay.job_replay import Contestant, Replay, replay
from zeus_core.jobs.replay.traces import Submission

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
        all_regrets = [played.regrets() for groups in self.replays for played in groups]
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
        by_seed = ([played.regrets() for played in groups] for groups in self.replays)
        return [math.fsum(some[min(recurrences, len(some)) - 1] for some in groups) / len(groups) for groups in by_seed]

    @property
    def mean_tried(self) -> float:
        """How many batch sizes were tried, in the mean."""
        return _mean([each.tried for groups in self.replays for each in groups])

    @property
    def mean_short_of_target(self) -> float:
        """How many runs ended short of the target, in the mean."""
        return _mean([each.short_of_target for groups in self.replays for each in groups])


def compare_policies(
    jobs: Sequence[Sequence[Workload]],
    contestants: Sequence[Contestant],
    *,
    seeds: int = 20,
    recurrences: int = 50,
    groups: Sequence[Sequence[Submission]] | None = None,
    workers: int = 1,
) -> list[PolicyResult]:
    """Replay each job with each policy, with the same luck for all policies.

    Args:
        jobs: The workloads of each job, as `read_workloads` returns them.
        contestants: The policies.
        seeds: How many seeds.
        recurrences: How often a job recurs, one after another; not used with groups.
        groups: Submissions of recurrences that may overlap; each group is a job of its own.
        workers: Processes.
    """
    played = partial(_replays, recurrences=recurrences, groups=groups)
    tasks = [(job, contestant, seed) for job in jobs for contestant in contestants for seed in range(seeds)]
    if workers == 1:
        replays = [played(*task) for task in tasks]
    else:
        with ProcessPoolExecutor(workers) as processes:
            replays = list(processes.map(played, *zip(*tasks, strict=True)))
    return [
        PolicyResult(contestant.name, job[0].name, job[0].gpu_model, tuple(replays[first : first + seeds]))
        for first, (job, contestant, _) in list(enumerate(tasks))[::seeds]
    ]


def _replays(
    workloads: Sequence[Workload],
    contestant: Contestant,
    seed: int,
    recurrences: int,
    groups: Sequence[Sequence[Submission]] | None,
) -> tuple[Replay, ...]:
    if groups is None:
        return (replay(workloads, contestant, seed, recurrences=recurrences),)
    return tuple(replay(workloads, contestant, seed, submissions=group) for group in groups)


def runs_csv(results: Iterable[PolicyResult]) -> str:
    """Return every run of some replays as CSV, one a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for result in results:
        for seed, groups in enumerate(result.replays):
            for group, played in enumerate(groups):
                for each in played.runs:
                    run = each.run
                    writer.writerow(
                        [result.job, result.gpu_model, result.policy, seed, group, each.recurrence, run.batch_size]
                        + [each.limit_watts, run.outcome, f"{run.epochs:g}", f"{run.started_at:.3f}"]
                        + [f"{value:.3f}" for value in (run.seconds, run.energy_joules, run.cost, each.charged_cost)]
                        + [each.reason]
                    )
    return text.getvalue()


def regret_table(results: Sequence[PolicyResult]) -> str:
    """Return the mean cumulative regret of each policy, over all jobs and for each, as a table.

    Args:
        results: The results of `compare_policies`, at least one.
    """
    policies = list(dict.fromkeys(result.policy for result in results))
    jobs = list(dict.fromkeys((result.gpu_model, result.job) for result in results))
    names = [f"{model} {job}" for model, job in jobs] if len(jobs) > 1 else []
    width = max(map(len, policies))
    count = max(len(result.regrets()) for result in results)
    half = max(count // 2, 1)
    lines = [
        f"cumulative regret, in runs at the best batch size and limit, after {half} and {count} recurrences",
        f"{'policy':{width}} {half:>8} {count:>8} {'stderr':>6} {'tried':>6} {'short':>6}"
        + "".join(f"  {name:>8}" for name in names),
    ]
    for policy in policies:
        own = [result for result in results if result.policy == policy]
        by_job = {(result.gpu_model, result.job): result for result in own}
        line = f"{policy:{width}} {_mean([each.regret(half) for each in own]):8.2f} "
        line += f"{_mean([each.regret(count) for each in own]):8.2f} {_stderr(own, count):6.2f} "
        line += (
            f"{_mean([each.mean_tried for each in own]):6.1f} {_mean([each.mean_short_of_target for each in own]):6.2f}"
        )
        for job, name in zip(jobs, names, strict=False):
            line += f"  {by_job[job].regret(count):{max(len(name), 8)}.2f}"
        lines.append(line)
    return "\n".join(lines)


def _stderr(results: Sequence[PolicyResult], recurrences: int) -> float:
    """Return the standard error of the mean regret over the jobs, by its scatter from seed to seed."""
    by_seed = [_mean(regrets) for regrets in zip(*(each.regrets_by_seed(recurrences) for each in results), strict=True)]
    return statistics.stdev(by_seed) / math.sqrt(len(by_seed)) if len(by_seed) > 1 else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
