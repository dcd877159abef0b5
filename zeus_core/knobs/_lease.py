"""The right of this process to change one knob of one GPU, and the duty to restore it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, cast

from zeus_core.device import Gpu
from zeus_core.device._retry import retried
from zeus_core.errors import DeviceError, DeviceHeldError, NotSupportedError, PermissionDeniedError, UsageError
from zeus_core.knobs._holders import holders
from zeus_core.knobs._residue import find_other_holder, is_shared, setting_key
from zeus_core.leases._board_sharing import check_board_sharing
from zeus_core.leases._entry import KnobName, LedgerEntry
from zeus_core.leases._guardian import guardian
from zeus_core.leases._restoring import (
    Outcome,
    OutcomeKind,
    is_any_limit,
    is_ours,
    restore_entry,
    set_original,
    who_set,
)
from zeus_core.leases._safeguard import Safeguard

if TYPE_CHECKING:
    from zeus_core.device.remote._client import RemoteControl

__all__ = ["UNCHANGED", "Lease"]

UNCHANGED = (PermissionDeniedError, DeviceHeldError, NotSupportedError, UsageError)
"""Errors after which the hardware is as before."""

_logger = logging.getLogger(__name__)


class Lease:
    """Changes one knob of one GPU, and restores it.

    Before the first change the original is kept where it outlives this process (`Safeguard`), unless no other process
    can reach the GPU, such as a simulated one. Before each change of a power limit the one in force is read: if
    somebody else has set it, it stays, and nothing is changed any more. After it, it is read back: what the board shows
    for the limit that was asked for is ours. Where this process lacks the right, the daemon changes and restores the
    GPU, if there is one.

    Changes come from one thread at a time; restoring may come from another meanwhile.

    Args:
        gpu: The GPU. Nothing is changed here.
        knob: The knob to change.
        original: The value to restore: watts, or MHz; None for a clock that is not locked.
    """

    def __init__(self, gpu: Gpu, knob: KnobName, original: float | None) -> None:
        self._gpu = gpu
        self._is_limit = knob == "power_limit"
        self.is_shared = is_shared(gpu)
        """Whether other processes can reach the GPU, and its settings stay when this process ends."""
        self.key = setting_key(gpu, knob)
        """The GPU and the kind of setting, for the holders of this process."""
        self.original = original
        """The value to restore."""
        self._entry = LedgerEntry.of_this_process(gpu.uuid, gpu.name, knob, original)
        self._safeguard: Safeguard | None = None
        self._remote: RemoteControl | None = None  # the daemon, where this process lacks the right
        self._claimed_by: int | None = None  # process id
        self._in_force: tuple[float, ...] = ()  # ours now: the value set last, what the board shows for it
        self.shown: float | None = None
        """The value that the board showed for the one set last; None where it shows none, as for locked clocks."""
        self.replaced: str | None = None
        """The reason that nothing can be changed any more: somebody else controls the GPU."""
        self.outcome: Outcome | None = None
        """The outcome of the latest restoring; None before."""
        # Others learn by trying whether they have the right: most of them have not, and no guardian is to be started.
        self._starts_guardian = self.is_shared and sys.platform == "linux" and os.geteuid() == 0
        if self._starts_guardian:
            guardian.prepare_soon()
        self.is_changing = False
        """Whether a change is under way, which the driver may make at any moment."""
        self.command = self._entry.command
        """The command that restores the original."""
        self.words = f"{self._entry.words} (`{self.command}`)"
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
        before, in_force = self._entry, self._in_force
        self.is_changing, self.outcome = True, None
        try:
            self._keep(before.changing_to(value, in_force))
            self._claimed_by = os.getpid()
            self.check()
            self._in_force = (*self._in_force, float(value))  # either, until the change is over
            self._change(value)
            self._read_back(value)
        except UNCHANGED:
            self._entry, self._in_force = before, in_force
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
        value = self._in_force[0]
        self.set(value)
        return value

    def check(self) -> bool:
        """Check that the power limit in force is the one that was set, as far as it can be read.

        Returns:
            False if the daemon has ended, as after a crash, and has restored the original.

        Raises:
            DeviceHeldError: Somebody else has changed it. It stays from now on.
        """
        if self.replaced is not None:
            raise DeviceHeldError(self.replaced)
        if not self._is_limit:
            return True
        try:
            limit_watts = retried(self._gpu.read_power_limit_watts)
        except DeviceError:
            return True
        entry, ours = self._entry, self._in_force or self._originals
        if is_any_limit(limit_watts, ours):
            return True
        if self._in_force and entry.is_changing and is_ours(limit_watts, entry):  # it could not be read back before
            self._note_shown(limit_watts)
            return True
        is_daemon_gone = self._remote is not None and not self._remote.is_open()
        if is_daemon_gone and is_any_limit(limit_watts, self._originals):
            return False
        who = who_set(self._gpu, limit_watts, entry)
        self.outcome = Outcome(entry, "replaced", limit_watts, who)
        self.replaced = (
            f"{who} has set the power limit of {self._gpu.name} ({self._gpu.uuid}) to {limit_watts:g} W, in place of "
            f"{ours[-1]:g} W: it stays"
        )
        if self._remote is not None:
            with contextlib.suppress(DeviceError):  # the daemon notices it too, at the latest when this process ends
                self._remote.release()
        self._drop()
        raise DeviceHeldError(self.replaced)

    def restore_for_now(self) -> None:
        """Restore the original until the next change.

        Raises:
            DeviceError: The driver refuses.
        """
        if self._remote is None:
            set_original(self._gpu, self._entry)
        else:
            self._remote.restore()

    def restore(self) -> bool:
        """Restore the original. Never raises; logs once and returns False if the driver refuses.

        A limit that somebody else has set stays, with a warning.
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
        if outcome.kind == "replaced" or has_failed_before:
            _logger.warning("%s", outcome)
        if self._is_limit and outcome.kind != "replaced":
            with contextlib.suppress(Exception):  # of any kind: it is restored
                self._note_original()
        if not self.is_changing:  # in another thread, by a driver that hangs: it is restored once more after that
            self._drop()
        return True

    def _begin(self) -> None:
        """Take this process for the owner: the first change, or the first in a forked child."""
        entry = self._entry
        self._entry = LedgerEntry.of_this_process(entry.device_uuid, entry.device_name, entry.knob, entry.original)
        self._in_force = ()
        self._remote = None
        self._safeguard = Safeguard(partial(restore_entry, self._gpu)) if self.is_shared else None
        check_board_sharing(self._gpu)
        if self._safeguard is not None and sys.platform == "linux" and os.geteuid() != 0:
            self._try_right()

    def _try_right(self) -> None:
        """Set the limit that is in force, before anything is written down and a guardian starts.

        The right is the same for clocks, which cannot be read to be set again.
        """
        try:
            limit_watts = self._gpu.read_power_limit_watts()
            self._gpu.set_power_limit(limit_watts)
            if self._is_limit and limit_watts == self.original:
                self._note_original()
        except PermissionDeniedError:
            self._safeguard = None  # nothing is to be kept: the daemon does it, or nobody
            held = find_other_holder(self._gpu, self._entry.owner)
            if held is not None:
                raise DeviceHeldError(f"{self._gpu.name} ({self._gpu.uuid}) is controlled by {held.holder}") from None
        except DeviceError:
            pass  # the change itself says so

    def _keep(self, entry: LedgerEntry) -> None:
        """Keep an entry where it outlives this process, if it is new. Raises as `Safeguard.keep` does."""
        is_new, is_first = entry is not self._entry, not self._entry.values
        if self._safeguard is None:
            self._entry = entry
        elif is_first or (is_new and self._is_limit):  # clocks cannot be compared: the first entry tells enough of them
            self._entry = self._safeguard.keep(entry)
            if is_first:  # what this process has left there before, as its restoring failed, is its own
                self._in_force = tuple(value for value in self._entry.values if value not in entry.values)
        else:
            self._entry = entry
            self._safeguard.revive()

    def _read_back(self, value: int | float) -> None:
        """Read what the board shows for a value that was set. It stays unknown if the driver does not tell."""
        self.shown = None
        try:
            shown = self._gpu.read_power_limit_watts() if self._is_limit else None
        except DeviceError:
            return
        self._in_force = (float(value),)
        self._note_shown(shown)
        if shown is not None and value == self.original:
            holders.note_shown(self.key, value, shown)

    def _note_shown(self, shown: float | None) -> None:
        self.shown = shown
        if shown is not None:
            self._in_force = (*self._in_force, shown)
        entry = self._entry.showing(shown)
        if entry is not self._entry:
            self._keep(entry)

    def _change(self, value: int | float) -> None:
        if self._remote is not None:
            self._remote.set(value)
            return
        try:
            if self._is_limit:
                self._gpu.set_power_limit(value)
            else:
                self._gpu.lock_sm_clock(round(value))
        except PermissionDeniedError as denial:
            if not self.is_shared:
                raise
            if self._safeguard is not None:
                self._safeguard.drop(self._entry)
                self._safeguard = None
            self._change_by_daemon(value, denial)

    def _change_by_daemon(self, value: int | float, denial: PermissionDeniedError) -> None:
        """Let the daemon change the GPU from now on. Raises as `set` does."""
        from zeus_core.device.remote._client import RemoteControl

        remote = RemoteControl(self._gpu.uuid, self._entry.knob)
        try:
            remote.set(value)
        except PermissionDeniedError as error:
            raise PermissionDeniedError(f"{denial}; or use the zeus-core daemon: {error}") from error
        self._remote = remote
        if not self._is_limit:
            self._compare_originals(remote)

    def _compare_originals(self, remote: RemoteControl) -> None:
        """Say so if the daemon restores another clock than the one that this process was told. Never raises."""
        with contextlib.suppress(DeviceError):
            _, original = remote.allowed()
            if original != self._entry.original:
                _logger.warning(
                    "at the end the zeus-core daemon leaves the SM clock of %s (%s) %s, as its administrator decided "
                    "(original_sm_clock_mhz in docs/daemon.md)",
                    self._gpu.name,
                    self._gpu.uuid,
                    "unlocked" if original is None else f"locked at {original:g} MHz",
                )

    def _restored(self) -> Outcome:
        if self._remote is None:
            # What is ours at this moment is known here; the record also has the value before.
            is_known = bool(self._in_force) and not (self.is_changing or self._entry.is_changing)
            entry = self._entry.replacing(values=self._in_force) if is_known else self._entry
            return restore_entry(self._gpu, entry)
        try:
            kind = cast(OutcomeKind, self._remote.release())
        except DeviceError as error:
            return Outcome(self._entry.failed(str(error)), "failed")
        failed = self._entry.failed("see the log of the zeus-core daemon, which tries again")
        return Outcome(failed, "failed") if kind == "failed" else Outcome(self._entry, kind)

    def _drop(self) -> None:
        if self._claimed_by == os.getpid():
            self._claimed_by = None
            if self._safeguard is not None:
                self._safeguard.drop(self._entry)
            self._entry = self._entry.without_values()
            self._in_force = ()

    def _note_original(self) -> None:
        """Note what the board shows for the original, which it may round too. Raises what the GPU raises."""
        if self.original is not None:
            holders.note_shown(self.key, self.original, self._gpu.read_power_limit_watts())

    @property
    def _originals(self) -> tuple[float, ...]:
        """The original, and what the board is known to show for it."""
        return () if self.original is None else (self.original, *holders.shown_for(self.key, self.original))
