"""The CSV file of a signal, as its source publishes it: a table of layouts, and one reader of them all.

The separator is the one of comma, semicolon and tab that makes the most columns of the first line. The layout is the
first of the table whose columns the file has. The unit and the time zone come from the labels of columns or from the
layout; otherwise they must be given. A file that may mean two things is refused.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import re
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from zeus_core.electricity._times import checked_zone, read_time, seconds_of
from zeus_core.electricity.signal import UNIT, Basis, checked_unit, converted_value
from zeus_core.errors import UsageError
from zeus_core.validate import shown

_logger = logging.getLogger(__name__)


class _Layout(NamedTuple):
    """The columns of the files of a source: their names in small letters, without what stands in brackets.

    Attributes:
        source: The name of the source.
        times: The column of times, the best name first; an interval counts from its begin.
        values: The column of values.
        others: Columns that such a file has, too.
        series: Columns that tell apart series that must not be mixed, such as areas.
        estimated: The column that marks estimates.
        unit: The unit of the values where the label of their column states none; None if it must be given.
        basis: The power plants that the values count.
        is_day_first: Whether 3/4/2026 is a day in April.
    """

    source: str
    times: tuple[str, ...]
    values: tuple[str, ...]
    others: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    estimated: str = ""
    unit: str | None = None
    basis: Basis = "average"
    is_day_first: bool = False

    def fits(self, names: Collection[str]) -> bool:
        """Return whether a file with columns of these names has this layout."""
        needed = (self.times, self.values, *((name,) for name in self.others))
        return all(any(name in names for name in of_column) for of_column in needed)


_PLAIN = _Layout(
    "",
    ("timestamp", "datetime", "date time", "date_time", "time", "hour", "begin", "start", "from", "date", "datum von"),
    ("value",),
)
_LAYOUTS = (
    _Layout(
        "Electricity Maps",
        ("datetime",),
        ("carbon intensity gco₂eq/kwh", "carbon intensity gco2eq/kwh"),
        series=("zone id",),
        estimated="data estimated",
    ),
    _Layout("ENTSO-E", ("mtu",), ("day-ahead price",), series=("area", "sequence"), is_day_first=True),
    _Layout("UK carbon intensity", ("datetime", "from"), ("actual",), ("forecast", "index"), unit="g/kWh"),
    _Layout("WattTime", ("timestamp",), ("moer",), unit="lb/MWh", basis="marginal"),
)

# Time zones as the label of a column of times states them.
_ZONES = {"utc": "UTC", "gmt": "UTC", "cet/cest": "Europe/Brussels", "wet/west": "Europe/Lisbon"}
_ANY_UNIT = re.compile(rf"{UNIT.pattern}|[^\s(\[]+\s*/\s*[kM]Wh", re.IGNORECASE)
_WITH_COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d*)?")
_NO_VALUE = ("", "-", "nan", "null", "none", "n/a", "n/e")
_MOST_SHOWN = 12  # columns, or areas, of a message


def read_signal_file(
    path: Path, unit: str | None, zone: str | None
) -> tuple[list[float], list[float], str, str, Basis]:
    """Read a file, with the unit and the zone that it does not state itself; see `RecordedSignal.from_csv`.

    Returns:
        The times, increasing, in seconds since 1970; the value from each time on; the unit of the values; the file, its
        layout and columns, in words; the power plants that the values count.
    """
    given_zone = None if zone is None else checked_zone("zone", zone)
    table = _Table(path)
    own_unit, own_zone, series = table.unit(unit), table.zone(given_zone), table.series()
    rows = table.values(own_unit, own_zone)
    known = [f"{table.layout.source}: {table.value_column}", *series] if table.layout.source else []
    known += [own_unit] if own_zone is None else [own_unit, own_zone.key]
    estimated = sum(is_estimated for _, is_estimated in rows.values())
    if estimated:
        known.append(f"{estimated} of {len(rows)} values estimated")
    values = [value for value, _ in rows.values()]
    return list(rows), values, own_unit, f"{path.name} ({', '.join(known)})", table.layout.basis


class _Table:
    """The rows of a file, its layout, and the two columns that count."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            text = path.read_text(encoding="utf-8-sig")
            first = text.partition("\n")[0]
            self._separator = max(",;\t", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=self._separator)
            columns = [name.strip() for name in next(reader, [])]
            self._rows = [
                (reader.line_num, dict(zip(columns, map(str.strip, row), strict=False))) for row in reader if row
            ]
        except (OSError, ValueError, csv.Error) as error:
            raise UsageError(f"the signal {path} cannot be read: {error}") from error
        self._columns = {column: _name(column) for column in columns}
        self.layout: _Layout = next((layout for layout in _LAYOUTS if layout.fits(self._columns.values())), _PLAIN)
        times = [column for name in self.layout.times for column in self._named(name)]
        if not times:
            raise UsageError(f"{path} has no column timestamp; its first line names {_listed(columns)}")
        self._time_column = times[0]
        self.value_column: str = self._found_value_column()
        for column in (self._time_column, self.value_column):
            if columns.count(column) > 1:
                raise UsageError(f"{path} has several columns {column!r}; remove all but one of them from the file")

    def _named(self, *names: str) -> list[str]:
        return [column for column, name in self._columns.items() if name in names]

    def _found_value_column(self) -> str:
        """Return the column of a name of the layout, or the only one labelled with a unit, or the only one left."""
        left = [column for column in self._columns if column != self._time_column]
        found = self._named(*self.layout.values) or [column for column in left if _ANY_UNIT.search(column)] or left
        if len(found) == 1:
            return found[0]
        if found is left:
            raise UsageError(f"{self._path} has no column value; its first line names {_listed([*self._columns])}")
        raise UsageError(
            f"{self._path} has several columns of values: {_listed(found)}; remove all but one of them from the file"
        )

    def unit(self, given: str | None) -> str:
        """Return the unit that was given, or else that of the column or the layout.

        Raises:
            UsageError: They differ, or there is none.
        """
        label = _ANY_UNIT.search(self.value_column)
        stated = self.layout.unit if label is None else label[0]
        unit = stated if given is None else given
        if unit is None:
            raise UsageError(
                f"{self._path}: the unit of {self.value_column!r} is not known; give it, such as g/kWh or EUR/MWh"
            )
        if len({(checked_unit(each), converted_value("", 1, each)) for each in (unit, stated or unit)}) > 1:
            raise UsageError(f"unit is {shown(given)}, but {self._path} has {self.value_column!r} in {stated}")
        return unit

    def zone(self, given: ZoneInfo | None) -> ZoneInfo | None:
        """Return the zone by the label of the column of times, or else the one that was given."""
        label = re.search(r"[\[(](.*)[\])]", self._time_column)
        name = None if label is None else _ZONES.get(label[1].strip().lower())
        if name is None:
            return given
        stated, days = ZoneInfo(name), (datetime(2025, 1, 1), datetime(2025, 7, 1))
        if given is not None and any(given.utcoffset(day) != stated.utcoffset(day) for day in days):
            _logger.warning("%s: its times are in %s, by the name of their column, not in %s", self._path, name, given)
        return stated

    def series(self) -> list[str]:
        """Return which of the series of its source this is, by the columns that tell them apart.

        Raises:
            UsageError: There are rows of several.
        """
        texts = []
        for column in self._named(*self.layout.series):
            found = sorted({row.get(column, "") for _, row in self._rows})
            if len(found) > 1:
                raise UsageError(
                    f"{self._path} has rows of several {column}: {_listed(found)}; keep the rows of one in the file"
                )
            texts += [f"{column} {value}" for value in found if value]
        return texts

    def values(self, unit: str, zone: ZoneInfo | None) -> dict[float, tuple[float, bool]]:
        """Return the values by their seconds since 1970, in the order of time, and whether each is an estimate.

        Rows that descend are turned round. The last of several rows of one time counts, with a warning if their values
        differ.

        Raises:
            UsageError: A row is wrong; the message names the line.
        """
        rows = self._timed_rows(zone)
        has_commas = self._separator != "," and any("," in row.get(self.value_column, "") for _, row, _ in rows)
        marks = self._named(self.layout.estimated)
        values: dict[float, tuple[float, bool]] = {}
        repeated, previous = [], -math.inf
        for line, row, moment in rows:
            where = f"{self._path}, line {line}"
            seconds = seconds_of(where, moment, previous)
            if seconds < previous:
                raise UsageError(
                    f"{where}: it is earlier than the line before; sort the file by time. If the clock was set back "
                    f"there, state the right zone (it is {moment.tzinfo})"
                )
            previous, text = seconds, row.get(self.value_column, "")
            if text.lower() not in _NO_VALUE:
                value = _number(where, text, has_commas)
                converted_value(f"{where}: value", value, unit)  # refuses what cannot be
                repeated += [line] if values.get(seconds, (value,))[0] != value else []
                values[seconds] = value, any(row.get(mark, "").lower() in ("true", "yes", "1") for mark in marks)
        if not values:
            raise UsageError(f"{self._path} has no row with a value in {self.value_column!r}")
        if repeated:
            _logger.warning(
                "%s: %d rows repeat a time with another value (line %d first); the last one counts",
                *(self._path, len(repeated), repeated[0]),
            )
        return values

    def _timed_rows(self, zone: ZoneInfo | None) -> list[tuple[int, dict[str, str], datetime]]:
        """Return the line, the cells and the time of each row, from the earlier end of the file to the later one."""
        rows = []
        for line, row in self._rows:
            where = f"{self._path}, line {line}"
            moment = read_time(where, row.get(self._time_column, ""), self.layout.is_day_first)
            if moment.tzinfo is None and zone is None:
                raise UsageError(f"{where}: the time names no time zone; give it, such as UTC or Europe/Berlin")
            rows.append((line, row, moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)))
        if not rows:
            raise UsageError(f"{self._path} has no row")
        return rows[::-1] if rows[-1][2].timestamp() < rows[0][2].timestamp() else rows


def _name(column: str) -> str:
    """Return the name of a column in small letters, without what follows in brackets, such as its unit."""
    return re.sub(r"\s*[\[(].*", "", column).strip().lower()


def _number(where: str, text: str, has_commas: bool) -> float:
    """Read a number: in a file that has decimal commas, one such as 1.234,5."""
    try:
        if not has_commas:
            return float(text)
        if _WITH_COMMA.fullmatch(text):
            return float(text.replace(".", "").replace(",", "."))
    except ValueError:
        pass
    raise UsageError(f"{where}: value is {text!r}; it must be a number, such as 312.5")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_MOST_SHOWN])) + (", ..." if len(names) > _MOST_SHOWN else "") or "none"
