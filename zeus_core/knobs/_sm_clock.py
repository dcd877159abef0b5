"""The SM clock of a GPU."""

from __future__ import annotations

from functools import partial

from zeus_core._process.deadline import CALL_SECONDS
from zeus_core._process.parallel import ParallelCalls
from zeus_core._validate import checked_whole_number
from zeus_core.device import Gpu
from zeus_core.device._gpu import checked_gpu
from zeus_core.device._retry import retried
from zeus_core.errors import NotSupportedError, UsageError
from zeus_core.knobs._lease import Lease
from zeus_core.knobs._residue import restore_residue
from zeus_core.knobs._restoration import Restoration

__all__ = ["SmClockKnob"]


class SmClockKnob:
    """The SM clock of one GPU, in MHz.

    The driver reports the clock a GPU runs at, but not whether, or where, it is locked. A GPU is assumed to have been
    unlocked originally, unless the user gives the clock it was locked at.

    Args:
        gpu: The GPU. Nothing is changed here.
        original_mhz: The clock in MHz that the GPU was locked at before; None if it was not locked.

    Raises:
        UsageError: The GPU does not support `original_mhz`.
        DeviceError: Its clocks cannot be read, or the driver does not answer.
    """

    def __init__(self, gpu: Gpu, original_mhz: int | None = None) -> None:
        self._gpu = checked_gpu("gpu", gpu)
        if original_mhz is not None:
            original_mhz = checked_whole_number("original_clock_mhz", original_mhz, 1)
        calls = ParallelCalls()
        supported = calls.call_one_within(CALL_SECONDS, 0, partial(_supported_clocks_mhz, gpu))
        if supported and original_mhz is not None and original_mhz not in supported:
            raise UsageError(
                f"original_clock_mhz is {original_mhz!r}; {gpu.name} supports {supported[0]} down to "
                f"{supported[-1]} MHz"
            )
        calls.call_one_within(CALL_SECONDS, 0, partial(restore_residue, gpu))
        self._lease = Lease(gpu, "sm_clock", original_mhz)
        self._restoration = Restoration(self, [self._lease], calls)
        self.settings: tuple[int, ...] = tuple(
            clock for clock in supported if original_mhz is None or clock <= original_mhz
        )
        """The clocks in MHz, highest first: those the GPU supports, up to the one it was locked at before. Empty where
        clocks cannot be set at all."""

    def apply(self, setting: int) -> None:
        """Lock the clock, in MHz.

        Raises:
            UsageError: It is not one of `settings`.
            NotSupportedError: There are no settings.
            DeviceError: The driver refuses or does not answer in time, or `restore` was called before.
        """
        if not self.settings:
            raise NotSupportedError(f"the SM clock of {self._gpu.name} cannot be set")
        if setting not in self.settings:
            raise UsageError(
                f"clock_mhz is {setting!r}; {self._gpu.name} accepts clocks from {self.settings[0]} down to "
                f"{self.settings[-1]} MHz"
            )
        self._restoration.change(partial(self._lease.set, setting))

    def restore_for_now(self) -> None:
        """Restore the original clock until the next `apply`.

        Raises:
            DeviceError: The driver refuses.
        """
        self._restoration.restore_for_now()

    def restore(self) -> bool:
        """Restore the original clock for good. Never raises; logs and returns False if the driver refuses."""
        return self._restoration.restore()


def _supported_clocks_mhz(gpu: Gpu) -> tuple[int, ...]:
    try:
        return retried(gpu.read_supported_sm_clocks_mhz)
    except NotSupportedError:
        return ()
