"""A signal: the carbon intensity or the price of electricity over time, or one value for all time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

from zeus_core.errors import UsageError
from zeus_core.units import per_kilowatt_hour
from zeus_core.validate import checked_number, checked_one_of, shown

Basis = Literal["average", "marginal"]
"""The power plants that an intensity counts: all those of a grid, by their share of the electricity (reports use this:
GHG Protocol, scope 2, location-based); or the plants that would supply one kilowatt-hour more."""

_INTENSITY_UNIT = "g/kWh"
UNIT = re.compile(
    # A mass, with or without a label of the gas, or a currency; per kWh or MWh, in any case.
    r"(?<![a-z])(?:(?P<mass>mg|g|kg|t|lb)s?\s*(?:CO[2₂]\s*-?\s*(?:eq?)?)?|(?P<currency>(?-i:[A-Z]{3})|Euro?|€|£))"
    r"\s*/\s*(?P<energy>[kM]Wh)",
    re.IGNORECASE,
)
"""The unit of a signal, as sources write it: g/kWh, gCO2eq/kWh, lb/MWh, EUR/MWh, €/kWh."""
_SYMBOLS = {"€": "EUR", "euro": "EUR", "£": "GBP"}
_UNITS = (
    "a mass per energy for a carbon intensity (g/kWh, gCO2eq/kWh, kg/MWh, lb/MWh), or a currency per kWh or MWh for a "
    "price, such as EUR/kWh"
)


@dataclass(frozen=True)
class SignalFacts:
    """The meaning and the source of a signal: a report names all of it.

    Attributes:
        unit: "g/kWh" for a carbon intensity (grams of CO2 equivalent), or a price such as "EUR/kWh".
        source: Where the values come from, in words.
        basis: The power plants it counts; None for a price.
        average: The value where nothing recent enough is known, in `unit`.
        is_known_ahead: Whether the values of the future are known, as those of a contract or of a day-ahead market.
    """

    unit: str
    source: str
    basis: Basis | None
    average: float
    is_known_ahead: bool = False

    @property
    def is_price(self) -> bool:
        """Whether it is a price, and no carbon intensity."""
        return self.basis is None

    @property
    def amount_unit(self) -> str:
        """The unit of what is emitted or paid: "g", or the currency."""
        return self.unit.partition("/")[0]

    @classmethod
    def checked(
        cls, unit: str, source: str, basis: Basis = "average", average: float = 0.0, is_known_ahead: bool = False
    ) -> SignalFacts:
        """Make the facts from arguments of a user, whose `unit` may be any that sources use.

        Raises:
            UsageError: An argument is wrong.
        """
        own_unit, value = checked_unit(unit), converted_value("average", average, unit)
        checked_one_of("basis", basis, ("average", "marginal"))
        return cls(own_unit, source, basis if own_unit == _INTENSITY_UNIT else None, value, is_known_ahead)


@dataclass(frozen=True, slots=True)
class SignalPart:
    """A time in which a signal stays the same.

    Attributes:
        begin_seconds: Its begin, in seconds since 1970 (Unix time).
        end_seconds: Its end.
        value: The value, in the unit of the signal.
        is_stale: Whether nothing recent enough is known, so that the value is the average.
    """

    begin_seconds: float
    end_seconds: float
    value: float
    is_stale: bool = False

    @property
    def seconds(self) -> float:
        """Its duration."""
        return self.end_seconds - self.begin_seconds


@runtime_checkable
class Signal(Protocol):
    """Tells the carbon intensity or the price of electricity at any time, at once: nothing waits for a network here."""

    @property
    def facts(self) -> SignalFacts:
        """Its unit, source and basis."""
        ...

    def parts(self, begin_seconds: float, end_seconds: float) -> Sequence[SignalPart]:
        """Return the parts of a period, in order and without gaps. A period of no time has one part.

        Args:
            begin_seconds: The begin of the period, in seconds since 1970 (Unix time).
            end_seconds: The end; not before the begin.

        Raises:
            UsageError: The end is before the begin, or one of them is no number.
        """
        ...


@runtime_checkable
class ForecastSignal(Signal, Protocol):
    """A signal whose source publishes a forecast, as of the next day. Decisions use it as far as it has been right."""

    def forecast(self, now_seconds: float, begin_seconds: float, end_seconds: float) -> Sequence[SignalPart]:
        """Return the values that are forecast for a period, in order; none for times without a forecast.

        Args:
            now_seconds: The time, in seconds since 1970: nothing that is published later is used.
            begin_seconds: The begin of the period. Before now, earlier forecasts show how good a forecast is.
            end_seconds: The end.
        """
        ...


def checked_signal(argument: str, signal: Signal) -> Signal:
    """Return a signal.

    Raises:
        UsageError: It is something else, such as a number without its unit.
    """
    if not isinstance(getattr(signal, "facts", None), SignalFacts):
        raise UsageError(f"{argument} is {shown(signal)}; it must be a signal, such as ConstantSignal(380, 'g/kWh')")
    return signal


def checked_unit(unit: str) -> str:
    """Return the unit of a signal that has values in the unit of a source: always per kWh, and grams of a mass.

    Raises:
        UsageError: The unit is not known.
    """
    amount, _ = _parts_of(unit)
    return f"{amount}/kWh" if amount.isupper() else _INTENSITY_UNIT


def converted_value(argument: str, value: float, unit: str) -> float:
    """Return a value in the unit of a source in that of its signal, see `checked_unit`.

    Raises:
        UsageError: It is not a number in its range. A price may be below 0, as on wholesale markets; an intensity may
            not.
    """
    if checked_unit(unit) == _INTENSITY_UNIT:
        checked = checked_number(argument, value, 0.0, 1e6, "grams of CO2 equivalent per kWh, at least 0")
    else:
        checked = checked_number(argument, value, -1e9, 1e9, "a price, such as 0.31")
    return per_kilowatt_hour(checked, *_parts_of(unit))


def _parts_of(unit: str) -> tuple[str, str]:
    """Return the amount of a unit, a mass such as "kg" or a currency such as "EUR", and "kWh" or "MWh"."""
    match = UNIT.fullmatch(unit.strip())
    if match is None:
        raise UsageError(f"unit is {shown(unit)}; it must be {_UNITS}")
    energy = "MWh" if match["energy"].lower() == "mwh" else "kWh"
    if match["mass"]:
        return match["mass"].lower(), energy
    return _SYMBOLS.get(match["currency"].lower(), match["currency"].upper()), energy


def checked_time(argument: str, seconds: float) -> float:
    """Return a time in seconds since 1970, between the years 1900 and 9000: dates in all zones can be calculated there.

    Raises:
        UsageError: It is something else.
    """
    wanted = "seconds since 1970, between the years 1900 and 9000"
    return checked_number(argument, seconds, -2.2e9, 2.2e11, wanted)


def checked_period(begin_seconds: float, end_seconds: float) -> tuple[float, float]:
    """Return the two ends of a period.

    Raises:
        UsageError: The end is before the begin, or one of them is no such time.
    """
    begin, end = checked_time("begin_seconds", begin_seconds), checked_time("end_seconds", end_seconds)
    if end < begin:
        raise UsageError(f"end_seconds is {shown(end_seconds)}, which is before begin_seconds, {shown(begin_seconds)}")
    return begin, end


def joined(parts: Iterable[SignalPart]) -> list[SignalPart]:
    """Join neighbours of the same value, of which both or none are stale."""
    result: list[SignalPart] = []
    for part in parts:
        if result and (result[-1].value, result[-1].is_stale) == (part.value, part.is_stale):
            result[-1] = replace(result[-1], end_seconds=part.end_seconds)
        else:
            result.append(part)
    return result


def mean_value(parts: Sequence[SignalPart]) -> float:
    """Return the mean over time of some parts, at least one."""
    seconds = sum(part.seconds for part in parts)
    if seconds <= 0:
        return parts[0].value
    return sum(part.value * part.seconds for part in parts) / seconds


class ConstantSignal:
    """One value for all time, such as the yearly mean of a country or the price in a contract.

    Args:
        value: The value, in `unit`.
        unit: "g/kWh" for a carbon intensity, or a price such as "EUR/kWh"; per MWh is accepted, too.
        source: Where the value comes from, for reports.
        basis: The power plants it counts; without meaning for a price.

    Raises:
        UsageError: An argument is wrong.
    """

    def __init__(self, value: float, unit: str, source: str = "given", basis: Basis = "average") -> None:
        self.facts: SignalFacts = SignalFacts.checked(unit, source, basis, value, is_known_ahead=True)
        """Its unit, source and basis."""

    def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return the one part of a period. See `Signal.parts`."""
        begin, end = checked_period(begin_seconds, end_seconds)
        return [SignalPart(begin, end, self.facts.average)]
