"""A signal that was recorded: values with the times from which they hold."""

from __future__ import annotations

import bisect
import math
import os
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from zeus_core.electricity._timestamps import checked_zone
from zeus_core.electricity.signal import (
    Basis,
    SignalFacts,
    SignalPart,
    checked_period,
    checked_time,
    checked_value,
    converted_value,
    is_same_unit,
    joined,
    mean_value,
)
from zeus_core.electricity.signal_table import SignalTable
from zeus_core.errors import UsageError
from zeus_core.validate import (
    checked_instance,
    checked_list,
    checked_mapping,
    checked_number,
    checked_path,
    checked_text,
    shown,
)

# One row may be missing: most published series have such gaps, and a grid changes little in an hour. After two, nothing
# is known.
_BRIDGED_ROWS = 2


class RecordedSignal:
    """Values, each from its time until that of the next one.

    A value holds at most for `max_age_seconds`. After that, and before the first one, the average takes its place.

    Args:
        times_seconds: Seconds since 1970 (Unix time), increasing.
        values: The values from these times on, in `unit`.
        unit: "g/kWh" for a carbon intensity, or a price such as "EUR/kWh"; per MWh is accepted, too.
        source: Where the values come from, for reports.
        basis: The power plants it counts; without meaning for a price.
        average: The value where none is known, in `unit`; None for the mean over the recorded time.
        max_age_seconds: How long a value holds; None for twice the median time between two of them.
        is_known_ahead: Whether later values are known earlier, as on a day-ahead market: decisions then look ahead.
        forecast: The value forecast for each time, where the source publishes a forecast.
        forecast_hours: How long ahead it is published.
        estimated_seconds: The times whose values the source marks as its own estimates.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(
        self,
        times_seconds: Sequence[float],
        values: Sequence[float],
        unit: str,
        source: str = "given",
        basis: Basis = "average",
        average: float | None = None,
        max_age_seconds: float | None = None,
        is_known_ahead: bool = False,
        forecast: RecordedSignal | None = None,
        forecast_hours: float = 24.0,
        estimated_seconds: Collection[float] = (),
    ) -> None:
        times = checked_list("times_seconds", times_seconds, checked_time, "a list of seconds since 1970", 1)
        numbers = checked_list("values", values, lambda argument, value: value, "a list of numbers")
        if len(times) != len(numbers):
            raise UsageError(f"there are {len(times)} times for {len(numbers)} values; give one time for each value")
        for earlier, later in pairwise(times):
            if later <= earlier:
                raise UsageError(f"times_seconds must increase, but {later:.0f} follows {earlier:.0f}")
        facts = SignalFacts.checked(unit, source, basis, 0.0 if average is None else average, is_known_ahead)
        self._times = times
        self._values = [converted_value("value", value, unit, facts) for value in numbers]
        self._estimated = frozenset(
            checked_list("estimated_seconds", estimated_seconds, checked_time, "a list of seconds since 1970")
        )
        self._max_age_seconds = _max_age_seconds(times, max_age_seconds)
        self._forecast = (
            None if forecast is None else checked_instance("forecast", forecast, RecordedSignal, "a signal")
        )
        hours = checked_number("forecast_hours", forecast_hours, 0.0, 1e4, "hours, such as 24")
        self._forecast_seconds = 3600.0 * hours
        self.facts: SignalFacts = facts
        """Its unit, source and basis."""
        if average is None:
            known = [part for part in self._raw_parts(times[0], times[-1]) if not part.is_stale]
            self.facts = replace(facts, average=mean_value(known))

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        unit: str | None = None,
        zone: str | None = None,
        basis: Basis | None = None,
        average: float | None = None,
        max_age_seconds: float | None = None,
        timestamp_column: str | None = None,
        value_column: str | None = None,
        is_known_ahead: bool = False,
        forecast_column: str | None = None,
        forecast_hours: float = 24.0,
        where: Mapping[str, str] | None = None,
    ) -> RecordedSignal:
        """Read a CSV file whose first line names its columns.

            timestamp,value
            2026-03-01 00:00,312
            2026-03-01 01:00,298

        The files of Electricity Maps, ENTSO-E, the UK carbon intensity service and WattTime are recognised by their
        columns. A row without a value is a gap. The last of several rows of one time and different values counts, with
        a warning. In the hour that is repeated at the end of daylight saving time, rows are taken in their order.

        Args:
            path: The file.
            unit: The unit of the values, see the class; None for what the file says.
            zone: The time zone of timestamps that do not name one, such as "UTC" or "Europe/Berlin"; None for what the
                file says.
            basis: See the class; None for what is known of the source, or else "average".
            average: See the class.
            max_age_seconds: See the class.
            timestamp_column: The column of times: ISO 8601, its intervals, or seconds or milliseconds since 1970.
            value_column: The column of values, or a part of its name; None for that of the layout.
            is_known_ahead: See the class.
            forecast_column: The column of the values that were forecast for the times of the rows; None for none.
            forecast_hours: How long before the time of its row such a value was published.
            where: The rows to use, by columns and their values: needed where a file has several areas.

        Raises:
            UsageError: The file cannot be read, or a row is wrong; the message names the line, or the columns.
        """
        file = Path(checked_path("path", path, "carbon.csv"))
        for name, column in (
            ("timestamp_column", timestamp_column),
            ("value_column", value_column),
            ("forecast_column", forecast_column),
        ):
            if column is not None:
                checked_text(name, column)
        if where is not None:
            for name, value in checked_mapping("where", where, '{"Area": "BZN|DE-LU"}').items():
                checked_text("a column in where", name)
                checked_text(f"where[{name!r}]", value)
        time_zone = None if zone is None else checked_zone("zone", zone)
        table = SignalTable(file, timestamp_column, where)
        column = table.value_column(value_column)
        unit = _unit(file, column, unit, table.unit(column))
        series, rows = table.series(), table.rows(column, time_zone)
        estimated = [row.seconds for row in rows if row.is_estimated]
        known = [f"{table.layout.name}: {column}", *series] if table.layout.name else []
        zone = table.zone or zone
        known += [unit] if zone is None else [unit, zone]
        if estimated:
            known.append(f"{len(estimated)} of {len(rows)} values estimated")
        made = unit, f"{file.name} ({', '.join(known)})", basis or table.layout.basis
        facts = SignalFacts.checked(*made)
        for row in rows:
            checked_value(f"{file}, line {row.line}: value", row.value, facts)
        forecast = None
        if forecast_column is not None:
            expected = table.rows(table.value_column(forecast_column), time_zone)
            forecast = cls([row.seconds for row in expected], [row.value for row in expected], *made)
        times, values = [row.seconds for row in rows], [row.value for row in rows]
        limits = average, max_age_seconds, is_known_ahead
        return cls(times, values, *made, *limits, forecast, forecast_hours, estimated)

    @property
    def begin_seconds(self) -> float:
        """The time of the first value."""
        return self._times[0]

    @property
    def end_seconds(self) -> float:
        """The time of the last value."""
        return self._times[-1]

    def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return the parts of a period. See `Signal.parts`."""
        begin, end = checked_period(begin_seconds, end_seconds)
        return joined(self._raw_parts(begin, end))

    def forecast(self, now_seconds: float, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return what is forecast for a period. See `ForecastSignal.forecast`."""
        published = checked_time("now_seconds", now_seconds) + self._forecast_seconds
        begin, end = checked_period(begin_seconds, end_seconds)
        if self._forecast is None or begin >= published:
            return []
        return [part for part in self._forecast.parts(begin, min(end, published)) if not part.is_stale]

    def _raw_parts(self, begin: float, end: float) -> Iterator[SignalPart]:
        """Yield a part for each value, and one for each time without."""
        number = bisect.bisect_right(self._times, begin) - 1
        while True:
            next_seconds = self._times[number + 1] if number + 1 < len(self._times) else math.inf
            held_until = self._times[number] + self._max_age_seconds if number >= 0 else -math.inf
            if begin < held_until:
                part_end = min(end, next_seconds, held_until)
                is_estimated = self._times[number] in self._estimated
                yield SignalPart(begin, part_end, self._values[number], begin - self._times[number], is_estimated)
            else:
                part_end = min(end, next_seconds)
                yield SignalPart(begin, part_end, self.facts.average, None)
            number += part_end == next_seconds
            if part_end >= end:
                return
            begin = part_end


def _unit(file: Path, column: str, given: str | None, label: str | None) -> str:
    """Return the unit that was given, or else that of the file. Raises `UsageError` if both differ or are missing."""
    if given is None and label is None:
        raise UsageError(f"{file}: the unit of {column!r} is not known; give it, such as g/kWh or EUR/MWh")
    if given is None:
        return str(label)
    if label is not None and not is_same_unit(given, label):
        raise UsageError(f"unit is {shown(given)}, but {file} has {column!r} in {label}")
    return given


def _max_age_seconds(times: Sequence[float], given: float | None) -> float:
    if given is not None:
        return checked_number("max_age_seconds", given, 0.0, 1e9, "seconds, more than 0", is_open=True)
    if len(times) < 2:
        raise UsageError("there is one value alone, and nothing says how long it holds; give max_age_seconds=")
    return _BRIDGED_ROWS * statistics.median(later - earlier for earlier, later in pairwise(times))
