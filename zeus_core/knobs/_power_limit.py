"""The power limits of GPUs."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Sequence

from zeus_core.device import Gpu, PowerRange
from zeus_core.errors import DeviceError, UsageError

__all__ = ["PowerLimitKnob", "check_power_limit", "power_limit_settings"]

_logger = logging.getLogger(__name__)


class PowerLimitKnob:
    """One power limit for several GPUs, in whole watts.

    The original limit is the baseline and the highest setting: a site may have lowered it on purpose. From there the
    settings go down in equal steps to the lowest limit of the boards, which is the last one. GPUs with different
    original limits, or whose boards have different ranges, are each kept between their own lowest and original limit.

    Args:
        gpus: At least one GPU. Their limits are read here, and nothing is changed.
        step_watts: The distance between two settings, in watts.

    Raises:
        DeviceError: A limit cannot be read.
    """

    def __init__(self, gpus: Sequence[Gpu], step_watts: int) -> None:
        self._ranges = [(gpu, _usable_range(gpu)) for gpu in gpus]
        self._changed_by: int | None = None  # process
        self._is_restored = False
        self._has_warned = False
        self.settings = power_limit_settings([usable for _, usable in self._ranges], step_watts)
        """The limits in watts, highest first."""

    def apply(self, setting: int) -> None:
        """Set the limit of every GPU, in watts.

        Raises:
            UsageError: `setting` is not between the lowest setting and the baseline.
            DeviceError: A GPU refuses, or `restore` was called before, or by a signal handler meanwhile.
        """
        check_power_limit(setting, self.settings)
        for gpu, (lowest_watts, original_watts) in self._ranges:
            if self._is_restored:
                raise DeviceError("the power limits have been restored, and can no longer be changed")
            limit_watts = min(max(float(setting), lowest_watts), original_watts)
            self._changed_by = os.getpid()
            gpu.set_power_limit(limit_watts)
            if self._is_restored:  # by a signal handler, before the limit was set
                self._changed_by = os.getpid()
                self.restore()
            self._check_enforced(gpu, limit_watts)

    def restore(self) -> bool:
        """Restore the original limit of each GPU, for good. Never raises; logs and returns False if one refuses."""
        self._is_restored = True
        if self._changed_by != os.getpid():
            return True
        successes = [_put_back(gpu, original_watts) for gpu, (_, original_watts) in self._ranges]
        if all(successes):
            self._changed_by = None
        return all(successes)

    def _check_enforced(self, gpu: Gpu, limit_watts: float) -> None:
        try:
            enforced_watts = gpu.read_enforced_power_limit_watts()
        except DeviceError:
            return  # a board that does not report it is trusted
        if enforced_watts < limit_watts - 1 and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "%s was set to a power limit of %g W, but %g W is enforced",
                gpu.name,
                limit_watts,
                enforced_watts,
            )


def power_limit_settings(ranges: Iterable[PowerRange], step_watts: int) -> tuple[int, ...]:
    """The settings from the highest limit of some ranges down to the lowest, in whole watts, both ends included."""
    lowest_watts, highest_watts = zip(*ranges, strict=True)
    first, last = math.ceil(max(highest_watts)), math.ceil(min(lowest_watts))
    return (*range(first, last, -step_watts), last)


def check_power_limit(limit_watts: int, settings: Sequence[int]) -> None:
    """`UsageError` for a limit that is not between the first and the last of some settings, the highest being first."""
    if not settings[-1] <= limit_watts <= settings[0]:
        raise UsageError(
            f"a power limit of {limit_watts!r} W is outside {settings[-1]} to {settings[0]} W: "
            "from the lowest the boards accept to the original limit"
        )


def _usable_range(gpu: Gpu) -> PowerRange:
    """From the lowest limit the board accepts to the original limit."""
    original_watts = gpu.read_power_limit_watts()
    return PowerRange(min(gpu.read_power_limit_range_watts().lowest_watts, original_watts), original_watts)


def _put_back(gpu: Gpu, original_watts: float) -> bool:
    for is_last_try in (False, True):
        try:
            if gpu.read_power_limit_watts() != original_watts:
                gpu.set_power_limit(original_watts)
        except Exception as error:  # whatever it is, the other GPUs must be restored too
            if is_last_try:
                _logger.error(
                    "the power limit of %s could not be restored to %g W: %s", gpu.name, original_watts, error
                )
        else:
            return True
    return False
