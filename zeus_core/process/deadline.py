"""How long others wait for a driver that hangs, and which threads do not wait longer."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from zeus_core.errors import DriverFaultError

# For all that one hook waits for, and what training loses to a driver that hangs: once, as later hooks know of it. With
# a slice for each of three calls after that, which are known to hang then, it is a second in all.
HOOK_SECONDS = 0.85
# For a reading or a change, and for all of them in a hook, so that a feature that steps aside can still restore in it.
# Readings take 0.05 to 5 ms, changes 5 to 10 ms, and under load a hundred times that has been seen. No later answer is
# of use.
CALL_SECONDS = 0.65
# For a restore, also in handlers of signals. Job managers kill a process 10 s (docker stop) to 30 s (Slurm, Kubernetes,
# torchrun) after SIGTERM; what is left of that is for saving a checkpoint.
RESTORE_SECONDS = 2.0
# For opening the driver, also in a hook: training has not begun. Without persistence mode it first initializes every
# board: about 20 s for eight.
OPEN_SECONDS = 60.0
# For a first look at an open GPU, also in a hook. It takes 0.7 s at most, tries after passing faults included.
SET_UP_SECONDS = 5.0
# Waits are made of slices. A signal that arrives just before a slice begins does not interrupt it, and its handler runs
# after it. A process that was stopped, or got no turn on a busy machine, loses a slice and not its deadline. Ten times
# what a reading takes at most.
_SLICE_SECONDS = 0.05


seconds_left: dict[int, float] = {}
"""How long each thread that is in a hook may still wait in it, by `get_ident`: training must go on.

The outermost hook adds its thread, with `HOOK_SECONDS`, and removes it. A dictionary, as each hook of each step does
so: that takes a fifth of the time of `threading.local`.
"""

hook_waits: dict[int, dict[str, float]] = {}
"""The seconds that each thread that is in a hook has waited, by cause, for the account of its object: `waiting_for`."""

_FREE = nullcontext()

unanswered: set[threading.Lock] = set()
"""The locks of calls that were not waited for any longer, of all devices; each is released by the answer."""

if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=unanswered.clear)  # the threads of these calls are the parent's


class _Lock(Protocol):
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...

    def release(self) -> None: ...


class Patience:
    """Waits for locks that are released by an answer of a device: no longer than a deadline, for all of them together.

    Only time is counted in which this thread could run. A hook waits no longer than what it has left, but a slice: a
    driver that works has answered by then. As if most were spent, once a call of any device is known to hang.

    Args:
        seconds: The deadline.
        restores: Whether it waits for restoring, for which a hook has more time than for calls.
    """

    def __init__(self, seconds: float, restores: bool = False) -> None:
        self._seconds = seconds
        self.waited_seconds: float = 0.0
        """How long it has waited."""
        left_seconds = seconds_left.get(threading.get_ident())
        if left_seconds is not None:
            for_restoring = HOOK_SECONDS - CALL_SECONDS
            if _hangs():
                left_seconds = min(left_seconds, for_restoring)
            self._seconds = min(seconds, max(left_seconds - (0.0 if restores else for_restoring), _SLICE_SECONDS))

    def acquire(self, lock: _Lock, until_seconds: float = math.inf) -> bool:
        """Acquire a lock, unless it has waited for so long in all, or to its deadline. Returns whether it has it."""
        thread, until_seconds = threading.get_ident(), min(self._seconds, until_seconds)
        while True:
            slice_seconds = min(max(until_seconds - self.waited_seconds, 0.0), _SLICE_SECONDS)
            if lock.acquire(timeout=slice_seconds):
                return True
            self.waited_seconds += slice_seconds
            if thread in seconds_left:
                seconds_left[thread] -= slice_seconds
            if self.waited_seconds >= until_seconds:
                return False


def _hangs() -> bool:
    """Return whether a call that was not waited for has still no answer."""
    unanswered.difference_update([lock for lock in tuple(unanswered) if not lock.locked()])
    return bool(unanswered)


def waiting_for(cause: str) -> AbstractContextManager[None]:
    """Charge the time of a block to a cause, if a hook waits for it; what it waits for within is part of that.

    Args:
        cause: "device", "files", "ranks" or "accelerator".
    """
    return _charged(cause) if threading.get_ident() in hook_waits else _FREE  # as at both edges of each window


@contextmanager
def _charged(cause: str) -> Iterator[None]:
    thread = threading.get_ident()
    waits, begin = hook_waits.pop(thread), time.perf_counter()
    try:
        yield
    finally:
        waits[cause] = waits.get(cause, 0.0) + time.perf_counter() - begin
        hook_waits[thread] = waits


@contextmanager
def held(lock: _Lock) -> Iterator[None]:
    """Hold a lock in a block, which another thread may hold while a driver hangs: a hook does not wait for that.

    Raises:
        DriverFaultError: The hook has waited as long as it may.
    """
    if not Patience(math.inf).acquire(lock):
        raise DriverFaultError(no_answer(CALL_SECONDS))
    try:
        yield
    finally:
        lock.release()


@contextmanager
def outside_of_hooks() -> Iterator[None]:
    """Wait longer in a block: training will not go on, as in the handler of a signal, or has not begun."""
    thread = threading.get_ident()
    left_seconds = seconds_left.pop(thread, None)
    try:
        yield
    finally:
        if left_seconds is not None:
            seconds_left[thread] = left_seconds


def is_in_hook() -> bool:
    """Return whether training waits for this thread, in a hook."""
    return threading.get_ident() in seconds_left


def no_answer(seconds: float) -> str:
    """Return the words for a driver that has not answered in time."""
    return (
        f"the driver has not answered within {seconds:g} s; look for NVRM and Xid, or amdgpu, in `dmesg`, and "
        "reset the GPU (`sudo nvidia-smi --gpu-reset`) or reboot if it stays so"
    )
