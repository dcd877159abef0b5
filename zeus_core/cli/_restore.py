"""`zeus-core restore`: restore the GPUs that processes have changed, such as in the prologue of a batch system."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from zeus_core.cli.text import complain, write

if TYPE_CHECKING:
    from zeus_core.settings.entry import LedgerEntry
    from zeus_core.settings.keeper import Keeper
    from zeus_core.settings.restoring import RestoreOutcome

BY_ROOT = "sudo zeus-core restore --stale"
"""The command with which an administrator restores what processes have left."""

PLACE = "For a machine or a cluster", 42
SUMMARY = "Restore the GPUs that processes of zeus-core have changed"
EXAMPLE = BY_ROOT

# For all drivers together. One that hangs must not keep a prologue from ending; Slurm waits for it at least a minute.
_PATIENCE_SECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--stale", action="store_true", help="only those whose process has ended; the others are in use, and stay"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Restore them, and say what became of each. The exit code is 1 if one could not be restored, or not be read."""
    from zeus_core.settings.entry_files import UnreadableEntry
    from zeus_core.settings.keeper import Keeper
    from zeus_core.settings.ledger import known_ledgers
    from zeus_core.settings.restoring import GpusByUuid

    gpus = GpusByUuid()
    outcomes: list[tuple[RestoreOutcome, bool]] = []
    hanging: dict[threading.Thread, str] = {}
    unreadable: list[UnreadableEntry] = []

    def restore(keeper: Keeper, entry: LedgerEntry, is_stale: bool) -> None:
        outcomes.append((keeper.restore(entry), is_stale))

    for ledger in known_ledgers():
        keeper = Keeper(gpus.gpu, ledger)
        for entry in ledger.read():
            if isinstance(entry, UnreadableEntry):
                unreadable.append(entry)
            elif (is_stale := ledger.is_stale(entry)) or not arguments.stale:
                due = threading.Thread(target=restore, args=(keeper, entry, is_stale), daemon=True)
                hanging[due] = f"{entry.words} (`{entry.command}`) is not restored: the driver does not answer"
                due.start()
    until = time.monotonic() + _PATIENCE_SECONDS
    for thread in hanging:
        thread.join(max(0.0, until - time.monotonic()))
    for outcome, is_stale in outcomes:
        write(_told(outcome, is_stale), sys.stdout)
    faults = [words for thread, words in hanging.items() if thread.is_alive()] + list(map(str, unreadable))
    for words in faults:
        complain(f"zeus-core: {words}")
    if not (hanging or unreadable):
        write("Nothing is to be restored.", sys.stdout)
    return 1 if faults or not all(outcome.is_done for outcome, _ in outcomes) else 0


def _told(outcome: RestoreOutcome, is_stale: bool) -> str:
    """Return the words about an outcome, and what an administrator can do where this user may not."""
    entry, holder = outcome.entry, f"It was changed by {outcome.entry.holder}"
    is_ours = entry.keeper is None and entry.uid == os.geteuid()
    if outcome.is_done or is_ours or os.geteuid() == 0:
        return f"{outcome}. {holder}"
    if is_stale:
        return f"{outcome}. {holder}; an administrator restores it by `{BY_ROOT}`, or by starting the daemon"
    return f"{entry.words} is restored when process {entry.owner.pid} ends. {holder}"
