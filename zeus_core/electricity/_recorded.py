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

from zeus_core.electricity._signal_file import read_signal_file
from zeus_core.electricity.signal import (
    Basis,
    SignalFacts,
    SignalPart,
    checked_period,
    checked_time,
    converted_value,
    joined,
    mean_value,
)
from zeus_core.errors import UsageError
from zeus_core.validate import checked_number

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
        times = [checked_time("times_seconds", seconds) for seconds in times_seconds]
        if len(times) != len(values):
            raise UsageError(f"there are {len(times)} times for {len(values)} values; give one time for each value")
        for earlier, later in pairwise(times):
            if later <= earlier:
                raise UsageError(f"times_seconds must increase, but {later:.0f} follows {earlier:.0f}")
        facts = SignalFacts.checked(unit, source, basis, 0.0 if average is None else average, is_known_ahead)
        self._times = times
        self._values = [converted_value("value", value, unit) for value in values]
        self._max_age_seconds = _max_age_seconds(times, max_age_seconds)
        self._forecast = forecast
        self._forecast_seconds = 3600.0 * checked_number(
            "forecast_hours", forecast_hours, 0.0, 1e4, "hours, such as 24"
        )
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
        is_known_ahead: bool = False,
    ) -> RecordedSignal:
        """Read a CSV file whose first line names its columns.

            timestamp,value
            2026-03-01 00:00,312
            2026-03-01 01:00,298

        The files of Electricity Maps, ENTSO-E, the UK carbon intensity service and WattTime are recognised by their
        columns. A time is ISO 8601, an interval, or seconds or milliseconds since 1970. A row without a value is a gap.
        The last of several rows of one time counts, with a warning if their values differ. In the hour that is repeated
        at the end of daylight saving time, rows are taken in their order.

        Args:
            path: The file.
            unit: The unit of the values, see the class; None for what the file says.
            zone: The time zone of times that do not name one, such as "UTC" or "Europe/Berlin"; None for what the file
                says.
            is_known_ahead: See the class.

        Raises:
            UsageError: The file cannot be read, or may mean several things, or a row is wrong.
        """
        return cls(*read_signal_file(Path(path), unit, zone), is_known_ahead=is_known_ahead)

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
                yield SignalPart(begin, part_end, self._values[number])
            else:
                part_end = min(end, next_seconds)
                yield SignalPart(begin, part_end, self.facts.average, is_stale=True)
            number += part_end == next_seconds
            if part_end >= end:
                return
            begin = part_end


def _max_age_seconds(times: Sequence[float], given: float | None) -> float:
    if given is not None:
        return checked_number("max_age_seconds", given, 0.0, 1e9, "seconds, more than 0", is_open=True)
    if not times:
        raise UsageError("times_seconds is []; it must be a list of seconds since 1970, at least one")
    if len(times) < 2:
        raise UsageError("there is one value alone, and nothing says how long it holds; give max_age_seconds=")
    return _BRIDGED_ROWS * statistics.median(later - earlier for earlier, later in pairwise(times))
