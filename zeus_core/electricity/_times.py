"""Times as the files of signals have them: ISO 8601, intervals, day first, and seconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from zeus_core.errors import UsageError
from zeus_core.validate import shown

_INTERVAL = re.compile(r"\s+(?:-|\u2013|to)\s+|/(?=\d{4}-)")
_DAY_FIRST = re.compile(r"(\d\d?)([./])(\d\d?)\2(\d{4}),?(.*)")
_ZONE = re.compile(r"\s*\(?(UTC|GMT|CET|CEST)\)?$", re.IGNORECASE)
_OFFSETS = {"UTC": "+00:00", "GMT": "+00:00", "CET": "+01:00", "CEST": "+02:00"}
_NUMBER = re.compile(r"(\d+)(?:\.(\d*))?")
_DATE_HOUR = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])")


def read_time(where: str, text: str, is_day_first: bool) -> datetime:
    """Read a time, or the begin of an interval. It has a zone if the text names one.

    Args:
        where: The file and the line, for errors.
        text: The time.
        is_day_first: Whether 3/4/2026 is a day in April; elsewhere it is refused.

    Raises:
        UsageError: It is not a time, or may be several. A number is a date or seconds of this century, never of 1970.
    """
    begin = _INTERVAL.split(text, maxsplit=1)[0].strip()
    try:
        moment = _time_of_number(begin) if _NUMBER.fullmatch(begin) else _time_of_words(begin, is_day_first)
        if 1900 <= moment.year <= 9000:
            return moment
    except (ValueError, OverflowError):
        pass
    hint = ", as it may be several" if _DATE_HOUR.fullmatch(begin) or _DAY_FIRST.fullmatch(begin) else ""
    raise UsageError(
        f"{where}: {text!r} is no time{hint}; it must be like 2026-03-01 13:00, or (milli)seconds since 1970"
    )


def _time_of_words(text: str, is_day_first: bool) -> datetime:
    match = _DAY_FIRST.fullmatch(text)
    if match is not None:
        day, mark, month, year, clock = match.groups()
        if mark == "/" and not is_day_first:
            raise ValueError
        text = f"{year}-{month:0>2}-{day:0>2}{clock}"
    text = _ZONE.sub(lambda label: _OFFSETS[label[1].upper()], text)
    return datetime.fromisoformat(text.replace("/", "-"))


def _time_of_number(text: str) -> datetime:
    """Return a date of 8, 12 or 14 digits, or seconds since 1970: 10 digits, with 3, 6 or 9 for parts of a second."""
    digits, _, fraction = text.partition(".")
    if len(digits) in (8, 12, 14) and not fraction.strip("0"):
        return datetime.fromisoformat(f"{digits[:8]}T{digits[8:] or '00'}")
    if len(digits) not in (10, 13, 16, 19) or digits[0] == "0" or _DATE_HOUR.fullmatch(digits):
        raise ValueError
    return datetime.fromtimestamp(int(digits[:10]), UTC) + timedelta(seconds=float(f"0.{digits[10:]}{fraction}0"))


def seconds_of(where: str, moment: datetime, previous: float) -> float:
    """Return seconds since 1970 of a time with a zone.

    As a clock is set back, a time happens twice: the second one is meant if the first is not after `previous`.

    Raises:
        UsageError: There is no such time in the zone.
    """
    first, second = (moment.replace(fold=fold).timestamp() for fold in (0, 1))
    if datetime.fromtimestamp(first, moment.tzinfo).replace(tzinfo=None) != moment.replace(tzinfo=None):
        raise UsageError(
            f"{where}: there is no {moment:%Y-%m-%d %H:%M} in {moment.tzinfo}, where clocks were set forward; state "
            "the zone of the file"
        )
    return second if first <= previous < second else first


def checked_zone(argument: str, zone: str) -> ZoneInfo:
    """Return a time zone by its name.

    Raises:
        UsageError: There is none of that name on this machine.
    """
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        wanted = 'the name of a time zone, such as "UTC" or "Europe/Berlin"'
        raise UsageError(f"{argument} is {shown(zone)}; it must be {wanted}") from None
