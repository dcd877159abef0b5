"""A thread that hears of signals while the main thread cannot handle them, as it is in C code."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket


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
            import socket  # 3 ms, which programs that change nothing do without

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
