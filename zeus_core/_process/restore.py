"""Undoing a change to the hardware if the process ends before it was undone."""

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["ExitGuard"]

_logger = logging.getLogger(__name__)


def _available(*names: str) -> tuple[int, ...]:
    return tuple(getattr(signal, name) for name in names if hasattr(signal, name))


_ENDING = _available("SIGTERM", "SIGHUP")  # a process that handles them is about to end
_ENDING_BY_DEFAULT = _available("SIGINT", "SIGUSR1", "SIGUSR2", "SIGXCPU")  # if handled, they may mean anything


class ExitGuard:
    """Calls `undo` when the process ends: normally, by an exception, Ctrl-C, SIGTERM, SIGHUP and the like.

    It acts only in the process that armed it: a forked child that ends leaves its parent's hardware alone. A child of
    `multiprocessing` that armed its own guard is guarded like any other process. A signal is passed on to its previous
    handler, or ends the process as it would have. Signals are caught only if `arm` is called in the main thread, and
    handled as soon as that thread leaves C code. Nothing in this process can guard against SIGKILL.

    Args:
        undo: Undoes the change; calling it again must do no harm. It must not refer to the owner of the guard, which
            would then live until the end of the process.
    """

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo
        self._process_id: int | None = None
        self._handlers: dict[int, _Handler] = {}
        self._finalizer: Any = None

    def arm(self) -> None:
        """From now on, call `undo` at the end of the process."""
        if self._process_id != os.getpid():
            self._process_id = os.getpid()
            atexit.register(self._undo_here)
            self._finalizer = _at_end_of_worker(self._undo_here)
            if threading.current_thread() is not threading.main_thread():
                _logger.warning("training is not in the main thread: hardware settings cannot be restored on SIGTERM")
        if threading.current_thread() is threading.main_thread():
            for signal_number in (*_ENDING, *_ENDING_BY_DEFAULT):
                is_new = signal_number not in self._handlers
                # A handler installed since is assumed to call ours; the default action does not.
                if is_new or signal.getsignal(signal_number) == signal.SIG_DFL:
                    self._catch(signal_number)

    def disarm(self) -> None:
        """Do nothing at the end of the process any more: the change has been undone."""
        self._process_id = None
        atexit.unregister(self._undo_here)
        if self._finalizer is not None:
            self._finalizer.cancel()
        for signal_number, ours in list(self._handlers.items()):
            # A handler installed after ours stays; ours, when that one calls it, only passes the signal on.
            is_latest = signal.getsignal(signal_number) is ours
            if is_latest:
                with contextlib.suppress(ValueError):  # not the main thread: here, too, ours only passes it on
                    signal.signal(signal_number, ours.previous)
                    del self._handlers[signal_number]

    def _catch(self, signal_number: int) -> None:
        previous = signal.getsignal(signal_number)
        # None is a handler installed by C code, which could not be called; an ignored signal ends nothing.
        if previous is None or previous == signal.SIG_IGN:
            return
        if signal_number in _ENDING_BY_DEFAULT and previous != signal.SIG_DFL:
            return
        # A new one each time: ours from before may still stand below `previous`, and must not be called in a circle.
        self._handlers[signal_number] = _Handler(self._undo_here, previous)
        signal.signal(signal_number, self._handlers[signal_number])

    def _undo_here(self) -> None:
        if self._process_id == os.getpid():
            try:
                self._undo()
            except BaseException:  # another Ctrl-C
                self._undo()
                raise


def _at_end_of_worker(undo: Callable[[], object]) -> Any:
    """Call `undo` at the end of a forked child of `multiprocessing`, where older Pythons do not run `atexit`."""
    if "multiprocessing.util" in sys.modules:  # as in every such child
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            return util.Finalize(None, undo, exitpriority=0)
    return None


class _Handler:
    """Undoes the change, then does what would have happened without the guard."""

    def __init__(self, undo: Callable[[], object], previous: Any) -> None:
        self._undo = undo
        self.previous = previous

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        self._undo()
        if callable(self.previous):
            self.previous(signal_number, frame)
        elif self.previous == signal.SIG_DFL:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
