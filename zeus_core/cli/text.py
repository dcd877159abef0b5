"""The output of the commands: lines, tables, and numbers with their units."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TextIO, TypeVar

from zeus_core.errors import DeviceError

NOT_MEASURED = "-"

_Value = TypeVar("_Value")


def write(text: str, stream: TextIO | None) -> None:
    """Write a line at once. A character that the stream cannot show becomes a question mark; no stream is no output."""
    if stream is None:  # Python's name for a standard stream that was closed before the program began
        return
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        stream.write(text.encode("ascii", "replace").decode() + "\n")
    stream.flush()


def complain(text: str) -> None:
    """Write a line to standard error; if that cannot be written, there is nobody left to tell."""
    with contextlib.suppress(OSError, ValueError):
        write(text, sys.stderr)


def readable(read: Callable[[], _Value]) -> _Value | None:
    """Read a value of a device; None if it cannot be read."""
    try:
        return read()
    except DeviceError:
        return None


def watts(power_watts: float | None) -> str:
    """Format a power to a tenth of a watt."""
    return NOT_MEASURED if power_watts is None else f"{power_watts:.1f} W"


def joules(energy_joules: float | None) -> str:
    """Format an energy to a tenth of a joule."""
    return NOT_MEASURED if energy_joules is None else f"{energy_joules:.1f} J"


def table(rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Format rows as lines of aligned columns.

    Args:
        rows: The cells; all rows have the same number.
        alignment: One of "<" and ">" per column.
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True)).rstrip()
        for row in rows
    )
