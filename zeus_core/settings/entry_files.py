"""The files of a ledger: one for each knob of a device that is changed.

The first line of a file is the entry. Each value that is new adds a line: the values on record from then on, and null
behind them while the last one is being set.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from dataclasses import dataclass, replace
from functools import lru_cache

from zeus_core._identity import printable
from zeus_core.errors import UsageError
from zeus_core.settings.entry import LedgerEntry, LedgerKey

_SUFFIX = ".json"
_MAX_BYTES = 64 * 1024  # an entry takes about 800 bytes


@dataclass(frozen=True)
class UnreadableEntry:
    """A file of the ledger that this version cannot read. It may hold an original: only an administrator removes it.

    Attributes:
        path: The file; the folder if that cannot be read.
        reason: Why it cannot be read.
    """

    path: str
    reason: str

    def is_of(self, device_uuid: str) -> bool:
        """Return whether it may be of a device, by its name."""
        name = os.path.basename(self.path)
        return not name.endswith(_SUFFIX) or name.startswith(f"{file_name(device_uuid)}.")

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be read: {printable(self.reason)}. It may hold the original setting: restore the GPU "
            "with the version of zeus-core that wrote it, or by hand, and then remove the file"
        )


class _OpenFile:
    """A file that lines are added to. It is closed with this object: never while another thread writes to it."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was not opened
            os.close(self.descriptor)


class EntryFiles:
    """The files in one folder.

    Args:
        folder: The folder, which must exist.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        """The folder."""
        self._open: dict[LedgerKey, _OpenFile] = {}  # by key, of the entries whose values were changed

    def path(self, key: LedgerKey) -> str:
        """Return the file of an entry."""
        device_uuid, knob = key
        return f"{self.folder}/{file_name(device_uuid)}.{knob}{_SUFFIX}"

    def write(self, entry: LedgerEntry) -> None:
        """Write or replace an entry. Atomic: a kill leaves the old one or the new one.

        Raises:
            OSError: It cannot be written, or the file that is there cannot be read.
        """
        path = self.path(entry.key)
        try:
            self._read(path)
        except FileNotFoundError:
            pass
        except UsageError as error:
            raise FileExistsError(errno.EEXIST, str(UnreadableEntry(path, str(error))), path) from error
        unfinished = f"{path}.unfinished-{os.urandom(8).hex()}"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(entry.to_json()) + "\n")
                file.flush()
                os.fsync(descriptor)  # what a machine that loses its power must find at its next start
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def write_values(self, entry: LedgerEntry) -> None:
        """Write the values of an entry that is there, by a line at its end: changes wait for it.

        Raises:
            OSError: It cannot be written, or is not there any more.
        """
        file = self._open.get(entry.key)
        status = None if file is None else os.fstat(file.descriptor)
        if file is None or status is None or status.st_nlink == 0:  # it was removed, or replaced
            file = self._opened(entry)
            status = os.fstat(file.descriptor)
        # It begins a line, in case the one before was not written as a whole.
        line = f"\n{json.dumps([*entry.values, *([None] if entry.is_changing else [])])}\n".encode()
        if status.st_size > _MAX_BYTES // 2:
            self.write(entry)
        elif os.write(file.descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path(entry.key))
        else:
            os.fsync(file.descriptor)

    def _opened(self, entry: LedgerEntry) -> _OpenFile:
        """Open the file of an entry, for all changes from now on. Raises `OSError`."""
        path = self.path(entry.key)
        file = _OpenFile(path)
        found = self.find(entry.key)
        if found is None or found.owner_token != entry.owner_token:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        self._open[entry.key] = file
        return file

    def remove(self, key: LedgerKey) -> None:
        """Remove an entry, if it is there. Raises `OSError` if it cannot be removed."""
        self._open.pop(key, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(key))

    def find(self, key: LedgerKey) -> LedgerEntry | None:
        """Return an entry; None if there is none that can be read."""
        try:
            return self._read(self.path(key))
        except (OSError, UsageError):
            return None

    def read(self) -> list[LedgerEntry | UnreadableEntry]:
        """Return all entries, by device, and the files that cannot be read."""
        found: list[LedgerEntry | UnreadableEntry] = []
        try:
            names = sorted(name for name in os.listdir(self.folder) if name.endswith(_SUFFIX))
        except OSError as error:
            return [UnreadableEntry(self.folder, str(error))]
        for name in names:
            path = os.path.join(self.folder, name)
            try:
                found.append(self._read(path))
            except FileNotFoundError:  # it was restored meanwhile
                continue
            except (OSError, UsageError) as error:
                found.append(UnreadableEntry(path, str(error)))
        return found

    def _read(self, path: str) -> LedgerEntry:
        """Read an entry. Raises `OSError` or `UsageError`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise UsageError("it is no file")
            if found.st_uid not in {0, os.geteuid()} or found.st_mode & 0o022:  # what it says would be set
                raise UsageError("others than root and this user could have written it")
            first, *changes = file.read(_MAX_BYTES).split(b"\n")
        try:
            entry = LedgerEntry.from_json(json.loads(first))
            return next(filter(None, (_with_values(entry, change) for change in reversed(changes))), entry)
        except (ValueError, RecursionError) as error:  # UsageError is a ValueError
            raise UsageError(f"it is not an entry of the ledger: {error}") from error


@lru_cache(maxsize=64)
def file_name(device_uuid: str) -> str:
    """Return a name for files: UUIDs hold letters, digits and hyphens."""
    return "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in device_uuid)


def _with_values(entry: LedgerEntry, line: bytes) -> LedgerEntry | None:
    """Return an entry with the values of a line; None if the line was not written as a whole."""
    try:
        values = json.loads(line)
        is_changing = values[-1:] == [None]
        values = tuple(map(float, values[:-1] if is_changing else values))
        return replace(entry, values=values, is_changing=is_changing)
    except (ValueError, TypeError):
        return None
