"""The restoring of one changed device: only what is still ours, and with some tries."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError
from zeus_core.leases._entry import LedgerEntry

__all__ = ["Outcome", "OutcomeKind", "RestorableGpu", "is_ours", "is_same_limit", "restore_entry", "set_original"]

OutcomeKind = Literal["restored", "original", "replaced", "failed"]

_Answer = TypeVar("_Answer")

# Between the tries, as in `zeus_core/device/_retry.py`: faults that pass are over in milliseconds.
_WAITS_SECONDS = (0.01, 0.03, 0.1)
# Administrators set whole watts, and drivers round to less than that.
_SAME_LIMIT_WATTS = 0.5
_FINAL = (PermissionDeniedError, NotSupportedError)  # another try answers the same


class RestorableGpu(Protocol):
    """The part of a `Gpu` that restoring needs."""

    def read_power_limit_watts(self) -> float:
        """Read the power limit requested last."""
        ...

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit."""
        ...

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock."""
        ...

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely."""
        ...


@dataclass(frozen=True)
class Outcome:
    """The end of one entry.

    Attributes:
        entry: The entry; with its failure if it could not be restored.
        kind: "restored"; "original" if the original was in force already; "replaced" if somebody else has changed the
            value since, which then stays; "failed".
        value: The value that was in force, if it could be read.
    """

    entry: LedgerEntry
    kind: OutcomeKind
    value: float | None = None

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
                f"{self.entry.words} is not restored: somebody else has set {other} since, which stays "
                f"(otherwise: `{self.entry.command}`)"
            )
        return f"{self.entry.words} is restored"


def is_same_limit(one_watts: float, other_watts: float) -> bool:
    """Tell whether two power limits are the same, apart from the rounding of drivers."""
    return abs(one_watts - other_watts) < _SAME_LIMIT_WATTS


def is_ours(limit_watts: float, entry: LedgerEntry) -> bool:
    """Tell whether a power limit in force is one that the entry's owner has set; before its first change, the original.

    Any other was set by somebody else: an administrator, or a program that keeps no ledger.
    """
    for own_watts in entry.values or (entry.original,):
        if own_watts is not None and is_same_limit(limit_watts, own_watts):
            return True
    return False


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
            return Outcome(entry, "replaced", value)
    try:
        _tried(lambda: set_original(gpu, entry))
    except Exception as error:  # of any kind: it must be kept, and other devices restored
        return Outcome(entry.failed(str(error) or repr(error)), "failed", value)
    return Outcome(entry, "restored", value)


def set_original(gpu: RestorableGpu, entry: LedgerEntry) -> None:
    """Set the original, even if another value is in force. Raises what the GPU raises."""
    if entry.knob == "power_limit" and entry.original is not None:
        gpu.set_power_limit(entry.original)
    elif entry.knob == "sm_clock" and entry.original is not None:
        gpu.lock_sm_clock(round(entry.original))
    elif entry.knob == "sm_clock":
        gpu.unlock_sm_clock()
    else:
        raise DeviceError("the original power limit is not known")


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
