"""The first stage of the daemon: restores what a killed one has left, before anything else is loaded.

Until then its clients' limits and clocks stay in force, and nobody else may restore them.
"""

from __future__ import annotations

import _thread
import gc
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeus_core.settings.entry import LedgerEntry
    from zeus_core.settings.ledger import Ledger
    from zeus_core.settings.restoring import Outcome

_WAIT_SECONDS = 2.0  # a driver that hangs holds up neither the other devices nor the daemon

restored: list[Outcome] = []
"""The entries that were restored, for the log of the daemon."""


def restore_left_behind() -> None:
    """Restore all entries that nobody else would restore. Never raises: the daemon tries again what has failed.

    Entries of a daemon that runs are not touched: it restores them itself. Each device has a thread of its own: one
    whose driver hangs is restored as soon as that answers.
    """
    if os.geteuid() != 0:  # it may not call the driver, and changes GPUs by commands
        return
    gc.disable()  # to look for garbage while modules are loaded adds a tenth to the time
    try:
        _restore()
    except Exception:  # such as a folder that cannot be used
        return
    finally:
        gc.enable()


def _restore() -> None:
    from functools import partial

    from zeus_core.settings.ledger import Ledger, own_folder
    from zeus_core.settings.restoring import BareGpus, restore_device

    restore = partial(restore_device, BareGpus().gpu)
    ledger = Ledger(own_folder(os.environ))
    ends = []
    for device_uuid in {entry.device_uuid for entry in ledger.entries()}:
        ends.append(end := _thread.allocate_lock())  # `threading` takes longer to load than all this takes
        end.acquire()
        _thread.start_new_thread(_restore_device, (ledger, restore, device_uuid, end))
    until = time.monotonic() + _WAIT_SECONDS
    for end in ends:
        end.acquire(timeout=max(0.0, until - time.monotonic()))


def _restore_device(
    ledger: Ledger, restore: Callable[[LedgerEntry], Outcome], device_uuid: str, end: _thread.LockType
) -> None:
    try:
        outcomes = ledger.restore_all(restore, lambda entry: entry.is_of(device_uuid) and ledger.is_stale(entry))
        restored.extend(outcome for outcome in outcomes if outcome.is_done)
    finally:
        end.release()
