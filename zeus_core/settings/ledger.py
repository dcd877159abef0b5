"""The ledger: a folder that holds an entry for each device that is changed, and outlives the process that changed it.

| file | holds |
|---|---|
| GPU-….power_limit.json | an entry: saved, renamed, and only then is the device changed; a line for each later change |
| GPU-….device.lock | locked while the entries of a device are claimed or restored |
| GPU-….power_limit.lock | locked by the process that is to restore an entry, until that process ends |

Users read each other's entries, and nobody waits for a lock on one. A lock is a file that other users cannot open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from zeus_core._identity import THIS_MACHINE, ProcessIdentity, ProcessTable, program_token
from zeus_core.device.remote.protocol import DEFAULT_SOCKET, socket_path
from zeus_core.errors import DeviceError, DeviceHeldError
from zeus_core.files import check_only_ours
from zeus_core.process.file_locks import is_locked, keep, release, try_lock, unlock
from zeus_core.settings.entry import LedgerEntry, LedgerKey
from zeus_core.settings.entry_files import EntryFiles, UnreadableEntry, file_name
from zeus_core.settings.restoring import RestoreOutcome

_LEDGER_VARIABLE = "ZEUS_LEDGER_DIR"

_ROOT_FOLDER = "/run/zeus-core"

# Locks are held for some calls of a driver, which take milliseconds. One that hangs must not hold up others for long.
_LOCK_SECONDS = 2.0
_LOCK_POLL_SECONDS = 0.005
_LOCK_SUFFIX = ".lock"

Restore = Callable[[LedgerEntry], RestoreOutcome]


class Ledger:
    """The entries in one folder. Linux only.

    Args:
        folder: The folder. It is made if need be, with its parents.
        processes: Knows which owners live.

    Raises:
        OSError: The folder cannot be made, or others can change what is in it.
    """

    def __init__(self, folder: str, processes: ProcessTable = THIS_MACHINE) -> None:
        self._processes = processes
        self.folder: str = os.path.abspath(folder)
        """The folder."""
        _make_folder(self.folder)
        self._files = EntryFiles(self.folder)

    def claim(self, entry: LedgerEntry, restore: Restore) -> LedgerEntry:
        """Write down that a device is about to be changed, if nobody else changes it.

        Entries of processes that have ended are restored first. One of this very owner is kept, with its original. From
        now on the end of this process shows that the entry is stale.

        Args:
            entry: The new entry.
            restore: Restores a device, with all that this takes: `restore_entry` on an open GPU.

        Returns:
            The entry that is in the ledger now.

        Raises:
            DeviceHeldError: Another process changes the device; the message names it. Or an entry of the device cannot
                be read; the message names the file.
            DeviceError: A device that another process has left changed cannot be restored, or is being restored.
            OSError: The entry cannot be written.
        """
        claimant = entry.owner_token, entry.owner, entry.keeper
        with self.locked(entry.device_uuid):
            for found in self.read_of(entry.device_uuid):
                if isinstance(found, UnreadableEntry):
                    raise DeviceHeldError(f"{entry.device_name} ({entry.device_uuid}) may be left changed: {found}")
                if (found.owner_token, found.owner, found.keeper) == claimant:
                    if found.knob == entry.knob:
                        return found
                elif not self.is_stale(found):
                    raise DeviceHeldError(f"{entry.device_name} ({entry.device_uuid}) is controlled by {found.holder}")
                elif not self.finish(restore(found)).is_done:
                    raise DeviceError(f"{found.words}, left changed by {found.holder}, could not be restored")
            lock = self._lock_path(*entry.key)
            release(lock)
            with contextlib.suppress(FileNotFoundError):  # a child of the process that had it may keep it locked
                os.unlink(lock)
            keep(lock, self._lock(lock, entry.device_uuid))
            try:
                self.note(entry)
            except OSError:
                release(lock)
                raise
        return entry

    def is_stale(self, entry: LedgerEntry) -> bool:
        """Return whether the owner, its program or its keeper has ended: no process would restore the device then.

        Processes of this namespace show it, and the lock of the entry, which ends with a process of any other one too.
        """
        owner, restorer = entry.owner, entry.keeper or entry.owner
        if not (owner.is_alive(self._processes) and restorer.is_alive(self._processes)):
            return True
        is_own_process = owner.pid == os.getpid() and owner == ProcessIdentity.current()
        if entry.keeper is None and is_own_process and entry.owner_token != program_token():
            return True
        has_restorer = is_locked(self._lock_path(*entry.key))
        return restorer.is_elsewhere(self._processes) if has_restorer is None else not has_restorer

    def note(self, entry: LedgerEntry) -> None:
        """Write or replace an entry. Atomic: a kill leaves the old one or the new one.

        Raises:
            OSError: It cannot be written, or the file that is there cannot be read.
        """
        self._files.write(entry)

    def note_values(self, entry: LedgerEntry) -> None:
        """Write the values of an entry that is in the ledger: quickly, as changes wait for it.

        Raises:
            OSError: They cannot be written, or the entry is not in the ledger any more.
        """
        self._files.write_values(entry)

    def close(self, entry: LedgerEntry) -> None:
        """Remove an entry: the device is restored, or belongs to somebody else. One of another owner stays.

        Raises:
            OSError: It cannot be removed.
        """
        found = self.find(entry.key)
        if found is not None and found.owner_token != entry.owner_token:
            return
        if found is not None:
            self._files.remove(entry.key)
        release(self._lock_path(*entry.key))

    def finish(self, outcome: RestoreOutcome) -> RestoreOutcome:
        """Remove an entry that is restored; keep one that failed, with the reason, as evidence. Returns the outcome.

        Nothing is raised where the folder cannot be written: the next start tries again.
        """
        with contextlib.suppress(OSError):
            if outcome.is_done:
                self.close(outcome.entry)
            else:
                self.note(outcome.entry)
        return outcome

    def restore_stale(self, restore: Restore) -> list[RestoreOutcome]:
        """Restore all entries that nobody else would restore, and return what became of each."""
        return self.restore_all(restore, self.is_stale)

    def restore_all(
        self, restore: Restore, is_due: Callable[[LedgerEntry], bool] = lambda entry: True
    ) -> list[RestoreOutcome]:
        """Restore all entries, or those that a function chooses. Returns what became of each."""
        outcomes: list[RestoreOutcome] = []
        for listed in filter(is_due, self.entries()):
            try:
                with self.locked(listed.device_uuid):
                    entry = self.find(listed.key)  # as it is now
                    if entry is not None and is_due(entry):
                        outcomes.append(self.finish(restore(entry)))
            except (DeviceError, OSError) as error:
                outcomes.append(RestoreOutcome(listed.failed(str(error)), "failed"))
        return outcomes

    def find(self, key: LedgerKey) -> LedgerEntry | None:
        """Return an entry; None if there is none that can be read."""
        return self._files.find(key)

    def entries(self) -> list[LedgerEntry]:
        """Return all entries that can be read, by device."""
        return [entry for entry in self.read() if isinstance(entry, LedgerEntry)]

    def read(self) -> list[LedgerEntry | UnreadableEntry]:
        """Return all entries, by device, and the files that cannot be read."""
        return self._files.read()

    def read_of(self, device_uuid: str) -> list[LedgerEntry | UnreadableEntry]:
        """Return all entries of a device, and the files that cannot be read and may be of it."""
        return [found for found in self.read() if found.is_of(device_uuid)]

    @contextlib.contextmanager
    def locked(self, device_uuid: str) -> Iterator[None]:
        """Keep other processes from claiming or restoring a device.

        Raises:
            DeviceError: Another process does that, and has not ended it within two seconds.
            OSError: The folder cannot be written.
        """
        descriptor = self._lock(self._lock_path(device_uuid, "device"), device_uuid)
        with contextlib.suppress(OSError):  # that of an earlier version, which every user could lock
            os.unlink(f"{self.folder}/{file_name(device_uuid)}{_LOCK_SUFFIX}")
        try:
            yield
        finally:
            unlock(descriptor)

    def _lock(self, path: str, device_uuid: str) -> int:
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            with contextlib.suppress(FileNotFoundError):  # `tidy` has removed the folder just now
                descriptor = try_lock(path)
                if descriptor is not None:
                    return descriptor
            _make_folder(self.folder)
            if time.monotonic() > until:
                raise DeviceError(f"{device_uuid} is being restored by another process, whose driver may hang")
            time.sleep(_LOCK_POLL_SECONDS)

    def tidy(self, device_uuid: str) -> None:
        """Remove the locks of a device without entries, and a folder of this user that is empty. Never raises."""
        with contextlib.suppress(DeviceError, OSError):
            with self.locked(device_uuid):
                if not self.read_of(device_uuid):
                    beginning = f"{file_name(device_uuid)}."
                    for name in os.listdir(self.folder):
                        if name.startswith(beginning) and name.endswith(_LOCK_SUFFIX):
                            os.unlink(f"{self.folder}/{name}")
            if os.geteuid() != 0:  # that of root may have been made by systemd, with rights of its own
                os.rmdir(self.folder)

    def _lock_path(self, device_uuid: str, what: str) -> str:
        return f"{self.folder}/{file_name(device_uuid)}.{what}{_LOCK_SUFFIX}"


def own_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of the ledger that this process writes to: see `own_ledger`."""
    if environment.get(_LEDGER_VARIABLE):
        return environment[_LEDGER_VARIABLE]
    if os.geteuid() == 0:
        return _ROOT_FOLDER
    if environment.get("XDG_RUNTIME_DIR"):
        return os.path.join(environment["XDG_RUNTIME_DIR"], "zeus-core")
    return f"/tmp/zeus-core-{os.geteuid()}"


def _known_folders(environment: Mapping[str, str]) -> list[str]:
    """Return the folders of ledgers that are there: the one that a user names, else that of this process and root's."""
    others = () if environment.get(_LEDGER_VARIABLE) else (_ROOT_FOLDER,)
    return [folder for folder in dict.fromkeys((own_folder(environment), *others)) if os.path.isdir(folder)]


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
    return _trusted(Ledger(own_folder(environment)))


def known_ledgers(environment: Mapping[str, str] = os.environ) -> list[Ledger]:
    """Return the ledgers that this process can read and trust: its own, and that of root. None is made."""
    ledgers: list[Ledger] = []
    for folder in _known_folders(environment) if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):
            ledgers.append(_trusted(Ledger(folder)))
    return ledgers


def seen_ledgers(environment: Mapping[str, str] = os.environ) -> list[Ledger]:
    """Return `known_ledgers`, and the one beside the socket of a daemon that is not at the usual place; to look on."""
    found = known_ledgers(environment)
    if (socket := socket_path(environment)) != DEFAULT_SOCKET:  # whose folder holds nothing but it
        found += known_ledgers({_LEDGER_VARIABLE: os.path.dirname(socket)})
    return list({ledger.folder: ledger for ledger in found}.values())


def _trusted(ledger: Ledger) -> Ledger:
    """Return a ledger that only this user, or root, can change. Raises `OSError` for any other."""
    check_only_ours(Path(ledger.folder))
    return ledger
