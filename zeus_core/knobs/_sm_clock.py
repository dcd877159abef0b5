"""The SM clock of a GPU."""

from __future__ import annotations

import logging
import os
import threading

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError, UsageError

__all__ = ["SmClockKnob"]

_UNDER_WAY_SECONDS = 2.0

_logger = logging.getLogger(__name__)


class SmClockKnob:
    """The SM clock of one GPU, in MHz.

    The driver reports the clock a GPU runs at, but not whether, or where, it is locked. A GPU is assumed to have been
    unlocked before, unless the user gives the clock it was locked at.

    It may be applied in one thread and restored in another, and in a signal handler too.

    Args:
        gpu: The GPU. Nothing is changed here.
        original_mhz: The clock in MHz that the GPU was locked at before; None if it was not locked.

    Raises:
        UsageError: The GPU does not support `original_mhz`.
        DeviceError: Its clocks cannot be read.
    """

    def __init__(self, gpu: Gpu, original_mhz: int | None = None) -> None:
        self._gpu = gpu
        self._original_mhz = original_mhz
        self._changed_by: int | None = None  # process
        self._is_restored = False
        self._lock = threading.RLock()  # re-entrant for signal handlers that interrupt a change
        supported = _supported_clocks_mhz(gpu)
        if supported and original_mhz is not None and original_mhz not in supported:
            raise UsageError(
                f"original_clock_mhz is {original_mhz!r}; {gpu.name} supports {supported[0]} down to "
                f"{supported[-1]} MHz"
            )
        self.settings = tuple(clock for clock in supported if original_mhz is None or clock <= original_mhz)
        """The clocks in MHz, highest first: those the GPU supports, up to the one it was locked at before. Empty where
        clocks cannot be set at all."""

    def apply(self, setting: int) -> None:
        """Lock the clock, in MHz.

        Raises:
            UsageError: It is not one of `settings`.
            NotSupportedError: There are no settings.
            DeviceError: The driver refuses, or `restore` was called before.
        """
        if not self.settings:
            raise NotSupportedError(f"the SM clock of {self._gpu.name} cannot be set")
        if setting not in self.settings:
            raise UsageError(
                f"clock_mhz is {setting!r}; {self._gpu.name} accepts clocks from {self.settings[0]} down to "
                f"{self.settings[-1]} MHz"
            )
        with self._lock:
            if self._is_restored:
                raise DeviceError(f"the clock of {self._gpu.name} has been restored, and can no longer be changed")
            changed_before, self._changed_by = self._changed_by, os.getpid()
            try:
                self._gpu.lock_sm_clock(setting)
            except (PermissionDeniedError, NotSupportedError, UsageError):
                self._changed_by = changed_before
                raise
            if self._is_restored:  # by a signal handler, before the clock was locked
                self._changed_by = os.getpid()
                self.restore()

    def release(self) -> None:
        """Let the GPU run at its original clock for now.

        Raises:
            DeviceError: The driver refuses.
        """
        with self._lock:
            if self._changed_by == os.getpid():
                self._put_back()

    def restore(self) -> bool:
        """Restore the original clock, for good. Never raises; logs and returns False if the driver refuses."""
        self._is_restored = True
        if self._changed_by != os.getpid():
            return True
        # A change under way in another thread ends first; one interrupted in this thread continues later.
        has_lock = self._lock.acquire(timeout=_UNDER_WAY_SECONDS)
        try:
            return self._try_to_put_back()
        finally:
            if has_lock:
                self._lock.release()

    def _try_to_put_back(self) -> bool:
        for is_last_try in (False, True):
            try:
                self._put_back()
            except Exception as error:
                if is_last_try:
                    _logger.error("the SM clock of %s could not be restored: %s", self._gpu.name, error)
            else:
                self._changed_by = None
                return True
        return False

    def _put_back(self) -> None:
        if self._original_mhz is None:
            self._gpu.unlock_sm_clock()
        else:
            self._gpu.lock_sm_clock(self._original_mhz)


def _supported_clocks_mhz(gpu: Gpu) -> tuple[int, ...]:
    try:
        return gpu.read_supported_sm_clocks_mhz()
    except NotSupportedError:
        return ()
