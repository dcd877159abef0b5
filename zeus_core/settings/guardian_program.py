"""The program of the guardian: waits for the end of one process, and restores what it has changed.

It imports Python's own modules, this package's devices and the binding, before it says that it is ready: each training
process has one, and restoring waits for no import.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time

from zeus_core._identity import ProcessIdentity
from zeus_core.errors import DeviceError, UsageError
from zeus_core.settings.entry import LedgerEntry, LedgerKey
from zeus_core.settings.keeper import Keeper
from zeus_core.settings.ledger import Ledger
from zeus_core.settings.restoring import GpusByUuid, RestoreOutcome

# After four tries within 0.2 s: a driver that restarts is back in seconds. Later the next start restores.
_WAITS_SECONDS = (1.0, 4.0, 15.0)
# Where memory is short the kernel ends other processes, and not this one, which takes 19 MB, when it ends a whole job
# (memory.oom.group of cgroups, which Kubernetes sets). Only a process with CAP_SYS_RESOURCE may say so.
_OOM_SCORE = "-1000"
_MAX_MESSAGE_BYTES = 64 * 1024


def main(descriptor: int, owner_pid: int, owner_start_ticks: int) -> None:
    """Guard a process until it ends, or has restored everything itself. The caller has seen to the signals of jobs.

    Args:
        descriptor: The socket to it.
        owner_pid: The process.
        owner_start_ticks: When it began.
    """
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE)
    gpus = GpusByUuid()
    keeper, held = Keeper(gpus.gpu, None), dict[LedgerKey, LedgerEntry]()
    with contextlib.suppress(DeviceError, ImportError):  # it is tried again when it is needed
        gpus.open()
    with socket.socket(fileno=descriptor) as owner:
        with contextlib.suppress(OSError):  # it has ended already
            owner.send(b"!", socket.MSG_NOSIGNAL)
        _follow(owner, _open_owner(owner_pid, owner_start_ticks), keeper, held)
    _restore(keeper, list(held.values()))


def _open_owner(pid: int, start_ticks: int) -> int | None:
    """Return a descriptor that becomes readable when the owner ends; None if there is none, or it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # an old kernel, or a container that forbids it
        return None
    with contextlib.suppress(OSError):
        if ProcessIdentity.of(pid).start_ticks == start_ticks:
            return descriptor
    os.close(descriptor)  # it has ended, and its socket too: another process has its id
    return None


def _follow(
    owner: socket.socket, owner_process: int | None, keeper: Keeper, held: dict[LedgerKey, LedgerEntry]
) -> None:
    """Take messages until the owner has ended: hold the entries of what it has changed."""
    waiting = select.poll()
    waiting.register(owner, select.POLLIN)
    if owner_process is not None:
        waiting.register(owner_process, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in waiting.poll()}
        while True:
            try:
                message = owner.recv(_MAX_MESSAGE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it ended before it read that this is ready: its messages are still there
                continue
            except OSError:
                return
            if not message:
                return
            _take(message, keeper, held)
        if owner_process in ready:
            return


def _take(message: bytes, keeper: Keeper, held: dict[LedgerKey, LedgerEntry]) -> None:
    fields = json.loads(message)
    if "hold" in fields:
        with contextlib.suppress(UsageError):
            entry = LedgerEntry.from_json(fields["hold"])
            held[entry.key] = entry
        if keeper.ledger is None and fields.get("ledger") is not None:
            with contextlib.suppress(OSError):
                keeper.ledger = Ledger(fields["ledger"])
    elif "drop" in fields:
        device_uuid, knob = fields["drop"]
        held.pop((device_uuid, knob), None)


def _restore(keeper: Keeper, due: list[LedgerEntry]) -> None:
    """Restore everything, with more tries for what fails. A driver that hangs is waited for."""
    for wait_seconds in (*_WAITS_SECONDS, None):
        outcomes: list[RestoreOutcome] = []
        keeper.restore_each(due, outcomes.append)
        failed = [outcome for outcome in outcomes if not outcome.is_done]
        due = [outcome.entry for outcome in failed]
        if not due or wait_seconds is None:
            break
        time.sleep(wait_seconds)
    for outcome in outcomes:
        if outcome.kind in {"replaced", "failed"}:
            with contextlib.suppress(OSError):
                os.write(2, f"zeus-core: {outcome}\n".encode())
