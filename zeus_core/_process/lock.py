"""A lock for objects that live on in forked processes."""

import os
import threading

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock between the threads of one process.

    A plain lock that some thread holds while another one forks stays locked in the child for ever: the thread that
    would release it does not exist there. Here each process has a lock of its own.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        # setdefault is atomic: two threads that come first at once get the same lock.
        self._locks.setdefault(os.getpid(), threading.Lock()).acquire()

    def __exit__(self, *exception: object) -> None:
        self._locks[os.getpid()].release()
