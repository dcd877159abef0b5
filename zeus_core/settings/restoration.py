"""The process that changed some hardware, and the way to restore it."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, DeviceHeldError
from zeus_core.process.deadline import CALL_SECONDS, RESTORE_SECONDS, Patience, held, is_in_hook
from zeus_core.process.parallel import DeviceCall, ParallelCalls
from zeus_core.process.restore_registry import restore_registry
from zeus_core.settings.holders import KnobUser, SettingKey, holders, user_of
from zeus_core.settings.lease import UNCHANGED, Lease

# A call of a driver takes milliseconds: one that has no answer after this hangs.
_QUEUE_SECONDS = 0.3

_Answer = TypeVar("_Answer")

_logger = logging.getLogger(__name__)


class _Restored(Protocol):
    _restoration: Restoration


_Knob = TypeVar("_Knob", bound=_Restored)


def used_by(user: KnobUser | None, knob: _Knob) -> _Knob:
    """Say which object uses a knob, and return the knob; None for the knob itself."""
    if user is not None:
        knob._restoration.user = user
    return knob


class Restoration:
    """The duty to restore what one knob changes: registered by the first change, done once and for good.

    Changes and restoring may happen in different threads, and in signal handlers. Each GPU is called in a thread of its
    own, and none is waited for beyond a deadline. A GPU whose driver hangs is restored once the driver answers again.

    Args:
        knob: The knob, which is not kept: the hardware is restored for good when the knob is garbage-collected.
        leases: One per GPU; they do not refer to the knob. All are restored even if one fails.
        calls: A thread for each GPU.
    """

    def __init__(self, knob: object, leases: Sequence[Lease], calls: ParallelCalls) -> None:
        self.user: KnobUser = user_of(knob)
        """The object that uses the knob: the knob itself, unless `used_by` says otherwise."""
        self.originals: dict[SettingKey, float | None] = {lease.key: lease.original for lease in leases}
        """The originals, by key of the lease."""
        self._given_to: str | None = None
        self._leases = leases
        self._calls = calls
        self._changed_by: int | None = None  # process id
        self.is_final: bool = False
        """Whether the hardware has been restored for good, or is about to be."""
        self._locks: dict[int, threading.RLock] = {}  # by process id
        self._restoring: dict[int, DeviceCall[bool]] = {}  # by lease: those that wait for a driver that hangs
        self._logged: set[int] = set()  # the leases whose driver was said not to answer
        weakref.finalize(knob, self.restore).atexit = False  # the end of the process is the registry's part

    @property
    def _lock(self) -> threading.RLock:
        """One lock per process, as a forked child never gets one that a thread held; re-entrant for signal handlers."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    @property
    def unrestored(self) -> dict[str, str]:
        """The GPUs that `restore` is not known to have restored: the command for each, and the reason.

        It is "failed" if the driver refused, "replaced" if somebody else has set a value, which stays, and "unknown" if
        the driver has not answered.
        """
        found: dict[str, str] = {}
        for number, lease in enumerate(self._leases):
            call, outcome = self._restoring.get(number), lease.outcome
            if call is not None and not call.is_done:
                found[lease.command] = "unknown"
            elif outcome is None or (outcome.value is not None and outcome.value == lease.original):
                continue  # nothing failed, or somebody has set the original
            elif outcome.kind in ("failed", "replaced"):
                found[lease.command] = outcome.kind
        return found

    def change(self, call: Callable[[], _Answer], number: int = 0) -> _Answer:
        """Change the hardware, and return the answer.

        Args:
            call: Changes it through a lease.
            number: The number of the lease.

        Raises:
            DeviceHeldError: Another object of this process controls a GPU.
            DeviceError: The hardware has been restored for good, or the driver does not answer in time.
            Exception: The call raised it.
        """
        with held(self._lock):
            if self._given_to is not None:
                raise DeviceHeldError(self._given_to)
            if self.is_final:
                raise DeviceError("the hardware has been restored for good and can no longer be changed")
            changed_before = self._changed_by
            if changed_before != os.getpid():
                holders.take(self)
                self._leases[number].prepare()
                self._calls.start(2 * len(self._leases))  # a signal handler could not start threads any more
                self._mark_changed()
            try:
                return self._calls.call_one_within(CALL_SECONDS, number, partial(self._changed, call, number))
            except UNCHANGED:
                if changed_before != os.getpid():
                    self._changed_by = changed_before
                    self._leave()
                raise
            finally:
                if self.is_final:  # restored meanwhile, perhaps before the driver changed it
                    self._mark_changed()
                    self.restore()

    def look(self, call: Callable[[], _Answer], number: int) -> _Answer:
        """Make a call of a GPU that changes nothing, and return the answer.

        Raises:
            DeviceError: The driver does not answer in time.
            Exception: The call raised it.
        """
        return self._calls.call_one_within(CALL_SECONDS, number, call)

    def restore_for_now(self) -> None:
        """Restore until the next change. Does nothing if this process has changed nothing.

        Raises:
            DeviceError: The driver refuses, or does not answer in time.
        """
        with held(self._lock):
            if self._changed_by == os.getpid():
                for number, lease in enumerate(self._leases):
                    self._calls.call_one_within(CALL_SECONDS, number, lease.restore_for_now)

    def restore(self) -> bool:
        """Restore for good. Never raises; logs and returns False if a driver refuses, so that it can be called again.

        A forked child does nothing: the hardware is its parent's. A hook waits once for a driver that hangs, the end of
        the process once more.
        """
        self.is_final = True
        if self._changed_by != os.getpid():
            holders.leave(self)  # a change that was interrupted may have taken them just before
            return True
        patience = Patience(RESTORE_SECONDS, restores=True)
        # A change under way in another thread ends first; one that this thread was interrupted in continues later.
        lock = self._lock
        has_lock = patience.acquire(lock)
        try:
            hanging = {number for number, call in self._restoring.items() if not call.is_done}
            for number in set(range(len(self._leases))) - hanging:
                lease = self._leases[number]
                is_beside = self._calls.is_occupied(number) and not lease.is_changing  # as in `_wait`
                thread = len(self._leases) + number if is_beside else number
                self._restoring[number] = self._calls.put(thread, lease.restore)
            queued_until = patience.waited_seconds + _QUEUE_SECONDS
            for number in sorted(set(self._restoring) - (hanging if is_in_hook() else set())):
                self._wait(number, patience, queued_until)
            is_restored = all(call.is_done and call.answer() for call in self._restoring.values())
            if is_restored:
                self._changed_by = None
                self._leave()
            return is_restored
        finally:
            if has_lock:
                lock.release()

    def give_up(self, to: str) -> bool:
        """Restore for good, as another object takes the GPUs over: changes raise `DeviceHeldError` from now on."""
        is_restored = self.restore()
        self._given_to = f"{to} has taken the GPU over"
        for lease in self._leases:
            lease.replaced = self._given_to
        return is_restored

    def _changed(self, call: Callable[[], _Answer], number: int) -> _Answer:
        """Call the driver, in the thread of a GPU; again after a passing fault. A change that is too late is undone."""
        late = time.monotonic() + _QUEUE_SECONDS  # a driver that hangs, or a daemon that is away, is not asked again
        try:
            return retried(call, unless=lambda: self.is_final or time.monotonic() > late)
        finally:
            if self.is_final:
                self._leases[number].restore()

    def _wait(self, number: int, patience: Patience, queued_until: float) -> None:
        """Wait until a GPU is restored, and say so if it is not."""
        call, lease = self._restoring[number], self._leases[number]
        is_queued = not call.wait(patience, queued_until) and not call.has_begun
        if is_queued and not lease.is_changing:  # a reading hangs: a change that hangs would come after the restoring
            call = self._restoring[number] = self._calls.put(len(self._leases) + number, lease.restore)
        if not call.wait(patience) and number not in self._logged:
            self._logged.add(number)
            _logger.error(
                "%s is not restored yet: the driver does not answer. It is restored as soon as the driver does; "
                "otherwise use the command",
                lease.words,
            )

    def _mark_changed(self) -> None:
        self._changed_by = os.getpid()
        restore_registry.add(self.restore)

    def _leave(self) -> None:
        restore_registry.remove(self.restore)
        holders.leave(self)
