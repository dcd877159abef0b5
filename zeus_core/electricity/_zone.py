"""Time zones."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from zeus_core.errors import UsageError
from zeus_core.validate import checked_text, shown


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
