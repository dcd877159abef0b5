"""Which rows of a catalogue count: the latest file of each run, and each GPU once at a time. Sums of those. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zeus_core.electricity import ConstantSignal
from zeus_core.electricity.electricity_amount import slice_of
from zeus_core.errors import UsageError
from zeus_core.runs._overlaps import clusters, cut
from zeus_core.runs._run_rows import AMOUNTS
from zeus_core.units import kilowatt_hours_from_joules

if TYPE_CHECKING:
    import pyarrow

    from zeus_core.electricity import Electricity

_Numbers = npt.NDArray[np.int64]
_Flags = npt.NDArray[np.bool_]

ENERGIES = frozenset(
    {
        *("millijoules", "off_millijoules", "more_millijoules", "unbounded"),
        *("lost_gpu_milliseconds", "gpu_milliseconds", "more_gpu_milliseconds"),
        *("seen_gpu_milliseconds", "low_gpu_milliseconds", "low_millijoules"),
        *("milligrams", "off_milligrams", "millionths", "off_millionths", "charged_millijoules", "priced_millijoules"),
    }
)
"""The amounts that count once for each device; the others count once for each run."""
_WHOLE = ("off_millijoules", "more_millijoules", "unbounded", "lost_gpu_milliseconds", "more_gpu_milliseconds")

GROUPS = ("user", "job", "project", "cluster", "namespace", "gpu", "state", "run", "day", "month")
NEEDED = (
    *("run", "user", "device", "record", "until_ms", "begin_ms", "end_ms"),
    *("millijoules", "gpu_milliseconds", "limit_milliwatts", "power"),
)
"""The columns by which it is decided what counts."""

_PREFIX = "tag:"
_MOST_GROUPS = 250_000  # 2 GB and 10 s
_LEAST_GAIN = 0.01
_QUARTER_MS = 900_000  # of an hour, in which no time zone changes


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
    """The part of each row that counts.

    Attributes:
        latest: Whether a row is of the latest file of its run.
        is_run: Whether it is the row of a run.
        overlaps: Whether it shares time on a GPU with another row.
        file: The number of the file it is of.
        share: The share that counts: of its time; for the row of a run, of the energy of the run.
        millijoules: The energy that counts.
        off_millijoules: How far that can be off, as the energy at the edges of a cut is not known.
        zone: The time zone of days and months.
        charges: The emissions and the cost of what counts, in place of the table's; see `charge`.
    """

    latest: _Flags
    is_run: _Flags
    overlaps: _Flags
    file: _Numbers
    share: npt.NDArray[np.float64]
    millijoules: _Numbers
    off_millijoules: _Numbers
    zone: tzinfo
    charges: dict[str, _Numbers] = field(default_factory=dict)

    def amounts(self, table: pyarrow.Table, name: str) -> _Numbers:
        """Return what counts of each row, of an amount that counts once for each device."""
        if name == "millijoules":
            return self.millijoules
        if name in self.charges:
            return self.charges[name]
        values = numbers(table, name)
        if name in _WHOLE:  # what is not known of a run is not known of a piece of it
            whole = np.where(self.share > 0, values, 0)
            return whole + self.off_millijoules if name == "off_millijoules" else whole
        return np.rint(values * self.share).astype(np.int64)


def codes(table: pyarrow.Table, name: str) -> tuple[_Numbers, list[str]]:
    """Return a column of texts as numbers of texts, and the texts."""
    column = table.column(name).combine_chunks()
    column = column.chunk(0) if hasattr(column, "chunk") else column
    return column.indices.to_numpy(zero_copy_only=False), column.dictionary.to_pylist()


def numbers(table: pyarrow.Table, name: str) -> _Numbers:
    """Return a column of whole numbers."""
    return table.column(name).to_numpy()  # type: ignore[no-any-return]


def counted(table: pyarrow.Table, zone: tzinfo = UTC) -> Counted:
    """Find out what counts, and in which days of a time zone."""
    run, runs = codes(table, "run")
    device, devices = codes(table, "device")
    until, record = numbers(table, "until_ms"), numbers(table, "record")
    owner = run.astype(np.int64) * table.num_rows + codes(table, "user")[0]  # nobody replaces the run of another user
    is_run = device == (devices.index("") if "" in devices else -1)
    first = np.flatnonzero(is_run)
    first = first[np.lexsort((record[first], until[first], owner[first]))]
    is_last = np.append(owner[first][1:] != owner[first][:-1], True)[: len(first)]
    records, file = np.unique(record, return_inverse=True)
    is_latest = np.zeros(len(records), bool)
    is_latest[file[first[is_last]]] = True
    latest = is_latest[file]
    if np.bincount(file[latest & is_run], minlength=1).max() > 1:  # somebody has copied files of the catalogue
        rows = np.flatnonzero(latest)
        keys = np.stack([each[rows] for each in (file, device, numbers(table, "begin_ms"))])
        latest[:] = False
        latest[rows[np.unique(keys, axis=1, return_index=True)[1]]] = True
    millijoules = numbers(table, "millijoules")
    share = (latest & ~is_run).astype(float)
    energy, off, overlaps = (
        np.where(share > 0, millijoules, 0),
        np.zeros(len(share), np.int64),
        np.zeros(len(share), bool),
    )
    ends = numbers(table, "begin_ms"), numbers(table, "end_ms")
    overlapping = list(clusters(*ends, device, np.flatnonzero(share)))
    for cluster in overlapping:
        overlaps[cluster] = True
    for row, *found in cut(table, overlapping, run, runs):
        share[row], energy[row], off[row] = found
    has_device, counts = np.zeros(len(records), bool), np.zeros(len(records), bool)
    has_device[file[latest & ~is_run]] = True
    counts[file[share > 0]] = True
    of_runs = latest & is_run & (counts[file] | ~has_device[file])
    energy[of_runs] = millijoules[of_runs]
    whole, once = np.zeros(len(records), np.int64), np.zeros(len(records), np.int64)
    np.add.at(whole, file[latest], millijoules[latest])
    np.add.at(once, file, energy)
    part = np.divide(once, whole, out=np.ones(len(records)), where=whole > 0).clip(0.0, 1.0)
    share[of_runs] = part[file[of_runs]]
    return Counted(latest, is_run, overlaps, file, share, energy, off, zone)


def charge(table: pyarrow.Table, known: Counted, electricity: Electricity) -> pyarrow.Table:
    """Charge the energy that counts at some electricity, in place of what runs have recorded.

    The energy of a row is spread evenly over its time. Returns the table in the currency of the price.

    Raises:
        UsageError: A file has no finite value for some time.
    """
    import pyarrow

    rows = np.flatnonzero(known.share > 0)
    begin, end = (numbers(table, name)[rows] / 1e3 for name in ("begin_ms", "end_ms"))
    off = known.amounts(table, "off_millijoules")[rows]
    for signal in electricity.signals:
        is_constant = isinstance(signal, ConstantSignal)
        times = [(0.0, 0.0)] if is_constant else list(zip(begin.tolist(), end.tolist(), strict=True))
        slices = [slice_of(signal, first, last, 1.0, electricity.pue) for first, last in times]  # of a joule
        amount, spread, highest = (
            np.array([getattr(each, name) for each in slices]) for name in ("amount", "spread", "highest")
        )
        highest *= electricity.pue * kilowatt_hours_from_joules(1.0)
        is_price = signal.facts.is_price
        scale = 1e3 if is_price else 1.0  # millionths, or milligrams, of a millijoule
        name, charged = ("millionths", "priced") if is_price else ("milligrams", "charged")
        energy = known.millijoules[rows]
        found = {
            name: np.rint(scale * energy * amount),
            f"off_{name}": np.ceil(scale * (energy * spread + off * highest)),
            f"{charged}_millijoules": energy,
        }
        for column, values in found.items():
            known.charges[column] = np.zeros(table.num_rows, np.int64)
            known.charges[column][rows] = values
        if is_price:
            unit = pyarrow.array([signal.facts.amount_unit] * table.num_rows).dictionary_encode()
            table = table.set_column(table.column_names.index("currency"), "currency", unit)
    return table


def keys_of(table: pyarrow.Table, by: str | None, zone: tzinfo) -> tuple[_Numbers, list[str]]:
    """Return the number of the group of each row, and the names of the groups."""
    if by is None:
        return np.zeros(table.num_rows, np.int64), ["all"]
    if by in ("day", "month"):
        quarters, group = np.unique(numbers(table, "begin_ms") // _QUARTER_MS, return_inverse=True)
        names = [datetime.fromtimestamp(each * _QUARTER_MS / 1e3, zone).isoformat() for each in quarters.tolist()]
        days = {name[: 10 if by == "day" else 7]: 0 for name in names}
        known = {name: number for number, name in enumerate(days)}
        return np.array([known[name[: 10 if by == "day" else 7]] for name in names] or [0], np.int64)[group], list(
            known
        )
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

    With it come the runs that overlap with others on a GPU, and what therefore does not count: `overlapping_runs`,
    `shared_millijoules` and `shared_gpu_milliseconds`.

    Args:
        table: The rows.
        known: Which of them count.
        by: One of `GROUPS`, or "tag:NAME"; one group of all if None.
        keep: The rows to add up; all if None.
        names: The amounts.

    Raises:
        UsageError: A sum is larger than 63 bits, or there are more groups than fit into the memory of a laptop.
    """
    group, groups = keys_of(table, by, known.zone)
    kept = np.ones(table.num_rows, bool) if keep is None else keep
    once, runs, shared = map(
        np.flatnonzero, ((known.share > 0) & kept, known.latest & known.is_run & kept, known.overlaps & kept)
    )
    found: dict[str, _Numbers] = {"runs": np.bincount(group[runs], minlength=len(groups))}
    for name in names:
        rows = once if name in ENERGIES else runs
        values = known.amounts(table, name) if name in ENERGIES else numbers(table, name)
        found[name] = _sum(values[rows], group[rows], len(groups), name)
    pairs = np.unique(np.stack((group[shared], known.file[shared])), axis=1)
    found["overlapping_runs"] = np.bincount(pairs[0], minlength=len(groups))
    for name in ("millijoules", "gpu_milliseconds"):
        values = numbers(table, name) - known.amounts(table, name)
        found[f"shared_{name}"] = _sum(values[shared], group[shared], len(groups), name)
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


def in_month(table: pyarrow.Table, month: str, zone: tzinfo) -> _Flags:
    """Return which rows are of intervals that began in a month, such as "2026-10"."""
    first, end = month_ends(month, zone)
    begin_ms = numbers(table, "begin_ms")
    return (first <= begin_ms) & (begin_ms < end)


def month_ends(month: str, zone: tzinfo) -> tuple[int, int]:
    """Return the begin of a month, such as "2026-10", and that of the next, in milliseconds since 1970.

    Raises:
        UsageError: It is none.
    """
    try:
        begin = datetime.strptime(month, "%Y-%m").replace(tzinfo=zone)
        end = (begin + timedelta(days=31)).replace(day=1)
        return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--month is {month!r}, which is none; give it as 2026-10") from error


def between_runs_milliseconds(table: pyarrow.Table, known: Counted, begin_ms: int, end_ms: int) -> int:
    """Return the time within two moments that GPUs had no run, each GPU between its first and its last run.

    Args:
        table: The rows.
        known: Which of them count.
        begin_ms: The first moment, in milliseconds since 1970.
        end_ms: The second one.
    """
    device, _ = codes(table, "device")
    rows = np.flatnonzero(known.latest & ~known.is_run)
    rows = rows[np.lexsort((numbers(table, "begin_ms")[rows], device[rows]))]
    begin, end = (np.clip(numbers(table, name)[rows], begin_ms, end_ms) for name in ("begin_ms", "end_ms"))
    height = np.int64(end_ms - begin_ms + 1) * device[rows]
    latest_end = np.maximum.accumulate(end + height)[:-1]  # on the same device, as in `clusters`
    is_same = device[rows][1:] == device[rows][:-1]
    return int(np.maximum(begin[1:] + height[1:] - latest_end, 0)[is_same].sum())


class Gain(NamedTuple):
    """A run that would gain.

    Attributes:
        millijoules: The energy.
        share: The share of the energy of the run.
        run, user, job, gpu: Those of the run.
        begin_ms: When it began, in milliseconds since 1970.
        why: The largest part of the gain.
    """

    millijoules: int
    share: float
    run: str
    user: str
    job: str
    gpu: str
    begin_ms: int
    why: str


def gains(table: pyarrow.Table, known: Counted, keep: _Flags | None, most: int) -> list[Gain]:
    """Return the runs that would gain most, of those that would gain more than `_LEAST_GAIN` of their energy.

    The gain is the energy idle, between steps and of steps done twice, or that at low power if it is more. To it comes,
    for a run whose setting was not searched, a share of the energy of its steps: what runs on such GPUs whose setting
    was searched have saved, sum(saved) / sum(saved + energy of steps).
    """
    rows = np.flatnonzero(known.latest & known.is_run & (True if keep is None else keep))
    file = known.file[rows]
    gpu, models = codes(table, "gpu")
    names = ("wasted_millijoules", "training_millijoules", "saved_millijoules", "controlled")
    wasted, training, saved, controlled = (numbers(table, name)[rows] for name in names)
    low, energy = (np.zeros(int(known.file.max(initial=0)) + 1, np.int64) for _ in range(2))
    for total, name in ((low, "low_millijoules"), (energy, "millijoules")):
        np.add.at(total, known.file[known.latest], numbers(table, name)[known.latest])
    is_controlled = controlled > 0
    saved_of, training_of = (
        np.bincount(gpu[rows][is_controlled], values[is_controlled].astype(float), minlength=len(models))
        for values in (saved, training)
    )
    share = np.divide(saved_of, saved_of + training_of, out=np.zeros(len(models)), where=saved_of > 0)
    by_setting = np.where(is_controlled, 0, training * share[gpu[rows]]).astype(np.int64)
    reasons = (
        ("at low power", low[file]),
        ("idle, between steps or done twice", wasted),
        ("its setting was not searched", by_setting),
    )
    gain = np.minimum(np.maximum(low[file], wasted) + by_setting, energy[file])
    order = np.argsort(-gain, kind="stable")
    order = order[gain[order] > _LEAST_GAIN * energy[file][order]][:most]
    runs = table.select(["run", "user", "job", "gpu", "begin_ms"]).take(rows[order]).to_pylist()
    return [
        Gain(int(gain[at]), gain[at] / energy[file[at]], why=max(reasons, key=lambda each: each[1][at])[0], **row)
        for at, row in zip(order.tolist(), runs, strict=True)
    ]


def rows_of_runs(table: pyarrow.Table, month: str | None, zone: tzinfo = UTC) -> list[dict[str, Any]]:
    """Return the rows of runs, the latest file of each, with three sums over all of its devices.

    `whole_millijoules`, `whole_gpu_milliseconds` and `whole_low_millijoules` include the time shared with other runs.
    """
    known = counted(table, zone)
    kept = known.latest & known.is_run & (True if month is None else in_month(table, month, zone))
    rows: list[dict[str, Any]] = table.take(np.flatnonzero(kept)).to_pylist()
    for name in ("millijoules", "gpu_milliseconds", "low_millijoules"):
        whole = np.zeros(int(known.file.max(initial=0)) + 1, np.int64)
        np.add.at(whole, known.file[known.latest], numbers(table, name)[known.latest])
        for row, amount in zip(rows, whole[known.file[kept]].tolist(), strict=True):
            row[f"whole_{name}"] = amount
    return rows


def with_counts(table: pyarrow.Table) -> pyarrow.Table:
    """Return all rows, with whether each is of the latest file of its run, and the energy and time that count."""
    known = counted(table)
    table = table.append_column("latest", [known.latest])
    for name in ("millijoules", "gpu_milliseconds"):
        table = table.append_column(f"counted_{name}", [known.amounts(table, name)])
    return table
