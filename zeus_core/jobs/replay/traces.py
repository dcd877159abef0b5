"""Recorded jobs from CSV files in the published format."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from zeus_core.errors import UsageError
from zeus_core.jobs.replay._workload import EpochAtLimit, RecordedSize, Workload
from zeus_core.validate import checked_number, checked_path, checked_whole_number, shown

_KEYS = ("dataset", "network", "optimizer")
_TRAIN = (*_KEYS, "batch_size", "target_metric", "target_epoch")
_POWER = (*_KEYS, "batch_size", "power_limit", "time_per_epoch", "average_power")
_SUBMISSIONS = ("group", "start_time")
_SLICE, _RATIO = "slice", "runtime_ratio"  # columns that may be missing
_MAX = 1e12


@dataclass(frozen=True)
class RecordedJob:
    """The recorded runs that are a job.

    Attributes:
        dataset: As in the files.
        target: The metric to reach, as in the files.
        default: The batch size of the user; the largest with power if none so large was measured.
        max_epochs: Epochs after which a training ends short of its target.

    Raises:
        UsageError: An attribute cannot be.
    """

    dataset: str
    target: float
    default: int
    max_epochs: int

    def __post_init__(self) -> None:
        """Check the attributes, which come from a command line."""
        checked_number("target", self.target, -_MAX, _MAX, "a number, such as 0.84")
        checked_whole_number("default", self.default, 1)
        checked_whole_number("max_epochs", self.max_epochs, 1)


@dataclass(frozen=True)
class Submission:
    """When a recurrence of a job is submitted.

    Attributes:
        seconds: The time.
        runtime_factor: Its duration over the average duration.
    """

    seconds: float
    runtime_factor: float = 1.0


def read_workloads(
    train: str | Path, power: str | Path, job: RecordedJob, gpu_model: str, eta_knob: float = 0.5
) -> list[Workload]:
    """Read a job on a GPU model. It has one workload, or as many as the column `slice` has values, in their order.

    Args:
        train: CSV with dataset, network, optimizer, batch_size, target_metric, target_epoch (empty: never reached), and
            slice if the data changes from recurrence to recurrence.
        power: CSV with dataset, network, optimizer, batch_size, power_limit, time_per_epoch, average_power.
        job: The runs to read.
        gpu_model: The name of the GPU model.
        eta_knob: Weight of energy in the cost, from 0 (time alone) to 1.

    Raises:
        UsageError: A file cannot be read, or has no such job; or nothing reaches the target.
    """
    powers = list(_rows(power, _POWER, "summary_power_v100.csv"))
    if not powers:
        raise UsageError(f"{power} has no rows")
    max_power_watts = max(_number(row, "power_limit", where) for where, row in powers)
    limits: dict[tuple[str, ...], dict[int, dict[int, EpochAtLimit]]] = defaultdict(lambda: defaultdict(dict))
    for where, row in powers:
        if row["dataset"] == job.dataset:
            seconds = _number(row, "time_per_epoch", where)
            epoch = EpochAtLimit(seconds, seconds * _number(row, "average_power", where))
            limits[_key(row)][_whole(row, "batch_size", where)][_whole(row, "power_limit", where)] = epoch
    slices = _epochs(train, job)
    workloads = []
    for number in sorted(slices):
        kinds = [key for key in slices[number] if key in limits]
        if len(kinds) != 1:
            raise UsageError(_not_one_kind(train, power, job, kinds))
        measured, epochs = limits[kinds[0]], slices[number][kinds[0]]
        sizes = {size: RecordedSize(tuple(epochs[size]), measured[size]) for size in sorted(measured) if size in epochs}
        default = min(job.default, max(measured))
        workloads.append(Workload(job.dataset, gpu_model, sizes, default, job.max_epochs, max_power_watts, eta_knob))
    if not workloads:
        raise UsageError(f"{train} has no {shown(job.dataset)} with the target {job.target:g}")
    return workloads


def read_submissions(path: str | Path) -> list[list[Submission]]:
    """Read when recurrences are submitted: a list for each group, which is a job of its own.

    Args:
        path: CSV with group, start_time in seconds, and runtime_ratio (1 if there is no such column).

    Raises:
        UsageError: The file cannot be read, or has no rows.
    """
    groups: dict[str, list[Submission]] = defaultdict(list)
    for where, row in _rows(path, _SUBMISSIONS, "submissions.csv"):
        factor = _number(row, _RATIO, where) if row.get(_RATIO) is not None else 1.0
        groups[row["group"]].append(Submission(_number(row, "start_time", where, is_zero_allowed=True), factor))
    if not groups:
        raise UsageError(f"{path} has no rows")
    return [sorted(some, key=lambda submission: submission.seconds) for some in groups.values()]


def _epochs(train: str | Path, job: RecordedJob) -> dict[float, dict[tuple[str, ...], dict[int, list[int | None]]]]:
    """Return the epochs to the target by slice, kind of training and batch size."""
    slices: dict[float, dict[tuple[str, ...], dict[int, list[int | None]]]] = {}
    for where, row in _rows(train, _TRAIN, "summary_train.csv"):
        if row["dataset"] != job.dataset or not math.isclose(_number(row, "target_metric", where), job.target):
            continue
        number = _number(row, _SLICE, where, is_zero_allowed=True) if row.get(_SLICE) is not None else 0.0
        text = row["target_epoch"].strip().lower()
        epochs = None if text in ("", "nan") else round(_number(row, "target_epoch", where))
        kinds = slices.setdefault(number, {})
        kinds.setdefault(_key(row), {}).setdefault(_whole(row, "batch_size", where), []).append(epochs)
    return slices


def _not_one_kind(train: str | Path, power: str | Path, job: RecordedJob, kinds: Sequence[tuple[str, ...]]) -> str:
    if not kinds:
        return f"{train} and {power} have no {shown(job.dataset)} with the target {job.target:g} in common"
    listed = "; ".join(" ".join(kind[1:]) for kind in kinds)
    return f"{train} and {power} have several kinds of {shown(job.dataset)}: {listed}; leave one in a file of its own"


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in _KEYS)


def _rows(path: str | Path, columns: Sequence[str], example: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Go through the rows of a file; each comes with where it stands, for errors."""
    file = checked_path("path", path, example)
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    reader = csv.DictReader(lines)
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{file} lacks the columns {', '.join(missing)}; its first line must name its columns")
    try:
        for line, row in enumerate(reader, 2):
            if any(row[name] is None for name in columns):
                raise UsageError(f"{file}, line {line}: it has fewer values than there are columns")
            yield f"{file}, line {line}", row
    except csv.Error as error:
        raise UsageError(f"{file} cannot be read: {error}") from error


def _number(row: dict[str, str], name: str, where: str, *, is_zero_allowed: bool = False) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not 0 <= value <= _MAX or (value == 0 and not is_zero_allowed):
        raise UsageError(f"{where}: {name} is {shown(row[name])}; it must be a number above 0")
    return value


def _whole(row: dict[str, str], name: str, where: str) -> int:
    value = _number(row, name, where)
    if value != int(value):
        raise UsageError(f"{where}: {name} is {shown(row[name])}; it must be a whole number")
    return int(value)
