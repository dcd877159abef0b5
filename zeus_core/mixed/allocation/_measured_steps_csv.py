"""Measured steps in CSV files, also in the layout of the published power traces (Zeus, NSDI'23).

    batch_size,power_limit,seconds,watts
    dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power

`power_limit` is in watts; `sm_clock` in its place is in MHz. The time of an epoch becomes that of a step by the samples
that an epoch has.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from zeus_core.errors import UsageError
from zeus_core.kinds import POWER_LIMIT, SM_CLOCK
from zeus_core.mixed.allocation._fit import MeasuredBatch
from zeus_core.validate import checked_whole_number

_NAMES = {
    "batch": ("batch_size", "batch"),
    POWER_LIMIT.words: ("power_limit", "limit", "limit_watts"),
    SM_CLOCK.words: ("sm_clock", "sm_clock_mhz", "clock_mhz", "frequency"),
    "seconds": ("seconds", "step_seconds", "time"),
    "epoch": ("time_per_epoch", "epoch_seconds"),
    "watts": ("watts", "average_power", "power"),
}
_LAYOUT = "batch_size,power_limit,seconds,watts"
_SHOWN_WORKS = 8  # kinds of work that an error lists


class Table(NamedTuple):
    """The measured steps in a file.

    Attributes:
        points: They.
        work: The values of all further columns, joined by "/".
        knob: The name of the setting.
    """

    points: tuple[MeasuredBatch, ...]
    work: str
    knob: str


def read_table(path: Path, samples_per_epoch: int | None, where: Mapping[str, str] | None) -> Table:
    """Return the measured steps of one kind of work.

    Raises:
        UsageError: The file cannot be read, a row is wrong, or there is not one kind of work; the message names the
            file, and the line.
    """
    if samples_per_epoch is not None:
        samples_per_epoch = checked_whole_number("samples_per_epoch", samples_per_epoch, 1, maximum=10**15)
    wanted = where or {}
    works: dict[str, list[MeasuredBatch]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="(more)")
            reader.fieldnames = [name.strip().lower().replace(" ", "_") for name in reader.fieldnames or ()]
            columns = _Columns.from_header(path, reader.fieldnames, samples_per_epoch, wanted)
            for fields in reader:
                try:
                    if columns.is_wanted(fields, wanted):
                        works.setdefault(columns.work(fields), []).append(columns.point(fields, samples_per_epoch))
                except UsageError as error:
                    raise UsageError(f"{path}, line {reader.line_num}: {error}") from error
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the profile {path} cannot be read: {error}") from error
    if len(works) != 1:
        raise UsageError(f"{path}: {_which_work(works, columns)}")
    ((work, points),) = works.items()
    return Table(tuple(points), work, columns.knob)


class _Columns(NamedTuple):
    """The names of the columns in a file."""

    batch: str
    setting: str
    knob: str
    time: str
    is_epoch: bool
    watts: str
    others: tuple[str, ...]

    @classmethod
    def from_header(cls, path: Path, names: Sequence[str], samples: int | None, where: Mapping[str, str]) -> _Columns:
        found = {kind: next((name for name in known if name in names), None) for kind, known in _NAMES.items()}
        batch, watts = found["batch"], found["watts"]
        knob = POWER_LIMIT.words if found[POWER_LIMIT.words] else SM_CLOCK.words
        setting, time = found[knob], found["seconds"] or found["epoch"]
        if batch is None or watts is None or setting is None or time is None:
            raise UsageError(
                f"{path}: a column is missing; the first line must be {_LAYOUT}, or that of published traces"
            )
        if not found["seconds"] and samples is None:
            raise UsageError(f"{path}: the times are of epochs; say how many samples an epoch has (samples_per_epoch)")
        others = tuple(name for name in names if name not in (batch, watts, setting, time))
        unknown = [name for name in where if name not in others]
        if unknown:
            raise UsageError(f"{path}: no column {unknown[0]!r} to choose by; it has {', '.join(others) or 'none'}")
        return cls(batch, setting, knob, time, not found["seconds"], watts, others)

    def is_wanted(self, fields: Mapping[str, str], where: Mapping[str, str]) -> bool:
        if None in fields.values() or "(more)" in fields:
            raise UsageError("the row must have as many values as there are columns")
        return all(fields[name].strip() == text for name, text in where.items())

    def work(self, fields: Mapping[str, str]) -> str:
        return "/".join(fields[name].strip() for name in self.others)

    def point(self, fields: Mapping[str, str], samples_per_epoch: int | None) -> MeasuredBatch:
        batch = _whole(self.batch, fields[self.batch])
        seconds = _number(self.time, fields[self.time])
        if self.is_epoch:
            seconds *= batch / (samples_per_epoch or 1)
        return MeasuredBatch(
            _whole(self.setting, fields[self.setting]), batch, seconds, _number(self.watts, fields[self.watts])
        )


def _which_work(works: Mapping[str, object], columns: _Columns) -> str:
    if not works:
        return "no row is wanted; it is empty, or `where` names none of its rows"
    shown = ", ".join([*works][:_SHOWN_WORKS]) + (", ..." if len(works) > _SHOWN_WORKS else "")
    return f"it has {len(works)} kinds of work ({'/'.join(columns.others)}): {shown}; choose one by `where`"


def _whole(name: str, text: str) -> int:
    number = _number(name, text)
    if not abs(number) < 1e15 or number != number // 1:  # NaN differs from its floor
        raise UsageError(f"{name} is {text!r}; it must be a whole number")
    return int(number)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}, which is not a number") from None
