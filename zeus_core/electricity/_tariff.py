"""A tariff: prices by weekday and time of day."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import date, datetime

from zeus_core.electricity._times import checked_zone
from zeus_core.electricity.signal import SignalFacts, SignalPart, checked_period, converted_value
from zeus_core.errors import UsageError
from zeus_core.validate import shown

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = 1440  # minutes
_PERIOD = re.compile(r"\s*(\S+)\s+(\d{1,2}):([0-5]\d)\s*-\s*(\d{1,2}):([0-5]\d)\s*")
# Clocks are set forward and back at whole quarters of an hour of universal time, in all zones since 1972.
_QUARTER_MINUTES = 15


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
        unit: The unit of the prices, such as "EUR/kWh"; per MWh is accepted, too.
        zone: The time zone, such as "Europe/Berlin"; daylight saving time is followed.
        holidays: Dates such as "2026-12-25" that have the prices of a Sunday.
        source: Where the prices come from, for reports.

    Raises:
        UsageError: An argument is wrong, or a time of the week has no price or two.
    """

    def __init__(
        self,
        rates: Mapping[str, float],
        unit: str,
        zone: str,
        holidays: Collection[str | date] = (),
        source: str = "weekly tariff",
    ) -> None:
        self._zone = checked_zone("zone", zone)
        self._prices = _prices(rates, unit)
        try:
            self._holidays = frozenset(date.fromisoformat(str(day)) for day in holidays)
        except ValueError as error:
            raise UsageError(f"holidays has an {error}; give dates such as 2026-12-25") from None
        changes = (minute for minute in range(7 * _DAY) if self._prices[minute] != self._prices[minute - 1])
        self._step_seconds = 60 * math.gcd(_QUARTER_MINUTES, *changes)
        facts = SignalFacts.checked(unit, source, is_known_ahead=True)
        self.facts: SignalFacts = replace(facts, average=sum(self._prices) / len(self._prices))
        """Its unit, source and basis."""

    def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return the parts of a period. See `Signal.parts`."""
        begin, end = checked_period(begin_seconds, end_seconds)
        parts, price = [], self._price(begin)
        step = self._step_seconds  # prices change at multiples of it alone
        for seconds in range((math.floor(begin) // step + 1) * step, math.ceil(end), step):
            later = self._price(seconds)
            if later != price:
                parts.append(SignalPart(begin, seconds, price))
                begin, price = seconds, later
        return [*parts, SignalPart(begin, end, price)]

    def _price(self, seconds: float) -> float:
        local = datetime.fromtimestamp(seconds, self._zone)
        weekday = 6 if local.date() in self._holidays else local.weekday()
        return self._prices[weekday * _DAY + local.hour * 60 + local.minute]


def _prices(rates: Mapping[str, float], unit: str) -> list[float]:
    """Return the price in each minute of the week."""
    prices: dict[int, float] = {}
    for period, value in rates.items():
        price = converted_value(f"rates[{shown(period)}]", value, unit)
        for minute in _minutes(period):
            if minute in prices:
                raise UsageError(f"rates has two prices for {_words(minute)}, one by {shown(period)}")
            prices[minute] = price
    missing = next((minute for minute in range(7 * _DAY) if minute not in prices), None)
    if missing is not None:
        raise UsageError(f"rates has no price for {_words(missing)}; cover all weekdays, each from 00:00 to 24:00")
    return [prices[minute] for minute in range(7 * _DAY)]


def _minutes(period: str) -> Iterator[int]:
    """Yield each minute of the week in a period in words."""
    match = _PERIOD.fullmatch(period)
    begin, end = (60 * int(match[at]) + int(match[at + 1]) for at in (2, 4)) if match else (0, 0)
    if match is None or begin == end or max(begin, end) > _DAY:
        wanted = 'a weekday or several and a time, such as "Mon-Fri 07:00-22:00" or "Sat,Sun 00:00-24:00"'
        raise UsageError(f"rates has {shown(period)}; it must be {wanted}")
    minutes = [*range(begin, end)] if begin < end else [*range(end), *range(begin, _DAY)]
    for weekdays in match[1].split(","):
        first, _, last = weekdays.partition("-")
        if not {first, last or first} <= set(_WEEKDAYS):
            raise UsageError(f"rates has {shown(period)}; the weekdays are {', '.join(_WEEKDAYS)}")
        begin_day, days = _WEEKDAYS.index(first), (_WEEKDAYS.index(last or first) - _WEEKDAYS.index(first)) % 7
        for day in range(begin_day, begin_day + days + 1):
            yield from (day % 7 * _DAY + minute for minute in minutes)


def _words(minute: int) -> str:
    return f"{_WEEKDAYS[minute // _DAY]} {minute // 60 % 24:02}:{minute % 60:02}"
