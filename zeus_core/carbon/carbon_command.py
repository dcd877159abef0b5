"""`zeus-core carbon`: the best hour to start, and what following a carbon intensity or a price would gain."""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.cli.arguments import number, path
from zeus_core.cli.electricity_arguments import FILE, signal_from_file
from zeus_core.cli.text import complain, table, write
from zeus_core.documents import parse_json
from zeus_core.errors import UsageError
from zeus_core.units import number_text
from zeus_core.validate import shown

if TYPE_CHECKING:
    from zeus_core.carbon.operating_points import TrainingPoint
    from zeus_core.carbon.outlook import Outlook
    from zeus_core.electricity import RecordedSignal

PLACE = "Before a run", 32
SUMMARY = "Find the best hour to start by a carbon intensity or a price"
EXAMPLE = "zeus-core carbon prices.csv,EUR/MWh,Europe/Berlin --duration 3h --deadline 18h"

_BEGIN_HOURS = 6.0  # between the runs that are replayed: they begin at all times of day
_MOST_BEGINS = 20  # of them, evenly over the record: each takes one to two seconds
_PAST_SECONDS = 7 * 86_400.0  # of which forecasts are made
_LONGEST_SECONDS = 31 * 86_400.0  # signals are not foreseen for longer
_UNITS_SECONDS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile("".join(rf"(?:(?P<{unit}>\d+(?:\.\d+)?){unit})?" for unit in _UNITS_SECONDS))
_WAYS = {
    "full": "full power",
    "static": "best fixed settings",
    "aware": "following it",
    "foresight": "with foresight",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "signal",
        metavar=FILE,
        help="CSV file of carbon intensities or prices, with unit and time zone where the file does not state them",
    )
    parser.add_argument(
        "--duration",
        type=_duration,
        required=True,
        metavar="3h",
        help="how long the run takes at full power, such as 3h, 90m or 1h30m",
    )
    parser.add_argument(
        "--deadline",
        required=True,
        metavar="TIME",
        help="when it must be done: in how much time, such as 18h, or a time such as 2026-12-01T08:00",
    )
    parser.add_argument(
        "--points",
        type=path,
        metavar="PROFILE",
        help="show instead what a run would gain by following the recorded signal with these settings: the profile "
        "that a search has written",
    )
    parser.add_argument(
        "--idle-watts",
        type=_watts,
        metavar="WATTS",
        help="of --points: power of all GPUs in a pause; without it there are no pauses",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Show the best start, or the gain of following the signal."""
    signal = signal_from_file(arguments.signal)
    now = math.ceil(time.time() / 60) * 60.0  # `at` knows whole minutes
    complain(f"zeus-core: the signal is {signal.facts.source}")
    deadline = _deadline(arguments.deadline, now)
    if arguments.points is None:
        if arguments.idle_watts is not None:
            raise UsageError("--idle-watts is for --points, the settings of a run that may pause")
        reason, commands = best_start_lines(signal, now, deadline, arguments.duration)
        complain(f"zeus-core: {reason}")
        write("\n".join(commands), sys.stdout)
    else:
        outlooks = _outlooks(signal, arguments, (deadline - now) / arguments.duration)
        write(_gain_text(outlooks, signal), sys.stdout)
    return 0


def best_start_lines(
    signal: RecordedSignal, now: float, deadline: float, duration_seconds: float
) -> tuple[str, list[str]]:
    """Return when a run should start, with the reason, and the commands that start it then.

    Args:
        signal: The carbon intensity or the price.
        now: The present, in seconds since 1970, at a whole minute.
        deadline: When the run must be done.
        duration_seconds: How long it takes.

    Raises:
        UsageError: The deadline is too far away.
    """
    from zeus_core.carbon.best_start import best_start

    if deadline - now > _LONGEST_SECONDS:
        raise UsageError("--deadline must be within 31 days: signals are not foreseen for longer")
    best = best_start(signal, now, deadline, duration_seconds)
    expected = f"{number_text(best.mean)} {signal.facts.unit} are expected over {_duration_text(duration_seconds)}"
    published = f"{best.published_fraction:.0%} of the time until the deadline is in the file"
    published += "" if best.published_fraction > 0.995 else ", the rest is forecast from its past"
    if deadline - duration_seconds < now:
        late = _duration_text(now + duration_seconds - deadline)
        reason = f"the deadline {_time_text(deadline)} cannot be kept, the end is {late} after it"
    elif signal.end_seconds < now - _PAST_SECONDS:
        reason = f"the last value is of {_time_text(signal.end_seconds)}, too old for a forecast"
    elif best.begin_seconds <= now:
        reason = f"{expected}, and no less later ({published})"
    else:
        begin = datetime.fromtimestamp(best.begin_seconds // 60 * 60)
        change = f", {best.mean / best.mean_now - 1:+.0%}" if best.mean_now > 0 else ""
        reason = (
            f"start at {_time_text(best.begin_seconds)}, in {_duration_text(best.begin_seconds - now)}: {expected}, "
            f"and {number_text(best.mean_now)} now{change} ({published})"
        )
        return reason, [f"sbatch --begin={begin:%Y-%m-%dT%H:%M:%S}", f"at -t {begin:%Y%m%d%H%M}"]
    return f"start at once: {reason}", ["sbatch --begin=now", "at now"]


def _outlooks(signal: RecordedSignal, arguments: argparse.Namespace, slowdown: float) -> list[Outlook]:
    """Return runs that begin at many times of the record, and end within it."""
    from zeus_core.carbon.outlook import outlook_of

    points, seconds = _read_points(arguments.points), arguments.duration
    if slowdown < 1.0:
        raise UsageError(f"--deadline is {arguments.deadline}, and the run takes {_duration_text(seconds)}; give more")
    first, last = signal.begin_seconds, signal.end_seconds - slowdown * seconds
    if last < first:
        days, needed = (signal.end_seconds - first) / 86_400, slowdown * seconds / 86_400
        raise UsageError(
            f"the signal has {days:.1f} days, and the run may take {needed:.1f}; give a longer one or less time"
        )
    count = min(_MOST_BEGINS, int((last - first) / (3600 * _BEGIN_HOURS)) + 1)
    begins = [first + (last - first) * each / max(count - 1, 1) for each in range(count)]
    steps = seconds * max(point.steps_per_second for point in points)
    return [outlook_of(points, arguments.idle_watts, signal, begin, steps, slowdown) for begin in begins]


def _gain_text(outlooks: Sequence[Outlook], signal: RecordedSignal) -> str:
    """Return a table of the ways to run, and a sentence on the gain of following the signal."""
    from zeus_core.search.comparison import mean_uncertainty, percentage

    rows = [["", signal.facts.amount_unit, "against full power", "energy", "hours"]]
    for name, label in _WAYS.items():
        ways = [(getattr(outlook, name), outlook) for outlook in outlooks]
        changes = [way.amount / outlook.full.amount - 1 for way, outlook in ways]
        energy = statistics.fmean(way.energy_joules / outlook.full.energy_joules - 1 for way, outlook in ways)
        hours = statistics.fmean((way.end_seconds - outlook.begin_seconds) / 3600 for way, outlook in ways)
        spread = f" ({min(changes):+.1%} to {max(changes):+.1%})" if len(outlooks) > 1 else ""
        change = "" if name == "full" else f"{statistics.fmean(changes):+.1%}{spread}"
        amount = number_text(statistics.fmean(way.amount for way, _ in ways))
        rows.append([label, amount, change, f"{energy:+.1%}", f"{hours:.1f}"])
    gains = [1 - outlook.aware.amount / outlook.static.amount for outlook in outlooks]
    gained = percentage(statistics.fmean(gains), mean_uncertainty(gains)) if len(gains) > 1 else f"{gains[0]:.1%}"
    what = "price" if signal.facts.is_price else "carbon intensity"
    count = "" if len(gains) == 1 else f" (mean of {len(gains)} begins)"
    return (
        table(rows, "<>>>>")
        + f"\nFollowing the {what} gains {gained} beyond the best fixed settings done by the same time{count}."
    )


def _read_points(file: Path) -> list[TrainingPoint]:
    from zeus_core.carbon.operating_points import TrainingPoint
    from zeus_core.optimizer.trial_store import latest_trials

    try:
        trials = latest_trials(parse_json(file.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError, UsageError) as error:
        raise UsageError(f"--points is {shown(str(file))}, which cannot be read: {error}") from error
    if not trials:
        raise UsageError(f"--points is {shown(str(file))}, which has no trials of a search")
    return [TrainingPoint.from_trial(trial) for trial in trials]


def _deadline(text: str, now: float) -> float:
    """Return seconds since 1970 of a time, in the zone of the machine unless it names one, or after a duration."""
    match = _DURATION.fullmatch(text.strip())
    try:
        return now + _seconds(match) if match and any(match.groups()) else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"--deadline is {shown(text)}; it must be a time such as 2026-12-01T08:00, or in how much time, such as 12h"
        ) from None


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None or not 0 < _seconds(match) <= 1e9:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a duration such as 3h, 90m or 1h30m")
    return _seconds(match)


def _seconds(match: re.Match[str]) -> float:
    return sum(seconds * float(match[unit] or 0) for unit, seconds in _UNITS_SECONDS.items())


def _watts(text: str) -> float:
    return number(text, 0.0, 1e9, "is not a number of watts from 0 to 1e9, such as 60")


def _duration_text(seconds: float) -> str:
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours and minutes else f"{hours} h" if hours else f"{minutes} min"


def _time_text(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M %Z}"
