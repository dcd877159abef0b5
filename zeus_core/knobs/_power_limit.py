"""The power limits of GPUs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import cast

from zeus_core._process.deadline import CALL_SECONDS
from zeus_core._process.parallel import ParallelCalls
from zeus_core._process.restore import restore_registry
from zeus_core._validate import checked_whole_number, shown
from zeus_core.device import Gpu, PowerRange
from zeus_core.device._gpu import checked_gpus
from zeus_core.device._retry import retried
from zeus_core.errors import UsageError
from zeus_core.knobs._lease import Lease
from zeus_core.knobs._limit_watch import LimitWatch
from zeus_core.knobs._residue import read_original_limit_watts
from zeus_core.knobs._restoration import Restoration
from zeus_core.leases._restoring import is_same_limit

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
        UsageError: An argument is wrong; the message names it.
        DeviceError: A limit cannot be read, or the driver does not answer.
    """

    def __init__(self, gpus: Sequence[Gpu], step_watts: int) -> None:
        step_watts = checked_whole_number("step_watts", step_watts, 1)
        gpus = checked_gpus("gpus", gpus, minimum=1)
        calls = ParallelCalls()
        self._ranges = [
            (gpu, calls.call_one_within(CALL_SECONDS, number, partial(_usable_range, gpu)))
            for number, gpu in enumerate(gpus)
        ]
        self._has_warned = False
        self._leases = [Lease(gpu, "power_limit", original_watts) for gpu, (_, original_watts) in self._ranges]
        self._restoration = Restoration(self, self._leases, calls)
        self._watch = LimitWatch(self, gpus, self._leases, self._restoration)
        self.settings: tuple[int, ...] = power_limit_settings([usable for _, usable in self._ranges], step_watts)
        """The limits in watts, highest first."""
        self._in_force: int = self.settings[0]

    def apply(self, setting: int) -> None:
        """Set the limit of every GPU, in watts.

        Raises:
            UsageError: `setting` is not between the lowest setting and the baseline.
            DeviceError: A GPU refuses or does not answer in time, or `restore` was called before, or by a signal
                handler meanwhile.
        """
        check_power_limit(setting, self.settings)
        restore_registry.catch_signals()  # the program may have replaced its handlers since the first change
        self._watch.begin()
        taken = []
        for number, (gpu, (lowest_watts, original_watts)) in enumerate(self._ranges):
            limit_watts = min(max(float(setting), lowest_watts), original_watts)
            enforced_watts = self._restoration.change(partial(self._watch.set, number, limit_watts), number)
            shown_watts = self._leases[number].shown
            is_taken = shown_watts is None or is_same_limit(shown_watts, limit_watts)
            taken.append(setting if is_taken else round(cast(float, shown_watts)))
            if not is_taken and setting == self.settings[0] and not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "for its original limit of %g W %s takes %g W: that is what the original stands for from now on",
                    *(limit_watts, gpu.name, cast(float, shown_watts)),
                )
            if enforced_watts < limit_watts - 1 and not self._has_warned:
                self._has_warned = True
                _logger.warning(
                    "%s was set to a power limit of %g W, but %g W is enforced", gpu.name, limit_watts, enforced_watts
                )
        self._in_force = setting if setting == self.settings[0] else max(taken)

    @property
    def in_force(self) -> int | None:
        """The setting that the boards took at the latest `apply`; None once the original was restored for good."""
        return None if self._restoration.is_final else self._in_force

    def is_undisturbed(self) -> bool:
        """Tell whether the limits have been in force since the latest `apply`, as far as they can be read.

        Raises:
            DeviceHeldError: Somebody else has set another limit, which stays. Nothing can be changed any more.
            DeviceError: The driver does not answer in time.
        """
        return self._watch.is_undisturbed()

    def restore(self) -> bool:
        """Restore the original limit of each GPU for good. Never raises; logs and returns False if one refuses."""
        self._watch.end()
        return self._restoration.restore()

    @property
    def unrestored(self) -> Mapping[str, str]:
        """The commands for the GPUs that `restore` is not known to have restored, each with the reason.

        It is "failed" if the driver refused, "replaced" if somebody else has set a value, which stays, and "unknown" if
        the driver has not answered.
        """
        return self._restoration.unrestored


def power_limit_settings(ranges: Iterable[PowerRange], step_watts: int) -> tuple[int, ...]:
    """Return the settings from the highest limit of some ranges down to the lowest, both included, in whole watts."""
    lowest_watts, highest_watts = zip(*ranges, strict=True)
    first, last = math.ceil(max(highest_watts)), math.ceil(min(lowest_watts))
    return (*range(first, last, -step_watts), last)


def check_power_limit(limit_watts: int, settings: Sequence[int]) -> None:
    """Raise `UsageError` for a limit outside some settings, which are sorted with the highest first."""
    try:
        is_accepted = bool(settings[-1] <= limit_watts <= settings[0])
    except Exception:  # it is no number
        is_accepted = False
    if not is_accepted:
        raise UsageError(
            f"a power limit of {shown(limit_watts)} W is outside {settings[-1]} to {settings[0]} W: "
            "choose one between the lowest the boards accept and the original limit"
        )


def _usable_range(gpu: Gpu) -> PowerRange:
    """Return the range from the lowest limit the board accepts to the original limit."""
    original_watts = read_original_limit_watts(gpu)
    return PowerRange(min(retried(gpu.read_power_limit_range_watts).lowest_watts, original_watts), original_watts)
