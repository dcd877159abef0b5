"""The CSV file of a signal: one column of times, and one of values."""

from __future__ import annotations

import csv
import logging
import math
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import cast
from zoneinfo import ZoneInfo

from zeus_core.electricity.signal import SignalFacts, checked_time, checked_value
from zeus_core.errors import UsageError

_logger = logging.getLogger(__name__)


def read_values(
    path: Path, zone: ZoneInfo, columns: tuple[str, str], facts: SignalFacts
) -> tuple[list[float], list[float]]:
    """Read the times, which increase, and the values from these times on. See `RecordedSignal.from_csv`.

    Args:
        path: The file.
        zone: The time zone of timestamps that do not name one.
        columns: The names of the columns of times and of values.
        facts: The unit of the values, and where they come from.

    Raises:
        UsageError: The file cannot be read, or a row is wrong; the message names the line.
    """
    times: list[float] = []
    values: list[float] = []
    repeated: list[int] = []  # lines
    for line, seconds, value in _rows(path, zone, columns, facts):
        if times and seconds < times[-1]:
            raise UsageError(
                f"{path}, line {line}: it is earlier than the line before; sort the file by time. If the clock was "
                f"set back there, state the right zone (it is {zone.key})"
            )
        if times and seconds == times[-1]:
            repeated += [line] if value != values[-1] else []
            times.pop()
            values.pop()
        times.append(seconds)
        values.append(value)
    if not times:
        raise UsageError(f"{path} has no row with a value")
    if repeated:
        _logger.warning(
            "%s: %d rows repeat a time with another value (line %d first); the last one counts",
            *(path, len(repeated), repeated[0]),
        )
    return times, values


def _rows(
    path: Path, zone: ZoneInfo, columns: tuple[str, str], facts: SignalFacts
) -> Iterator[tuple[int, float, float]]:
    """Yield the number of the line, the time and the value of each row that has a value."""
    previous = -math.inf
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}: no column {', '.join(missing)}; the first line names the columns")
            for fields in reader:
                where = f"{path}, line {reader.line_num}"
                seconds = _seconds(where, (fields[columns[0]] or "").strip(), zone, previous)
                previous = max(previous, seconds)
                value = (fields[columns[1]] or "").strip()
                if value and value.lower() not in ("nan", "null", "none", "n/a"):
                    yield reader.line_num, seconds, checked_value(f"{where}: value", cast(float, _number(value)), facts)
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the signal {path} cannot be read: {error}") from error


def _seconds(where: str, text: str, zone: ZoneInfo, previous: float) -> float:
    """Read a timestamp. One that happens twice, as a clock is set back, is the later one if the first has been."""
    number = _number(text)
    if isinstance(number, float):
        return checked_time(where, number)
    try:
        # Python 3.10 does not read a Z.
        moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith(("Z", "z")) else text)
    except ValueError:
        raise UsageError(f"{where}: {text!r} is no time; it must be like 2026-03-01 13:00") from None
    if moment.tzinfo is not None:
        return moment.timestamp()
    first, second = (moment.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if datetime.fromtimestamp(first, timezone.utc).astimezone(zone).replace(tzinfo=None) != moment:
        raise UsageError(
            f"{where}: there is no {text} in {zone.key}, where clocks were set forward; state the zone of the file"
        )
    return second if first <= previous < second else first


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
