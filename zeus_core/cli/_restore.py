"""`zeus-core restore`: restore the GPUs that processes have changed, such as in the prologue of a batch system."""

from __future__ import annotations

import argparse
import sys
import threading
import time

from zeus_core.cli._text import complain, write

__all__ = ["SUMMARY", "add_arguments", "execute"]

SUMMARY = "Restore the GPUs that processes of zeus-core have changed"

# For all drivers together. One that hangs must not keep a prologue from ending; Slurm waits for it at least a minute.
_PATIENCE_SECONDS = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--stale", action="store_true", help="only those whose process has ended; the others are in use, and stay"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Restore them, and say what became of each. The exit code is 1 if one could not be restored."""
    from zeus_core.leases._bare_gpu import BareNvml
    from zeus_core.leases._keeper import Keeper
    from zeus_core.leases._ledger import known_ledgers
    from zeus_core.leases._restoring import Outcome

    outcomes: list[Outcome] = []
    threads: list[threading.Thread] = []
    hanging: dict[threading.Thread, str] = {}
    nvml = BareNvml()
    for ledger in known_ledgers():
        keeper = Keeper(nvml.gpu, ledger)
        for entry in ledger.entries():
            if entry.is_stale() or not arguments.stale:
                due = threading.Thread(
                    target=lambda keeper=keeper, entry=entry: outcomes.append(keeper.restore(entry)), daemon=True
                )
                hanging[due] = f"{entry.words} (`{entry.command}`) is not restored: the driver does not answer"
                threads.append(due)
                due.start()
    until = time.monotonic() + _PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    for outcome in outcomes:
        write(f"{outcome}. It was changed by {outcome.entry.holder}", sys.stdout)
    late = [words for thread, words in hanging.items() if thread.is_alive()]
    for words in late:
        complain(f"zeus-core: {words}")
    if not threads:
        write("Nothing is to be restored.", sys.stdout)
    return 1 if late or not all(outcome.is_done for outcome in outcomes) else 0
