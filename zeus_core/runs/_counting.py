"""Which rows of a catalogue count: the latest file of each run, and each device once at a time. Sums of those. Pure.

Intervals count whole, or not at all: of those of one device that overlap, as of a command and the training in it, the
longest counts, then the next one that overlaps with none that counts, and so on. One that lies within one that counts
is part of it. The energy of one that does not count, and lies within none, is an uncertainty of the sum.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zeus_core.errors import UsageError
from zeus_core.runs._run_rows import AMOUNTS

if TYPE_CHECKING:
    import pyarrow

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

ENERGIES = frozenset(
    {
        *("millijoules", "off_millijoules", "more_millijoules", "unbounded"),
        *("lost_gpu_milliseconds", "gpu_milliseconds"),
        *("seen_gpu_milliseconds", "low_gpu_milliseconds", "low_millijoules"),
        *("milligrams", "off_milligrams", "millionths", "off_millionths", "charged_millijoules", "priced_millijoules"),
    }
)
"""The amounts that count once for each device; the others count once for each run."""

GROUPS = ("user", "job", "project", "cluster", "namespace", "gpu", "state", "run", "day", "month")
NEEDED = ("run", "device", "record", "until_ms", "begin_ms", "end_ms", "millijoules")
"""The columns by which it is decided what counts."""

_PREFIX = "tag:"
_MOST_GROUPS = 250_000  # 2 GB and 10 s


def check_group(by: str) -> None:
    """Check that sums can be made by this.

    Raises:
        UsageError: They cannot.
    """
    if by not in GROUPS and (not by.startswith(_PREFIX) or by == _PREFIX):
        raise UsageError(f"--by is {by!r}; it must be one of {', '.join(GROUPS)}, or tag:NAME")


def column_of(by: str) -> str:
    """Return the column that a grouping is made of."""
    return "begin_ms" if by in ("day", "month") else "tags" if by.startswith(_PREFIX) else by


@dataclass(frozen=True)
class Counted:
    """The rows that count.

    Attributes:
        latest: Whether a row is of the latest file of its run.
        once: Whether its energy counts.
        doubtful: Whether it may be energy that no row which counts has.
        is_run: Whether it is the row of a run.
    """

    latest: _Flags
    once: _Flags
    doubtful: _Flags
    is_run: _Flags


def codes(table: pyarrow.Table, name: str) -> tuple[_Numbers, list[str]]:
    """Return a column of texts as numbers of texts, and the texts."""
    column = table.column(name).combine_chunks()
    column = column.chunk(0) if hasattr(column, "chunk") else column
    return column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def numbers(table: pyarrow.Table, name: str) -> _Numbers:
    """Return a column of whole numbers."""
    return table.column(name).to_numpy()  # type: ignore[no-any-return]


def counted(table: pyarrow.Table) -> Counted:
    """Find out which rows count."""
    run, runs = codes(table, "run")
    device, devices = codes(table, "device")
    record, until = numbers(table, "record"), numbers(table, "until_ms")
    is_run = device == (devices.index("") if "" in devices else -1)
    first = np.flatnonzero(is_run)
    first = first[np.lexsort((record[first], until[first], run[first]))]
    winner = np.zeros(len(runs), np.int64)
    winner[run[first]] = record[first]  # of several, the last is assigned
    latest = winner[run] == record
    if np.bincount(run[latest & is_run], minlength=1).max() > 1:  # somebody has copied files of the catalogue
        rows = np.flatnonzero(latest)
        keys = np.stack([each[rows] for each in (run, device, numbers(table, "begin_ms"))])
        latest[:] = False
        latest[rows[np.unique(keys, axis=1, return_index=True)[1]]] = True
    once, doubtful = _each_once(table, latest & ~is_run, device, run, runs)
    has_device, has_once = np.zeros(len(runs), bool), np.zeros(len(runs), bool)
    has_device[run[latest & ~is_run]] = True
    has_once[run[once]] = True
    once |= latest & is_run & (has_once[run] | ~has_device[run])
    return Counted(latest, once, doubtful, is_run)


def _each_once(
    table: pyarrow.Table, candidates: _Flags, device: _Numbers, run: _Numbers, runs: Sequence[str]
) -> tuple[_Flags, _Flags]:
    begin, end, millijoules = (numbers(table, name) for name in ("begin_ms", "end_ms", "millijoules"))
    once, doubtful = candidates.copy(), np.zeros(len(candidates), bool)
    rows = np.flatnonzero(candidates)
    rows = rows[np.lexsort((begin[rows], device[rows]))]
    if not len(rows):
        return once, doubtful
    # The latest end so far on the same device: ends of a device lie above those of all devices before it.
    height = (int(end[rows].max()) - int(begin[rows].min()) + 1) * (device[rows].astype(np.int64))
    latest_end = np.maximum.accumulate(end[rows] - begin[rows].min() + height)
    overlaps = np.zeros(len(rows), bool)
    overlaps[1:] = begin[rows][1:] - begin[rows].min() + height[1:] < latest_end[:-1]
    edges = np.flatnonzero(np.diff(np.concatenate(([False], overlaps, [False])).astype(np.int8)))
    for first, last in zip(edges[::2] - 1, edges[1::2], strict=True):
        chosen: list[tuple[int, int]] = []
        cluster = [(begin[row].item(), end[row].item(), row) for row in rows[first:last]]
        cluster.sort(key=lambda each: (each[0] - each[1], each[0], runs[run[each[2]]], -millijoules[each[2]]))
        for from_, to, row in cluster:
            place = bisect_right(chosen, (from_, math.inf))
            beside = chosen[max(place - 1, 0) : place + 1]  # as no two of the chosen overlap
            if any(from_ < other_to and other_from < to for other_from, other_to in beside):
                once[row] = False
                doubtful[row] = not any(other_from <= from_ and to <= other_to for other_from, other_to in beside)
            else:
                chosen.insert(place, (from_, to))
    return once, doubtful


def keys_of(table: pyarrow.Table, by: str | None) -> tuple[_Numbers, list[str]]:
    """Return the number of the group of each row, and the names of the groups."""
    if by is None:
        return np.zeros(table.num_rows, np.int64), ["all"]
    if by in ("day", "month"):
        unit = "D" if by == "day" else "M"
        moments, group = np.unique(
            numbers(table, "begin_ms").astype("datetime64[ms]").astype(f"datetime64[{unit}]"), return_inverse=True
        )
        return group, [str(moment) for moment in moments]
    if not by.startswith(_PREFIX):
        return codes(table, by)
    group, tags = codes(table, "tags")
    name = by.removeprefix(_PREFIX)
    values = [json.loads(text).get(name, "") if text else "" for text in tags]
    known = {value: number for number, value in enumerate(dict.fromkeys(values))}
    return np.array([known[value] for value in values] or [0], np.int64)[group], list(known)


def sums(
    table: pyarrow.Table,
    known: Counted,
    by: str | None = None,
    keep: _Flags | None = None,
    names: Sequence[str] = AMOUNTS,
) -> dict[str, dict[str, int]]:
    """Add up what counts, by group: whole numbers, exact.

    Args:
        table: The rows.
        known: Which of them count.
        by: One of `GROUPS`, or "tag:NAME"; one group of all if None.
        keep: The rows to add up; all if None.
        names: The amounts.

    Raises:
        UsageError: A sum is larger than 63 bits, or there are more groups than fit into the memory of a laptop.
    """
    group, groups = keys_of(table, by)
    kept = np.ones(table.num_rows, bool) if keep is None else keep
    flags = (known.once & kept, known.latest & known.is_run & kept, known.doubtful & kept)
    once, runs, doubtful = map(np.flatnonzero, flags)
    found: dict[str, _Numbers] = {"runs": np.bincount(group[runs], minlength=len(groups))}
    for name in names:
        rows = once if name in ENERGIES else runs
        found[name] = _sum(numbers(table, name)[rows], group[rows], len(groups), name)
        if name == "more_millijoules":
            found[name] += _sum(numbers(table, "millijoules")[doubtful], group[doubtful], len(groups), name)
    used = np.flatnonzero(np.bincount(group[known.latest & kept], minlength=len(groups)))
    if len(used) > _MOST_GROUPS:
        raise UsageError(f"--by {by} makes {len(used):,} groups; give a --month, or query what `runs export` writes")
    order = sorted(used.tolist(), key=lambda number: groups[number])
    return {groups[number]: {name: int(values[number]) for name, values in found.items()} for number in order}


def _sum(values: _Numbers, group: _Numbers, count: int, name: str) -> _Numbers:
    if np.abs(values.astype(np.float64)).sum() > 2.0**62:
        raise UsageError(f"the sum of {name} is larger than 63 bits; add up fewer runs")
    total = np.zeros(count, np.int64)
    if count == 1:
        total[0] = values.sum(dtype=np.int64)
    else:
        np.add.at(total, group, values)
    return total


def by_currency(table: pyarrow.Table, keep: _Flags | None = None) -> dict[str, _Flags]:
    """Return which rows are charged in each currency: amounts of two are not added up."""
    group, names = codes(table, "currency")
    kept = np.ones(table.num_rows, bool) if keep is None else keep
    return {name: kept & (group == number) for number, name in enumerate(names) if name}


def in_month(table: pyarrow.Table, month: str) -> _Flags:
    """Return which rows are of intervals that began in a month, such as "2026-10", in UTC."""
    first, end = month_ends(month)
    begin_ms = numbers(table, "begin_ms")
    return (first <= begin_ms) & (begin_ms < end)


def month_ends(month: str) -> tuple[int, int]:
    """Return the begin of a month, such as "2026-10", and that of the next, in milliseconds since 1970.

    Raises:
        UsageError: It is none.
    """
    try:
        begin = np.datetime64(month, "M")
    except ValueError as error:
        raise UsageError(f"--month is {month!r}, which is none; give it as 2026-10") from error
    first, end = (int(each.astype("datetime64[ms]").astype(np.int64)) for each in (begin, begin + 1))
    return first, end


def between_runs_milliseconds(table: pyarrow.Table, known: Counted, begin_ms: int, end_ms: int) -> int:
    """Return the time within two moments that GPUs had no run, each GPU between its first and its last run.

    Args:
        table: The rows.
        known: Which of them count.
        begin_ms: The first moment, in milliseconds since 1970.
        end_ms: The second one.
    """
    device, _ = codes(table, "device")
    rows = np.flatnonzero(known.once & ~known.is_run)
    begin, end = (np.clip(numbers(table, name)[rows], begin_ms, end_ms) for name in ("begin_ms", "end_ms"))
    order = np.lexsort((numbers(table, "begin_ms")[rows], device[rows]))
    of, begin, end = device[rows][order], begin[order], end[order]  # of those that count, none overlap
    return int((begin[1:] - end[:-1])[of[1:] == of[:-1]].sum())


def gains(table: pyarrow.Table, known: Counted, keep: _Flags | None, most: int) -> list[tuple[str, str, int, str]]:
    """Return the runs that would gain most, each with its GPU model, the millijoules, and why.

    The gain is the energy idle, between steps and of steps done twice; and, of a run whose setting was not
    searched, the share of the energy of its steps that the runs on such GPUs whose setting was searched have saved:
    sum(saved) / sum(saved + energy of steps), of those.
    """
    rows = np.flatnonzero(known.latest & known.is_run & (True if keep is None else keep))
    (gpu, models), (run, runs) = codes(table, "gpu"), codes(table, "run")
    gpu, run = gpu[rows], run[rows]
    names = ("wasted_millijoules", "training_millijoules", "saved_millijoules", "controlled")
    wasted, training, saved, controlled = (numbers(table, name)[rows] for name in names)
    is_controlled = controlled > 0
    saved_of, training_of = (
        np.bincount(gpu[is_controlled], values[is_controlled].astype(float), minlength=len(models))
        for values in (saved, training)
    )
    share = np.divide(saved_of, saved_of + training_of, out=np.zeros(len(models)), where=saved_of > 0)
    by_setting = np.where(is_controlled, 0, training * share[gpu]).astype(np.int64)
    order = np.argsort(-(wasted + by_setting), kind="stable")[:most]
    return [
        (
            runs[run[each]],
            models[gpu[each]],
            int(wasted[each] + by_setting[each]),
            "idle, between steps or done twice" if wasted[each] >= by_setting[each] else "its setting was not searched",
        )
        for each in order.tolist()
        if wasted[each] + by_setting[each] > 0
    ]


def rows_of_runs(table: pyarrow.Table, month: str | None) -> list[dict[str, Any]]:
    """Return the rows of runs, the latest file of each; `whole_millijoules` is the energy of all its devices."""
    known = counted(table)
    (run, runs), millijoules = codes(table, "run"), numbers(table, "millijoules")
    whole = np.zeros(len(runs), np.int64)
    np.add.at(whole, run[known.latest], millijoules[known.latest])
    kept = known.latest & known.is_run & (True if month is None else in_month(table, month))
    rows: list[dict[str, Any]] = table.take(np.flatnonzero(kept)).to_pylist()
    for row, number in zip(rows, run[kept].tolist(), strict=True):
        row["whole_millijoules"] = int(whole[number])
    return rows


def with_counts(table: pyarrow.Table) -> pyarrow.Table:
    """Return all rows, with whether each is of the latest file of its run, and whether its energy counts."""
    known = counted(table)
    for name, flags in (("latest", known.latest), ("counts", known.once)):
        table = table.append_column(name, [flags])
    return table
