"""The rules of what is ours, and the restoring of one changed device: only of that, and with some tries."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from zeus_core._sysfs import is_card_uuid, open_card
from zeus_core.device.nvml.nvml_session import NvmlSession
from zeus_core.device.nvml.restoring_gpu import RestoringGpu
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError
from zeus_core.settings.entry import LedgerEntry

OutcomeKind = Literal["restored", "original", "replaced", "failed"]

_Answer = TypeVar("_Answer")

_SECOND_LOOK_SECONDS = 0.01  # a driver may answer from what it has kept for some milliseconds
_FINAL = (PermissionDeniedError, NotSupportedError)  # another try answers the same


@dataclass(frozen=True)
class RestoreOutcome:
    """The end of one entry.

    Attributes:
        entry: The entry; with its failure if it could not be restored.
        kind: "restored"; "original" if the original was in force already; "replaced" if somebody else has changed the
            value since, which then stays; "failed".
        value: The value that was in force, if it could be read.
        replaced_by: In words, who has set a value that stays.
        instead: The value in force in place of an original that the board does not take: it rounds, or accepts it no
            longer.
    """

    entry: LedgerEntry
    kind: OutcomeKind
    value: float | None = None
    replaced_by: str = "somebody else"
    instead: float | None = None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to restore."""
        return self.kind != "failed"

    def __str__(self) -> str:
        if self.kind == "failed":
            return f"{self.entry.words} (`{self.entry.command}`) could not be restored: {self.entry.failure}"
        if self.kind == "replaced":
            kind = self.entry.kind  # the daemon does not report the value
            other = f"another {kind.words}" if self.value is None else kind.text(self.value)
            return (
                f"{self.entry.words} is not restored: {self.replaced_by} has set {other} since, which stays "
                f"(otherwise: `{self.entry.command}`)"
            )
        if self.instead is not None:
            other = self.entry.kind.text(self.instead)
            return f"{self.entry.words} is not taken by the board, which has {other} in its place"
        return f"{self.entry.words} is restored"


def is_ours(value: float, entry: LedgerEntry) -> bool:
    """Return whether a value in force is one on record of the entry's owner; before its first change, the original.

    A board that rounds may show another one while a value is set for the first time: any between that value and the
    original. All others were set by somebody else: an administrator, or a program that keeps no ledger.
    """
    kind = entry.kind
    if kind.is_any(value, entry.values or (entry.original,)):
        return True
    if not entry.is_changing or entry.original is None:
        return False
    return kind.is_between(value, entry.values[-1], entry.original)


def read_surely(read: Callable[[], _Answer], is_expected: Callable[[_Answer], bool]) -> _Answer:
    """Read a value, and once more if it is not an expected one: a single wrong reading says nothing about others.

    The first one counts if the second cannot be read. Raises what the first reading raises.
    """
    value = read()
    if is_expected(value):
        return value
    time.sleep(_SECOND_LOOK_SECONDS)
    try:
        return read()
    except Exception:  # of any kind: nothing contradicts the first one
        return value


def who_set(gpu: Any, value: float, entry: LedgerEntry) -> str:
    """Return, in words, who has set a value that is not the owner's. Never raises."""
    if entry.owner.is_of_earlier_boot():
        return "the driver, which has started anew with the machine,"
    try:
        is_default = entry.kind.is_any(value, [entry.kind.read_default(gpu)])
    except Exception:  # a board that does not report it
        is_default = False
    return "the driver, which was reloaded or has reset the GPU, or somebody else" if is_default else "somebody else"


class Claim:
    """The values of one owner: those that are on record, and those that may be in force.

    Args:
        entry: The record of the owner.
    """

    def __init__(self, entry: LedgerEntry) -> None:
        self.entry: LedgerEntry = entry
        """The record of the owner."""
        self.in_force: tuple[float, ...] = ()
        """The values that may be in force: the one set last, and what the board shows for it; none before the first."""

    def record(self, entry: LedgerEntry) -> None:
        """Write a record down where it outlives the owner, before the device is changed."""
        raise NotImplementedError

    def has(self, value: float, originals: Sequence[float | None]) -> bool:
        """Return whether a value that was read is ours; before the first change, whether it is one of the originals."""
        if self.entry.kind.is_any(value, self.in_force or originals):
            return True
        if self.in_force and self.entry.is_changing and is_ours(value, self.entry):  # it could not be read back before
            self.note_shown(value)
            return True
        return False

    def read_back(self, gpu: Any, value: float) -> float | None:
        """Read what the board shows for a value that was set, and note it; None if the driver does not report it."""
        try:
            shown = self.entry.kind.read(gpu)
        except DeviceError:
            return None
        self.in_force = (float(value),)
        self.note_shown(shown)
        return shown

    def note_shown(self, shown: float | None) -> None:
        """Note what the board shows for the value set last; None where it shows none, as for locked clocks."""
        if shown is not None:
            self.in_force = (*self.in_force, shown)
        entry = self.entry.showing(shown)
        if entry is not self.entry:
            self.record(entry)


class GpusByUuid:
    """The GPUs of this machine, each opened by its UUID alone: what measuring needs is not read."""

    def __init__(self) -> None:
        self._nvml = NvmlSession()

    def open(self) -> None:
        """Load the binding and open its driver, ahead of the first GPU.

        Raises:
            DeviceError: There is no driver, or it does not work: opening a GPU tries again.
            ImportError: The binding is not installed.
        """
        self._nvml.open()

    def gpu(self, uuid: str) -> Any:
        """Return a GPU, as much of it as a kind of setting calls. The form of the UUID names the driver.

        A card is set by its files alone: its driver refuses what it does not accept. `SysfsGpu` compares a limit with a
        range, of which a new object may know less than the one that changed the card.

        Raises:
            DeviceError: There is no such card.
        """
        return open_card(uuid) if is_card_uuid(uuid) else RestoringGpu(self._nvml, uuid)


def restore_device(open_gpu: Callable[[str], Any], entry: LedgerEntry) -> RestoreOutcome:
    """Restore the original as `restore_entry` does, on a GPU that is opened by its UUID. Never raises."""
    try:
        gpu = open_gpu(entry.device_uuid)
    except Exception as error:
        return RestoreOutcome(entry.failed(str(error) or repr(error)), "failed")
    return restore_entry(gpu, entry)


def restore_entry(gpu: Any, entry: LedgerEntry) -> RestoreOutcome:
    """Restore the original, if the value in force is one of ours or cannot be read. Never raises.

    Passing faults are tried again, within 0.3 s of waiting. A value that the driver does not report, such as a locked
    clock, is not in force any more once the machine has started anew.
    """
    kind, original, value = entry.kind, entry.original, None
    if not kind.is_readable and entry.owner.is_of_earlier_boot():
        return RestoreOutcome(entry, "original")
    try:
        if original is not None:
            value = read_surely(
                lambda: _surely(lambda: kind.read(gpu)), lambda found: found is None or _may_restore(found, entry)
            )
    except Exception:  # then it is set without a look at it
        value = None
    if value is not None and original is not None:
        if value == original:
            return RestoreOutcome(entry, "original", value)
        if not _may_restore(value, entry):
            return RestoreOutcome(entry, "replaced", value, who_set(gpu, value, entry))
    try:
        instead = _surely(lambda: kind.restore(gpu, original))
    except Exception as error:  # of any kind: it must be kept, and other devices restored
        return RestoreOutcome(entry.failed(str(error) or repr(error)), "failed", value)
    return RestoreOutcome(entry, "restored", value, instead=instead)


def _may_restore(value: float, entry: LedgerEntry) -> bool:
    """Return whether a value in force is the original or the owner's, and nobody else's."""
    return (entry.original is not None and entry.kind.is_same(value, entry.original)) or is_ours(value, entry)


def _surely(call: Callable[[], _Answer]) -> _Answer:
    """Make a call, and again after a fault of any kind that may pass: nobody else restores the device."""
    return retried(call, Exception, final=_FINAL)
