"""The power limits of GPUs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from functools import partial

from zeus_core._process.restore import restore_registry
from zeus_core.device import Gpu, PowerRange
from zeus_core.device._retry import retried
from zeus_core.errors import DeviceError, UsageError
from zeus_core.knobs._restoration import Restoration

__all__ = ["PowerLimitKnob", "check_power_limit", "power_limit_settings"]

_logger = logging.getLogger(__name__)


class PowerLimitKnob:
    """One power limit for several GPUs, in whole watts.

    The original limit is the baseline and the highest setting: a site may have lowered it on purpose. The other
    settings go down from it in equal steps to the lowest limit of the boards. If the GPUs have different original
    limits or ranges, each GPU is kept between its own lowest and original limit.

    Args:
        gpus: At least one GPU. Their limits are read here, and nothing is changed.
        step_watts: The distance between two settings, in watts.

    Raises:
        DeviceError: A limit cannot be read.
    """

    def __init__(self, gpus: Sequence[Gpu], step_watts: int) -> None:
        self._ranges = [(gpu, _usable_range(gpu)) for gpu in gpus]
        self._has_warned = False
        self._restoration = Restoration(
            self,
            [
                (f"the power limit of {gpu.name} to {original_watts:g} W", partial(_restore_limit, gpu, original_watts))
                for gpu, (_, original_watts) in self._ranges
            ],
        )
        self.settings: tuple[int, ...] = power_limit_settings([usable for _, usable in self._ranges], step_watts)
        """The limits in watts, highest first."""

    def apply(self, setting: int) -> None:
        """Set the limit of every GPU, in watts.

        Raises:
            UsageError: `setting` is not between the lowest setting and the baseline.
            DeviceError: A GPU refuses, or `restore` was called before, or by a signal handler meanwhile.
        """
        check_power_limit(setting, self.settings)
        restore_registry.catch_signals()  # the program may have replaced its handlers since the first change
        for gpu, (lowest_watts, original_watts) in self._ranges:
            limit_watts = min(max(float(setting), lowest_watts), original_watts)
            self._restoration.change(partial(gpu.set_power_limit, limit_watts))
            self._check_enforced(gpu, limit_watts)

    def restore(self) -> bool:
        """Restore the original limit of each GPU for good. Never raises; logs and returns False if one refuses."""
        return self._restoration.restore()

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
    """Return the settings from the highest limit of some ranges down to the lowest, both included, in whole watts."""
    lowest_watts, highest_watts = zip(*ranges, strict=True)
    first, last = math.ceil(max(highest_watts)), math.ceil(min(lowest_watts))
    return (*range(first, last, -step_watts), last)


def check_power_limit(limit_watts: int, settings: Sequence[int]) -> None:
    """Raise `UsageError` for a limit outside some settings, which are sorted with the highest first."""
    if not settings[-1] <= limit_watts <= settings[0]:
        raise UsageError(
            f"a power limit of {limit_watts!r} W is outside {settings[-1]} to {settings[0]} W: "
            "choose one between the lowest the boards accept and the original limit"
        )


def _usable_range(gpu: Gpu) -> PowerRange:
    """Return the range from the lowest limit the board accepts to the original limit."""
    original_watts = retried(gpu.read_power_limit_watts)
    return PowerRange(min(retried(gpu.read_power_limit_range_watts).lowest_watts, original_watts), original_watts)


def _restore_limit(gpu: Gpu, original_watts: float) -> None:
    if gpu.read_power_limit_watts() != original_watts:
        gpu.set_power_limit(original_watts)
