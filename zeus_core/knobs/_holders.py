"""The holders of this process: for each GPU and kind of setting, the one knob that changes it.

This is module-level state: to the ledger and to other processes, all knobs of a process are one owner. Without it a
second knob would take what the first has set for the original, or for the setting of somebody else.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

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
    """Which holding has which settings. A forked child begins without any.

    No lock is taken, as signal handlers restore at any moment. Each step changes a dictionary once, which is atomic.
    """

    def __init__(self) -> None:
        self._by_key: dict[Hashable, tuple[int, Holding]] = {}  # with the process id
        self._shown: dict[Hashable, dict[float, float]] = {}  # what boards show for originals that they round

    def take(self, holding: Holding) -> None:
        """Let a holding have its settings. One whose user is at rest gives them up.

        Raises:
            DeviceHeldError: Another holding has one, and its user is not at rest, or it cannot be restored.
        """
        for key in holding.originals:
            while (other := self._offer(key, holding)) is not holding:
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

    def _offer(self, key: Hashable, holding: Holding) -> Holding:
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

    def find(self, key: Hashable) -> Holding | None:
        """Return the holding of this process that has a setting; None if there is none."""
        process_id, holding = self._by_key.get(key, (None, None))
        return holding if process_id == os.getpid() else None

    def note_shown(self, key: Hashable, original: float, shown: float) -> None:
        """Note the value that a board shows for an original. A board that rounds cannot return to one between."""
        self._shown.setdefault(key, {})[original] = shown

    def shown_for(self, key: Hashable, original: float) -> tuple[float, ...]:
        """Return the value that a board shows for an original; nothing if it is not known."""
        shown = self._shown.get(key, {}).get(original)
        return () if shown is None else (shown,)


holders = Holders()
