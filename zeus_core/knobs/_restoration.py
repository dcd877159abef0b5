"""The process that changed some hardware, and the way to restore it."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence

from zeus_core._process.restore import restore_registry
from zeus_core.errors import DeviceError, NotSupportedError, PermissionDeniedError, UsageError

__all__ = ["Restoration"]

# How long `restore` waits for a change under way in another thread. A driver call takes about 10 ms; a longer wait
# delays the end of a process whose driver hangs, a shorter one risks calling the driver from two threads.
_MAX_WAIT_SECONDS = 2.0

_UNCHANGED = (PermissionDeniedError, NotSupportedError, UsageError)  # errors after which the hardware is as before

_logger = logging.getLogger(__name__)


class Restoration:
    """The duty to restore what one knob changes: registered by the first change, done once and for good.

    Changes and restoring may happen in different threads, and in signal handlers.

    Args:
        knob: The knob, which is not kept: the hardware is restored for good when the knob is garbage-collected.
        steps: The steps to restore: a description, such as "the power limit of NVIDIA A40 to 250 W", and the function
            that does it; neither refers to the knob. Each is tried twice, and all are done even if one fails.
    """

    def __init__(self, knob: object, steps: Sequence[tuple[str, Callable[[], object]]]) -> None:
        self._steps = steps
        self._changed_by: int | None = None  # process id
        self._is_final = False
        self._locks: dict[int, threading.RLock] = {}  # by process id
        weakref.finalize(knob, self.restore).atexit = False  # the end of the process is the registry's part

    @property
    def _lock(self) -> threading.RLock:
        """One lock per process, as a forked child never gets one that a thread held; re-entrant for signal handlers."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def change(self, call: Callable[[], object]) -> None:
        """Change the hardware by a call of its driver.

        Raises:
            DeviceError: The hardware has been restored for good.
            Exception: The call raised it.
        """
        with self._lock:
            if self._is_final:
                raise DeviceError("the hardware has been restored for good and can no longer be changed")
            changed_before = self._changed_by
            if changed_before != os.getpid():
                self._mark_changed()
            try:
                call()
            except _UNCHANGED:
                if changed_before != os.getpid():
                    self._changed_by = changed_before
                    restore_registry.remove(self.restore)
                raise
            finally:
                if self._is_final:  # restored meanwhile, perhaps before the driver changed it
                    self._mark_changed()
                    self.restore()

    def restore_for_now(self) -> None:
        """Restore until the next change. Does nothing if this process has changed nothing.

        Raises:
            DeviceError: The driver refuses.
        """
        with self._lock:
            if self._changed_by == os.getpid():
                for _, restore in self._steps:
                    restore()

    def restore(self) -> bool:
        """Restore for good. Never raises; logs and returns False if a driver refuses, so that it can be called again.

        A forked child does nothing: the hardware is its parent's.
        """
        self._is_final = True
        if self._changed_by != os.getpid():
            return True
        # A change under way in another thread ends first; one that this thread was interrupted in continues later.
        lock = self._lock
        has_lock = lock.acquire(timeout=_MAX_WAIT_SECONDS)
        try:
            successes = [_try_twice(words, restore) for words, restore in self._steps]
            is_restored = all(successes)
            if is_restored:
                self._changed_by = None
                restore_registry.remove(self.restore)
            return is_restored
        finally:
            if has_lock:
                lock.release()

    def _mark_changed(self) -> None:
        self._changed_by = os.getpid()
        restore_registry.add(self.restore)


def _try_twice(words: str, restore: Callable[[], object]) -> bool:
    for is_last_try in (False, True):
        try:
            restore()
        except Exception as error:  # the other hardware must be restored after any error
            if is_last_try:
                _logger.error("%s could not be restored: %s", words, error)
        else:
            return True
    return False
