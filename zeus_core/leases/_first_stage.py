"""The first stage of the daemon: restores what a killed one has left, before anything else is loaded.

Until then its clients' limits and clocks stay in force, and nobody else may restore them.
"""

from __future__ import annotations

import gc
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from zeus_core.leases._restoring import Outcome

__all__ = ["restore_left_behind", "restored"]

restored: list[Outcome] = []
"""The entries that were restored, for the log of the daemon."""


def restore_left_behind() -> None:
    """Restore all entries that nobody else would restore. Never raises: the daemon tries again what has failed.

    Entries of a daemon that runs are not touched: it restores them itself.
    """
    if os.geteuid() != 0:  # it may not call the driver, and changes GPUs by commands
        return
    gc.disable()  # to look for garbage while modules are loaded adds a tenth to the time
    try:
        _restore()
    except OSError:  # the folder cannot be used
        return
    finally:
        gc.enable()


def _restore() -> None:
    from functools import partial

    from zeus_core.leases._bare_gpu import BareNvml
    from zeus_core.leases._ledger import Ledger
    from zeus_core.leases._ledger_folder import own_folder
    from zeus_core.leases._restoring import restore_device

    outcomes = Ledger(own_folder(os.environ)).restore_stale(partial(restore_device, BareNvml().gpu))
    restored.extend(outcome for outcome in outcomes if outcome.is_done)
