"""The power limits of the GPUs of one process, during one search."""

from __future__ import annotations

from collections.abc import Sequence

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, DeviceHeldError, PermissionDeniedError
from zeus_core.knobs import PowerLimitKnob

__all__ = ["Limiter"]


class Limiter:
    """Sets one power limit for some GPUs, and knows which one is in force. The original limits are read here.

    Args:
        gpus: At least one.
        step_watts: Distance between two limits.

    Raises:
        DeviceError: A limit cannot be read.
    """

    def __init__(self, gpus: Sequence[Gpu], step_watts: int) -> None:
        self._knob = PowerLimitKnob(gpus, step_watts)
        self._is_denied = False
        self.settings = self._knob.settings
        """The limits to try, highest first."""
        self.limit_watts: int | None = self.settings[0]
        """The limit in force, the highest if GPUs differ; None once the original limits were restored."""

    def set(self, limit_watts: int) -> str | None:
        """Set a limit, on each GPU as far as its own range goes.

        Returns:
            Why this process may not set it: it lacks the permission, or another process or somebody else controls a
            GPU. None if the limit is set.

        Raises:
            DeviceError: A GPU refuses for another reason. Some may have changed.
        """
        own_watts = min(max(limit_watts, self.settings[-1]), self.settings[0])
        try:
            if not self._is_denied:
                self._knob.apply(own_watts)
        except (PermissionDeniedError, DeviceHeldError) as error:
            return str(error)
        self.limit_watts = own_watts
        return None

    def stay(self, denial: str) -> None:
        """Restore the original limits, and change none from now on.

        Raises:
            DeviceError: A GPU that was changed cannot be restored. The message holds the denial too.
        """
        if not self.restore():
            raise DeviceError(f"a power limit could be changed, but not be restored: {denial}")
        self._is_denied = True
        self.limit_watts = self.settings[0]

    def restore(self) -> bool:
        """Restore the original limits. Never raises; False if a GPU refuses: calling this again may help."""
        self.limit_watts = None
        return self._knob.restore()
