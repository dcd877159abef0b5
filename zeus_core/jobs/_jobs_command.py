"""`zeus-core jobs`: recurring jobs, and what their runs have taught."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zeus_core.cli.arguments import add_modes
from zeus_core.cli.text import NOT_MEASURED, table, write
from zeus_core.codec import encode
from zeus_core.errors import UsageError
from zeus_core.jobs.replay import replay_command
from zeus_core.units import number_text

if TYPE_CHECKING:
    from zeus_core.jobs._job_records import StoredRun
    from zeus_core.jobs._job_store import JobStore

PLACE = "Before a run", 35
SUMMARY = "Show recurring jobs and the cost of each of their batch sizes"
EXAMPLE = "zeus-core jobs show nightly --storage sqlite:///zeus.db"

_MODES = {
    "list": ("list the jobs, and the best batch size of each", "zeus-core jobs list"),
    "show": ("show the cost of each batch size of a job", "zeus-core jobs show nightly --format html > nightly.html"),
    "history": ("show each run of a job: batch size, outcome, cost, and why", "zeus-core jobs history nightly"),
    "forget": ("delete a job and its runs", "zeus-core jobs forget nightly --yes"),
    "replay": (
        "show what policies would have cost on recorded runs",
        "zeus-core jobs replay summary_train.csv summary_power_v100.csv --job cifar100:0.6:128:100",
    ),
}
_FORMATS = {"show": ("text", "html"), "history": ("text", "csv", "json"), "replay": ("text", "csv")}

_Result = TypeVar("_Result")

_SQLITE = "sqlite:///"
_COLUMNS = (
    *("number", "started", "batch_size", "outcome", "epochs", "metric", "seconds", "energy_joules", "cost"),
    *("max_cost", "gpu_model", "ranks", "reason"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of each mode."""
    modes = add_modes(parser, _MODES)
    for name in ("list", "show", "history", "forget"):
        modes[name].add_argument(
            "--storage", default="sqlite:///zeus.db", metavar="URL", help="address of the database (sqlite:///zeus.db)"
        )
    for name in ("show", "history", "forget"):
        modes[name].add_argument("job", help="the name of the job")
    modes["forget"].add_argument("--yes", action="store_true", help="do it")
    replay_command.add_arguments(modes["replay"])
    for name, formats in _FORMATS.items():
        modes[name].add_argument("--format", choices=formats, default="text", help="form of the output (text)")


def execute(arguments: argparse.Namespace) -> int:
    """Print what was asked for."""
    if arguments.mode == "replay":
        return replay_command.execute(arguments)
    from zeus_core.jobs._job_database import check_storage

    storage: str = check_storage(arguments.storage)
    file = storage.removeprefix(_SQLITE).partition("?")[0]
    if storage.startswith(_SQLITE) and not Path(file).is_file():
        raise UsageError(f"--storage is {storage}, but there is no file {file!r}; give the storage of your jobs")
    if arguments.mode == "list":
        return _list(storage)
    store = _read(storage, lambda: _opened(storage, arguments.job))
    modes = {"show": _show, "history": _history, "forget": _forget}
    return _read(storage, lambda: modes[arguments.mode](store, arguments))


def _list(storage: str) -> int:
    from zeus_core.jobs._job_history import JobHistory

    rows = [("job", "runs", "reached", "best batch size", "mean cost", "latest run")]
    for name in _read(storage, lambda: _names(storage)):
        runs = _read(storage, lambda name=name: _opened(storage, name).runs())  # type: ignore[misc]
        best = JobHistory.from_runs(runs).best
        reached = sum(run.record.outcome == "reached" for run in runs)
        size = NOT_MEASURED if best is None else str(best.batch_size)
        cost = NOT_MEASURED if best is None or best.mean_cost is None else number_text(best.mean_cost)
        rows.append((name, str(len(runs)), str(reached), size, cost, _time(runs[-1]) if runs else NOT_MEASURED))
    write(table(rows, "<>>>><") if len(rows) > 1 else "There are no jobs.", sys.stdout)
    return 0


def _show(store: JobStore, arguments: argparse.Namespace) -> int:
    from zeus_core.jobs._job_history import JobHistory
    from zeus_core.jobs._job_page import TABLE_COLUMNS, job_page, table_row

    declaration, history = store.declaration(), JobHistory.from_runs(store.runs())
    if declaration is None:
        raise UsageError(f"job is {arguments.job!r}, which has no run yet")
    if arguments.format == "html":
        write(job_page(arguments.job, declaration, history), sys.stdout)
        return 0
    write(f"{arguments.job}: {declaration.target}, {declaration.objective}, default {declaration.default}", sys.stdout)
    rows = [TABLE_COLUMNS, *(table_row(size, history.best, NOT_MEASURED) for size in history.sizes)]
    write(table(rows, ">>>>>><"), sys.stdout)
    if history.elsewhere:
        write(f"{history.elsewhere} runs on other GPUs than {history.gpu_model} are left out.", sys.stdout)
    return 0


def _history(store: JobStore, arguments: argparse.Namespace) -> int:
    if arguments.format != "text":
        return _export(store, arguments)
    rows = [["run", "started", "batch size", "outcome", "epochs", "metric", "cost", "reason"]]
    for run in store.runs():
        record = run.record
        metric = NOT_MEASURED if record.last.metric is None else number_text(record.last.metric)
        cost = NOT_MEASURED if record.last.cost is None else number_text(record.last.cost)
        facts = [str(run.number), _time(run), str(record.batch_size), record.outcome, f"{record.last.epoch:g}"]
        rows.append([*facts, metric, cost, record.reason])
    write(table(rows, "><><>>><"), sys.stdout)
    return 0


def _forget(store: JobStore, arguments: argparse.Namespace) -> int:
    count = len(store.runs())
    if not arguments.yes:
        write(f"This deletes {count} runs of {arguments.job}, for good: add --yes to do it.", sys.stdout)
        return 1
    store.forget()
    write(f"{arguments.job} and its {count} runs are deleted.", sys.stdout)
    return 0


def _export(store: JobStore, arguments: argparse.Namespace) -> int:
    runs = store.runs()
    if arguments.format == "json":
        listing = {
            "format": "zeus-core runs",
            "version": 1,
            "job": arguments.job,
            "declaration": encode(store.declaration()) if store.declaration() is not None else None,
            "runs": [encode(run) for run in runs],
        }
        write(json.dumps(listing, indent=2), sys.stdout)
        return 0
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for run in runs:
        record, last = run.record, run.record.last
        row = [run.number, _time(run), record.batch_size, record.outcome, last.epoch, last.metric, last.seconds]
        row += [last.energy_joules, last.cost, record.max_cost, record.gpu_model, record.ranks, record.reason]
        writer.writerow(["" if value is None else value for value in row])
    write(text.getvalue().rstrip("\n"), sys.stdout)
    return 0


def _names(storage: str) -> list[str]:
    from zeus_core.jobs._job_store import job_names

    return job_names(storage)


def _opened(storage: str, name: str) -> JobStore:
    from zeus_core.jobs._job_store import JobStore

    names = _names(storage)
    if name not in names:
        raise UsageError(f"job is {name!r}; it must be one of those in {storage}: {', '.join(names) or 'none'}")
    return JobStore(storage, name)


def _read(storage: str, read: Callable[[], _Result]) -> _Result:
    """Read from a storage; one that cannot be reached is a wrong argument, with any error of its driver."""
    try:
        return read()
    except (UsageError, OSError):
        raise
    except Exception as error:
        raise UsageError(f"--storage is {storage}, which cannot be read: {error}") from error


def _time(run: StoredRun) -> str:
    return datetime.fromtimestamp(run.record.started_at, UTC).isoformat(" ", "minutes")
