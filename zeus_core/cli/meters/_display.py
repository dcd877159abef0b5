"""Numbers that change over time, once a period: a live table if `rich` and a terminal are there, else line by line."""

from __future__ import annotations

import importlib.util
import math
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TextIO

from zeus_core.cli.text import write
from zeus_core.ports import TimeSource

_WIDTH = 12  # of a column: "123456.7 J" and two spaces


def ticks(
    time_source: TimeSource, period_seconds: float, first: int = 0, duration_seconds: float = math.inf
) -> Iterator[float]:
    """Wait for each multiple of the period, and yield the seconds since the beginning, which is now.

    The schedule does not drift: work between two ticks does not delay the next one. A tick whose time passes during
    such work is left out.

    Args:
        time_source: Tells the time and waits.
        period_seconds: The time between two ticks.
        first: The multiple to begin with; with 0, the first tick is now.
        duration_seconds: The time of the last tick.
    """
    begin, never, position = time_source.now(), threading.Event(), first
    is_over = False
    while not is_over:
        due_seconds = min(position * period_seconds, duration_seconds)
        is_over = due_seconds == duration_seconds
        time_source.wait(never, begin + due_seconds - time_source.now())
        yield time_source.now() - begin
        position = max(position, math.floor((time_source.now() - begin) / period_seconds)) + 1


class Display(AbstractContextManager["Display"], Protocol):
    """Shows one row of numbers after the other, in place of the last row or below it."""

    def show(self, seconds: float, values: Sequence[str]) -> None:
        """Show one value per column."""
        ...


def make_display(names: Sequence[str], quantity: str, is_hidden: bool = False) -> Display:
    """Make the display for standard output.

    Args:
        names: The devices: "GPU 0: NVIDIA H200". A last column, the total, follows them.
        quantity: The quantity that is shown: "power".
        is_hidden: Show nothing, because standard output is for a program.
    """
    if is_hidden:
        return LineDisplay(names, None)
    if sys.stdout is not None and sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
        return LiveDisplay(names, quantity)
    return LineDisplay(names, sys.stdout)


class LineDisplay(Display):
    """A line per row, below a header.

    Args:
        names: The devices.
        stream: Where to write; nowhere if None.
    """

    def __init__(self, names: Sequence[str], stream: TextIO | None) -> None:
        self._names = names
        self._stream = stream

    def __enter__(self) -> LineDisplay:
        for name in self._names:
            write(name, self._stream)
        columns = [name.partition(":")[0] for name in self._names]
        write("".join(f"{text:>{_WIDTH}}" for text in ("seconds", *columns, "total")), self._stream)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def show(self, seconds: float, values: Sequence[str]) -> None:
        """Write a line."""
        write("".join(f"{text:>{_WIDTH}}" for text in (f"{seconds:.1f}", *values)), self._stream)


class LiveDisplay(Display):
    """A table that is redrawn in place.

    Args:
        names: The devices.
        quantity: The head of the column with the values.
    """

    def __init__(self, names: Sequence[str], quantity: str) -> None:
        from rich.live import Live

        self._names = names
        self._quantity = quantity
        self._live = Live(auto_refresh=False)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop drawing, and leave the last table on the terminal."""
        self._live.stop()

    def show(self, seconds: float, values: Sequence[str]) -> None:
        """Redraw the table."""
        self._live.update(self._draw(seconds, values), refresh=True)

    def _draw(self, seconds: float, values: Sequence[str]) -> Any:
        from rich.table import Table

        table = Table("device", caption=f"{seconds:.1f} s; Ctrl-C ends")
        table.add_column(self._quantity, justify="right")
        for name, value in zip([*self._names, "total"], values, strict=True):
            table.add_row(name, value)
        return table
