"""Times as the files of signals have them: ISO 8601, compact, intervals, and seconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

from zeus_core.errors import UsageError
from zeus_core.validate import checked_text, shown

_OFFSETS_HOURS = {"z": 0, "utc": 0, "gmt": 0, "cet": 1, "cest": 2}

_CLOCK = r"(?:[T ]?(?P<hour>\d\d)(?::?(?P<minute>\d\d)(?::?(?P<second>\d\d)(?:[.,]\d+)?)?)?)?"
_ZONE = r"\s*\(?(?P<zone>Z|UTC|GMT|CET|CEST|[-+]\d\d(?::?\d\d)?)?\)?"
_YEAR_FIRST = re.compile(rf"(?P<year>\d{{4}})(?P<mark>[-/]?)(?P<month>\d\d)(?P=mark)(?P<day>\d\d){_CLOCK}{_ZONE}", re.I)
_DAY_FIRST = re.compile(
    rf"(?P<day>\d\d?)(?P<mark>[./])(?P<month>\d\d?)(?P=mark)(?P<year>\d{{4}}),?{_CLOCK}{_ZONE}", re.I
)
_FIELDS = ("year", "month", "day", "hour", "minute", "second")
_INTERVAL = re.compile(r"\s+(?:-|\u2013|to)\s+|(?<=[T:]\d\dZ)/|(?<=\d)/(?=\d{4}-)")
_EPOCH = re.compile(r"([1-9]\d{9})(\d{3}|\d{6}|\d{9})?(\.\d*)?")
_DATE_HOUR = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?:[01]\d|2[0-3])")


def read_moment(where: str, text: str, is_day_first: bool) -> datetime:
    """Read a time, or the begin of an interval. It has a zone if the text names one.

    Args:
        where: The file and the line, for errors.
        text: The time.
        is_day_first: Whether 3/4/2026 is a day in April.

    Raises:
        UsageError: It is no time, or may be several. A number is a date or seconds of this century, never of 1970.
    """
    begin = _INTERVAL.split(text, 1)[0].strip()
    number = _EPOCH.fullmatch(begin)
    if number is not None:
        if _DATE_HOUR.fullmatch(begin):
            raise UsageError(f"{where}: {text!r} may be an hour or seconds since 1970; write it like 2026-03-01T13:00Z")
        fraction = f"{number[2] or ''}{(number[3] or '.')[1:]}"
        return datetime.fromtimestamp(int(number[1]), UTC) + timedelta(seconds=float(f"0.{fraction}0"))
    day_first = _DAY_FIRST.fullmatch(begin)
    is_unclear = day_first is not None and day_first["mark"] == "/" and not is_day_first
    match = _YEAR_FIRST.fullmatch(re.sub(r"\.0*$", "", begin)) or (None if is_unclear else day_first)
    try:
        if match is None or not 1900 <= int(match["year"]) <= 9000:
            raise ValueError
        year, month, day, hour, minute, second = (int(match[name] or 0) for name in _FIELDS)
        return datetime(year, month, day, hour, minute, second, tzinfo=_offset(match["zone"]))
    except ValueError:
        hint = ", as its month may be either number" if is_unclear else ""
        raise UsageError(
            f"{where}: {text!r} is no time{hint}; it must be like 2026-03-01 13:00, or seconds since 1970 (or "
            "milliseconds)"
        ) from None


def _offset(label: str | None) -> tzinfo | None:
    if label is None:
        return None
    if label.lower() in _OFFSETS_HOURS:
        return timezone(timedelta(hours=_OFFSETS_HOURS[label.lower()]))
    digits = label[1:].replace(":", "").ljust(4, "0")
    shift = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-shift if label[0] == "-" else shift)


def instant(moment: datetime, zone: ZoneInfo | None) -> float:
    """Return seconds since 1970; of a time that happens twice, the earlier."""
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)).timestamp()


def seconds_of(where: str, moment: datetime, zone: ZoneInfo | None, previous: float) -> float:
    """Return seconds since 1970; of a time that happens twice, as a clock is set back, the later after the first."""
    if moment.tzinfo is not None or zone is None:
        return moment.timestamp()
    first, second = (moment.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    if datetime.fromtimestamp(first, UTC).astimezone(zone).replace(tzinfo=None) != moment:
        raise UsageError(
            f"{where}: there is no {moment:%Y-%m-%d %H:%M} in {zone.key}, where clocks were set forward; state the "
            "zone of the file"
        )
    return second if first <= previous < second else first


def checked_zone(argument: str, zone: str) -> ZoneInfo:
    """Return a time zone by its name.

    Raises:
        UsageError: There is none of that name on this machine.
    """
    wanted = 'the name of a time zone, such as "UTC" or "Europe/Berlin"'
    name = checked_text(argument, zone, wanted)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        raise UsageError(f"{argument} is {shown(zone)}; it must be {wanted}") from None
