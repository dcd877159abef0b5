"""`zeus-core carbon`: what following carbon intensity or price would gain a training, on recorded electricity."""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core._documents import parse_json
from zeus_core.cli.arguments import factor, number, path
from zeus_core.cli.electricity_arguments import add_columns, read_signal
from zeus_core.cli.text import complain, table, write
from zeus_core.errors import UsageError
from zeus_core.units import number_text
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.electricity import RecordedSignal
    from zeus_core.optimizer.carbon_aware import OperatingPoint
    from zeus_core.optimizer.carbon_aware.outlook import Outlook

SUMMARY = "Show what following a carbon intensity or a price would gain"

_COLUMNS = ("setting", "seconds_per_step", "watts")
_BEGIN_HOURS = 6.0  # between the trainings of `plan`: they begin at all times of day
_MOST_BEGINS = 20  # of them, evenly over the record: each takes one to two seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "mode",
        choices=("plan", "replay"),
        help="plan: many start times, all over the record; replay: the one of --begin",
    )
    parser.add_argument(
        "points", type=path, help=f"CSV ({','.join(_COLUMNS)}) or a profile that a search has written (JSON)"
    )
    parser.add_argument("--signal", type=path, required=True, metavar="FILE", help="CSV of carbon intensity or prices")
    parser.add_argument("--unit", help="unit of the values where the file states none: g/kWh (the default) or EUR/MWh")
    parser.add_argument(
        "--zone", help="time zone of timestamps where the file states none, such as UTC or Europe/Berlin"
    )
    add_columns(parser)
    parser.add_argument("--hours", type=_hours, required=True, help="duration of the training at full power")
    parser.add_argument(
        "--slowdown",
        type=factor,
        default=1.3,
        metavar="FACTOR",
        help="longest duration, as a multiple of --hours (1.3)",
    )
    parser.add_argument(
        "--idle-watts",
        type=_watts,
        metavar="WATTS",
        help="power of all GPUs in a pause; without it there are no pauses",
    )
    parser.add_argument(
        "--begin",
        metavar="TIME",
        help="start time, ISO 8601 with an offset, such as 2026-03-01T08:00+01:00; for replay",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Replay, and print the comparison."""
    from zeus_core.optimizer.carbon_aware.outlook import outlook_of

    points = _read_points(arguments.points)
    if arguments.slowdown < 1.0:
        raise UsageError(f"--slowdown is {arguments.slowdown:g}; it must be at least 1, such as 1.3")
    signal = read_signal(arguments.signal, arguments.unit, arguments.zone, arguments, usual_unit="g/kWh")
    seconds = 3600.0 * arguments.hours
    steps = seconds * max(point.steps_per_second for point in points)
    outlooks = [
        outlook_of(points, arguments.idle_watts, signal, begin, steps, arguments.slowdown)
        for begin in _begins(arguments, signal, seconds * arguments.slowdown)
    ]
    complain(f"zeus-core: --signal is {signal.facts.source}")
    _show(outlooks, signal)
    return 0


def _show(outlooks: Sequence[Outlook], signal: RecordedSignal) -> None:
    from zeus_core.search.comparison import mean_uncertainty, percentage

    unit = signal.facts.amount_unit
    rows = [["", unit, "against full power", "energy", "hours"]]
    names = {
        "full": "full power",
        "static": "best fixed settings",
        "aware": "following it",
        "foresight": "with foresight",
    }
    for name, label in names.items():
        ways = [getattr(outlook, name) for outlook in outlooks]
        changes = [outlook.changes().get(name, 0.0) for outlook in outlooks]
        spread = f" ({min(changes):+.1%} to {max(changes):+.1%})" if len(outlooks) > 1 else ""
        energy = statistics.fmean(
            way.energy_joules / outlook.full.energy_joules - 1 for way, outlook in zip(ways, outlooks, strict=True)
        )
        hours = statistics.fmean(
            (way.end_seconds - outlook.begin_seconds) / 3600 for way, outlook in zip(ways, outlooks, strict=True)
        )
        amount = statistics.fmean(way.amount for way in ways)
        change = "" if name == "full" else f"{statistics.fmean(changes):+.1%}{spread}"
        rows.append([label, number_text(amount), change, f"{energy:+.1%}", f"{hours:.1f}"])
    write(table(rows, "<>>>>"), sys.stdout)
    gains = [1 - outlook.aware.amount / outlook.static.amount for outlook in outlooks]
    gained = percentage(statistics.fmean(gains), mean_uncertainty(gains)) if len(gains) > 1 else f"{gains[0]:.1%}"
    what = "price" if signal.facts.is_price else "carbon intensity"
    count = "" if len(outlooks) == 1 else f" (mean of {len(outlooks)} begins)"
    write(
        f"Following the {what} gains {gained} beyond the best fixed settings done by the same time{count}.",
        sys.stdout,
    )


def _begins(arguments: argparse.Namespace, signal: RecordedSignal, seconds: float) -> list[float]:
    """Return the begins of the trainings, which end within the record."""
    first, last = signal.begin_seconds, signal.end_seconds - seconds
    if last < first:
        days, needed = (signal.end_seconds - first) / 86_400, seconds / 86_400
        raise UsageError(
            f"--signal has {days:.1f} days, and the training may take {needed:.1f}; give a longer one or fewer --hours"
        )
    if arguments.mode == "replay":
        return [_begin(arguments.begin, first, last)]
    count = min(_MOST_BEGINS, int((last - first) / (3600 * _BEGIN_HOURS)) + 1)
    return [first + (last - first) * number / max(count - 1, 1) for number in range(count)]


def _begin(text: str | None, first: float, last: float) -> float:
    wanted = f"between {_text(first)} and {_text(last)}, so that the record covers the training"
    if text is None:
        raise UsageError(f"--begin is missing; replay needs a time {wanted}")
    try:
        begin = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--begin is {shown(text)}; it must be a time {wanted}") from error
    if begin.tzinfo is None:
        raise UsageError(f"--begin is {shown(text)}, which has no offset; add one, such as 2026-03-01T08:00+01:00")
    if not first <= begin.timestamp() <= last:
        raise UsageError(f"--begin is {shown(text)}; it must be {wanted}")
    return begin.timestamp()


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="minutes")


def _read_points(file: Path) -> list[OperatingPoint]:
    from zeus_core.optimizer.carbon_aware import OperatingPoint

    try:
        text = file.read_text(encoding="utf-8-sig")
        rows = _trials(text) if text.lstrip().startswith("{") else _rows(text)
        points = [OperatingPoint(round(setting), 1.0 / seconds, watts) for setting, seconds, watts in rows]
    except (OSError, ValueError, UsageError) as error:
        raise UsageError(f"points is {shown(str(file))}, which cannot be read: {error}") from error
    if not points:
        raise UsageError(f"points is {shown(str(file))}, which has no points")
    return points


def _rows(text: str) -> list[list[float]]:
    reader = csv.DictReader(text.splitlines())
    if not set(_COLUMNS) <= set(reader.fieldnames or ()):
        raise UsageError(f"its first line must name the columns {', '.join(_COLUMNS)}")
    return [[_positive(row[name], name, line) for name in _COLUMNS] for line, row in enumerate(reader, 2)]


def _positive(text: str | None, name: str, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise UsageError(f"line {line}: {name} is {shown(text)}; it must be a number above 0")
    return value


def _trials(text: str) -> list[list[float]]:
    from zeus_core.optimizer.trial_store import latest_trials

    trials = latest_trials(parse_json(text))
    return [[trial.setting, trial.seconds_per_step, trial.joules_per_step / trial.seconds_per_step] for trial in trials]


def _hours(text: str) -> float:
    return number(text, 0.1, 1e5, "is not a number of hours from 0.1 to 1e5, such as 48")


def _watts(text: str) -> float:
    return number(text, 0.0, 1e9, "is not a number of watts from 0 to 1e9, such as 60")
