"""The ledger: a folder that holds an entry for each device that is changed, and outlives the process that changed it.

| file | holds |
|---|---|
| GPU-….power_limit.json | an entry: saved, renamed, and only then is the device changed; a line for each later change |
| GPU-….lock | locked while the entries of a device are claimed or restored |
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from zeus_core.errors import DeviceError, DeviceHeldError, UsageError
from zeus_core.leases._entry import LedgerEntry, LedgerKey
from zeus_core.leases._process_identity import THIS_MACHINE, ProcessTable
from zeus_core.leases._restoring import Outcome

__all__ = ["LEDGER_VARIABLE", "Ledger", "known_ledgers", "own_ledger"]

LEDGER_VARIABLE = "ZEUS_LEDGER_DIR"

_ROOT_FOLDER = "/run/zeus-core"
_SUFFIX = ".json"
# Locks are held for some calls of a driver, which take milliseconds. One that hangs must not hold up others for long.
_LOCK_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.005
_MAX_ENTRY_BYTES = 64 * 1024  # an entry takes about 800 bytes

Restore = Callable[[LedgerEntry], Outcome]


@dataclass(frozen=True)
class UnreadableEntry:
    """A file of the ledger that is no entry.

    Attributes:
        path: The file.
        reason: Why it cannot be read.
    """

    path: str
    reason: str


class _OpenFile:
    """A file that lines are added to. It is closed with this object: never while another thread writes to it."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it was not opened
            os.close(self.descriptor)


class Ledger:
    """The entries in one folder. Linux only.

    Args:
        folder: The folder. It is made if need be, with its parents.
        processes: Tells which owners live.

    Raises:
        OSError: The folder cannot be made, or others can change what is in it.
    """

    def __init__(self, folder: str, processes: ProcessTable = THIS_MACHINE) -> None:
        self._processes = processes
        self._open: dict[LedgerKey, _OpenFile] = {}  # of the entries whose values were changed
        self.folder = os.path.abspath(folder)
        """The folder."""
        _make_folder(self.folder)

    def claim(self, entry: LedgerEntry, restore: Restore) -> LedgerEntry:
        """Write down that a device is about to be changed, if nobody else changes it.

        Entries of processes that have ended are restored first. One of this very owner is kept, with its original.

        Args:
            entry: The new entry.
            restore: Restores a device, with all that this takes: `restore_entry` on an open GPU.

        Returns:
            The entry that is in the ledger now.

        Raises:
            DeviceHeldError: Another process changes the device; the message names it.
            DeviceError: A device that another process has left changed cannot be restored, or is being restored.
            OSError: The entry cannot be written.
        """
        with self.locked(entry.device_uuid):
            for found in self._entries_of(entry.device_uuid):
                if found.owner_token == entry.owner_token and found.owner == entry.owner:
                    if found.knob == entry.knob:
                        return found
                elif not found.is_stale(self._processes):
                    raise DeviceHeldError(f"{entry.device_name} ({entry.device_uuid}) is controlled by {found.holder}")
                elif not self.finish(restore(found)).is_done:
                    raise DeviceError(f"{found.words}, left changed by {found.holder}, could not be restored")
            self.note(entry)
        return entry

    def note(self, entry: LedgerEntry) -> None:
        """Write or replace an entry. Atomic: a kill leaves the old one or the new one.

        Raises:
            OSError: It cannot be written.
        """
        path = self._path(entry.key)
        unfinished = f"{path}.unfinished-{os.urandom(8).hex()}"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(entry.to_json()) + "\n")
            os.replace(unfinished, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def note_values(self, entry: LedgerEntry) -> None:
        """Write the values of an entry that is in the ledger, by a line at its end: changes wait for it.

        Raises:
            OSError: It cannot be written, or it is not in the ledger any more.
        """
        file = self._open.get(entry.key)
        status = None if file is None else os.fstat(file.descriptor)
        if file is None or status is None or status.st_nlink == 0:  # it was removed, or replaced
            file = self._opened(entry)
            status = os.fstat(file.descriptor)
        # It begins a line, in case the one before was not written as a whole. Finite numbers are the same in JSON.
        line = f"\n{list(entry.values)}\n".encode()
        if status.st_size > _MAX_ENTRY_BYTES // 2:
            self.note(entry)
        elif os.write(file.descriptor, line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path(entry.key))

    def _opened(self, entry: LedgerEntry) -> _OpenFile:
        """Open the file of an entry, for all changes from now on. Raises `OSError`."""
        path = self._path(entry.key)
        file = _OpenFile(path)
        found = self.find(entry.key)
        if found is None or found.owner_token != entry.owner_token:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        self._open[entry.key] = file
        return file

    def close(self, entry: LedgerEntry) -> None:
        """Remove an entry: the device is restored, or belongs to somebody else. One of another owner stays.

        Raises:
            OSError: It cannot be removed.
        """
        found = self.find(entry.key)
        if found is not None and found.owner_token == entry.owner_token:
            self._open.pop(entry.key, None)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(entry.key))

    def finish(self, outcome: Outcome) -> Outcome:
        """Remove an entry that is restored; keep one that failed, with the reason, as evidence. Returns the outcome.

        Nothing is raised where the folder cannot be written: the next start tries again.
        """
        with contextlib.suppress(OSError):
            if outcome.is_done:
                self.close(outcome.entry)
            else:
                self.note(outcome.entry)
        return outcome

    def restore_stale(self, restore: Restore) -> list[Outcome]:
        """Restore all entries that nobody else would restore, and return what became of each."""
        return self.restore_all(restore, lambda entry: entry.is_stale(self._processes))

    def restore_all(
        self, restore: Restore, is_due: Callable[[LedgerEntry], bool] = lambda entry: True
    ) -> list[Outcome]:
        """Restore all entries, or those that a function chooses. Returns what became of each."""
        outcomes: list[Outcome] = []
        for listed in filter(is_due, self.entries()):
            try:
                with self.locked(listed.device_uuid):
                    entry = self.find(listed.key)  # as it is now
                    if entry is not None and is_due(entry):
                        outcomes.append(self.finish(restore(entry)))
            except (DeviceError, OSError) as error:
                outcomes.append(Outcome(listed.failed(str(error)), "failed"))
        return outcomes

    def find(self, key: LedgerKey) -> LedgerEntry | None:
        """Return an entry; None if there is none that can be read."""
        try:
            return self._read(self._path(key))
        except (OSError, UsageError):
            return None

    def entries(self) -> list[LedgerEntry]:
        """Return all entries that can be read, by device."""
        return [entry for entry in self.read() if isinstance(entry, LedgerEntry)]

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

    @contextlib.contextmanager
    def locked(self, device_uuid: str) -> Iterator[None]:
        """Keep other processes from claiming or restoring a device.

        Raises:
            DeviceError: Another process does that, and has not ended it within two seconds.
            OSError: The folder cannot be written.
        """
        descriptor = self._lock(f"{self.folder}/{_file_name(device_uuid)}.lock", device_uuid)
        try:
            yield
        finally:
            os.close(descriptor)

    def _lock(self, path: str, device_uuid: str) -> int:
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            with contextlib.suppress(FileNotFoundError):  # `tidy` has removed the folder just now
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
                if _try_lock(descriptor) and os.fstat(descriptor).st_nlink:  # else `tidy` has removed the file just now
                    return descriptor
                os.close(descriptor)
            _make_folder(self.folder)
            if time.monotonic() > until:
                raise DeviceError(f"{device_uuid} is being restored by another process, whose driver may hang")
            time.sleep(_LOCK_POLL_SECONDS)

    def tidy(self, device_uuid: str) -> None:
        """Remove the lock of a device without entries, and a folder of this user that is empty. Never raises."""
        with contextlib.suppress(DeviceError, OSError):
            with self.locked(device_uuid):
                if not self._entries_of(device_uuid):
                    os.unlink(f"{self.folder}/{_file_name(device_uuid)}.lock")
            if os.geteuid() != 0:  # that of root may have been made by systemd, with rights of its own
                os.rmdir(self.folder)

    def _entries_of(self, device_uuid: str) -> list[LedgerEntry]:
        return [entry for entry in self.entries() if entry.device_uuid == device_uuid]

    def _path(self, key: LedgerKey) -> str:
        return f"{self.folder}/{_file_name(key.device_uuid)}.{key.knob}{_SUFFIX}"

    def _read(self, path: str) -> LedgerEntry:
        """Read an entry. Raises `OSError` or `UsageError`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UsageError("it is no file")
            first, *changes = file.read(_MAX_ENTRY_BYTES).split(b"\n")
        try:
            entry = LedgerEntry.from_json(json.loads(first))
            return next(filter(None, (_with_values(entry, change) for change in reversed(changes))), entry)
        except (ValueError, RecursionError) as error:  # UsageError is a ValueError
            raise UsageError(f"it is no entry of the ledger: {error}") from error


def own_ledger(environment: Mapping[str, str] = os.environ) -> Ledger:
    """Return the ledger that this process writes to.

    Args:
        environment: `ZEUS_LEDGER_DIR` names the folder. Otherwise it is /run/zeus-core for root, and for others
            zeus-core in `XDG_RUNTIME_DIR`, or /tmp/zeus-core-UID.

    Raises:
        OSError: The folder cannot be used, or this system is not Linux.
    """
    if sys.platform != "linux":
        raise OSError(errno.ENOSYS, "the ledger needs Linux")
    return _trusted(Ledger(_own_folder(environment)))


def known_ledgers(environment: Mapping[str, str] = os.environ) -> list[Ledger]:
    """Return the ledgers that this process can read and trust: its own, and that of root. None is made."""
    if sys.platform != "linux":
        return []
    ledgers: list[Ledger] = []
    for folder in dict.fromkeys((_own_folder(environment), _ROOT_FOLDER)):
        with contextlib.suppress(OSError):
            if os.path.isdir(folder):
                ledgers.append(_trusted(Ledger(folder)))
    return ledgers


def _own_folder(environment: Mapping[str, str]) -> str:
    if environment.get(LEDGER_VARIABLE):
        return environment[LEDGER_VARIABLE]
    if os.geteuid() == 0:
        return _ROOT_FOLDER
    if environment.get("XDG_RUNTIME_DIR"):
        return os.path.join(environment["XDG_RUNTIME_DIR"], "zeus-core")
    return f"/tmp/zeus-core-{os.geteuid()}"


def _trusted(ledger: Ledger) -> Ledger:
    """Return a ledger that only this user, or root, can change. Raises `OSError` for any other."""
    from pathlib import Path

    from zeus_core._files import check_only_ours  # which the guardian, who is told the folder, does without

    check_only_ours(Path(ledger.folder))
    return ledger


def _make_folder(folder: str) -> None:
    """Make a folder that only this user can write to, or check that it is one, and that it is no link.

    Raises:
        OSError: It cannot be made, or belongs to others.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o755 if os.geteuid() == 0 else 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder, or a link to one", folder)
    if found.st_uid not in {0, os.geteuid()}:
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}", folder)
    if found.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "others can change it: chmod go-w", folder)


@lru_cache(maxsize=64)
def _file_name(device_uuid: str) -> str:
    """Return a name for files: UUIDs hold letters, digits and hyphens."""
    return "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in device_uuid)


def _with_values(entry: LedgerEntry, line: bytes) -> LedgerEntry | None:
    """Return an entry with the values of a line; None if the line was not written as a whole."""
    try:
        return dataclasses.replace(entry, values=tuple(map(float, json.loads(line))))
    except (ValueError, TypeError):
        return None


def _try_lock(descriptor: int) -> bool:
    """Lock an open file unless another process has locked it. Returns whether it is locked now."""
    import fcntl  # which Windows has not

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
