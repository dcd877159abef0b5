"""`zeus-core replay`: what policies for the batch size of a recurring job would have cost, on recorded trainings."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import count, number, path
from zeus_core.cli.text import write
from zeus_core.errors import UsageError
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.jobs.policies import BatchSizePolicy
    from zeus_core.jobs.replay._workload import SearchFactory
    from zeus_core.jobs.replay.job_replay import Contestant
    from zeus_core.jobs.replay.traces import RecordedJob

SUMMARY = "Replay policies for recurring jobs on recorded trainings"

_MEASURED_FRACTION = 0.1  # of an epoch at the default batch size, for each batch size
_SEARCHES = {"grid": "GridSearch", "adaptive": "AdaptiveSearch"}
_POLICIES = ("default", "grid", "published", "published-1", "adaptive", "adaptive-measured", "adaptive-known")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--train", type=path, required=True, metavar="FILE", help="CSV of epochs to the target")
    parser.add_argument(
        "--power", type=path, required=True, nargs="+", metavar="FILE", help="CSV of time and power, for each GPU model"
    )
    parser.add_argument(
        "--job",
        type=_job,
        required=True,
        action="append",
        metavar="DATASET:TARGET:DEFAULT:MAX_EPOCHS",
        help="a recurring job, such as cifar100:0.6:1024:100; may be given several times",
    )
    parser.add_argument(
        "--policies",
        type=_names,
        default=["default", "published", "adaptive"],
        metavar="A,B",
        help=f"of {', '.join(_POLICIES)}, or package.module:Class of your own (default,published,adaptive)",
    )
    parser.add_argument("--recurrences", type=count, default=50, metavar="N", help="runs of each job (50)")
    parser.add_argument(
        "--seeds", type=count, default=20, metavar="N", help="seeds of the random draws, the same for all policies (20)"
    )
    parser.add_argument(
        "--submissions", type=path, metavar="FILE", help="CSV with group and start_time: recurrences that may overlap"
    )
    parser.add_argument(
        "--half-life", type=_runs, metavar="RUNS", help="number of runs after which an observation counts half"
    )
    parser.add_argument(
        "--eta", type=_eta, default=0.5, metavar="WEIGHT", help="weight of energy in the cost, 0 to 1 (0.5)"
    )
    parser.add_argument("--search", choices=tuple(_SEARCHES), default="grid", help="search for the power limit (grid)")
    parser.add_argument("--workers", type=count, default=1, metavar="N", help="processes; more than 1 need joblib (1)")
    parser.add_argument("--csv", type=path, metavar="FILE", help="write every training")
    parser.add_argument("--picture", type=path, metavar="FILE", help="draw the regret; needs matplotlib")


def execute(arguments: argparse.Namespace) -> int:
    """Replay, print the table, and write the files."""
    from zeus_core.jobs.replay._regrets import draw_regrets, regret_table
    from zeus_core.jobs.replay.policy_comparison import compare_policies, write_runs
    from zeus_core.jobs.replay.traces import read_submissions, read_workloads

    contestants = [_contestant(name, arguments.half_life) for name in arguments.policies]
    jobs = [
        read_workloads(arguments.train, power, job, power.stem.removeprefix("summary_power_"), arguments.eta)
        for power in arguments.power
        for job in arguments.job
    ]
    groups = None if arguments.submissions is None else read_submissions(arguments.submissions)
    results = compare_policies(
        jobs,
        contestants,
        seeds=arguments.seeds,
        recurrences=arguments.recurrences,
        groups=groups,
        make_search=_search(arguments.search),
        workers=arguments.workers,
    )
    write(regret_table(results), sys.stdout)
    _write(arguments.csv, "--csv", lambda file: write_runs(results, file))
    title = f"{len(jobs)} recurring jobs, {arguments.seeds} seeds"
    _write(arguments.picture, "--picture", lambda file: draw_regrets(results, title, file))
    return 0


def _write(file: Path | None, argument: str, make: Callable[[Path], None]) -> None:
    if file is None:
        return
    try:
        make(file)
    except OSError as error:
        raise UsageError(f"{argument} is {str(file)!r}, which cannot be written: {error}") from error
    write(f"written to {file}", sys.stdout)


def _contestant(name: str, half_life_runs: float | None) -> Contestant:
    from zeus_core.jobs.policies import AdaptiveBatchSize
    from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize, GridBatchSize
    from zeus_core.jobs.policies.published_batch_size import PublishedBatchSize
    from zeus_core.jobs.replay.job_replay import Contestant

    made: dict[str, BatchSizePolicy] = {
        "default": DefaultBatchSize(),
        "grid": GridBatchSize(),
        "published": PublishedBatchSize(),
        "published-1": PublishedBatchSize(rounds=1),
    }
    if name.startswith("adaptive"):
        fraction = _MEASURED_FRACTION if name != "adaptive" else 0.0
        return Contestant(name, AdaptiveBatchSize(), fraction, name == "adaptive-known", half_life_runs)
    return Contestant(name, made[name] if name in made else _own_policy(name), half_life_runs=half_life_runs)


def _own_policy(name: str) -> BatchSizePolicy:
    """Make a policy of a class of the user's."""
    module, _, attribute = name.partition(":")
    try:
        policy: BatchSizePolicy = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # what a module of the user's raises
        raise UsageError(f"--policies names {name}, which cannot be made: {type(error).__name__}: {error}") from error
    if not callable(getattr(policy, "propose", None)):
        raise UsageError(f"--policies names {name}, which has no method `propose`; see BatchSizePolicy")
    return policy


def _search(name: str) -> SearchFactory:
    from zeus_core import search

    factory: SearchFactory = getattr(search, _SEARCHES[name])
    return factory


def _job(text: str) -> RecordedJob:
    from zeus_core.jobs.replay.traces import RecordedJob

    try:
        dataset, target, default, max_epochs = text.rsplit(":", 3)
        return RecordedJob(dataset, float(target), int(default), int(max_epochs))
    except ValueError as error:  # a UsageError is a ValueError too
        example = "DATASET:TARGET:DEFAULT:MAX_EPOCHS, such as cifar100:0.6:1024:100"
        raise argparse.ArgumentTypeError(f"{shown(text)} is not {example}") from error


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in _POLICIES and name.count(":") != 1:
            listed = ", ".join(_POLICIES)
            raise argparse.ArgumentTypeError(f"{shown(name)} is no policy: none of {listed}, nor package.module:Class")
    return names


def _runs(text: str) -> float:
    return number(text, 0.1, 1e6, "is not a number of runs from 0.1 to 1e6, such as 20")


def _eta(text: str) -> float:
    return number(text, 0.0, 1.0, "is not a weight from 0 to 1, such as 0.5")
