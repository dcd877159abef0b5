"""A tariff: prices by weekday and time of day."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

from zeus_core.electricity._timestamps import checked_zone
from zeus_core.electricity.signal import (
    Basis,
    SignalFacts,
    SignalPart,
    checked_period,
    converted_value,
    joined,
)
from zeus_core.errors import UsageError
from zeus_core.validate import checked_list, checked_mapping, checked_text, shown

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_MINUTES = 1440
_EXAMPLE = 'a weekday or several and a time, such as "Mon-Fri 07:00-22:00" or "Sat,Sun 00:00-24:00"'
_PERIOD = re.compile(r"\s*(\S+)\s+(\d{1,2}):(\d\d)\s*-\s*(\d{1,2}):(\d\d)\s*")
# Clocks are set forward and back at whole quarters of an hour of universal time, in all zones since 1972.
_QUARTER_SECONDS = 900


class WeeklyTariff:
    """Prices that depend on the weekday and the time of day, as in contracts of electricity.

        >>> tariff = WeeklyTariff(
        ...     {"Mon-Fri 07:00-22:00": 0.32, "Mon-Fri 22:00-07:00": 0.22, "Sat,Sun 00:00-24:00": 0.22},
        ...     unit="EUR/kWh",
        ...     zone="Europe/Berlin",
        ... )

    A time that ends before it begins, such as 22:00-07:00, stands for two times of the same weekdays: 00:00-07:00 and
    22:00-24:00.

    Args:
        rates: The price in each time of the week, which they cover without gaps and overlaps.
        unit: The unit of the prices, such as "EUR/kWh"; per MWh and the unit of an intensity are accepted, too.
        zone: The time zone, such as "Europe/Berlin"; daylight saving time is followed.
        holidays: Dates such as "2026-12-25" that have the prices of another weekday.
        holidays_as: That weekday.
        source: Where the prices come from, for reports.
        basis: The power plants it counts; without meaning for prices.

    Raises:
        UsageError: An argument is wrong, or a time of the week has no price or two.
    """

    def __init__(
        self,
        rates: Mapping[str, float],
        unit: str,
        zone: str,
        holidays: Collection[str | date] = (),
        holidays_as: str = "Sun",
        source: str = "weekly tariff",
        basis: Basis = "average",
    ) -> None:
        self._zone = checked_zone("zone", zone)
        facts = SignalFacts.checked(unit, source, basis, is_known_ahead=True)
        self._week = _week(checked_mapping("rates", rates, '{"Mon-Sun 00:00-24:00": 0.3}'), facts, unit)
        self._change_minutes = [
            [minute for minute in range(1, _DAY_MINUTES) if prices[minute] != prices[minute - 1]]
            for prices in self._week
        ]
        self._holidays = frozenset(checked_list("holidays", holidays, _checked_date, 'dates such as "2026-12-25"'))
        self._holiday_weekday = _weekday("holidays_as", checked_text("holidays_as", holidays_as))
        mean = sum(map(sum, self._week)) / (len(self._week) * _DAY_MINUTES)
        self.facts: SignalFacts = replace(facts, average=mean)
        """Its unit, source and basis."""

    def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return the parts of a period. See `Signal.parts`."""
        begin, end = checked_period(begin_seconds, end_seconds)
        edges = [begin, *self._changes(begin, end), end]
        return joined(SignalPart(first, last, self._value(first)) for first, last in pairwise(edges))

    def _changes(self, begin: float, end: float) -> Iterator[float]:
        """Yield the times after the begin and before the end at which the price may change."""
        quarter = begin // _QUARTER_SECONDS * _QUARTER_SECONDS
        while quarter < end:
            # Within a quarter of an hour no clock is set: the minutes of a local day follow each other.
            local = self._local(quarter)
            first_minute = local.hour * 60 + local.minute
            for minute in (first_minute, *self._change_minutes[self._weekday(local)]):
                seconds = quarter + 60 * (minute - first_minute)
                if quarter <= seconds < quarter + _QUARTER_SECONDS and begin < seconds < end:
                    yield seconds
            quarter += _QUARTER_SECONDS

    def _value(self, seconds: float) -> float:
        local = self._local(seconds)
        return self._week[self._weekday(local)][local.hour * 60 + local.minute]

    def _local(self, seconds: float) -> datetime:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).astimezone(self._zone)

    def _weekday(self, local: datetime) -> int:
        """Return the weekday that has the prices of a day."""
        return self._holiday_weekday if local.date() in self._holidays else local.weekday()


def _week(rates: Mapping[str, float], facts: SignalFacts, unit: str) -> list[list[float]]:
    """Return the price in each minute of each weekday."""
    week: list[list[float | None]] = [[None] * _DAY_MINUTES for _ in _WEEKDAYS]
    for period, value in rates.items():
        price = converted_value(f"rates[{shown(period)}]", value, unit, facts)
        for weekday, minute in _minutes(period):
            if week[weekday][minute] is not None:
                raise UsageError(f"rates has two prices for {_time_of_week(weekday, minute)}, one by {shown(period)}")
            week[weekday][minute] = price
    for weekday, prices in enumerate(week):
        if None in prices:
            raise UsageError(
                f"rates has no price for {_time_of_week(weekday, prices.index(None))}; cover all weekdays, each from "
                "00:00 to 24:00"
            )
    return [[price for price in prices if price is not None] for prices in week]


def _minutes(period: str) -> Iterator[tuple[int, int]]:
    """Yield each weekday and minute of a period in words."""
    match = _PERIOD.fullmatch(checked_text("rates", period, _EXAMPLE))
    hours_and_minutes = [int(text) for text in match.groups()[1:]] if match else [99] * 4
    begin, end = (60 * hours_and_minutes[at] + hours_and_minutes[at + 1] for at in (0, 2))
    if match is None or max(hours_and_minutes[1::2]) > 59 or max(begin, end) > _DAY_MINUTES or begin == end:
        raise UsageError(f"rates has {shown(period)}; it must be {_EXAMPLE}")
    minutes = range(begin, end) if begin < end else [*range(end), *range(begin, _DAY_MINUTES)]
    for days in match[1].split(","):
        first, _, last = days.partition("-")
        first_day = _weekday("rates", first, period)
        count = (_weekday("rates", last, period) - first_day) % 7 if last else 0
        for number in range(count + 1):
            yield from (((first_day + number) % 7, minute) for minute in minutes)


def _weekday(argument: str, name: str, period: str | None = None) -> int:
    if name not in _WEEKDAYS:
        text = shown(name if period is None else period)
        raise UsageError(f"{argument} has {text}; the weekdays are {', '.join(_WEEKDAYS)}")
    return _WEEKDAYS.index(name)


def _time_of_week(weekday: int, minute: int) -> str:
    return f"{_WEEKDAYS[weekday]} {minute // 60:02}:{minute % 60:02}"


def _checked_date(argument: str, day: str | date) -> date:
    try:
        return day if type(day) is date else date.fromisoformat(day)  # type: ignore[arg-type]  # others raise
    except (TypeError, ValueError):
        raise UsageError(f'{argument} is {shown(day)}; it must be a date such as "2026-12-25"') from None
