"""`zeus-core jobs replay`: what policies for a batch size would have cost, on recorded runs."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import check_exists, path
from zeus_core.cli.text import write
from zeus_core.errors import UsageError
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.jobs.policies import BatchSizePolicy
    from zeus_core.jobs.replay.job_replay import Contestant
    from zeus_core.jobs.replay.traces import RecordedJob

_MEASURED_FRACTION = 0.1  # of an epoch at the default batch size, for each batch size
_POLICIES = ("default", "grid", "adaptive", "adaptive-measured", "adaptive-known")
_SEEDS, _RECURRENCES = 20, 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("train", type=path, metavar="TRAIN.csv", help="epochs to the target")
    parser.add_argument(
        "power", type=path, nargs="+", metavar="POWER.csv", help="time and power of an epoch, a file for each GPU model"
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
        default=["default", "adaptive"],
        metavar="A,B",
        help=f"of {', '.join(_POLICIES)}, or package.module:Class of your own (default,adaptive)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Replay, and print the table, or every run as CSV."""
    from zeus_core.jobs.replay.policy_comparison import compare_policies, regret_table, runs_csv
    from zeus_core.jobs.replay.traces import read_workloads

    for file in (arguments.train, *arguments.power):
        check_exists(file)
    contestants = [_contestant(name) for name in arguments.policies]
    jobs = [
        read_workloads(arguments.train, power, job, power.stem.removeprefix("summary_power_"))
        for power in arguments.power
        for job in arguments.job
    ]
    results = compare_policies(jobs, contestants, seeds=_SEEDS, recurrences=_RECURRENCES)
    write(runs_csv(results).rstrip("\n") if arguments.format == "csv" else regret_table(results), sys.stdout)
    return 0


def _contestant(name: str) -> Contestant:
    from zeus_core.jobs.policies import AdaptiveBatchSize
    from zeus_core.jobs.policies.fixed_batch_sizes import DefaultBatchSize, GridBatchSize
    from zeus_core.jobs.replay.job_replay import Contestant

    if name.startswith("adaptive"):
        fraction = _MEASURED_FRACTION if name != "adaptive" else 0.0
        return Contestant(name, AdaptiveBatchSize(), fraction, knows_epochs=name == "adaptive-known")
    made: dict[str, type[BatchSizePolicy]] = {"default": DefaultBatchSize, "grid": GridBatchSize}
    return Contestant(name, made[name]() if name in made else _own_policy(name))


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
            raise argparse.ArgumentTypeError(f"{shown(name)} is not one of {listed}, nor package.module:Class")
    return names
