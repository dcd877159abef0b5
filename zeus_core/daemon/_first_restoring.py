"""The first thing that the daemon does: it restores what a killed one has left, before it loads its server.

Until then its clients' limits and clocks stay in force, and nobody else may restore them.
"""

from __future__ import annotations

import os
import threading
import time
from functools import partial

from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import own_ledger
from zeus_core.settings.restoring import GpusByUuid, RestoreOutcome, restore_device

_WAIT_SECONDS = 2.0  # a driver that hangs holds up neither other devices nor the daemon


def restore_first() -> list[RestoreOutcome]:
    """Restore what a daemon, or a job, has left that ended without restoring, ahead of all that may keep this one.

    Each device has a thread of its own: one whose driver hangs is restored as soon as that answers. Entries of a daemon
    that runs are not touched.

    Returns:
        The outcomes of what was restored; what fails is tried again once the daemon has opened its GPUs.
    """
    restored: list[RestoreOutcome] = []
    if os.geteuid() != 0:  # it may not call the driver, and changes GPUs by the commands of the policy
        return restored
    try:
        ledger = own_ledger()
        devices = {entry.device_uuid for entry in ledger.entries()}
    except OSError:  # the daemon says so, once it has read its policy
        return restored
    restore = partial(restore_device, GpusByUuid().gpu)

    def is_due(device_uuid: str, entry: LedgerEntry) -> bool:
        return entry.is_of(device_uuid) and ledger.is_stale(entry)

    def restore_all(device_uuid: str) -> None:
        outcomes = ledger.restore_all(restore, partial(is_due, device_uuid))
        restored.extend(outcome for outcome in outcomes if outcome.is_done)

    threads = [threading.Thread(target=restore_all, args=(device,), daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    until = time.monotonic() + _WAIT_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return restored
