"""A signal that was recorded: values with the times from which they hold."""

from __future__ import annotations

import bisect
import math
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from zeus_core.electricity._signal_csv import read_values
from zeus_core.electricity._zone import checked_zone
from zeus_core.electricity.signal import (
    Basis,
    SignalFacts,
    SignalPart,
    checked_period,
    checked_time,
    checked_value,
    joined,
    mean_value,
    scale_of,
)
from zeus_core.errors import UsageError
from zeus_core.validate import checked_instance, checked_list, checked_number, checked_path, checked_text

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
    ) -> None:
        times = checked_list("times_seconds", times_seconds, checked_time, "a list of seconds since 1970", 1)
        numbers = checked_list("values", values, lambda argument, value: value, "a list of numbers")
        if len(times) != len(numbers):
            raise UsageError(f"there are {len(times)} times for {len(numbers)} values; give one time for each value")
        for earlier, later in pairwise(times):
            if later <= earlier:
                raise UsageError(f"times_seconds must increase, but {later:.0f} follows {earlier:.0f}")
        scale = scale_of(unit)
        facts = SignalFacts.checked(unit, source, basis, 0.0 if average is None else average, is_known_ahead)
        self._times = times
        self._values = [checked_value("value", value, facts) * scale for value in numbers]
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
        unit: str,
        zone: str,
        basis: Basis = "average",
        average: float | None = None,
        max_age_seconds: float | None = None,
        timestamp_column: str = "timestamp",
        value_column: str = "value",
        is_known_ahead: bool = False,
        forecast_column: str | None = None,
        forecast_hours: float = 24.0,
    ) -> RecordedSignal:
        """Read a CSV file whose first line names its columns.

            timestamp,value
            2026-03-01 00:00,312
            2026-03-01 01:00,298

        A row without a value is a gap. The last of several rows of one time and different values counts, with a
        warning. In the hour that is repeated at the end of daylight saving time, rows are taken in their order.

        Args:
            path: The file.
            unit: The unit of the values; see the class.
            zone: The time zone of timestamps that do not name one, such as "UTC" or "Europe/Berlin".
            basis: See the class.
            average: See the class.
            max_age_seconds: See the class.
            timestamp_column: The column of times: ISO 8601, or seconds since 1970.
            value_column: The column of values.
            is_known_ahead: See the class.
            forecast_column: The column of the values that were forecast for the times of the rows; None for none.
            forecast_hours: How long before the time of its row such a value was published.

        Raises:
            UsageError: The file cannot be read, or a row is wrong; the message names the line.
        """
        file = Path(checked_path("path", path, "carbon.csv"))
        columns = checked_text("timestamp_column", timestamp_column), checked_text("value_column", value_column)
        time_zone = checked_zone("zone", zone)
        facts = SignalFacts.checked(unit, file.name, basis)
        facts = replace(facts, source=f"{file.name} ({unit}, {time_zone.key})")
        times, values = read_values(file, time_zone, columns, facts)
        forecast = None
        if forecast_column is not None:
            columns = columns[0], checked_text("forecast_column", forecast_column)
            forecast = cls(*read_values(file, time_zone, columns, facts), unit, facts.source, basis)
        made = (average, max_age_seconds, is_known_ahead, forecast, forecast_hours)
        return cls(times, values, unit, facts.source, basis, *made)

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
                yield SignalPart(begin, part_end, self._values[number], begin - self._times[number])
            else:
                part_end = min(end, next_seconds)
                yield SignalPart(begin, part_end, self.facts.average, None)
            number += part_end == next_seconds
            if part_end >= end:
                return
            begin = part_end


def _max_age_seconds(times: Sequence[float], given: float | None) -> float:
    if given is not None:
        return checked_number("max_age_seconds", given, 0.0, 1e9, "seconds, more than 0", is_open=True)
    if len(times) < 2:
        raise UsageError("max_age_seconds is None; it is needed where there is only one value")
    return _BRIDGED_ROWS * statistics.median(later - earlier for earlier, later in pairwise(times))
