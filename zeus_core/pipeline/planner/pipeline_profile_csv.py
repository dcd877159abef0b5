"""Options in CSV files, in the layout of the published profiles (Perseus, SOSP'24).

    stage,instruction,frequency,time,energy[,time_stderr,energy_stderr]
    0,forward,1410,0.0501,23.8

`frequency` is in MHz (empty for a fixed kind that runs at any clock), `time` in seconds, `energy` in joules of one GPU.
Rows of the instruction `blocking` are ours: time and energy of a GPU that waits at a clock. A measurement of waiting by
lowtime is a file of its own, the same for all stages:

    freq,time_ms,energy_mj
    1410,100,7276.6
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from zeus_core.errors import UsageError
from zeus_core.files import write_atomically
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.pipeline_schedule import PROFILED_KINDS, check_kind
from zeus_core.units import joules_from_millijoules, seconds_from_milliseconds

_COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
_STDERRS = ("time_stderr", "energy_stderr")
_BLOCKING_COLUMNS = ("freq", "time_ms", "energy_mj")

_Row = tuple[int, str, MeasuredOption]  # stage, kind, option
_Read = TypeVar("_Read")


def read_options(path: Path) -> dict[tuple[int, str], list[MeasuredOption]]:
    """Return the options in a file by stage and kind.

    Raises:
        UsageError: The file cannot be read, or a row is wrong; the message names the file and the line.
    """
    options: dict[tuple[int, str], list[MeasuredOption]] = {}
    first_line: dict[tuple[int, str, int | None], int] = {}
    try:
        for line, fields in _rows(path, _COLUMNS):
            stage, kind, option = _named(path, line, _row, fields)
            earlier = first_line.setdefault((stage, kind, option.clock_mhz), line)
            if earlier != line:
                raise UsageError(
                    f"{path}, line {line}: stage {stage} {kind} at {option.clock_mhz} MHz is a duplicate of line "
                    f"{earlier}; keep one row, with the mean if it was measured more than once"
                )
            options.setdefault((stage, kind), []).append(option)
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"the profile {path} cannot be read: {error}") from error
    return options


def read_blocking(path: Path) -> list[MeasuredOption]:
    """Return the time and the energy of a GPU that waits, at each clock, from a measurement by lowtime.

    Raises:
        UsageError: The file cannot be read, or a row is wrong; the message names the file and the line.
    """
    try:
        return [_named(path, line, _blocking_row, fields) for line, fields in _rows(path, _BLOCKING_COLUMNS)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the blocking power {path} cannot be read: {error}") from error


def write_options(path: Path, rows: Iterable[_Row]) -> None:
    """Replace a file by these options; leave out the columns of standard errors if all of them are 0.

    Raises:
        OSError: The file cannot be written.
    """
    rows = list(rows)
    has_stderr = any(option.time_stderr_seconds or option.energy_stderr_joules for _, _, option in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS + (_STDERRS if has_stderr else ()))
    for stage, kind, option in rows:
        clock = "" if option.clock_mhz is None else option.clock_mhz
        stderrs = (option.time_stderr_seconds, option.energy_stderr_joules) if has_stderr else ()
        writer.writerow((stage, kind, clock, option.time_seconds, option.energy_joules, *stderrs))
    write_atomically(path, text.getvalue())


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, restkey="(more)")
        missing = [name for name in columns if name not in (reader.fieldnames or [])]
        if missing:
            raise UsageError(f"{path}: no column {', '.join(missing)}; the first line must be {','.join(columns)}")
        for fields in reader:
            if None in fields.values() or "(more)" in fields:
                raise UsageError(
                    f"{path}, line {reader.line_num}: the row must have as many values as there are columns"
                )
            yield reader.line_num, fields


def _named(path: Path, line: int, read: Callable[[Mapping[str, str]], _Read], fields: Mapping[str, str]) -> _Read:
    """Read a row; an error names the file and the line."""
    try:
        return read(fields)
    except UsageError as error:
        raise UsageError(f"{path}, line {line}: {error}") from error


def _blocking_row(fields: Mapping[str, str]) -> MeasuredOption:
    return MeasuredOption(
        clock_mhz=_whole("freq", fields["freq"]),
        time_seconds=seconds_from_milliseconds(_number("time_ms", fields["time_ms"])),
        energy_joules=joules_from_millijoules(_number("energy_mj", fields["energy_mj"])),
    )


def _row(fields: Mapping[str, str]) -> _Row:
    kind = check_kind(fields["instruction"].strip(), PROFILED_KINDS, "instruction")
    clock = fields["frequency"].strip()
    option = MeasuredOption(
        clock_mhz=None if clock == "" else _whole("frequency", clock),
        time_seconds=_number("time", fields["time"]),
        energy_joules=_number("energy", fields["energy"]),
        time_stderr_seconds=_number("time_stderr", fields.get("time_stderr") or "0"),
        energy_stderr_joules=_number("energy_stderr", fields.get("energy_stderr") or "0"),
    )
    return _whole("stage", fields["stage"]), kind, option


def _whole(name: str, text: str) -> int:
    number = _number(name, text)
    if number < 0 or number != number // 1:  # NaN and infinity differ from their floor
        raise UsageError(f"{name} is {text!r}; it must be a whole number, at least 0")
    return int(number)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}, which is not a number") from None
