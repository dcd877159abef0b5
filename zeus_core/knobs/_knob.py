"""The interface of all knobs."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Knob"]


class Knob(Protocol):
    """A finite set of settings of some hardware, which is restored when the knob is no longer used.

    The original settings are restored by `restore`, and at the latest when the knob is garbage-collected or the process
    ends. The knobs of this package are restored however it ends, by another process if need be.
    """

    @property
    def settings(self) -> tuple[int, ...]:
        """The settings that can be applied; the first is the baseline."""
        ...

    def apply(self, setting: int) -> None:
        """Change the hardware.

        Raises:
            UsageError: There is no such setting.
            DeviceError: The hardware refuses, and some of it may have changed; or it has been restored for good.
        """
        ...

    def restore(self) -> bool:
        """Restore the original setting for good. Never raises; logs and returns False if some hardware refuses.

        It may be called again, from any thread and from signal handlers. In a forked child it does nothing: the
        hardware is the parent's, unless the child has applied a setting itself.
        """
        ...
