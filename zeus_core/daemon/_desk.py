"""The desk of one device: the only place where it is changed."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from typing import Any, cast

from zeus_core.daemon._audit import AuditLog, describe, note_end
from zeus_core.daemon._board import Board
from zeus_core.daemon._connection import Client, Connection
from zeus_core.daemon._policy import Allowance, NotAllowedError, Policy
from zeus_core.device import Gpu
from zeus_core.device.remote._protocol import (
    KNOBS,
    POWER_LIMIT,
    Request,
    encode_changed,
    encode_members,
    encode_number,
    encode_result,
)
from zeus_core.errors import (
    DeviceError,
    DeviceHeldError,
    DriverFaultError,
    PermissionDeniedError,
    ZeusError,
)
from zeus_core.leases._board_sharing import check_board_sharing
from zeus_core.leases._entry import KnobName, LedgerEntry
from zeus_core.leases._keeper import Keeper
from zeus_core.leases._ledger import Ledger
from zeus_core.leases._process_identity import ProcessIdentity
from zeus_core.leases._restoring import is_any_limit, is_ours, who_set

__all__ = ["Desk", "Registers"]


@dataclass(frozen=True)
class Registers:
    """Where the daemon writes down what it does.

    Attributes:
        ledger: Each change that is to be undone.
        audit: All that has happened.
    """

    ledger: Ledger
    audit: AuditLog


@dataclass
class _Lease:
    """The right of one connection to change one knob of the device, and what is in the ledger about it.

    The words are what all lines of the audit log about it have in common.
    """

    connection: Connection
    client: Client
    entry: LedgerEntry
    allowance: Allowance
    words: str
    in_force: tuple[float, ...] = ()  # ours now: the value set last, what the board shows for it


class Desk:
    """Serves the requests for one device, in one thread: all methods but `held` are for that thread alone.

    Args:
        gpu: The device.
        policy: The rights of users.
        registers: Where changes are written down.
    """

    def __init__(self, gpu: Gpu, policy: Policy, registers: Registers) -> None:
        self._gpu = gpu
        self._policy = policy
        self._ledger, self._audit = registers.ledger, registers.audit
        self._keeper = Keeper(lambda uuid: gpu, registers.ledger)
        self._this_process = ProcessIdentity.current()
        self._leases: dict[KnobName, _Lease] = {}
        self._board = Board(gpu, policy.original_sm_clock_mhz)

    def answer(self, connection: Connection, client: Client, request: Request) -> bytes:
        """Serve a request about the device, and return the reply. Raises `ZeusError`."""
        number, operation, fields = request
        knob: KnobName = fields["knob"]
        if operation == "set":
            return encode_changed(number, self._set(connection, client, knob, float(fields["value"])))
        if operation == "allowed":
            return encode_result(number, self._describe_allowance(connection, knob))
        outcome = self._restore(connection, knob, is_final=operation == "release")
        return encode_result(number, {"outcome": outcome})

    def end(self, connection: Connection, why: str) -> None:
        """Restore what a connection has changed."""
        for lease in [lease for lease in self._leases.values() if lease.connection is connection]:
            self._end_lease(lease, why)

    def end_all(self) -> None:
        """Restore everything."""
        for lease in list(self._leases.values()):
            self._end_lease(lease, "the daemon ends")

    def retry(self) -> None:
        """Try again to restore what could not be restored."""
        for knob in KNOBS:
            entry = None if knob in self._leases else self._ledger.find((self._gpu.uuid, cast("KnobName", knob)))
            if entry is not None and entry.failure is not None and entry.keeper == self._this_process:
                outcome = self._keeper.restore(entry)
                if outcome.is_done:
                    note_end(self._audit, outcome, "a later try")

    def held(self) -> list[tuple[LedgerEntry, float | None]]:
        """Return what is held now, each with the value that was set last; from any thread."""
        return [(lease.entry, next(iter(lease.in_force), None)) for lease in list(self._leases.values())]

    def _describe_allowance(self, connection: Connection, knob: KnobName) -> dict[str, Any]:
        lease = self._leases.get(knob)
        original = self._board.read_original(knob) if lease is None else lease.entry.original
        lowest, highest = self._policy.allowance(connection.peer, self._gpu.uuid, knob, original)
        board_lowest, board_highest = self._board.bounds(knob)
        return {"lowest": max(lowest, board_lowest), "highest": min(highest, board_highest), "original": original}

    def _set(self, connection: Connection, client: Client, knob: KnobName, value: float) -> float | None:
        """Change a knob, and return the limit that is enforced, if the board reports it."""
        lease = self._leases.get(knob)
        if lease is None or lease.connection is not connection:
            lease = self._claim(connection, client, knob)
        try:
            self._check(lease, value)
            before = self._check_still_ours(lease)
            self._audit.write("set", f'{lease.words},"old":{encode_number(before)},"new":{encode_number(value)}')
        except ZeusError:
            self._forget_unused(lease)
            raise
        try:
            self._write_down(lease, lease.entry.changing_to(value, lease.in_force))
            lease.in_force = (*lease.in_force, value)  # either, until the change is over
            self._board.set(knob, value)
            self._read_back(lease, value)
        except ZeusError as error:
            self._audit.note("failed", f"{lease.words},{encode_members({'new': value, 'because': str(error)})}")
            self._forget_unused(lease)
            raise
        return self._board.read_enforced(knob)

    def _claim(self, connection: Connection, client: Client, knob: KnobName) -> _Lease:
        """Give a connection the right to change a knob, unless another has it."""
        gpu, peer = self._gpu, connection.peer
        rule = self._policy.find_rule(peer, gpu.uuid, knob)  # before anything is read or written for this process
        for lease in list(self._leases.values()):
            if not lease.client.identity.is_alive():  # and the end of its connection waits behind this request
                self._end_lease(lease, "the process ended")
            elif lease.entry.knob == knob or lease.client != client:
                raise DeviceHeldError(f"{gpu.name} ({gpu.uuid}) is controlled by {lease.entry.holder}")
        self._restore_stale()
        try:
            check_board_sharing(gpu, client.identity.pid, rule.may_slow_other_instances)
        except PermissionDeniedError as error:
            raise NotAllowedError(str(error)) from error
        entry = LedgerEntry(
            device_uuid=gpu.uuid,
            device_name=gpu.name,
            knob=knob,
            original=self._board.read_original(knob),
            values=(),
            owner=client.identity,
            owner_token=client.token,
            keeper=self._this_process,
            uid=client.uid,
            program=client.program,
            job=client.job,
            host=os.uname().nodename,
            since_seconds=time.time(),
        )
        try:
            entry = self._ledger.claim(entry, self._keeper.restore_device)
        except OSError as error:
            raise _ledger_fault(error) from error
        allowance = self._policy.allowance(peer, gpu.uuid, knob, entry.original)
        words = encode_members({**describe(entry), "connection": connection.number})
        lease = self._leases[knob] = _Lease(connection, client, entry, allowance, words)
        return lease

    def _check(self, lease: _Lease, value: float) -> None:
        """Raise an error for a value that the board does not accept, or that the client may not set."""
        knob = lease.entry.knob
        self._board.check(knob, value)
        lowest, highest = lease.allowance
        if not lowest <= value <= highest:
            unit = "W" if knob == POWER_LIMIT else "MHz"
            raise NotAllowedError(
                f"{value:g} {unit} is not allowed to user {lease.client.uid} on {self._gpu.name}: {lowest:g} to "
                f"{highest:g} {unit} are"
            )

    def _check_still_ours(self, lease: _Lease) -> float | None:
        """Return the value in force, if it can be read; raise `DeviceHeldError` if somebody else has set it."""
        entry, ours = lease.entry, lease.in_force or (lease.entry.original,)
        if entry.knob != POWER_LIMIT:
            return ours[-1]
        try:
            found_watts = self._gpu.read_power_limit_watts()
        except DeviceError:
            return None
        if is_any_limit(found_watts, ours) or (lease.in_force and entry.is_changing and is_ours(found_watts, entry)):
            return found_watts
        who = who_set(self._gpu, found_watts, entry)
        raise DeviceHeldError(f"{who} has set {found_watts:g} W on {self._gpu.name}, which stays")

    def _read_back(self, lease: _Lease, value: float) -> None:
        """Note what the board shows for a value that was set. It stays unknown if the driver does not tell."""
        try:
            shown = self._gpu.read_power_limit_watts() if lease.entry.knob == POWER_LIMIT else None
        except DeviceError:
            return
        lease.in_force = (value,) if shown is None else (value, shown)
        self._write_down(lease, lease.entry.showing(shown))

    def _write_down(self, lease: _Lease, entry: LedgerEntry) -> None:
        if entry is lease.entry:
            return
        try:
            self._ledger.note_values(entry)
        except OSError as error:
            raise _ledger_fault(error) from error
        lease.entry = entry

    def _restore(self, connection: Connection, knob: KnobName, *, is_final: bool) -> str:
        """Restore the original, for good or until the next change. Nothing happens where nothing was changed."""
        lease = self._leases.get(knob)
        if lease is None or lease.connection is not connection:
            return "original"
        if is_final:
            return self._end_lease(lease, "released")
        outcome = self._keeper.restore_device(lease.entry)
        restored = encode_members({"new": lease.entry.original, "outcome": outcome.kind, "why": "paused"})
        self._audit.note("restored", f"{lease.words},{restored}")
        if not outcome.is_done:
            raise DriverFaultError(str(outcome))
        if outcome.kind != "replaced" and lease.entry.original is not None:
            self._read_back(lease, lease.entry.original)
        return outcome.kind

    def _end_lease(self, lease: _Lease, why: str) -> str:
        entry = lease.entry
        del self._leases[entry.knob]
        outcome = self._keeper.restore(entry)
        note_end(self._audit, outcome, why, connection=lease.connection.number)
        return outcome.kind

    def _forget_unused(self, lease: _Lease) -> None:
        """Undo a claim after which nothing was changed."""
        if not lease.entry.values:
            del self._leases[lease.entry.knob]
            with contextlib.suppress(OSError):
                self._ledger.close(lease.entry)

    def _restore_stale(self) -> None:
        """Restore what an ended process has left, which is not the original. A claim reports failures."""
        for knob in KNOBS:
            entry = self._ledger.find((self._gpu.uuid, cast("KnobName", knob)))
            if entry is not None and entry.is_stale():
                note_end(self._audit, self._keeper.restore(entry), "left behind")


def _ledger_fault(error: OSError) -> DriverFaultError:
    return DriverFaultError(f"the daemon's ledger cannot be written, and it changes nothing: {error}")
