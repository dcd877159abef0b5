"""The power limits of the GPUs of one process: found, changed, and put back in any case."""

from __future__ import annotations

from collections.abc import Sequence

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, PermissionDeniedError
from zeus_core.knobs import FixedKnob, Knob, PowerLimitKnob

__all__ = ["Limiter"]


class Limiter:
    """Sets one power limit for some GPUs.

    The limits found are put back at the latest when nobody holds the limiter any more, or the process ends.

    Args:
        gpus: At least one.
        step_watts: Distance between two limits.
    """

    def __init__(self, gpus: Sequence[Gpu], step_watts: int) -> None:
        self._gpus = gpus
        self._step_watts = step_watts
        self.limit_watts: int | None = None
        """The limit in force, the highest where GPUs differ; None when nothing was found yet, or all was put back."""
        self._knob: Knob = FixedKnob(0)

    def find(self) -> tuple[int, ...]:
        """Find the limits, and change none. Returns those to try, highest first.

        Raises:
            DeviceError: A limit cannot be read; or what was found earlier has never been put back, and still cannot be.
        """
        if not self.put_back():
            raise DeviceError("the power limits found by an earlier training have not been put back yet")
        self._knob = PowerLimitKnob(self._gpus, self._step_watts)
        self.limit_watts = self._knob.settings[0]
        return self._knob.settings

    def set(self, limit_watts: int) -> str | None:
        """Set a limit, on each GPU as far as its own range goes. Returns why this process may not; None if it has.

        Raises:
            DeviceError: A GPU refuses for another reason. Some may have changed.
        """
        highest_watts, lowest_watts = self._knob.settings[0], self._knob.settings[-1]
        own_watts = min(max(limit_watts, lowest_watts), highest_watts)
        try:
            self._knob.apply(own_watts)
        except PermissionDeniedError as error:
            return str(error)
        self.limit_watts = own_watts
        return None

    def stay(self, because: str) -> None:
        """Put the limits back, and change none until they are found anew.

        Raises:
            DeviceError: A GPU that let itself be set does not let itself be put back; says also why none is changed.
        """
        original_watts = self._knob.settings[0]
        if not self.put_back():
            raise DeviceError(f"a power limit could be changed, but not be put back: {because}")
        self._knob = FixedKnob(original_watts)
        self.limit_watts = original_watts

    def put_back(self) -> bool:
        """Put back what was found. Never raises; False where a GPU refuses, in which case calling it again may help."""
        self.limit_watts = None
        return self._knob.restore()
