"""The registry of everything that this process must restore before it ends.

This is module-level state, as signal handlers belong to the whole process. The only others are how long threads in a
hook may wait, and which calls hang (`deadline.py`), and the guardian of the process (`zeus_core/settings`).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from zeus_core.process.deadline import outside_of_hooks


class SignalWatch:
    """Calls a function with the number of each signal that a handler in Python is due for.

    Python runs handlers in the main thread, between two of its instructions: never, in a collective that hangs. The
    number is written to a socket at once (`signal.set_wakeup_fd`). If somebody else has such a socket, it gets the
    numbers too. A forked child has none of ours.

    Args:
        heard: The function; it is called in a thread of its own, and must not raise.
    """

    def __init__(self, heard: Callable[[int], object]) -> None:
        self._heard = heard
        self._ours: socket.socket | None = None
        self._previous = -1
        self._previous_file: tuple[int, int] | None = None  # in case its number belongs to another file by now
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    def begin(self) -> None:
        """Hear of signals from now on, also if somebody else has replaced our socket. In the main thread only."""
        if os.name != "posix":
            return
        if self._ours is None:
            numbers, self._ours = socket.socketpair()
            self._ours.setblocking(False)
            threading.Thread(target=self._listen, args=(numbers,), name="zeus-core signals", daemon=True).start()
        previous = signal.set_wakeup_fd(self._ours.fileno(), warn_on_full_buffer=False)
        if previous != self._ours.fileno():
            self._previous, self._previous_file = previous, _file_of(previous)

    def end(self) -> None:
        """Give the signals back, unless somebody else has replaced our socket. Does nothing in other threads."""
        if self._ours is not None and threading.current_thread() is threading.main_thread():
            found = signal.set_wakeup_fd(self._previous, warn_on_full_buffer=False)
            if found != self._ours.fileno():
                signal.set_wakeup_fd(found, warn_on_full_buffer=False)
            self._ours.close()
            self._ours = None

    def _leave(self) -> None:
        """Leave our socket to the parent, in a forked child."""
        if self._ours is not None:
            with contextlib.suppress(ValueError):  # the child of a thread that is not the main one, in old Pythons
                self.end()
            self._ours = None

    def _listen(self, numbers: socket.socket) -> None:
        with numbers:
            while received := numbers.recv(64):
                self._pass_on(received)
                for number in received:
                    self._heard(number)

    def _pass_on(self, received: bytes) -> None:
        if self._previous != -1 and self._previous_file == _file_of(self._previous):
            with contextlib.suppress(OSError):
                os.write(self._previous, received)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    try:
        state = os.fstat(descriptor)
    except OSError:
        return None
    return state.st_dev, state.st_ino


_logger = logging.getLogger(__name__)


def _available(*names: str) -> tuple[int, ...]:
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


# A process that handles one of these is about to end, so its handler is wrapped. (POSIX: "termination", "hangup".)
_ENDING = _available("SIGTERM", "SIGHUP")
# These end a process by default, but a program that handles them may mean anything by them (a checkpoint, a debugger).
_ENDING_BY_DEFAULT = _available("SIGINT", "SIGUSR1", "SIGUSR2", "SIGXCPU")
# Python begins a handler within milliseconds, or at the end of a call of C code that may never come. Hardware is to be
# restored within a second.
_HANDLER_SECONDS = 0.4
_HANDLER_POLL_SECONDS = 0.02


class RestoreRegistry:
    """Restores what is registered when the process ends: by itself, an exception, Ctrl-C, SIGTERM, SIGHUP and others.

    Each process restores only what it has registered itself: a forked child leaves its parent's hardware alone.
    A signal is passed on to the previous handler, or ends the process as it would have without this registry.
    Signals are caught only from the main thread. While that thread is in C code, another one restores. Signals that
    cannot be caught, such as SIGKILL, are left to the guardian (`zeus_core/settings`).

    No lock is taken: signal handlers and finalizers of the garbage collector call `remove` at any moment, and each
    change of the dictionary is atomic.
    """

    def __init__(self) -> None:
        self._registered_by: dict[Callable[[], object], int] = {}  # process id by function
        self._process_id: int | None = None  # in which `atexit` calls this registry
        self._handlers: dict[int, _Handler] = {}
        self._finalizer: Any = None  # keeps multiprocessing's finalizer alive
        self._watch = SignalWatch(self._restore_if_unhandled)

    def add(self, restore: Callable[[], object]) -> None:
        """Call `restore` at the end of this process, unless it is removed before. Adding it again does no harm.

        Args:
            restore: Restores some hardware. It never raises, can be called again, and removes itself on success. It
                must not refer to the owner of the change, which would then live until the end of the process.
        """
        is_new = self._registered_by.get(restore) != os.getpid()
        self._registered_by[restore] = os.getpid()
        if self._process_id != os.getpid():
            self._process_id = os.getpid()
            atexit.unregister(self._restore_all)  # inherited by a forked child
            atexit.register(self._restore_all)
            self._finalizer = at_end_of_worker(self._restore_all)
            if sys.platform != "linux" and threading.current_thread() is not threading.main_thread():
                _logger.warning("training is not in the main thread: hardware settings cannot be restored on SIGTERM")
        self.catch_signals(is_new)

    def remove(self, restore: Callable[[], object]) -> None:
        """Forget `restore`: it has succeeded. Signals are left alone when nothing is registered any more."""
        self._registered_by.pop(restore, None)
        if os.getpid() in self._registered_by.values():
            return
        self.leave_signals()
        self._watch.end()

    def leave_signals(self) -> None:
        """Reinstall the handlers from before ours, for a program that is about to install its own: it may call those.

        To be followed by `catch_signals(wraps_later_handlers=True)`. Does nothing outside the main thread.
        """
        for signal_number, handler in self._handlers.copy().items():
            # A handler installed after ours stays, and when it calls ours, ours only passes the signal on.
            is_latest = signal.getsignal(signal_number) is handler
            if is_latest:
                with contextlib.suppress(ValueError):  # not the main thread: ours stays, and only passes the signal on
                    signal.signal(signal_number, handler.previous)
                    self._handlers.pop(signal_number, None)  # a signal handler may have done so just now

    def catch_signals(self, wraps_later_handlers: bool = False) -> None:
        """Ensure that signals are caught while something is registered, even if handlers have changed since.

        Nothing happens outside the main thread.

        Args:
            wraps_later_handlers: Whether to wrap handlers installed after ours, which may call ours or not. Without,
                they are assumed to call ours; the default action never does.
        """
        if threading.current_thread() is not threading.main_thread() or not self._registered_by:
            return
        for signal_number in (*_ENDING, *_ENDING_BY_DEFAULT):
            ours, current = self._handlers.get(signal_number), signal.getsignal(signal_number)
            if current is not ours and (ours is None or wraps_later_handlers or current == signal.SIG_DFL):
                self._catch(signal_number, current)
        self._watch.begin()

    def _catch(self, signal_number: int, previous: Any) -> None:
        # None is a handler installed by C code, which could not be called; an ignored signal ends nothing.
        if previous is None or previous == signal.SIG_IGN:
            return
        if signal_number in _ENDING_BY_DEFAULT and previous != signal.SIG_DFL:
            return
        # A new one each time: ours from before may still stand below `previous`, and must not be called in a circle.
        self._handlers[signal_number] = _Handler(self._restore_all, previous)
        signal.signal(signal_number, self._handlers[signal_number])

    def _restore_if_unhandled(self, signal_number: int) -> None:
        """Restore if the main thread does not. Runs in the thread that hears of signals."""
        handler = signal.getsignal(signal_number)
        if not isinstance(handler, _Handler) or handler is not self._handlers.get(signal_number):
            return  # the present handler calls ours, or the process does not end
        until = time.monotonic() + _HANDLER_SECONDS
        while time.monotonic() < until and not handler.calls:
            time.sleep(_HANDLER_POLL_SECONDS)
        if not handler.calls:
            self._restore_all()
        handler.calls = 0

    def _restore_all(self) -> None:
        try:
            self._restore_each()
        except BaseException:  # another Ctrl-C: restore what is left
            self._restore_each()
            raise

    def _restore_each(self) -> None:
        with outside_of_hooks(), contextlib.ExitStack() as stack:  # calls all, the latest first, even if one raises
            for restore, process_id in self._registered_by.copy().items():
                if process_id == os.getpid():
                    stack.callback(restore)


def at_end_of_worker(restore: Callable[[], object]) -> Any:
    """Call a function at the end of a forked child of `multiprocessing`, where older Pythons do not run `atexit`."""
    if "multiprocessing.util" in sys.modules:  # as in every such child
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            return util.Finalize(None, restore, exitpriority=0)
    return None


class _Handler:
    """Restores everything, then does what would have happened without the registry."""

    def __init__(self, restore: Callable[[], object], previous: Any) -> None:
        self._restore = restore
        self.previous = previous
        self.calls = 0

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        self.calls += 1
        self._restore()
        if callable(self.previous):
            self.previous(signal_number, frame)
        elif self.previous == signal.SIG_DFL:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)


restore_registry: RestoreRegistry = RestoreRegistry()
