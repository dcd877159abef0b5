"""A lock that forked processes inherit, and the number of the process, by which objects find that they were forked."""

import os
import threading

_process_id = os.getpid()


def process_id() -> int:
    """Return `os.getpid()` without a call of the system, which takes up to 0.15 µs: each reading asks several times."""
    return _process_id


def _renew() -> None:
    global _process_id
    _process_id = os.getpid()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew)


class ProcessLock:
    """A lock between the threads of one process.

    A plain lock that one thread holds while another forks stays locked in the child for ever: the thread that would
    release it does not exist there. Therefore each process has its own lock.
    """

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    def __enter__(self) -> None:
        lock = self._locks.get(process_id())
        if lock is None:  # setdefault is atomic: two threads that come first at the same time get the same lock
            lock = self._locks.setdefault(process_id(), threading.Lock())
        lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._locks[process_id()].release()
