"""Runs that overlap on one GPU: what each counts. Pure.

Runs overlap as a command and the training in it do. The longest counts whole. Another one counts in the time that no
longer one covers: it is cut at its edges. Let C(t) be the energy that it had measured until t; from a to b it then
counts C(b) - C(a). C(t) is known at its begin, at its end, and at the recorded points of its power. Between two of
them it is taken to rise evenly, and can be off as far as the power limit lets it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow

_Numbers = npt.NDArray[np.int64]


def clusters(begin: _Numbers, end: _Numbers, device: _Numbers, rows: _Numbers) -> Iterator[_Numbers]:
    """Yield the rows, of those given, that overlap with others on one device, connected ones together."""
    if not len(rows):
        return
    rows = rows[np.lexsort((-end[rows], begin[rows], device[rows]))]
    # The latest end so far on the same device: ends of a device lie above those of all devices before it.
    height = (int(end[rows].max()) - int(begin[rows].min()) + 1) * device[rows].astype(np.int64)
    begin, end = begin[rows] - begin[rows].min() + height, end[rows] - begin[rows].min() + height
    overlaps = np.concatenate(([False], begin[1:] < np.maximum.accumulate(end)[:-1], [False]))
    edges = np.flatnonzero(np.diff(overlaps.astype(np.int8)))
    for first, last in zip(edges[::2], edges[1::2] + 1, strict=True):
        yield rows[first:last]


def cut(
    table: pyarrow.Table, found: Sequence[_Numbers], run: _Numbers, runs: Sequence[str]
) -> Iterator[tuple[int, float, int, int]]:
    """Cut the rows of `clusters`: yield each that does not count whole, and what counts of it, as in `Counted`."""
    if not found:
        return
    rows = np.concatenate(found)
    # All at once: to take a few rows of a table costs as much as it has chunks, one for each file of the catalogue.
    names = ("begin_ms", "end_ms", "millijoules", "limit_milliwatts", "power")
    columns = [table.column(name).take(rows).to_pylist() for name in names]
    entries = zip(rows.tolist(), *columns, (runs[code] for code in run[rows].tolist()), strict=True)
    for cluster in found:
        yield from _cut(list(islice(entries, len(cluster))))


def _cut(cluster: list[tuple[Any, ...]]) -> Iterator[tuple[int, float, int, int]]:
    """Cut the rows of one device that are connected: those of longer runs first."""
    cluster.sort(key=lambda entry: (entry[1] - entry[2], entry[1], entry[6], -entry[3]))
    begins: list[int] = []
    ends: list[int] = []  # of the time that is covered so far
    for row, begin, end, millijoules, limit, power, _ in cluster:
        pieces = _uncovered(begins, ends, begin, end)
        counted_ms = sum(to - from_ for from_, to in pieces)
        if counted_ms == end - begin > 0:
            continue
        curve = (0, *(power or ()), millijoules) if pieces else ()
        until = {
            moment: _energy_until(curve, limit, moment - begin, end - begin) for piece in pieces for moment in piece
        }
        yield (
            row,
            counted_ms / max(end - begin, 1),
            sum(until[to][0] - until[from_][0] for from_, to in pieces),
            sum(off for _, off in until.values()),
        )


def _uncovered(begins: list[int], ends: list[int], begin: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of an interval that sorted intervals leave uncovered; then they cover it, too."""
    first, last = bisect_left(ends, begin), bisect_right(begins, end)  # those that touch it
    pieces = zip([begin, *ends[first:last]], [*begins[first:last], end], strict=True)
    found = [(from_, to) for from_, to in pieces if from_ < to]
    begins[first:last], ends[first:last] = (
        [min(begin, *begins[first:last][:1])] if first < last else [begin],
        [max(end, *ends[first:last][-1:])] if first < last else [end],
    )
    return found


def _energy_until(curve: Sequence[int], limit_milliwatts: int, at_ms: int, whole_ms: int) -> tuple[int, int]:
    """Return the millijoules until a moment, and how far they can be off.

    Args:
        curve: The millijoules until each of some moments, evenly apart, the first at 0, the last at the end.
        limit_milliwatts: The power limit; 0 if it is unknown.
        at_ms: The moment.
        whole_ms: The end.
    """
    place, rest = divmod(at_ms * (len(curve) - 1), whole_ms)
    if not rest:
        return curve[place], 0
    low, high = curve[place], curve[place + 1]
    here = low + (high - low) * rest // whole_ms
    if limit_milliwatts:
        most = limit_milliwatts / (len(curve) - 1) / 1000  # of one millisecond of `rest`
        low, high = max(low, high - math.ceil(most * (whole_ms - rest))), min(high, low + math.ceil(most * rest))
    return here, max(high - here, here - low, 0)
