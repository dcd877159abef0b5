"""The interface of all knobs."""

from __future__ import annotations

from typing import Protocol

__all__ = ["FixedKnob", "Knob"]


class Knob(Protocol):
    """A finite set of settings of some hardware. It remembers the original setting, not who changes it."""

    @property
    def settings(self) -> tuple[int, ...]:
        """The settings that can be applied; the first is the baseline."""
        ...

    def apply(self, setting: int) -> None:
        """Change the hardware.

        Raises:
            UsageError: There is no such setting.
            DeviceError: The hardware refuses, in which case some of it may have changed; or it has been restored.
        """
        ...

    def restore(self) -> bool:
        """Restore the hardware to the original setting, for good. Never raises; False if some of it refused.

        May be called again, and from signal handlers. In a forked child it does nothing: the hardware is the parent's.
        """
        ...


class FixedKnob:
    """A knob without permission to change anything: its only setting is the original one."""

    def __init__(self, setting: int) -> None:
        self.settings: tuple[int, ...] = (setting,)

    def apply(self, setting: int) -> None:
        """Do nothing: the hardware has this setting."""

    def restore(self) -> bool:
        """Do nothing: nothing was changed."""
        return True
