"""The desk of one device: the only place where it is changed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from zeus_core._identity import ProcessIdentity
from zeus_core.daemon._audit import AuditLog, describe, note_end
from zeus_core.daemon._peer import Client
from zeus_core.daemon._policy import Allowance, NotAllowedError, Policy
from zeus_core.device import Gpu
from zeus_core.device.remote.protocol import Request, encode_result
from zeus_core.errors import (
    DeviceError,
    DeviceHeldError,
    DriverFaultError,
    PermissionDeniedError,
    ZeusError,
)
from zeus_core.kinds import KINDS, Kind
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.holders import check_board_sharing
from zeus_core.settings.keeper import Keeper
from zeus_core.settings.ledger import Ledger
from zeus_core.settings.restoring import Claim, RestoreOutcome, read_surely, who_set


@dataclass(frozen=True)
class Registers:
    """Where the daemon writes down what it does.

    Attributes:
        ledger: Each change that is to be undone.
        audit: All that has happened.
    """

    ledger: Ledger
    audit: AuditLog


class _Lease(Claim):
    """The right of a client to change one setting of the device, by one of its connections.

    Args:
        client: The client.
        entry: The entry in the ledger.
        allowance: The values that the client may set.
        ledger: Where the entry is.
    """

    def __init__(self, client: Client, entry: LedgerEntry, allowance: Allowance, ledger: Ledger) -> None:
        super().__init__(entry)
        self.client, self.allowance = client, allowance
        self.words = {**describe(entry), "connection": client.connection}
        """The words that all lines of the audit log about it have in common."""
        self._ledger = ledger

    def record(self, entry: LedgerEntry) -> None:
        """Write an entry into the ledger, if it is new. Raises `DriverFaultError`."""
        if entry is self.entry:
            return
        try:
            self._ledger.note_values(entry)
        except OSError as error:
            raise _ledger_fault(error) from error
        self.entry = entry


class Desk:
    """Serves the requests for one device: all methods but `held` are for the thread of its `Worker` alone.

    A call that takes longer than its client waits keeps the lease and its entry in the ledger until it returns. The end
    of the client waits behind it, and then restores the original.

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
        self._leases: dict[Kind, _Lease] = {}
        self._accepted: dict[Kind, Sequence[float]] = {}  # read once a lease: ranges may move between two

    def answer(self, client: Client, request: Request) -> bytes:
        """Serve a request about the device, and return the reply. Raises `ZeusError`."""
        number, operation, fields = request
        kind = KINDS[fields["knob"]]
        if operation == "set":
            enforced = self._set(client, kind, float(fields["value"]))
            return encode_result(number, {} if enforced is None else {"enforced": enforced})
        if operation == "allowed":
            return encode_result(number, self._describe_allowance(client, kind))
        return encode_result(number, self._restore(client, kind, is_final=operation == "release"))

    def end(self, client: Client, why: str) -> None:
        """Restore what a client has changed by its connection, which has ended."""
        for lease in [lease for lease in self._leases.values() if lease.client is client]:
            self._end_lease(lease, why)

    def end_all(self) -> None:
        """Restore everything."""
        for lease in list(self._leases.values()):
            self._end_lease(lease, "the daemon ends")

    def retry(self) -> None:
        """Try again to restore what could not be restored."""
        for name, kind in KINDS.items():
            entry = None if kind in self._leases else self._ledger.find((self._gpu.uuid, name))
            if entry is not None and entry.failure is not None and entry.keeper == self._this_process:
                outcome = self._keeper.restore(entry)
                if outcome.is_done:
                    note_end(self._audit, outcome, "a later try")

    def held(self) -> list[tuple[LedgerEntry, float | None]]:
        """Return what is held now, each with the value that was set last; from any thread."""
        return [(lease.entry, next(iter(lease.in_force), None)) for lease in list(self._leases.values())]

    def _describe_allowance(self, client: Client, kind: Kind) -> dict[str, Any]:
        lease = self._leases.get(kind)
        original = self._read_original(kind) if lease is None else lease.entry.original
        lowest, highest = self._policy.allowance(client.peer, self._gpu.uuid, kind, original)
        accepted = self._read_accepted(kind)
        return {"lowest": max(lowest, min(accepted)), "highest": min(highest, max(accepted)), "original": original}

    def _read_accepted(self, kind: Kind) -> Sequence[float]:
        if kind not in self._accepted:
            self._accepted[kind] = kind.read_accepted(self._gpu)
        return self._accepted[kind]

    def _read_original(self, kind: Kind) -> float | None:
        """Return the value before any change; where the driver does not report it, the one that the policy names."""
        return kind.read(self._gpu) if kind.is_readable else self._policy.originals.get(kind)

    def _set(self, client: Client, kind: Kind, value: float) -> float | None:
        """Change a setting, and return the value that is enforced, if the board reports it."""
        lease = self._leases.get(kind)
        if lease is None or lease.client is not client:
            lease = self._claim(client, kind)
        try:
            self._check(lease, value)
            before = self._check_still_ours(lease)
            self._audit.write("set", {**lease.words, "old": before, "new": value})
        except ZeusError:
            self._forget_unused(lease)
            raise
        try:
            lease.record(lease.entry.changing_to(value, lease.in_force))
            lease.in_force = (*lease.in_force, value)  # either, until the change is over
            kind.set(self._gpu, value)
            lease.read_back(self._gpu, value)
        except ZeusError as error:
            self._audit.note("failed", {**lease.words, "new": value, "because": str(error)})
            self._forget_unused(lease)
            raise
        return kind.read_enforced(self._gpu)

    def _claim(self, client: Client, kind: Kind) -> _Lease:
        """Give a client the right to change a setting, unless another has it."""
        gpu, peer = self._gpu, client.peer
        self._accepted.pop(kind, None)
        rule = self._policy.find_rule(peer, gpu.uuid, kind)  # before anything is read or written for this process
        for lease in list(self._leases.values()):
            if not lease.client.identity.is_alive():  # and the end of its connection waits behind this request
                self._end_lease(lease, "the process ended")
            elif lease.entry.kind == kind or lease.client != client:
                raise DeviceHeldError(f"{gpu.name} ({gpu.uuid}) is controlled by {lease.entry.holder}")
        self._restore_stale()
        try:
            check_board_sharing(gpu, client.identity.pid, rule.may_slow_other_instances)
        except PermissionDeniedError as error:
            raise NotAllowedError(str(error)) from error
        entry = replace(
            LedgerEntry.of_this_process(gpu.uuid, gpu.name, kind, self._read_original(kind), gpu.driver),
            owner=client.identity,
            owner_token=client.token,
            keeper=self._this_process,
            uid=client.uid,
            program=client.program,
            job=client.job,
        )
        try:
            entry = self._ledger.claim(entry, self._keeper.restore_device)
        except OSError as error:
            raise _ledger_fault(error) from error
        allowance = self._policy.allowance(peer, gpu.uuid, kind, entry.original)
        lease = self._leases[kind] = _Lease(client, entry, allowance, self._ledger)
        return lease

    def _check(self, lease: _Lease, value: float) -> None:
        """Raise an error for a value that the board does not accept, or that the client may not set."""
        kind, name = lease.entry.kind, self._gpu.name
        kind.check_accepted(value, self._read_accepted(kind), name)
        lowest, highest = lease.allowance
        if not lowest <= value <= highest:
            raise NotAllowedError(
                f"{kind.text(value)} is not allowed to user {lease.client.uid} on {name}: {lowest:g} to "
                f"{kind.text(highest)} are"
            )

    def _check_still_ours(self, lease: _Lease) -> float | None:
        """Return the value in force, if it can be read; raise `DeviceHeldError` if somebody else has set it."""
        kind, originals = lease.entry.kind, (lease.entry.original,)
        if not kind.is_readable:
            return (lease.in_force or originals)[-1]
        try:
            found = read_surely(
                lambda: kind.read(self._gpu), lambda value: value is None or lease.has(value, originals)
            )
        except DeviceError:
            return None
        if found is not None and not lease.has(found, originals):
            who = who_set(self._gpu, found, lease.entry)
            raise DeviceHeldError(f"{who} has set {kind.text(found)} on {self._gpu.name}, which stays")
        return found

    def _restore(self, client: Client, kind: Kind, *, is_final: bool) -> dict[str, Any]:
        """Restore the original, for good or until the next change, and return the outcome.

        Nothing happens where nothing was changed.
        """
        lease = self._leases.get(kind)
        if lease is None or lease.client is not client:
            return {"outcome": "original"}
        if is_final:
            outcome = self._end_lease(lease, "released")
            return {"outcome": outcome.kind} | ({} if outcome.instead is None else {"instead": outcome.instead})
        outcome = self._keeper.restore_device(lease.entry)
        restored = {"new": lease.entry.original, "outcome": outcome.kind, "why": "paused"}
        self._audit.note("restored", {**lease.words, **restored})
        if not outcome.is_done:
            raise DriverFaultError(str(outcome))
        if outcome.kind != "replaced" and lease.entry.original is not None:
            lease.read_back(self._gpu, lease.entry.original)
        return {"outcome": outcome.kind}

    def _end_lease(self, lease: _Lease, why: str) -> RestoreOutcome:
        entry = lease.entry
        del self._leases[entry.kind]
        outcome = self._keeper.restore(entry)
        note_end(self._audit, outcome, why, connection=lease.client.connection)
        return outcome

    def _forget_unused(self, lease: _Lease) -> None:
        """Undo a claim after which nothing was changed."""
        if not lease.entry.values:
            del self._leases[lease.entry.kind]
            with contextlib.suppress(OSError):
                self._ledger.close(lease.entry)

    def _restore_stale(self) -> None:
        """Restore what an ended process has left, which is not the original. A claim reports failures."""
        for name in KINDS:
            entry = self._ledger.find((self._gpu.uuid, name))
            if entry is not None and self._ledger.is_stale(entry):
                note_end(self._audit, self._keeper.restore(entry), "left behind")


def _ledger_fault(error: OSError) -> DriverFaultError:
    return DriverFaultError(f"the daemon's ledger cannot be written, and it changes nothing: {error}")
