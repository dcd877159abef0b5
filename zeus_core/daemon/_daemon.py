"""The start and the end of the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from zeus_core.daemon._audit import AuditLog, note_end
from zeus_core.daemon._commanded_gpu import CommandedGpu
from zeus_core.daemon._connection import Entrance
from zeus_core.daemon._desk import Desk, Registers
from zeus_core.daemon._policy import Policy
from zeus_core.daemon._policy_file import DEFAULT_GROUP, check_programs, check_trusted, read_policy
from zeus_core.daemon._server import Server
from zeus_core.daemon._systemd import DriverCalls, Watchdog, WatchedGpu, WatchedLedger, notify_systemd
from zeus_core.daemon._worker import end_after_defect
from zeus_core.device import Gpu, discover_gpus
from zeus_core.device.gpu import SIMULATED_GPUS_VARIABLE, SilentGpu
from zeus_core.device.rapl import POWERCAP_ROOT
from zeus_core.device.remote.protocol import DEFAULT_SOCKET
from zeus_core.errors import DeviceError, UsageError, ZeusError
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.entry_files import UnreadableEntry
from zeus_core.settings.ledger import Ledger, own_ledger
from zeus_core.settings.restoring import RestoreOutcome, restore_entry

_logger = logging.getLogger(__name__)

_MAX_SOCKET_PATH_BYTES = 107  # sockaddr_un holds 108 with the zero at the end
_BACKLOG = 128
_END_SECONDS = 10.0  # for restoring at the end; systemd waits 15 s, see the unit in docs/daemon.md


@dataclass(frozen=True)
class DaemonSettings:
    """The settings of the daemon.

    Attributes:
        socket: The path of its socket.
        policy: The TOML file; None for the default policy.
        audit: The audit log; None for standard output.
        powercap_root: Where the energy counters of CPUs are.
        simulated: The simulated GPUs to serve, as `ZEUS_SIMULATED_GPUS` names them; empty for those of the machine.
    """

    socket: Path
    policy: Path | None = None
    audit: Path | None = None
    powercap_root: Path = POWERCAP_ROOT
    simulated: str = ""


def run_daemon(settings: DaemonSettings, restored: Iterable[RestoreOutcome] = ()) -> None:
    """Run until SIGTERM or SIGINT, after which everything is restored.

    Args:
        settings: Its settings.
        restored: The outcomes of `restore_first`, which are logged.

    Raises:
        UsageError: A setting is wrong; the message says what would be right.
        ZeusError: The daemon cannot start.
    """
    try:
        policy = read_policy(settings.policy)
        check_programs(policy.commands)
        ledger = Ledger(str(settings.socket.parent)) if settings.simulated else own_ledger()
        audit = AuditLog(settings.audit)
        with _only_one(ledger):
            gpus = _open_gpus(policy, settings.simulated)
            _warn_of_unknown(policy, gpus)
            _restore_left_behind(ledger, gpus, audit, restored)
            listener = _listen(settings.socket, policy.group)
            try:
                asyncio.run(_serve(listener, policy, gpus, Registers(ledger, audit), settings))
            finally:
                listener.close()
                settings.socket.unlink(missing_ok=True)
    except OSError as error:
        fault = f"{error.filename}: {error.strerror}" if error.filename else f"{error}"
        places = "by --socket, --policy and --audit"
        remedy = f"start it as root, or name places that it may use {places}"
        if isinstance(error, FileNotFoundError):
            remedy = f"make it or its folder, or name other places {places}"
        raise ZeusError(f"the daemon cannot start: {fault}; {remedy}") from error


async def _serve(
    listener: socket.socket, policy: Policy, gpus: dict[str, Gpu], registers: Registers, settings: DaemonSettings
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(end_after_defect)
    calls = DriverCalls()
    registers = Registers(WatchedLedger(registers.ledger.folder, calls), registers.audit)
    desks = {uuid: Desk(cast(Gpu, WatchedGpu(gpu, calls)), policy, registers) for uuid, gpu in gpus.items()}
    server = Server(policy, registers.audit, desks, settings.powercap_root, settings.simulated)
    accepting = asyncio.create_task(Entrance(listener, policy, server).accept())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, accepting.cancel)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    registers.audit.note("started", {"pid": os.getpid(), "devices": list(desks)})
    _logger.info("%d GPU(s) at %s, for %s", len(desks), settings.socket, _who(policy))
    notify_systemd("READY=1")
    Watchdog(server.workers.values(), calls).start()
    with contextlib.suppress(asyncio.CancelledError):
        await accepting
    notify_systemd("STOPPING=1")
    for uuid in await server.restore(_END_SECONDS):
        _logger.error("%s does not answer: what is to be restored there is kept in %s", uuid, registers.ledger.folder)
    registers.audit.note("stopped", {"pid": os.getpid()})


@contextlib.contextmanager
def _only_one(ledger: Ledger) -> Iterator[None]:
    """Keep a second daemon from starting: it would take the first one's leases for stale."""
    path = f"{ledger.folder}/daemon.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 20).decode(errors="replace").strip()
            raise UsageError(f"a zeus-core daemon is running already, as process {pid}") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _open_gpus(policy: Policy, simulated: str) -> dict[str, Gpu]:
    """Open all GPUs of the machine. Without a driver there are none: the energy of CPUs is read all the same."""
    gpus: dict[str, Gpu] = {}
    if simulated:
        return {gpu.uuid: gpu for gpu in discover_gpus({SIMULATED_GPUS_VARIABLE: simulated})}
    try:
        found = discover_gpus({})
    except DeviceError as error:
        _logger.warning("no GPU: %s", error)
        return gpus
    for index, gpu in enumerate(found):
        if isinstance(gpu, SilentGpu):
            _logger.warning("GPU %d is left out: %s", index, gpu.fault)
        elif policy.commands:
            gpus[gpu.uuid] = cast(Gpu, CommandedGpu(gpu, policy.commands, policy.failure_pattern))  # passes on the rest
        else:
            gpus[gpu.uuid] = gpu
    return gpus


def _warn_of_unknown(policy: Policy, gpus: dict[str, Gpu]) -> None:
    for uuid in sorted({uuid for rule in policy.rules for uuid in rule.devices or ()} - gpus.keys()):
        _logger.warning(
            "the policy has a rule for %s, which is not here; here is %s", uuid, ", ".join(gpus) or "no GPU"
        )


def _restore_left_behind(
    ledger: Ledger, gpus: dict[str, Gpu], audit: AuditLog, restored: Iterable[RestoreOutcome]
) -> None:
    """Restore what is left, and report that with what was restored before. A failure is recorded and reported."""

    def restore(entry: LedgerEntry) -> RestoreOutcome:
        gpu = gpus.get(entry.device_uuid)
        if gpu is None:
            return RestoreOutcome(entry.failed("the GPU is not there"), "failed")
        return restore_entry(gpu, entry)

    for entry in ledger.read():
        if isinstance(entry, UnreadableEntry):
            _logger.error("%s is left alone, as it cannot be read: %s", entry.path, entry.reason)
    for outcome in (*restored, *ledger.restore_stale(restore)):
        _logger.warning("left behind by %s: %s", outcome.entry.holder, outcome)
        note_end(audit, outcome, "left behind")


def _listen(path: Path, group: int | None) -> socket.socket:
    """Make the socket. At no time is it open to others than its group.

    Raises:
        UsageError: The path cannot be that of a socket.
        OSError: It cannot be made.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH_BYTES:
        raise UsageError(f"--socket is {path}: a socket's path has {_MAX_SOCKET_PATH_BYTES} bytes at most")
    if os.fspath(path) == DEFAULT_SOCKET:
        path.parent.mkdir(mode=0o755, exist_ok=True)  # where neither systemd nor tmpfiles.d has made it
    if not path.parent.is_dir():
        raise UsageError(f"--socket is {path}, and there is no folder {path.parent}: make it, or use tmpfiles.d")
    check_trusted(path.parent, path.parent.stat())
    if path.is_symlink() or (path.exists() and not stat.S_ISSOCK(path.lstat().st_mode)):
        raise UsageError(f"--socket is {path}, which is something else than a socket: choose another path")
    path.unlink(missing_ok=True)  # of a daemon that ended without removing it: there is no other, see `_only_one`
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    finally:
        os.umask(before)
    if group is not None:
        os.chown(path, -1, group)
        path.chmod(0o660)
    listener.listen(_BACKLOG)
    return listener


def _who(policy: Policy) -> str:
    if policy.group is None:
        return f"root only: there is no group {DEFAULT_GROUP} (make it: sudo groupadd --system {DEFAULT_GROUP})"
    return f"members of group {policy.group}"
