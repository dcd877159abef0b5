"""The catalogue: a folder of Parquet files, each written once, complete, under a name that no other writer takes.

Nothing is ever changed in it, so any number of writers on a shared file system need no lock and no server. Which of the
rows count is decided by who reads them (`_counting.py`).
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_core.adapters import install_command
from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.files import is_special, write_atomically
from zeus_core.runs._run_rows import AMOUNTS, MOMENTS, TEXTS, rows_of
from zeus_core.training.record.run_file import read_run, run_path

if TYPE_CHECKING:
    import pyarrow

_VERSION = (b"zeus-core runs", b"1")
_ROWS_OF_A_FILE = 40_000  # 0.1 GB of memory while they are added
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

    def add(self, places: Sequence[Path]) -> int:
        """Add the runs at some places, of which those in the catalogue already are left out; return how many.

        Args:
            places: Files of runs, and folders with any number of them.

        Raises:
            UsageError: There is nothing at one of the places, or the catalogue cannot be written.
        """
        known, now_seconds = self._known(), time.time()
        rows: list[dict[str, Any]] = []
        added = 0
        for path in _files_at(places):
            try:
                found = rows_of(read_run(path), now_seconds)
            except (ArithmeticError, ValueError, LookupError) as error:  # a UsageError too
                self.complaints.append(str(error) if str(path) in str(error) else f"the run file {path}: {error}")
                continue
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
        return added

    def _known(self) -> set[tuple[str, int]]:
        """Return the name and the latest moment of each run that is in the catalogue."""
        if not self._folder.exists():
            return set()
        columns = self.table(["run", "until_ms"]).columns
        return set(zip(*(column.to_pylist() for column in columns), strict=True))

    def _write(self, rows: Sequence[dict[str, Any]]) -> None:
        import pyarrow
        import pyarrow.parquet

        content = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=_schema()), content)
        today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._folder / f"{today}-{os.urandom(8).hex()}.parquet", content.getvalue())
        except (OSError, ValueError) as error:
            raise UsageError(f"the catalogue {self._folder} cannot be written: {error}") from error

    def table(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return the rows of all files; texts are dictionaries, which all rows share.

        Args:
            columns: Those that are wanted; all if None.

        Raises:
            UsageError: There is no such folder.
        """
        import pyarrow
        import pyarrow.parquet

        if not self._folder.is_dir():
            raise UsageError(
                f"there is no catalogue at {self._folder}; `zeus-core runs add {self._folder} RUN` makes one"
            )
        wanted = list(columns or (*TEXTS, *MOMENTS, *AMOUNTS))
        tables = []
        for path in sorted(self._folder.rglob("*.parquet")):
            try:
                if is_special(path):
                    raise OSError("it is a folder or a device")
                footer = pyarrow.parquet.read_metadata(path)
                version = (footer.metadata or {}).get(_VERSION[0], b"no catalogue of runs")
                if version != _VERSION[1]:
                    raise OSError(f"its version is {version.decode(errors='replace')}; this program reads version 1")
                with pyarrow.parquet.ParquetFile(path, metadata=footer, read_dictionary=list(TEXTS)) as file:
                    read = file.read(wanted).replace_schema_metadata(None)
                for name in wanted:  # columns that earlier versions have not written
                    if name in AMOUNTS and name not in read.column_names:
                        read = read.append_column(name, pyarrow.repeat(0, read.num_rows))
                tables.append(read.select(wanted))
            except (OSError, KeyError, pyarrow.ArrowException) as error:
                self.complaints.append(f"the file {path} of the catalogue cannot be used: {error}")
        if not tables:
            names = _schema(dictionaries=True)
            return names.empty_table().select(wanted).replace_schema_metadata(None)
        return pyarrow.concat_tables(tables).unify_dictionaries()


def _schema(dictionaries: bool = False) -> pyarrow.Schema:
    import pyarrow

    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) if dictionaries else pyarrow.string()
    fields = [(name, text) for name in TEXTS] + [(name, pyarrow.int64()) for name in (*MOMENTS, *AMOUNTS)]
    return pyarrow.schema(fields, metadata=dict([_VERSION]))


def _files_at(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of runs at some places: in folders, those that say so in their first bytes.

    Raises:
        UsageError: There is nothing at one of the places.
    """
    for place in places:
        if not place.is_dir():
            yield run_path(place)  # a file, or nothing, which its reader says
            continue
        for folder, folders, names in os.walk(place):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                if name.endswith(".json") and not path.is_symlink() and not is_special(path) and _is_marked(path):
                    yield path


def _is_marked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _MARK in file.read(_MARKED_BYTES)
    except OSError:
        return True  # its reader says why
