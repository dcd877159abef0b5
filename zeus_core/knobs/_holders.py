"""The holders of this process: for each GPU and kind of setting, the one knob that changes it.

This is module-level state: to the ledger and to other processes, all knobs of a process are one owner. Without it a
second knob would take what the first has set for the original, or for the setting of somebody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

from zeus_core._process.lock import ProcessLock
from zeus_core.errors import DeviceHeldError

__all__ = ["Holding", "KnobUser", "holders", "user_of"]


@dataclass(frozen=True)
class KnobUser:
    """The object that uses a knob.

    Attributes:
        words: Its name, for messages.
        is_at_rest: Tells whether it needs no setting at present: another object may take the GPU over.
    """

    words: str
    is_at_rest: Callable[[], bool]


def user_of(user: object, is_at_rest: Callable[[], bool] = lambda: False) -> KnobUser:
    """Describe an object that uses a knob: by default one that holds it until it restores it."""
    return KnobUser(f"the {type(user).__name__} at {id(user):#x} of this process", is_at_rest)


class Holding(Protocol):
    """The settings that one knob changes."""

    @property
    def user(self) -> KnobUser:
        """The object that uses the knob."""
        ...

    @property
    def originals(self) -> dict[Hashable, float | None]:
        """The original of each setting, by a key for the GPU and the kind of setting."""
        ...

    def give_up(self, to: str) -> bool:
        """Restore the originals for good, as another object takes the GPUs over. False if a driver refuses."""
        ...


class Holders:
    """Which holding has which settings. A forked child begins without any."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, tuple[int, Holding]] = {}  # with the process id
        self._lock = ProcessLock()

    def take(self, holding: Holding) -> None:
        """Let a holding have its settings. One whose user is at rest gives them up.

        Raises:
            DeviceHeldError: Another holding has one, and its user is not at rest, or it cannot be restored.
        """
        with self._lock:
            for other in {self.find(key) for key in holding.originals} - {None, holding}:
                assert other is not None
                if not other.user.is_at_rest():
                    raise DeviceHeldError(
                        f"{other.user.words} controls the GPU, and its training has not ended: end it "
                        "(`on_train_end`, `close` or `restore`) before another one begins"
                    )
                if not other.give_up(holding.user.words):
                    raise DeviceHeldError(f"{other.user.words} controls the GPU, and could not restore it")
            for key in holding.originals:
                self._by_key[key] = (os.getpid(), holding)

    def leave(self, holding: Holding) -> None:
        """Forget a holding, whose settings are restored. Signal handlers call this at any moment: no lock is taken."""
        for key in holding.originals:
            if self.find(key) is holding:
                self._by_key.pop(key, None)

    def find(self, key: Hashable) -> Holding | None:
        """Return the holding of this process that has a setting; None if there is none."""
        process_id, holding = self._by_key.get(key, (None, None))
        return holding if process_id == os.getpid() else None


holders = Holders()
