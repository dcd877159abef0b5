"""Policies for the batch size of recurring jobs, replayed on recorded trainings: cumulative regret.

    python benchmarks/recurring_replay.py --traces FOLDER [--seeds 20] [--recurrences 100] [--workers 2]

The folder holds train/summary_train.csv and power_limit/summary_power_*.csv in the published format. Regret is the cost
of all trainings, those that fell short and the searches of power limits included, beyond as many trainings at the best
batch size and limit, in units of one such training. Every policy has the same luck. The default strategy is the
adaptive policy that measures the cost of an epoch at each size first, each for as long as a tenth of an epoch at the
default takes; "alone" is the same without. Drift is a job whose critical batch size falls from 1024 to 64, slowly or at
once, or rises again, made by formulas. Exits with 1 if a target below is not met; says so and ends without a folder.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from zeus_core.errors import UsageError
from zeus_core.jobs.policies import AdaptiveBatchSize
from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize, GridBatchSize
from zeus_core.jobs.policies.published_batch_size import PublishedBatchSize
from zeus_core.jobs.replay._regrets import regret_table
from zeus_core.jobs.replay._workload import EpochAtLimit, RecordedSize, Workload
from zeus_core.jobs.replay.job_replay import (
    Contestant,
    replay,
)
from zeus_core.jobs.replay.policy_comparison import (
    PolicyResult,
    compare_policies,
)
from zeus_core.jobs.replay.traces import (
    RecordedJob,
    read_workloads,
)

JOBS = (  # dataset, target, default batch size and most epochs, as published
    RecordedJob("cifar100", 0.6, 1024, 100),
    RecordedJob("imagenet", 0.65, 256, 100),
    RecordedJob("squad", 84.0, 32, 6),
    RecordedJob("librispeech", 40.0, 256, 16),
    RecordedJob("movielens-1m", 0.41, 1024, 100),
    RecordedJob("sentiment140", 0.84, 128, 10),
)
OURS, KNOWN, PUBLISHED = "adaptive", "adaptive, epochs known", "published"
CONTESTANTS = (
    Contestant("default", DefaultBatchSize()),
    Contestant("grid", GridBatchSize()),
    Contestant(PUBLISHED, PublishedBatchSize()),
    Contestant("published, one round", PublishedBatchSize(rounds=1)),
    Contestant("adaptive, alone", AdaptiveBatchSize()),
    Contestant(OURS, AdaptiveBatchSize(), measured_epoch_fraction=0.1),
    Contestant(KNOWN, AdaptiveBatchSize(), measured_epoch_fraction=0.1, knows_epochs=True),
)
AFTER = 50  # recurrences, of the targets
TARGETS = {OURS: 3.0, "adaptive, alone": 3.0, PUBLISHED: 7.5, KNOWN: 1.2}
MAX_OVER_PUBLISHED = 1.15  # of the default strategy, on any job
DRIFT_RECURRENCES, HALF_LIFE_RUNS = 60, 20.0
MAX_DRIFT_SHARE = 0.75  # of the regret without forgetting, in the mean over the kinds of drift


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--recurrences", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1, help="processes; more than 1 need joblib")
    arguments = parser.parse_args()
    if arguments.traces is None or not arguments.traces.is_dir():
        print("SKIPPED: no recorded trainings; name their folder by --traces")
        is_met = True
    else:
        is_met = replay_traces(arguments)
    return 0 if replay_drift(arguments.seeds) and is_met else 1


def replay_traces(arguments: argparse.Namespace) -> bool:
    jobs = list(recorded_jobs(arguments.traces))
    results = compare_policies(
        jobs, CONTESTANTS, seeds=arguments.seeds, recurrences=arguments.recurrences, workers=arguments.workers
    )
    print(regret_table(results))
    print(f"\nafter {AFTER} recurrences:")
    is_met = True
    for policy, target in TARGETS.items():
        mean = statistics.fmean(one.regret(AFTER) for one in results if one.policy == policy)
        is_met &= told(f"mean regret of {policy}", mean, target)
    for ours in (one for one in results if one.policy == OURS):
        published = regret_of(results, ours, PUBLISHED)
        is_met &= told(
            f"{ours.gpu_model} {ours.job}, over published", ours.regret(AFTER) / published, MAX_OVER_PUBLISHED
        )
    transferred = list(regrets_after_another_model(jobs, arguments.seeds))
    if transferred:
        is_met &= told(
            f"mean regret of adaptive, after {AFTER} on another GPU model", statistics.fmean(transferred), 1.2
        )
    return is_met


def regrets_after_another_model(jobs: list[list[Workload]], seeds: int) -> Iterator[float]:
    """Yield the regret of each job that knows its runs on another GPU model, of each other model."""
    (contestant,) = (one for one in CONTESTANTS if one.name == OURS)
    for elsewhere, here in itertools.permutations(jobs, 2):
        if elsewhere[0].name == here[0].name:
            for seed in range(seeds):
                runs = [one.run for one in replay(elsewhere, contestant, seed + seeds, recurrences=AFTER).runs]
                yield replay(here, contestant, seed, recurrences=AFTER, earlier=runs).regrets()[-1]


def recorded_jobs(folder: Path) -> Iterator[list[Workload]]:
    for power in sorted((folder / "power_limit").glob("summary_power_*.csv")):
        for job in JOBS:
            try:
                yield read_workloads(folder / "train" / "summary_train.csv", power, job, power.stem.split("_")[-1])
            except UsageError as error:
                print(f"left out: {error}")


def regret_of(results: list[PolicyResult], other: PolicyResult, policy: str) -> float:
    (one,) = (one for one in results if (one.policy, one.gpu_model, one.job) == (policy, other.gpu_model, other.job))
    return one.regret(AFTER)


def replay_drift(seeds: int) -> bool:
    print(f"\nregret of the adaptive policy over {DRIFT_RECURRENCES} recurrences, {seeds} seeds:")
    print(f"{'work':16} {'without':>8} {'forgets':>8}")
    shares = []
    for name, slices in drifts().items():
        without, forgetting = (
            statistics.fmean(
                replay(slices, Contestant(name, AdaptiveBatchSize(), half_life_runs=half_life), seed,
                       recurrences=DRIFT_RECURRENCES).regrets()[-1]
                for seed in range(seeds)
            )
            for half_life in (None, HALF_LIFE_RUNS)
        )  # fmt: skip
        print(f"{name:16} {without:8.2f} {forgetting:8.2f}")
        if name != "does not change":
            shares.append(forgetting / without)
    return told("mean share of the regret where it drifts", statistics.fmean(shares), MAX_DRIFT_SHARE)


def drifts() -> dict[str, list[Workload]]:
    return {
        "does not change": drifting(256, 256, 20),
        "drifts down": drifting(1024, 64, 20),
        "jumps down": drifting(1024, 64, 1),
        "drifts up": drifting(64, 1024, 20),
        "jumps up": drifting(64, 1024, 1),
    }


def drifting(before: float, after: float, duration: int) -> list[Workload]:
    """Epochs are constant below the critical batch size, and proportional to the batch size above."""
    slices = []
    for number in range(DRIFT_RECURRENCES):
        share = min(max((number - 20) / duration, 0.0), 1.0)
        critical = before ** (1 - share) * after**share
        sizes = {}
        for size in (2**power for power in range(4, 12)):
            epochs = tuple(round(8 * (1 + size / critical) * factor) for factor in (0.9, 0.95, 1.0, 1.05, 1.1))
            seconds = 20 * (1 + 96 / size)
            limits = {300: EpochAtLimit(seconds, 250 * seconds), 200: EpochAtLimit(1.1 * seconds, 198 * seconds)}
            sizes[size] = RecordedSize(epochs, limits)
        slices.append(Workload("drift", "formula", sizes, 256, 100, 300.0))
    return slices


def told(what: str, value: float, target: float) -> bool:
    print(f"{what}: {value:.2f} (target: at most {target:g}){'' if value <= target else ' NOT MET'}")
    return value <= target


if __name__ == "__main__":
    sys.exit(main())
