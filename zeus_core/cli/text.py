"""The output of the commands: lines, tables, and numbers with their units."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO, TypeVar

from zeus_core._identity import printable
from zeus_core.errors import DeviceError
from zeus_core.units import energy_text, number_text

NOT_MEASURED = "-"
_GAP = "  "  # between columns
_LEAST_TEXT = 24  # characters in a line of a wrapped sentence
_UNLIMITED = 10**6  # where there is no terminal

_Value = TypeVar("_Value")


def write(text: str, stream: TextIO | None) -> None:
    """Write lines at once. A character that the stream cannot show becomes a question mark; no stream is no output.

    So does one that a terminal would obey: names of runs, users and programs are texts of others.
    """
    if stream is None:  # Python's name for a standard stream that was closed before the program began
        return
    text = printable(text, besides="\n\t")
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:
        stream.write(text.encode("ascii", "replace").decode() + "\n")
    stream.flush()


def complain(text: str) -> None:
    """Write a line to standard error; if that cannot be written, nobody is there to read it."""
    with contextlib.suppress(OSError, ValueError):
        write(text, sys.stderr)


def readable(read: Callable[[], _Value]) -> _Value | None:
    """Read a value of a device; None if it cannot be read."""
    try:
        return read()
    except DeviceError:
        return None


def watts(power_watts: float | None) -> str:
    """Format a power, or the sign of one that was not measured."""
    return NOT_MEASURED if power_watts is None else f"{number_text(power_watts)} W"


def joules(energy_joules: float | None, uncertainty_joules: float | None = None) -> str:
    """Format an energy with its uncertainty, or the sign of one that was not measured."""
    return NOT_MEASURED if energy_joules is None else energy_text(energy_joules, uncertainty_joules)


def table(rows: Sequence[Sequence[str]], alignment: str) -> str:
    """Format rows as lines of aligned columns.

    In a terminal (or within COLUMNS characters), sentences in the last column are wrapped. No other cell is broken: the
    lines of a table that is wider still are longer than those of the terminal.

    Args:
        rows: The cells; all rows have the same number.
        alignment: One of "<" and ">" per column.
    """
    rows = [[printable(cell) for cell in row] for row in rows]  # a line end would make a row of its own
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if alignment[-1] == "<":
        room = shutil.get_terminal_size((_UNLIMITED, 0)).columns - sum(width + len(_GAP) for width in widths[:-1])
        widths[-1] = min(widths[-1], max(room, _LEAST_TEXT))
        rows = [line for row in rows for line in _wrapped(row, widths[-1])]
    lines = [
        [f"{cell:{side}{width}}" for cell, side, width in zip(row, alignment, widths, strict=True)] for row in rows
    ]
    return "\n".join(_GAP.join(line).rstrip() for line in lines)


def _wrapped(row: Sequence[str], width: int) -> Iterator[list[str]]:
    """Yield the row with the first line of its last cell, and a row for each further line."""
    first, *further = textwrap.wrap(row[-1], width, break_long_words=False, break_on_hyphens=False) or [""]
    yield [*row[:-1], first]
    for line in further:
        yield [*[""] * (len(row) - 1), line]


def make_folder(folder: Path) -> None:
    """Make a folder that is not there, and say so: its name may be misspelt."""
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        complain(f"zeus-core: made the folder {folder}")


class _Words(logging.Formatter):
    """Messages as `write` writes them: they may hold texts of others."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return printable(super().format(record), besides="\n\t")


def show_warnings() -> None:
    """Print the package's warnings, such as that GPUs are simulated, in the form of this program's messages."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Words("zeus-core: %(message)s"))
    logger = logging.getLogger("zeus_core")
    logger.handlers = [handler]
    logger.propagate = False
    # The monitor warns of lost energies; the commands show these themselves, in place of the energy.
    logging.getLogger("zeus_core.monitor").setLevel(logging.ERROR)
