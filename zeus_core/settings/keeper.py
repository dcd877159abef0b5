"""The restoring of entries for others, once they have ended: by the guardian, the daemon and `zeus-core restore`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from zeus_core.errors import DeviceError
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import Ledger
from zeus_core.settings.restoring import RestoreOutcome, restore_device


class Keeper:
    """Restores devices by their entries, and finishes these in the ledger. Several threads may call its methods.

    Args:
        open_gpu: Opens a GPU by its UUID. It raises `DeviceError` if there is none, or the driver does not work.
        ledger: Where the entries are written down; None if there is no such place.
    """

    def __init__(self, open_gpu: Callable[[str], Any], ledger: Ledger | None) -> None:
        self._open_gpu = open_gpu
        self.ledger = ledger
        """Where the entries are written down."""

    def restore(self, entry: LedgerEntry) -> RestoreOutcome:
        """Restore one device, unless a new owner has done so, and finish its entry in the ledger. Never raises.

        An entry that somebody has removed from the ledger, or a ledger that cannot be written, keeps no device from
        being restored. It takes as long as the driver does: call it in a thread of the device.
        """
        if self.ledger is None:
            return self.restore_device(entry)
        try:
            with self.ledger.locked(entry.device_uuid):
                written = self.ledger.find(entry.key)
                if written is not None and written.owner_token != entry.owner_token:
                    return RestoreOutcome(entry, "original")  # a new owner has restored it before its own first change
                # Without an entry somebody has restored it, most likely: then only values on record are ours. What is
                # restored is what the caller knows: the file may have been written by somebody else since.
                due = entry.showing(None)
                if written is not None:
                    due = replace(entry, values=written.values, is_changing=written.is_changing)
                outcome = self.ledger.finish(self.restore_device(due))
        except DeviceError as error:
            return RestoreOutcome(entry.failed(str(error)), "failed")
        except OSError:  # the folder was removed and cannot be made, or the disk is full
            return self.restore_device(entry)
        self.ledger.tidy(entry.device_uuid)
        return outcome

    def restore_device(self, entry: LedgerEntry) -> RestoreOutcome:
        """Restore one device, and leave the ledger alone. Never raises."""
        return restore_device(self._open_gpu, entry)

    def restore_each(self, entries: Iterable[LedgerEntry], done: Callable[[RestoreOutcome], None]) -> None:
        """Restore some devices at the same time, and return what became of each. Waits for all of them."""
        threads = [threading.Thread(target=lambda due=entry: done(self.restore(due))) for entry in entries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
