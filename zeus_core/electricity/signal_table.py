"""The CSV file of a signal, as its source publishes it: a table of layouts, and one reader of them all.

The separator is the one of comma, semicolon and tab that makes the most columns of the first line. The layout is the
first of the table whose columns the file has. The unit and the time zone come from the labels of columns or from the
layout; otherwise they must be given.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from zeus_core.electricity._timestamps import instant, read_moment, seconds_of
from zeus_core.electricity.signal import UNIT, Basis
from zeus_core.errors import UsageError
from zeus_core.validate import shown

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Layout:
    """The columns of the files of a source, by regular expressions of their whole names in any case.

    Attributes:
        name: That of the source.
        times: The column of times; an interval counts from its begin.
        values: The columns of values: where a file has several, one must be chosen.
        others: Columns that such a file has, too.
        unit: The unit of the values where the label of the column states none; None if it must be given.
        basis: The power plants that the values count.
        apart: Columns whose values distinguish series that must not be mixed, such as areas.
        estimated: The column that marks estimates; None for none.
        is_day_first: Whether 3/4/2026 is a day in April.
    """

    name: str
    times: str
    values: str
    others: tuple[str, ...] = ()
    unit: str | None = None
    basis: Basis = "average"
    apart: tuple[str, ...] = ()
    estimated: str | None = None
    is_day_first: bool = False


_PLAIN = Layout("", r"(timestamp|date[ _]?time|time|date|hour|begin|start|from)(\s*[\[(].*[\])])?", "value")
_LAYOUTS = (
    Layout(
        "Electricity Maps",
        r"datetime \(utc\)",
        r"carbon intensity .*\((direct|life cycle|lca)\)",
        apart=("Zone id",),
        estimated="Data estimated",
    ),
    Layout("ENTSO-E", r"mtu \(.*\)", r"day-ahead price .*", apart=("Area", "Sequence"), is_day_first=True),
    Layout("UK carbon intensity", "datetime|from", "actual", ("forecast", "index"), "g/kWh"),
    Layout("WattTime", "timestamp", "moer", unit="lb/MWh", basis="marginal"),
    _PLAIN,
)

# Time zones as the name of a column of times states them.
_ZONES = {"utc": "UTC", "gmt": "UTC", "cet/cest": "Europe/Brussels", "wet/west": "Europe/Lisbon"}

_WITH_POINT = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:,\d{3})+|\d*)(?:\.\d*)?(?:e[-+]?\d+)?", re.I)
_WITH_COMMA = re.compile(r"[-+]?(?:[1-9]\d{0,2}(?:\.\d{3})+|\d*)(?:,\d*)?(?:e[-+]?\d+)?", re.I)
_ANY_UNIT = re.compile(r"[^\s(\[]+\s*/\s*[kM]Wh", re.I)
_NO_VALUE = ("", "-", "nan", "null", "none", "n/a", "n/e")
_MOST_SHOWN = 12


class SignalRow(NamedTuple):
    """A row that has a value.

    Attributes:
        line: Its line in the file.
        seconds: Its time, in seconds since 1970.
        value: The value as the file has it.
        is_estimated: Whether the source marks it as an estimate.
    """

    line: int
    seconds: float
    value: float
    is_estimated: bool


class SignalTable:
    """A CSV file whose first line names its columns.

    Args:
        path: The file.
        times: The name of the column of times; None for that of the layout.
        where: Use the rows with these values in these columns alone.

    Raises:
        UsageError: The file cannot be read.
    """

    def __init__(self, path: Path, times: str | None = None, where: Mapping[str, str] | None = None) -> None:
        self._path = path
        try:
            text = path.read_text(encoding="utf-8-sig")
            first = text.partition("\n")[0]
            self._separator = max(",;\t", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
            reader = csv.reader(io.StringIO(text, newline=""), delimiter=self._separator)
            self.columns: list[str] = [name.strip() for name in next(reader, [])]
            self._rows = [(reader.line_num, row) for row in reader if row]
        except (OSError, ValueError, csv.Error) as error:
            raise UsageError(f"the signal {path} cannot be read: {error}") from error
        self.layout: Layout = next((layout for layout in _LAYOUTS if self._fits(layout)), _PLAIN)
        self._times = self._chosen(times, self.layout.times, "timestamp_column", is_first=True)
        self._where = {self._chosen(name, "", "where"): value for name, value in (where or {}).items()}

    def find(self, name: str) -> list[str]:
        """Return the column of a name, or else those with the name as a part of theirs; in any case of letters."""
        wanted = name.strip().lower()
        whole = [column for column in self.columns if column.lower() == wanted]
        return whole or [column for column in self.columns if wanted in column.lower()]

    def value_column(self, name: str | None = None) -> str:
        """Return the column of values: of this name, or that of the layout, or else the only one labelled with a unit.

        Raises:
            UsageError: There is none, or there are several.
        """
        if name is None and not any(re.fullmatch(self.layout.values, column, re.IGNORECASE) for column in self.columns):
            labelled = [column for column in self.columns if UNIT.search(column)]
            name = labelled[0] if len(labelled) == 1 else None
        return self._chosen(name, self.layout.values, "value_column")

    def unit(self, column: str) -> str | None:
        """Return the unit of a column: by its label, even if unknown, or that of the layout; None if neither says."""
        label = UNIT.search(column) or _ANY_UNIT.search(column)
        return label[0] if label is not None else self.layout.unit

    @property
    def zone(self) -> str | None:
        """The name of the time zone by the label of the column of times; None if it has none."""
        label = re.search(r"[\[(](.*)[\])]", self._times)
        return None if label is None else _ZONES.get(label[1].strip().lower())

    def series(self) -> list[str]:
        """Return which of the series in the file this is, by the columns that distinguish them.

        Raises:
            UsageError: There are rows of several.
        """
        texts = []
        for column in (column for name in self.layout.apart for column in self.find(name)):
            found = sorted({self._cell(row, column) for _, row in self._selected()})
            if len(found) > 1:
                raise UsageError(
                    f"{self._path} has rows of several {column}: {_listed(found)}; use those of one, such as "
                    f"where={{{column!r}: {found[0]!r}}} (--where {shown(f'{column}={found[0]}')})"
                )
            texts += [f"{column} {value}" for value in found if value]
        return texts

    def rows(self, column: str, zone: ZoneInfo | None) -> list[SignalRow]:
        """Return the rows that have a value in a column, in the order of time; those that descend are turned round.

        The last of several rows of one time counts, with a warning if their values differ.

        Args:
            column: The column of values.
            zone: The time zone of times that name none; None if it was not stated.

        Raises:
            UsageError: A row is wrong; the message names the line.
        """
        own = zone if self.zone is None else ZoneInfo(self.zone)
        times = self._read_times(zone, own)
        texts = [self._cell(row, column) for _, row, _ in times]
        mark = _decimal_mark([text for text in texts if text.lower() not in _NO_VALUE], self._separator)
        flags = self.find(self.layout.estimated)[:1] if self.layout.estimated else []
        by_time: dict[float, SignalRow] = {}
        repeated, previous = [], -math.inf
        for (line, row, moment), text in zip(times, texts, strict=True):
            where = f"{self._path}, line {line}"
            seconds = seconds_of(where, moment, own, previous)
            if seconds < previous:
                raise UsageError(
                    f"{where}: it is earlier than the line before; sort the file by time. If the clock was set back "
                    f"there, state the right zone (it is {own.key if own else 'that of each time'})"
                )
            previous = seconds
            if text.lower() not in _NO_VALUE:
                is_estimated = any(self._cell(row, flag).lower() in ("true", "yes", "1") for flag in flags)
                found = SignalRow(line, seconds, _number(where, text, mark), is_estimated)
                repeated += [line] if by_time.get(seconds, found).value != found.value else []
                by_time[seconds] = found
        if not by_time:
            raise UsageError(f"{self._path} has no row with a value in {column!r}")
        if repeated:
            _logger.warning(
                "%s: %d rows repeat a time with another value (line %d first); the last one counts",
                *(self._path, len(repeated), repeated[0]),
            )
        return list(by_time.values())

    def _read_times(self, zone: ZoneInfo | None, own: ZoneInfo | None) -> list[tuple[int, Sequence[str], datetime]]:
        """Return the lines, rows and times, from the earlier end of the file to the later one."""
        is_day_first, times = self.layout.is_day_first, []
        for line, row in self._selected():
            moment = read_moment(f"{self._path}, line {line}", self._cell(row, self._times), is_day_first)
            times.append((line, row, moment))
        if not times:
            which = ", ".join(f"{column} {value!r}" for column, value in self._where.items())
            raise UsageError(f"{self._path} has no row{which and ' of '}{which}")
        for line, _, moment in times:
            if moment.tzinfo is None and own is None:
                raise UsageError(
                    f"{self._path}, line {line}: the time names no time zone; give it, such as UTC or Europe/Berlin"
                )
        first, last = times[0][2], times[-1][2]
        if zone is not None and own is not None and own.utcoffset(first) != zone.utcoffset(first):
            _logger.warning(
                "%s: its times are in %s, by the name of their column, not in %s", *(self._path, own.key, zone.key)
            )
        return times[::-1] if instant(last, own) < instant(first, own) else times

    def _fits(self, layout: Layout) -> bool:
        patterns = (layout.times, layout.values, *layout.others)
        return all(any(map(re.compile(pattern, re.I).fullmatch, self.columns)) for pattern in patterns)

    def _selected(self) -> Iterator[tuple[int, Sequence[str]]]:
        for line, row in self._rows:
            if all(self._cell(row, column) == value for column, value in self._where.items()):
                yield line, row

    def _cell(self, row: Sequence[str], column: str) -> str:
        position = self.columns.index(column)
        return row[position].strip() if position < len(row) else ""

    def _has_time(self, column: str) -> bool:
        try:
            read_moment("", self._cell(self._rows[0][1], column), self.layout.is_day_first)
        except (IndexError, UsageError):
            return False
        return True

    def _chosen(self, name: str | None, pattern: str, argument: str, is_first: bool = False) -> str:
        """Return the column of a name, or else the one that fits the pattern, or the first that holds times."""
        fits = re.compile(pattern, re.IGNORECASE).fullmatch
        found = [column for column in self.columns if fits(column)] if name is None else self.find(name)
        if not found and name is None and is_first:
            found = [column for column in self.columns if self._has_time(column)]
        if len(found) == 1 or (found and name is None and is_first):
            return next((column for column in found if column.lower() != "date"), found[0])  # beside one of the time
        wanted = name or ("timestamp" if is_first else "value")
        option = {"value_column": " (--column)", "where": " (--where)"}.get(argument, "")
        problem = f"several columns {wanted}: {_listed(found)}" if found else f"no column {wanted}"
        others = "" if found else f"; the first line names {_listed(self.columns) or 'none'}"
        raise UsageError(f"{self._path}: {problem}{others}; choose by {argument}={option}")


def _decimal_mark(texts: Sequence[str], separator: str) -> str | None:
    """Return the mark of decimals: the one without which some number is none; None if 1,234 may be either."""
    points = [_WITH_POINT.fullmatch(text) is not None for text in texts]
    commas = [_WITH_COMMA.fullmatch(text) is not None for text in texts]
    if any(comma and not point for comma, point in zip(commas, points, strict=True)):
        return ","
    if all(commas) and any("," in text for text in texts):
        return None if separator == "," else ","  # as in files of countries that write so
    return "."


def _number(where: str, text: str, mark: str | None) -> float:
    pattern, thousands = (_WITH_COMMA, ".") if mark == "," else (_WITH_POINT, ",")
    try:
        if pattern.fullmatch(text) is None or (mark is None and "," in text):
            raise ValueError
        return float(text.replace(thousands, "").replace(",", "."))
    except ValueError:
        raise UsageError(f"{where}: value is {text!r}; it must be a number, such as 312.5") from None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(map(repr, names[:_MOST_SHOWN])) + more
