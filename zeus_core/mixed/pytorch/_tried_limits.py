"""The power limits that a rank tries, and the one that it trains at."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls
from zeus_core.settings import PowerLimitKnob

_STEP_WATTS = 5  # of the knob: limits are rounded to it, which moves no optimum that anybody could measure

_logger = logging.getLogger(__name__)


class TriedLimits:
    """The limits of one GPU; without the right to set any, the one in force under each of them.

    Args:
        gpu: The GPU of this rank.
        fractions: The limits, as fractions of the original one.
    """

    def __init__(self, gpu: Gpu, fractions: Sequence[float]) -> None:
        self._knob: PowerLimitKnob | None = None
        self.settings: list[int] = [_limit_in_force(gpu)] * len(fractions)
        """Watts, in the order of the fractions."""
        try:
            original = _limit_watts(gpu)
            self._knob = PowerLimitKnob([gpu], _STEP_WATTS)
            self._knob.apply(self._knob.settings[0])
        except DeviceError as error:
            self.restore()
            self._knob = None
            if len(fractions) > 1:
                _logger.warning("this rank cannot set power limits, and gets a batch alone: %s", error)
        else:
            self.settings = [max(self._knob.settings[-1], round(original * fraction)) for fraction in fractions]

    def apply(self, setting: int) -> None:
        """Set a limit, if this rank may.

        Raises:
            DeviceError: The driver refuses.
        """
        if self._knob is not None:
            self._knob.apply(min(setting, self._knob.settings[0]))

    def restore(self) -> None:
        """Restore the original limit."""
        if self._knob is not None:
            self._knob.restore()


def _limit_watts(gpu: Gpu) -> float:
    return ParallelCalls().call_one_within(CALL_SECONDS, 0, gpu.read_power_limit_watts)


def _limit_in_force(gpu: Gpu) -> int:
    try:
        return max(1, round(_limit_watts(gpu)))
    except DeviceError:
        return 1  # one setting; its name does not matter
