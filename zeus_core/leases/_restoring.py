"""The restoring of one changed device: only what is still ours, and with some tries."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError
from zeus_core.leases._entry import LedgerEntry
from zeus_core.leases._record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, Protocol, TypeVar

    OutcomeKind = Literal["restored", "original", "replaced", "failed"]

    _Answer = TypeVar("_Answer")
else:
    OutcomeKind, Protocol = str, object

__all__ = [
    "MAX_ROUNDING_WATTS",
    "SAME_CLOCK_MHZ",
    "Outcome",
    "OutcomeKind",
    "RestorableGpu",
    "is_any_limit",
    "is_ours",
    "is_same_limit",
    "restore_device",
    "restore_entry",
    "set_original",
    "who_set",
]

# Between the tries, as in `zeus_core/device/_retry.py`: faults that pass are over in milliseconds.
_WAITS_SECONDS = (0.01, 0.03, 0.1)
# Administrators set whole watts, and some boards take a fraction of one less than was requested.
_SAME_LIMIT_WATTS = 1.0
# Clocks come in steps of 7.5 to 15 MHz, and a reading may be rounded to the next.
SAME_CLOCK_MHZ = 30
# Boards that round limits do so in steps of 5 to 30 W. What is farther from the limit requested is no rounding.
MAX_ROUNDING_WATTS = 30.0
_EXACT_WATTS = 0.01  # drivers count milliwatts
_FINAL = (PermissionDeniedError, NotSupportedError)  # another try answers the same


class RestorableGpu(Protocol):
    """The part of a `Gpu` that restoring needs."""

    def read_power_limit_watts(self) -> float:
        """Read the power limit requested last."""

    def read_default_power_limit_watts(self) -> float:
        """Read the power limit that the driver begins with."""

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit."""

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock."""

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely."""


class Outcome(Record):
    """The end of one entry.

    Attributes:
        entry: The entry; with its failure if it could not be restored.
        kind: "restored"; "original" if the original was in force already; "replaced" if somebody else has changed the
            value since, which then stays; "failed".
        value: The value that was in force, if it could be read.
        replaced_by: In words, who has set a value that stays.
    """

    entry: LedgerEntry
    kind: OutcomeKind
    value: float | None = None
    replaced_by: str = "somebody else"

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to restore."""
        return self.kind != "failed"

    def __str__(self) -> str:
        if self.kind == "failed":
            return f"{self.entry.words} (`{self.entry.command}`) could not be restored: {self.entry.failure}"
        if self.kind == "replaced":
            other = "another limit" if self.value is None else f"{self.value:g} W"  # the daemon does not tell
            return (
                f"{self.entry.words} is not restored: {self.replaced_by} has set {other} since, which stays "
                f"(otherwise: `{self.entry.command}`)"
            )
        return f"{self.entry.words} is restored"


def is_same_limit(one_watts: float, other_watts: float) -> bool:
    """Tell whether two power limits are the same, apart from fractions of a watt."""
    return abs(one_watts - other_watts) < _SAME_LIMIT_WATTS


def is_any_limit(limit_watts: float, others_watts: Iterable[float | None]) -> bool:
    """Tell whether a power limit is the same as one of some others; None stands for one that is not known."""
    return any(watts is not None and is_same_limit(limit_watts, watts) for watts in others_watts)


def is_ours(limit_watts: float, entry: LedgerEntry) -> bool:
    """Tell whether a power limit in force is one on record of the entry's owner; before its first change, the original.

    A board that rounds may show another one while a limit is set for the first time: any between that limit and the
    original. All others were set by somebody else: an administrator, or a program that keeps no ledger.
    """
    if is_any_limit(limit_watts, entry.values or (entry.original,)):
        return True
    if not entry.is_changing or entry.original is None:
        return False
    lowest, highest = sorted((entry.values[-1], entry.original))
    return lowest - MAX_ROUNDING_WATTS <= limit_watts <= highest + MAX_ROUNDING_WATTS


def who_set(gpu: RestorableGpu, limit_watts: float, entry: LedgerEntry) -> str:
    """Return, in words, who has set a power limit that is not the owner's. Never raises."""
    if entry.owner.is_of_earlier_boot():
        return "the driver, which has started anew with the machine,"
    try:
        is_default = is_same_limit(limit_watts, gpu.read_default_power_limit_watts())
    except Exception:  # a board that does not tell
        is_default = False
    return "the driver, which was reloaded or has reset the GPU, or somebody else" if is_default else "somebody else"


def restore_device(open_gpu: Callable[[str], RestorableGpu], entry: LedgerEntry) -> Outcome:
    """Restore the original as `restore_entry` does, on a GPU that is opened by its UUID. Never raises."""
    try:
        gpu = open_gpu(entry.device_uuid)
    except Exception as error:
        return Outcome(entry.failed(str(error) or repr(error)), "failed")
    return restore_entry(gpu, entry)


def restore_entry(gpu: RestorableGpu, entry: LedgerEntry) -> Outcome:
    """Restore the original, if the value in force is one of ours or cannot be read. Never raises.

    Passing faults are tried again, within 0.3 s of waiting. A clock that was locked before the machine started anew is
    not any more.
    """
    value: float | None = None
    if entry.knob == "sm_clock" and entry.owner.is_of_earlier_boot():
        return Outcome(entry, "original")
    if entry.knob == "power_limit" and entry.original is not None:
        try:
            value = _tried(gpu.read_power_limit_watts)
        except Exception:  # then the limit is set without a look at it
            value = None
        if value == entry.original:
            return Outcome(entry, "original", value)
        if value is not None and not (is_same_limit(value, entry.original) or is_ours(value, entry)):
            return Outcome(entry, "replaced", value, who_set(gpu, value, entry))
    try:
        _tried(lambda: set_original(gpu, entry))
    except Exception as error:  # of any kind: it must be kept, and other devices restored
        return Outcome(entry.failed(str(error) or repr(error)), "failed", value)
    return Outcome(entry, "restored", value)


def set_original(gpu: RestorableGpu, entry: LedgerEntry) -> None:
    """Set the original, even if another value is in force. Raises what the GPU raises."""
    if entry.knob == "power_limit" and entry.original is not None:
        gpu.set_power_limit(entry.original)
        with contextlib.suppress(Exception):  # the original was asked for, and the board shows what it takes for it
            _correct_limit(gpu, entry.original)
    elif entry.knob == "sm_clock" and entry.original is not None:
        gpu.lock_sm_clock(round(entry.original))
    elif entry.knob == "sm_clock":
        gpu.unlock_sm_clock()
    else:
        raise DeviceError("the original power limit is not known")


def _correct_limit(gpu: RestorableGpu, original_watts: float) -> None:
    """Ask for as much more as a board takes less, if that is a fraction of a watt.

    Else each restoring would leave it lower than the one before. A board that rounds by more shows the same limit for
    the original each time.
    """
    missing_watts = original_watts - gpu.read_power_limit_watts()
    if _EXACT_WATTS < missing_watts < _SAME_LIMIT_WATTS:
        gpu.set_power_limit(original_watts + missing_watts)
        if gpu.read_power_limit_watts() > original_watts + _EXACT_WATTS:
            gpu.set_power_limit(original_watts)


def _tried(call: Callable[[], _Answer]) -> _Answer:
    """Make a call, and up to three times more after a fault that may pass."""
    for wait_seconds in _WAITS_SECONDS:
        try:
            return call()
        except _FINAL:
            raise
        except Exception:  # of any kind
            time.sleep(wait_seconds)
    return call()
