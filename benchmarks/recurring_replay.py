"""Policies for the batch size of recurring jobs, replayed on recorded trainings: cumulative regret.

    python benchmarks/recurring_replay.py --traces FOLDER [--seeds 20] [--recurrences 100] [--workers 2]

The folder holds train/summary_train.csv and power_limit/summary_power_*.csv in the published format. Regret is the cost
of all trainings, those that fell short and the searches of power limits included, beyond as many trainings at the best
batch size and limit, in units of one such training. Every policy has the same luck. The default strategy is the
adaptive policy that measures the cost of an epoch at each size first, each for as long as a tenth of an epoch at the
default takes; "alone" is the same without. Work that changes, and work whose default is best, is made by formulas, and
needs no folder: the epochs and the seconds of an epoch have a critical and a fixed batch size. Their targets hold for
the upper end of the 95 % interval of the mean over the seeds. Exits with 1 if a target below is not met.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._published_batch_size import PublishedBatchSize
from zeus_core.errors import UsageError
from zeus_core.jobs.policies import AdaptiveBatchSize
from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize, GridBatchSize
from zeus_core.jobs.replay._workload import EpochAtLimit, RecordedSize, Workload
from zeus_core.jobs.replay.job_replay import (
    Contestant,
    replay,
)
from zeus_core.jobs.replay.policy_comparison import (
    PolicyResult,
    compare_policies,
    regret_table,
)
from zeus_core.jobs.replay.traces import (
    RecordedJob,
    read_workloads,
)
from zeus_core.search.comparison import student_quantile

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
MAX_DRIFT_REGRET = 8.0  # of each kind of change, with a half-life
DEFAULT_BEST_RECURRENCES = 200
MAX_EXPLORING = 0.5  # trainings beyond those of the default, where that is best
BATCH_SIZES = tuple(2**power for power in range(4, 12))
CHANGES = {  # critical and fixed batch size before and after, and over how many recurrences
    "does not change": ((256, 96), (256, 96), 1),
    "epochs drift down": ((1024, 96), (64, 96), 20),
    "epochs jump down": ((1024, 96), (64, 96), 1),
    "epochs drift up": ((64, 96), (1024, 96), 20),
    "epochs jump up": ((64, 96), (1024, 96), 1),
    "costs drift up": ((256, 24), (256, 384), 20),
    "costs jump up": ((256, 24), (256, 384), 1),
    "costs drift down": ((256, 384), (256, 24), 20),
    "costs jump down": ((256, 384), (256, 24), 1),
    "both drift": ((1024, 192), (256, 48), 20),
    "both jump": ((256, 48), (1024, 192), 1),
}
NARROW, WIDE = (0.98, 0.99, 1.0, 1.01, 1.02), (0.83, 0.91, 1.0, 1.1, 1.2)  # scatter of the epochs
THREE, EIGHT = (128, 256, 512), BATCH_SIZES
DEFAULT_BEST = {  # batch sizes, critical and fixed one, and the scatter; the default of 256 is best
    "others cost 5 % more": (THREE, 1600, 40, NARROW),
    "others cost 8 % more": (THREE, 1024, 64, NARROW),
    "others cost 12 % more": (THREE, 256, 256, NARROW),
    "8 %, eight sizes": (EIGHT, 1024, 64, NARROW),
    "12 %, eight sizes": (EIGHT, 256, 256, NARROW),
    "8 %, runs scatter by 13 %": (THREE, 1024, 64, WIDE),
    "12 %, eight sizes, 13 %": (EIGHT, 256, 256, WIDE),
}
BOUND_ROWS = 3  # of these, by the target: the others are shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--recurrences", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    arguments = parser.parse_args()
    if arguments.traces is None or not arguments.traces.is_dir():
        print("SKIPPED: no recorded trainings; name their folder by --traces")
        is_met = True
    else:
        is_met = replay_traces(arguments)
    is_met &= replay_changes(2 * arguments.seeds)
    is_met &= replay_default_best(arguments.seeds)
    return 0 if is_met else 1


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
        is_met &= reported(f"mean regret of {policy}", mean, target)
    for ours in (one for one in results if one.policy == OURS):
        published = regret_of(results, ours, PUBLISHED)
        is_met &= reported(
            f"{ours.gpu_model} {ours.job}, over published", ours.regret(AFTER) / published, MAX_OVER_PUBLISHED
        )
    transferred = list(regrets_after_another_model(jobs, arguments.seeds))
    if transferred:
        is_met &= reported(
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


def replay_changes(seeds: int) -> bool:
    print(f"\nregret over {DRIFT_RECURRENCES} recurrences of work that changes after 20, {seeds} seeds:")
    print(f"{'work':18} {'published':>15} {'adaptive':>15} {'with half-life':>15}")
    contestants = (
        Contestant(PUBLISHED, PublishedBatchSize()),
        Contestant(OURS, AdaptiveBatchSize()),
        Contestant("with half-life", AdaptiveBatchSize(), half_life_runs=HALF_LIFE_RUNS),
    )
    highest = 0.0
    for name, (before, after, duration) in CHANGES.items():
        slices = changing(before, after, duration)
        regrets = [mean_regret(slices, one, seeds, DRIFT_RECURRENCES) for one in contestants]
        print(f"{name:18} " + " ".join(f"{mean:7.2f} +-{half:5.2f}" for mean, half in regrets))
        highest = max(highest, sum(regrets[-1]))
    return reported("highest upper end with a half-life", highest, MAX_DRIFT_REGRET)


def replay_default_best(seeds: int) -> bool:
    print(f"\ntrainings over {DEFAULT_BEST_RECURRENCES} recurrences beyond those at the default, {seeds} seeds:")
    print(f"{'work':26} {'published':>15} {'adaptive':>15}")
    ends = []
    for name, (sizes, critical, fixed, scatter) in DEFAULT_BEST.items():
        work = [formula_work(critical, fixed, sizes, scatter, 100)]
        default = mean_regret(work, CONTESTANTS[0], seeds, DEFAULT_BEST_RECURRENCES)[0]
        some = [Contestant(PUBLISHED, PublishedBatchSize()), Contestant(OURS, AdaptiveBatchSize())]
        beyond = [(m - default, half) for m, half in (mean_regret(work, one, seeds, 200) for one in some)]
        print(f"{name:26} " + " ".join(f"{mean:7.2f} +-{half:5.2f}" for mean, half in beyond), flush=True)
        ends.append(sum(beyond[-1]))
    return reported("highest upper end of adaptive, of the first three", max(ends[:BOUND_ROWS]), MAX_EXPLORING)


def mean_regret(work: list[Workload], contestant: Contestant, seeds: int, recurrences: int) -> tuple[float, float]:
    """Return the mean regret over the seeds, and the half-width of its 95 % interval."""
    regrets = [replay(work, contestant, seed, recurrences=recurrences).regrets()[-1] for seed in range(seeds)]
    half = student_quantile(seeds - 1) * statistics.stdev(regrets) / math.sqrt(seeds) if seeds > 1 else math.inf
    return statistics.fmean(regrets), half


def changing(before: tuple[float, float], after: tuple[float, float], duration: int) -> list[Workload]:
    """Return work whose two batch sizes change in the logarithm, from recurrence 20 on."""
    slices = []
    for number in range(DRIFT_RECURRENCES):
        share = min(max((number - 20) / duration, 0.0), 1.0)
        critical, fixed = (one ** (1 - share) * other**share for one, other in zip(before, after, strict=True))
        slices.append(formula_work(critical, fixed))
    return slices


def formula_work(
    critical: float,
    fixed: float,
    batch_sizes: tuple[int, ...] = BATCH_SIZES,
    scatter: tuple[float, ...] = (0.9, 0.95, 1.0, 1.05, 1.1),
    least_epochs: int = 8,
) -> Workload:
    """Return work with least_epochs (1 + size / critical) epochs to the target, of 20 (1 + fixed / size) seconds."""
    sizes = {}
    for size in batch_sizes:
        epochs = tuple(round(least_epochs * (1 + size / critical) * factor) for factor in scatter)
        seconds = 20 * (1 + fixed / size)
        limits = {300: EpochAtLimit(seconds, 250 * seconds), 200: EpochAtLimit(1.1 * seconds, 198 * seconds)}
        sizes[size] = RecordedSize(epochs, limits)
    return Workload("formula", "none", sizes, 256, 100 * least_epochs, 300.0)


def reported(what: str, value: float, target: float) -> bool:
    print(f"{what}: {value:.2f} (target: at most {target:g}){'' if value <= target else ' NOT MET'}")
    return value <= target


if __name__ == "__main__":
    sys.exit(main())
