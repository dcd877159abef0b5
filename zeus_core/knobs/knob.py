"""What every knob does."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Knob", "StuckKnob"]


class Knob(Protocol):
    """A finite set of settings of some hardware. It remembers what it found and does not know who turns it."""

    @property
    def settings(self) -> tuple[int, ...]:
        """The settings that can be applied; the first is the baseline, as found."""
        ...

    def apply(self, setting: int) -> None:
        """Change the hardware.

        Raises:
            UsageError: There is no such setting.
            DeviceError: It refuses, in which case some of it may have changed; or it has been restored.
        """
        ...

    def restore(self) -> bool:
        """Put the hardware back the way it was found, for good. Never raises; False if some of it refused.

        May be called again, from signal handlers too. In a forked child it does nothing: the hardware is the parent's.
        """
        ...


class StuckKnob:
    """A knob without the right to turn: its one setting is the one found."""

    def __init__(self, setting: int) -> None:
        self.settings: tuple[int, ...] = (setting,)

    def apply(self, setting: int) -> None:
        """The hardware is as it is."""

    def restore(self) -> bool:
        """Nothing was changed."""
        return True
