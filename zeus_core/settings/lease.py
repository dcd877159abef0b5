"""The right of this process to change one setting of one GPU, and the duty to restore it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from dataclasses import replace
from functools import partial
from typing import cast

from zeus_core.device import Gpu
from zeus_core.device.remote.client import RemoteControl
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, DeviceHeldError, NotSupportedError, PermissionDeniedError, UsageError
from zeus_core.kinds import POWER_LIMIT, Kind
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.guardian import guardian
from zeus_core.settings.holders import (
    SettingKey,
    check_board_sharing,
    find_other_holder,
    holders,
    is_shared,
    setting_key,
)
from zeus_core.settings.restoring import Claim, OutcomeKind, RestoreOutcome, read_surely, restore_entry, who_set
from zeus_core.settings.safeguard import Safeguard

UNCHANGED = (PermissionDeniedError, DeviceHeldError, NotSupportedError, UsageError)
"""Errors after which the hardware is as before."""

_logger = logging.getLogger(__name__)


class Lease(Claim):
    """Changes one setting of one GPU, and restores it.

    Before the first change the original is kept where it outlives this process (`Safeguard`), unless no other process
    can reach the GPU, such as a simulated one. Before each change of a value that can be read, the one in force is
    read: if somebody else has set it, it stays, and nothing is changed any more. After it, it is read back: what the
    board shows for the value that was asked for is ours. Where this process lacks the right, the daemon changes and
    restores the GPU, if there is one.

    Changes come from one thread at a time; restoring may come from another meanwhile.

    Args:
        gpu: The GPU. Nothing is changed here.
        kind: The kind of setting.
        original: The value to restore; None for a device that is free.
    """

    def __init__(self, gpu: Gpu, kind: Kind, original: float | None) -> None:
        super().__init__(LedgerEntry.of_this_process(gpu.uuid, gpu.name, kind, original, gpu.driver))
        self._gpu = gpu
        self._kind = kind
        self.is_shared: bool = is_shared(gpu)
        """Whether other processes can reach the GPU, and its settings stay when this process ends."""
        self.key: SettingKey = setting_key(gpu, kind)
        """The GPU and the kind of setting, for the holders of this process."""
        self.original = original
        """The value to restore."""
        self._safeguard: Safeguard | None = None
        self._remote: RemoteControl | None = None  # the daemon, where this process lacks the right
        self._claimed_by: int | None = None  # process id
        self.shown: float | None = None
        """The value that the board showed for the one set last; None where it shows none, as for locked clocks."""
        self.replaced: str | None = None
        """The reason that nothing can be changed any more: somebody else controls the GPU."""
        self.outcome: RestoreOutcome | None = None
        """The outcome of the latest restoring; None before."""
        # Others learn by trying whether they have the right: most of them have not, and no guardian is to be started.
        self._starts_guardian = self.is_shared and sys.platform == "linux" and os.geteuid() == 0
        if self._starts_guardian:
            guardian.prepare_soon()
        self.is_changing: bool = False
        """Whether a change is under way, which the driver may make at any moment."""
        self.command: str = self.entry.command
        """The command that restores the original."""
        self.words: str = f"{self.entry.words} (`{self.command}`)"
        """The device, the original, and the command that restores it."""

    def prepare(self) -> None:
        """Prepare the first change, where this process makes it itself: start the guardian. The driver is not called.

        Never raises, and takes no time once it was done.
        """
        if self._starts_guardian:
            guardian.prepare()

    def set(self, value: int | float) -> None:
        """Change the hardware.

        Raises:
            DeviceHeldError: Another process controls the GPU, or somebody else has changed the value since.
            PermissionDeniedError: This process may not do it, nor may the daemon do it for this process; or another
                process computes on another MIG instance of the board.
            DeviceError: The driver refuses; or neither a ledger nor a guardian would restore the original.
        """
        if self.replaced is not None:
            raise DeviceHeldError(self.replaced)
        if self._claimed_by != os.getpid():
            self._begin()
        before, in_force = self.entry, self.in_force
        self.is_changing, self.outcome = True, None
        try:
            self.record(before.changing_to(value, in_force))
            self._claimed_by = os.getpid()
            self.check()
            self.in_force = (*self.in_force, float(value))  # either, until the change is over
            self._change(value)
            self.shown = self.read_back(self._gpu, value)
            if self.shown is not None and value == self.original:
                holders.note_shown(self.key, value, self.shown)
        except UNCHANGED:
            self.entry, self.in_force = before, in_force
            if not before.values:
                self._drop()
            raise
        finally:
            self.is_changing = False

    def set_again(self) -> float:
        """Set the last value again, after `check` has found that the daemon restored the original. Returns it.

        Raises:
            DeviceError: See `set`.
        """
        value = self.in_force[0]
        self.set(value)
        return value

    def check(self) -> bool:
        """Check that the value in force is the one that was set, as far as it can be read.

        Returns:
            False if the daemon has ended, as after a crash, and has restored the original.

        Raises:
            DeviceHeldError: Somebody else has changed it. It stays from now on.
        """
        if self.replaced is not None:
            raise DeviceHeldError(self.replaced)
        kind, entry = self._kind, self.entry
        try:
            read = partial(retried, partial(kind.read, self._gpu))
            value = read_surely(read, lambda found: found is None or self.has(found, self._originals))
        except DeviceError:
            return True
        if value is None:
            return not self._is_daemon_gone()
        if self.has(value, self._originals):
            return True
        if self._is_daemon_gone() and kind.is_any(value, self._originals):
            return False
        who = who_set(self._gpu, value, entry)
        self.outcome = RestoreOutcome(entry, "replaced", value, who)
        self.replaced = (
            f"{who} has set the {kind.words} of {self._gpu.name} ({self._gpu.uuid}) to {kind.text(value)}, in place of "
            f"{kind.text((self.in_force or self._originals)[-1])}: it stays"
        )
        if self._remote is not None:
            with contextlib.suppress(DeviceError):  # the daemon notices it too, at the latest when this process ends
                self._remote.release()
        self._drop()
        raise DeviceHeldError(self.replaced)

    def _is_daemon_gone(self) -> bool:
        return self._remote is not None and not self._remote.is_open()

    def restore_for_now(self) -> None:
        """Restore the original until the next change.

        Raises:
            DeviceError: The driver refuses.
        """
        if self._remote is None:
            self._kind.restore(self._gpu, self.original)
        else:
            self._remote.restore()

    def restore(self) -> bool:
        """Restore the original. Never raises; logs once and returns False if the driver refuses.

        A value that somebody else has set stays, with a warning.
        """
        if self._claimed_by != os.getpid():
            return True
        before, outcome = self.outcome, self._restored()
        has_failed_before = before is not None and not before.is_done
        self.outcome = outcome
        if not outcome.is_done:
            if not has_failed_before:
                _logger.error("%s", outcome)
            if self._safeguard is not None:
                self._safeguard.keep_failure(outcome)
            return False
        if outcome.kind == "replaced" or has_failed_before or outcome.instead is not None:
            _logger.warning("%s", outcome)
        if outcome.kind != "replaced":
            with contextlib.suppress(Exception):  # of any kind: it is restored
                self._note_original()
        if not self.is_changing:  # in another thread, by a driver that hangs: it is restored once more after that
            self._drop()
        return True

    def _begin(self) -> None:
        """Take this process for the owner: the first change, or the first in a forked child."""
        self.entry = LedgerEntry.of_this_process(
            self._gpu.uuid, self._gpu.name, self._kind, self.original, self._gpu.driver
        )
        self.in_force = ()
        self._remote = None
        self._safeguard = Safeguard(partial(restore_entry, self._gpu)) if self.is_shared else None
        check_board_sharing(self._gpu)
        if self._safeguard is not None and sys.platform == "linux" and os.geteuid() != 0:
            self._try_right()

    def _try_right(self) -> None:
        """Set the power limit that is in force, before anything is written down and a guardian starts.

        The right is the same for all kinds of settings, of which some cannot be read to be set again.
        """
        try:
            limit_watts = POWER_LIMIT.read(self._gpu)
            POWER_LIMIT.set(self._gpu, limit_watts)
            if self._kind.binds_power and limit_watts == self.original:
                self._note_original()
        except PermissionDeniedError:
            self._safeguard = None  # nothing is to be kept: the daemon does it, or nobody
            held = find_other_holder(self._gpu, self.entry.owner)
            if held is not None:
                raise DeviceHeldError(f"{self._gpu.name} ({self._gpu.uuid}) is controlled by {held.holder}") from None
        except DeviceError:
            pass  # the change itself says so

    def record(self, entry: LedgerEntry) -> None:
        """Keep an entry where it outlives this process, if that is due. Raises as `Safeguard.keep` does."""
        is_new, is_first = entry is not self.entry, not self.entry.values
        if self._safeguard is None:
            self.entry = entry
        elif is_first or (is_new and self._kind.is_readable):  # else the first entry is enough
            self.entry = self._safeguard.keep(entry)
            if is_first:  # what this process has left there before, as its restoring failed, is its own
                self.in_force = tuple(value for value in self.entry.values if value not in entry.values)
        else:
            self.entry = entry
            self._safeguard.revive()

    def _change(self, value: int | float) -> None:
        if self._remote is not None:
            self._remote.set(value)
            return
        try:
            self._kind.set(self._gpu, value)
        except PermissionDeniedError as denial:
            if not self.is_shared:
                raise
            if self._safeguard is not None:
                self._safeguard.drop(self.entry)
                self._safeguard = None
            self._change_by_daemon(value, denial)

    def _change_by_daemon(self, value: int | float, denial: PermissionDeniedError) -> None:
        """Let the daemon change the GPU from now on. Raises as `set` does."""
        remote = RemoteControl(self._gpu.uuid, self._kind.name)
        try:
            remote.set(value)
        except PermissionDeniedError as error:
            raise PermissionDeniedError(f"{denial}; or use the zeus-core daemon: {error}") from error
        self._remote = remote
        if not self._kind.is_readable:
            self._compare_originals(remote)

    def _compare_originals(self, remote: RemoteControl) -> None:
        """Say so if the daemon restores another original than the one that it sent to this process. Never raises."""
        with contextlib.suppress(DeviceError):
            _, original = remote.allowed()
            if original != self.entry.original:
                _logger.warning(
                    "at the end the zeus-core daemon leaves the %s of %s (%s) %s, as its administrator decided "
                    "(docs/daemon.md)",
                    *(
                        self._kind.words,
                        self._gpu.name,
                        self._gpu.uuid,
                        self._kind.free if original is None else f"at {self._kind.text(original)}",
                    ),
                )

    def _restored(self) -> RestoreOutcome:
        if self._remote is None:
            # What is ours at this moment is known here; the record also has the value before.
            is_known = bool(self.in_force) and not (self.is_changing or self.entry.is_changing)
            entry = replace(self.entry, values=self.in_force) if is_known else self.entry
            return restore_entry(self._gpu, entry)
        try:
            kind, instead = cast("tuple[OutcomeKind, float | None]", self._remote.release())
        except DeviceError as error:
            return RestoreOutcome(self.entry.failed(str(error)), "failed")
        failed = self.entry.failed("see the log of the zeus-core daemon, which tries again")
        return (
            RestoreOutcome(failed, "failed") if kind == "failed" else RestoreOutcome(self.entry, kind, instead=instead)
        )

    def _drop(self) -> None:
        if self._claimed_by == os.getpid():
            self._claimed_by = None
            if self._safeguard is not None:
                self._safeguard.drop(self.entry)
            self.entry: LedgerEntry = self.entry.without_values()
            self.in_force: tuple[float, ...] = ()

    def _note_original(self) -> None:
        """Note what the board shows for the original, which it may round too. Raises what the GPU raises."""
        shown = None if self.original is None else self._kind.read(self._gpu)
        if self.original is not None and shown is not None:
            holders.note_shown(self.key, self.original, shown)

    @property
    def _originals(self) -> tuple[float, ...]:
        """The original, and what the board is known to show for it."""
        return () if self.original is None else (self.original, *holders.shown_for(self.key, self.original))
