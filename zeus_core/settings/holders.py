"""The other users of a GPU: other knobs of this process, other processes, and those on other instances of a board.

`holders` is module-level state: to the ledger and to other processes, all knobs of a process are one owner. Without it
a second knob would take what the first has set for the original, or for the setting of somebody else.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Protocol, TypeAlias

from zeus_core._identity import ProcessIdentity
from zeus_core._sysfs import is_card_uuid
from zeus_core.device import Gpu
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, DeviceHeldError, PermissionDeniedError
from zeus_core.kinds import Kind
from zeus_core.settings.entry import LedgerEntry
from zeus_core.settings.ledger import Ledger, known_ledgers
from zeus_core.settings.restoring import GpusByUuid, restore_device, restore_entry

_MIG_VARIABLE = "ZEUS_MIG_LIMITS"
_SHOWN_PROCESSES = 4  # an instance can have 48 of them (NVIDIA MPS)

SettingKey: TypeAlias = tuple[Hashable, Kind]
"""A GPU and a kind of setting."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnobUser:
    """The object that uses a knob.

    Attributes:
        words: Its name, for messages.
        is_at_rest: Returns whether it needs no setting at present: another object may take the GPU over.
        compares: Whether it compares settings by what steps take at each: no other that does may change the GPU too.
    """

    words: str
    is_at_rest: Callable[[], bool]
    compares: bool = False


def user_of(user: object, is_at_rest: Callable[[], bool] = lambda: False, compares: bool = False) -> KnobUser:
    """Describe an object that uses a knob: by default one that holds it until it restores it."""
    return KnobUser(f"the {type(user).__name__} at {id(user):#x} of this process", is_at_rest, compares)


class Holding(Protocol):
    """The settings that one knob changes."""

    @property
    def user(self) -> KnobUser:
        """The object that uses the knob."""
        ...

    @property
    def originals(self) -> dict[SettingKey, float | None]:
        """The original of each setting, by a key for the GPU and the kind of setting."""
        ...

    def give_up(self, to: str) -> bool:
        """Restore the originals for good, as another object takes the GPUs over. False if a driver refuses."""
        ...


class Holders:
    """Which holding has which settings. A forked child begins without any.

    No lock is taken, as signal handlers restore at any moment. Each step changes a dictionary once, which is atomic.
    """

    def __init__(self) -> None:
        self._by_key: dict[SettingKey, tuple[int, Holding]] = {}  # with the process id
        self._shown: dict[SettingKey, dict[float, float]] = {}  # what boards show for originals that they round

    def take(self, holding: Holding) -> None:
        """Let a holding have its settings. One whose user is at rest gives them up.

        Raises:
            DeviceHeldError: Another holding has one, and its user is not at rest, or it cannot be restored.
        """
        for key in holding.originals:
            while (other := self._rival(key, holding) or self._offer(key, holding)) is not holding:
                if not other.user.is_at_rest():
                    because = (
                        "and its training has not ended: end it (`on_train_end`, `close` or `restore`) before another "
                        "one begins"
                    )
                elif not other.give_up(holding.user.words):
                    because = "and could not restore it"
                else:
                    continue
                self.leave(holding)
                raise DeviceHeldError(f"{other.user.words} controls the GPU, {because}")

    def _rival(self, key: SettingKey, holding: Holding) -> Holding | None:
        """Return one that compares other settings of the same GPU, which would change what this one compares."""
        for other_key in list(self._by_key) if holding.user.compares else ():
            other = self.find(other_key)
            if other_key[0] == key[0] and other is not None and other.user.compares and other.user != holding.user:
                return other
        return None

    def _offer(self, key: SettingKey, holding: Holding) -> Holding:
        """Give a setting to a holding, if nobody has it. Returns who has it then."""
        process_id, found = self._by_key.setdefault(key, (os.getpid(), holding))
        if process_id != os.getpid():  # the parent's
            found = holding
            self._by_key[key] = (os.getpid(), holding)
        return found

    def leave(self, holding: Holding) -> None:
        """Forget a holding, whose settings are restored. Any thread and signal handlers may call this."""
        for key in holding.originals:
            if self.find(key) is holding:
                self._by_key.pop(key, None)

    def find(self, key: SettingKey) -> Holding | None:
        """Return the holding of this process that has a setting; None if there is none."""
        process_id, holding = self._by_key.get(key, (None, None))
        return holding if process_id == os.getpid() else None

    def note_shown(self, key: SettingKey, original: float, shown: float) -> None:
        """Note the value that a board shows for an original. A board that rounds cannot return to one between."""
        self._shown.setdefault(key, {})[original] = shown

    def shown_for(self, key: SettingKey, original: float) -> tuple[float, ...]:
        """Return the value that a board shows for an original; nothing if it is not known."""
        shown = self._shown.get(key, {}).get(original)
        return () if shown is None else (shown,)


holders: Holders = Holders()


def find_other_holder(gpu: Gpu, process: ProcessIdentity) -> LedgerEntry | None:
    """Return the entry of a process other than this one that changes a GPU; None if no ledger has any."""
    for ledger in known_ledgers():
        for entry in ledger.entries():
            if entry.is_of(gpu.uuid) and entry.owner != process and not ledger.is_stale(entry):
                return entry
    return None


def read_original(gpu: Gpu, kind: Kind) -> float | None:
    """Return the original of a GPU, after what processes that were killed have left there was restored.

    Where another object or another process changes it, the original is the one that this one knows. Where the driver
    does not report it, it is the one that the user knows.

    Raises:
        DeviceError: It cannot be read.
    """
    key = setting_key(gpu, kind)
    holding = holders.find(key) if kind.is_readable else None
    if holding is not None and (original := holding.originals[key]) is not None:
        return original
    restore_residue(gpu)
    if not kind.is_readable:
        return kind.original
    if is_shared(gpu):
        for ledger in known_ledgers():
            entry = ledger.find((gpu.uuid, kind.name))
            if entry is not None and entry.original is not None and not ledger.is_stale(entry):
                return entry.original
    return retried(partial(kind.read, gpu))


def restore_residue(gpu: Gpu) -> None:
    """Restore what processes that were killed have left on a GPU, and say so. Never raises."""
    if not is_shared(gpu):
        return
    restore = partial(restore_entry, gpu)
    if is_card_uuid(gpu.uuid):  # this object may know of a lower highest limit than the one that changed the card
        restore = partial(restore_device, GpusByUuid().gpu)
    for ledger in known_ledgers():

        def is_due(entry: LedgerEntry, ledger: Ledger = ledger) -> bool:
            return entry.is_of(gpu.uuid) and ledger.is_stale(entry)

        for outcome in ledger.restore_all(restore, is_due):
            _logger.warning("%s. It was left by %s", outcome, outcome.entry.holder)


def setting_key(gpu: Gpu, kind: Kind) -> SettingKey:
    """Return the key of a kind of setting of a GPU, unique in this process."""
    return (gpu.uuid if is_shared(gpu) else id(gpu), kind)


def is_shared(gpu: Gpu) -> bool:
    """Return whether other processes can reach a GPU, whose settings stay when this process ends."""
    return gpu.driver is not None


def check_board_sharing(gpu: Gpu, process_id: int | None = None, is_allowed: bool = False) -> None:
    """Log what a change of a GPU means for others if its board is in MIG mode, or refuse the change.

    Only the processes that compute at this moment are known. A change is not refused where they cannot be read.

    Args:
        gpu: The GPU.
        process_id: The process for which the daemon makes the change; None if this process makes it for itself.
        is_allowed: Whether the administrator of the daemon allows changes that reach others. A process allows them
            itself, by `ZEUS_MIG_LIMITS=1`.

    Raises:
        PermissionDeniedError: Another process computes on another instance, and the change is not allowed.
    """
    way_to_allow = "allow it in the TOML file of the zeus-core daemon: may_slow_other_instances = true"
    if process_id is None:
        process_id, is_allowed = os.getpid(), os.environ.get(_MIG_VARIABLE) == "1"
        way_to_allow = f"set {_MIG_VARIABLE}=1"
    board = f"{gpu.name} ({gpu.uuid}) is in MIG mode: a power limit or a clock holds for all its instances"
    try:
        others = gpu.read_other_mig_processes(process_id)
    except DeviceError as error:
        warn_once(f"{board}. Which processes compute on the others cannot be read: {error}")
        return
    if others is None:
        return
    if not others:
        warn_once(f"{board}. No process computes on another one now")
        return
    more = f", and {len(others) - _SHOWN_PROCESSES} more" if len(others) > _SHOWN_PROCESSES else ""
    named = ", ".join(map(str, others[:_SHOWN_PROCESSES])) + more
    if not is_allowed:
        raise PermissionDeniedError(f"{board}, and would slow down {named}. To change it all the same, {way_to_allow}")
    warn_once(f"{board}, and slows down {named}")


@lru_cache(maxsize=64)  # several leases of a process begin with one board
def warn_once(text: str) -> None:
    """Log a warning, once in a process."""
    _logger.warning("%s", text)
