"""The two places that keep the original of a device before it is changed: the ledger and the guardian."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace

from zeus_core.errors import DeviceError
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.guardian import guardian
from zeus_core.settings.holders import warn_once
from zeus_core.settings.ledger import Ledger, own_ledger
from zeus_core.settings.restoring import RestoreOutcome


class Safeguard:
    """Keeps the entry of one device that this process changes itself. One place may fail; that is logged once.

    Other systems than Linux have neither: the hardware is restored by this process alone.

    Args:
        restore: Restores the device, by `restore_entry`.
    """

    def __init__(self, restore: Callable[[LedgerEntry], RestoreOutcome]) -> None:
        self._restore = restore
        self._ledger: Ledger | None = None
        self._is_claimed = False

    def keep(self, entry: LedgerEntry) -> LedgerEntry:
        """Keep an entry whose device is about to be changed. Returns it, with the original that is known already.

        Raises:
            DeviceHeldError: Another process changes the device.
            DeviceError: Neither place works; or a device that was left changed cannot be restored.
        """
        if sys.platform != "linux":
            return entry
        no_ledger = None
        try:
            entry = self._write(entry)
        except OSError as error:
            no_ledger = f"the original settings of GPUs cannot be written down ({error})"
            warn_once(f"{no_ledger}: if this process and its guardian are killed, nobody restores them")
        try:
            guardian.hold(entry, None if self._ledger is None else self._ledger.folder)
        except OSError as error:
            no_guardian = f"no guardian of this process can be started ({error})"
            if no_ledger is not None:
                raise DeviceError(f"{no_ledger}, and {no_guardian}: nothing would restore them") from error
            warn_once(f"{no_guardian}: if this process is killed, GPUs are restored by the next start")
        return entry

    def revive(self) -> None:
        """Start the guardian again if it has been killed. Never raises: the ledger has the entry."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                guardian.revive()

    def drop(self, entry: LedgerEntry) -> None:
        """Forget an entry: its device is restored, or belongs to somebody else. Never raises."""
        if self._ledger is not None:
            try:
                self._ledger.close(entry)
            except OSError as error:
                warn_once(f"the ledger {self._ledger.folder} cannot be written any more: {error}")
            self._ledger.tidy(entry.device_uuid)
        guardian.drop(entry.key)

    def keep_failure(self, outcome: RestoreOutcome) -> None:
        """Keep the reason why a device could not be restored. The guardian tries again when this process ends."""
        if self._ledger is not None:
            self._ledger.finish(outcome)

    def _write(self, entry: LedgerEntry) -> LedgerEntry:
        if self._is_claimed:
            if self._ledger is not None:
                self._ledger.note_values(entry)
            return entry
        self._is_claimed = True  # a place that does not work is not tried at every change
        ledger = own_ledger()
        written = ledger.claim(entry, self._restore)
        self._ledger = ledger
        if written != entry:  # this process has an entry already, from which the original is taken
            before = (value for value in written.values if value not in entry.values)
            entry = replace(written, values=(*before, *entry.values), is_changing=True)
            ledger.note(entry)
        return entry
