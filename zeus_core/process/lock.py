"""A lock for objects that forked processes inherit."""

import os
import threading


class ProcessLock:
    """A lock between the threads of one process.

    A plain lock that one thread holds while another forks stays locked in the child for ever: the thread that would
    release it does not exist there. Therefore each process has its own lock.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        lock = self._locks.get(os.getpid())
        if lock is None:  # setdefault is atomic: two threads that come first at the same time get the same lock
            lock = self._locks.setdefault(os.getpid(), threading.Lock())
        lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._locks[os.getpid()].release()
