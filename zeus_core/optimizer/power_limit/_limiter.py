"""The power limits of the GPUs of one process, during one search."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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
        self._gpus, self._step_watts = gpus, step_watts
        knob = PowerLimitKnob(gpus, step_watts)
        self._knob: PowerLimitKnob | None = knob
        self._is_denied = False
        self._has_set = False
        self.settings = knob.settings
        """The limits to try, highest first."""
        self.limit_watts: int | None = self.settings[0]
        """The limit in force, the highest if GPUs differ; None once the original limits were restored."""

    def leave(self, uuids: Collection[str]) -> None:
        """Leave some of the GPUs to other ranks, which set the same limit: one process alone can control a GPU.

        Raises:
            DeviceError: A limit cannot be read.
        """
        own = [gpu for gpu in self._gpus if gpu.uuid not in uuids]
        if len(own) < len(self._gpus):
            self._knob = PowerLimitKnob(own, self._step_watts) if own else None

    def is_undisturbed(self) -> bool:
        """Tell whether the limit is still in force.

        Raises:
            DeviceHeldError: Somebody else has set another limit, which stays.
            DeviceError: The driver does not answer in time.
        """
        return self._knob is None or self._knob.is_undisturbed()

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
            if not self._is_denied and self._knob is not None:
                settings = self._knob.settings
                self._knob.apply(min(max(own_watts, settings[-1]), settings[0]))
        except PermissionDeniedError as error:
            return str(error)
        except DeviceHeldError as error:
            if self._has_set:  # the trials so far were at limits of ours, and this one is at somebody else's
                raise
            return str(error)
        self._has_set = True
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
        return self._knob is None or self._knob.restore()
