"""The catalogue: a folder of Parquet files, each written once, complete, under a name that no other writer takes.

Nothing is ever changed in it, so any number of writers on a shared file system need no lock and no server. Which of the
rows count is decided by who reads them (`_counting.py`).

Jobs that add one run each would make a million files. So who adds merges the files of an earlier day D into D.parquet,
which contains their names: readers leave those out. They are removed by a later one, when no reader can be at work that
has not seen D.parquet. Two who merge at a time write the same; a file of day D that comes later stays beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.files import is_special, write_atomically
from zeus_core.installed import install_command
from zeus_core.ports.run_identity import user_name
from zeus_core.runs._run_rows import AMOUNTS, MOMENTS, POWER, TEXTS, rows_of
from zeus_core.training.record.run_file import read_owned_run, run_path

if TYPE_CHECKING:
    import pyarrow

_VERSION = (b"zeus-core runs", b"1")
_ROWS_OF_A_FILE = 40_000  # 0.1 GB of memory while they are added
_DAY_FILE = re.compile(r"(\d{4}-\d\d-\d\d)-([0-9a-f]{16})\.parquet")  # of one writer
_MERGED = b"zeus-core merged"  # in the metadata of D.parquet: the 8 bytes of the name of each
_FEW = 16  # files of a day, which are not merged
_LARGE_BYTES = 1_000_000  # of a file, which is not merged either
_MANY = 1000  # files, which are not read to find out whether a single run is among them already: 2 s
_OPEN_DAYS = 2.0  # as clocks of writers may differ by one
_READING_SECONDS = 3600.0  # longer than anybody reads a catalogue
_MARK = b'"zeus-core run'  # of the format of a record, with which its file begins
_MARKED_BYTES = 200


class Catalogue:
    """A catalogue of runs.

    Args:
        folder: Its folder; made when the first run is added.

    Attributes:
        complaints: A sentence for each file that was left out.

    Raises:
        NotSupportedError: pyarrow is not installed.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise NotSupportedError(f"a catalogue of runs needs pyarrow: {install_command('runs')}") from error
        self._folder = folder
        self.complaints: list[str] = []

    def add(self, places: Sequence[Path], have_ended: bool = False, believes_users: bool = False) -> int:
        """Add the runs at some places, of which those in the catalogue already are left out; return how many.

        The user of a run is the owner of its file: a file can name anybody. That of root's files is whom they name.

        Args:
            places: Files of runs, and folders with any number of them.
            have_ended: Whether it is known that all have ended: who was going on at the latest record was killed.
            believes_users: Whether the user of each run is whom its file names.

        Raises:
            UsageError: There is nothing at one of the places, or the catalogue cannot be written.
        """
        has_folder = any(place.is_dir() for place in places)  # which is likely to be added each night
        (known, sources), now_seconds = self._known(has_folder, have_ended), time.time()
        rows: list[dict[str, Any]] = []
        added = 0
        for path in self._files_at(places, sources):
            try:
                run, state = read_owned_run(path)
                is_believed = believes_users or state.st_uid == 0
                found = rows_of(run, now_seconds, None if is_believed else user_name(state.st_uid))
                found[0]["source"] = _source(state)
            except (ArithmeticError, ValueError, LookupError) as error:  # a UsageError too
                self.complaints.append(str(error) if str(path) in str(error) else f"the run file {path}: {error}")
                continue
            if have_ended and found[0]["state"] == "running":
                found = [_killed(row) for row in found]
            version = found[0]["run"], found[0]["until_ms"]
            if version in known:
                continue
            known.add(version)
            rows += found
            added += 1
            if len(rows) >= _ROWS_OF_A_FILE:
                self._write(rows)
                rows = []
        if rows:
            self._write(rows)
        self._merge_days(now_seconds)
        return added

    def _known(self, is_needed: bool, have_ended: bool) -> tuple[set[tuple[str, int]], set[int]]:
        """Return the name and the latest moment of each run that is in the catalogue, and the marks of their files.

        Args:
            is_needed: Also if there are many files, which is slow. A run that is added again counts once anyway.
            have_ended: Whether files of runs that had not ended are needed again.
        """
        if not self._folder.exists() or (not is_needed and len(self._paths()) > _MANY):
            return set(), set()
        columns = [column.to_pylist() for column in self.table(["run", "until_ms", "source", "state"]).columns]
        sources = {source for _, _, source, state in zip(*columns, strict=True) if not have_ended or state != "running"}
        return set(zip(*columns[:2], strict=True)), sources

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        import pyarrow
        import pyarrow.parquet

        content = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=_schema()), content)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / f"{_day(time.time())}-{os.urandom(8).hex()}.parquet", content.getvalue())
        except (OSError, ValueError) as error:  # not the name of the unfinished file, of which nobody has heard
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"the catalogue {self._folder} cannot be written: {reason}") from error

    def _merge_days(self, now_seconds: float) -> None:
        """Merge the files of each earlier day, and remove those that were merged an hour ago, as far as one may."""
        import pyarrow.parquet

        days: dict[Path, list[Path]] = {}
        complaints = list(self.complaints)  # who reads them complains
        for path in self._files_below(self._folder, ".parquet"):
            named = _DAY_FILE.fullmatch(path.name)
            if named and named[1] <= _day(now_seconds - _OPEN_DAYS * 86_400):
                days.setdefault(path.with_name(f"{named[1]}.parquet"), []).append(path)
        for day, paths in days.items():
            with contextlib.suppress(OSError, ValueError, pyarrow.ArrowException):
                if not day.exists():
                    self._merge(day, [path for path in paths if path.stat().st_size < _LARGE_BYTES])
                elif day.stat().st_mtime < now_seconds - _READING_SECONDS:
                    merged = _merged_names(day)
                    for path in paths:
                        if path.name in merged:
                            with contextlib.suppress(OSError):  # as it is somebody else's
                                path.unlink()
        self.complaints = complaints

    def _merge(self, day: Path, paths: Sequence[Path]) -> None:
        import pyarrow
        import pyarrow.parquet

        rows, used = self._rows_of(paths, _COLUMNS)
        if rows is None or len(used) <= _FEW:
            return
        names = b"".join(bytes.fromhex(path.stem[11:]) for path in used)
        rows = rows.cast(_schema())
        content = io.BytesIO()
        pyarrow.parquet.write_table(rows.replace_schema_metadata(dict([_VERSION, (_MERGED, names)])), content)
        if not day.exists():
            write_atomically(day, content.getvalue())

    def _paths(self) -> list[Path]:
        """Return the files whose rows count: all but those that were merged into that of their day."""
        found = list(self._files_below(self._folder, ".parquet"))
        day_of = {path: path.with_name(f"{path.name[:10]}.parquet") for path in found if _DAY_FILE.fullmatch(path.name)}
        merged = {day: _merged_names(day) for day in set(found).intersection(day_of.values())}
        return [path for path in found if path not in day_of or path.name not in merged.get(day_of[path], ())]

    def table(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return the rows of all files; texts are dictionaries, which all rows share.

        Args:
            columns: Those that are wanted; all if None.

        Raises:
            UsageError: There is no such folder.
        """
        if not self._folder.is_dir():
            raise UsageError(
                f"there is no catalogue at {self._folder}; `zeus-core runs add {self._folder} RUN` makes one"
            )
        wanted = list(columns or _COLUMNS)
        rows, _ = self._rows_of(self._paths(), wanted)
        if rows is None:
            return _schema(dictionaries=True).empty_table().select(wanted).replace_schema_metadata(None)
        return rows

    def _rows_of(self, paths: Iterable[Path], wanted: Sequence[str]) -> tuple[pyarrow.Table | None, list[Path]]:
        """Return the rows of the files that can be used, if there is one, and these files."""
        import pyarrow

        tables: list[pyarrow.Table] = []
        small: list[pyarrow.Table] = []
        used = []
        for path in paths:
            table = self._read(path, wanted)
            if table is not None:
                used.append(path)
                (small if table.num_rows < _MANY else tables).append(table)
            if len(small) == _MANY:  # each takes 50 kB, however few rows it has
                tables.append(pyarrow.concat_tables(small).unify_dictionaries().combine_chunks())
                small.clear()
        tables += small
        return (pyarrow.concat_tables(tables).unify_dictionaries() if tables else None), used

    def _files_at(self, places: Iterable[Path], sources: Container[int]) -> Iterator[Path]:
        """Yield the files of runs at some places: in folders, those that say so in their first bytes.

        Args:
            places: The places.
            sources: The marks of files in folders that are left out.
        """
        for place in places:
            if place.is_dir():
                for name in self._names_below(str(place), ".json"):
                    with contextlib.suppress(OSError):
                        if _source(os.stat(name)) in sources:  # noqa: PTH116 - of many files; a path takes longer
                            continue
                    if _is_marked(path := Path(name)):
                        yield path
            else:
                yield run_path(place)  # a file, or nothing, which its reader says

    def _files_below(self, place: Path, suffix: str) -> Iterator[Path]:
        return map(Path, self._names_below(str(place), suffix))

    def _names_below(self, place: str, suffix: str) -> Iterator[str]:
        """Yield the files in a folder and those within it, in order; with a complaint for each that cannot be read."""
        folders = [place]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
            except OSError as error:
                self.complaints.append(f"the folder {folder} cannot be read: {error.strerror}")
                continue
            folders += [entry.path for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]
            yield from (
                entry.path
                for entry in entries
                if entry.name.endswith(suffix) and not entry.is_dir(follow_symlinks=False)
            )

    def _read(self, path: Path, wanted: Sequence[str]) -> pyarrow.Table | None:
        """Return the rows of a file; None, with a complaint, if it cannot be used."""
        import pyarrow
        import pyarrow.parquet

        try:
            if is_special(path):
                raise OSError("it is a folder or a device")
            footer = pyarrow.parquet.read_metadata(path)
            version = (footer.metadata or {}).get(_VERSION[0], b"no catalogue of runs")
            if version != _VERSION[1]:
                raise OSError(f"its version is {version.decode(errors='replace')}; this program reads version 1")
            with pyarrow.parquet.ParquetFile(path, metadata=footer, read_dictionary=list(TEXTS)) as file:
                table = file.read(list(wanted)).replace_schema_metadata(None)
            for name in wanted:  # columns that earlier versions have not written
                if name in (*AMOUNTS, *MOMENTS, POWER) and name not in table.column_names:
                    kind = _schema().field(name).type
                    nothing = pyarrow.scalar(None if name == POWER else 0, kind)
                    table = table.append_column(name, pyarrow.repeat(nothing, table.num_rows))
            return table.select(list(wanted))
        except (OSError, KeyError, pyarrow.ArrowException) as error:
            self.complaints.append(f"the file {path} of the catalogue cannot be used: {error}")
            return None


_COLUMNS = (*TEXTS, *MOMENTS, *AMOUNTS, POWER)


def _killed(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a run that was killed: it counts more than what was added while the run went on."""
    state = "interrupted" if row["state"] == "running" else row["state"]
    return {**row, "state": state, "until_ms": row["until_ms"] + 1}


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _merged_names(day: Path) -> set[str]:
    """Return the names of the files that were merged into that of a day; none if it cannot be read."""
    import pyarrow.parquet

    try:
        names = (pyarrow.parquet.read_metadata(day).metadata or {}).get(_MERGED, b"").hex()
    except (OSError, pyarrow.ArrowException):
        return set()
    return {f"{day.stem}-{names[at : at + 16]}.parquet" for at in range(0, len(names), 16)}


def _schema(dictionaries: bool = False) -> pyarrow.Schema:
    import pyarrow

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) if dictionaries else pyarrow.string()
    fields = [(name, text) for name in TEXTS] + [(name, pyarrow.int64()) for name in (*MOMENTS, *AMOUNTS)]
    return pyarrow.schema([*fields, (POWER, pyarrow.list_(pyarrow.int64()))], metadata=dict([_VERSION]))


def _source(state: os.stat_result) -> int:
    """Return the mark of a file: another one as soon as it is written to. Nobody can set the time of its change."""
    known = state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
    return int.from_bytes(hashlib.blake2b(repr(known).encode(), digest_size=7).digest(), "big")


def _is_marked(path: Path) -> bool:
    if path.is_symlink() or is_special(path):
        return False
    try:
        with path.open("rb") as file:
            return _MARK in file.read(_MARKED_BYTES)
    except OSError:
        return True  # its reader says why
