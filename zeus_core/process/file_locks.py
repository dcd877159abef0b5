"""Locks on files that other users cannot open: a user who can open a file can lock it, and keep others waiting.

A lock ends with its process, in any namespace. A forked child closes its copies, or it would keep its parent's locks.
"""

from __future__ import annotations

import os

_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # Windows has neither

_open: dict[int, tuple[int, int]] = {}  # descriptors, each with its file
_kept: dict[str, int] = {}  # descriptors by path


def try_lock(path: str) -> int | None:
    """Lock a file, which is made if need be, and return its descriptor.

    Returns:
        None if another process has locked it, or has removed it at this moment.

    Raises:
        OSError: It cannot be made.
    """
    descriptor = _opened(path, os.O_RDWR | os.O_CREAT)
    if _try_lock(descriptor) and os.fstat(descriptor).st_nlink:
        return descriptor
    unlock(descriptor)
    return None


def unlock(descriptor: int) -> None:
    """Unlock and close a file. Closing alone would not do: a child may be forked at this moment."""
    import fcntl  # Windows has none

    is_ours = _is_ours(descriptor)
    if is_ours:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _open.pop(descriptor, None)  # before another thread can have its number
    if is_ours:
        os.close(descriptor)


def keep(path: str, descriptor: int) -> None:
    """Keep a file locked until `release`, or the end of this process."""
    _kept[path] = descriptor


def release(path: str) -> None:
    """Unlock a file that this process keeps locked, if it does."""
    descriptor = _kept.pop(path, None)
    if descriptor is not None:
        unlock(descriptor)


def is_locked(path: str) -> bool | None:
    """Tell whether a process has locked a file; None if there is none. One that cannot be opened counts as locked."""
    try:
        descriptor = _opened(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError:
        return True
    try:
        return not _try_lock(descriptor, is_shared=True)  # others may ask at the same moment
    finally:
        unlock(descriptor)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _FLAGS, 0o600)
    _open[descriptor] = _file_of(descriptor)
    return descriptor


def _file_of(descriptor: int) -> tuple[int, int]:
    state = os.fstat(descriptor)
    return state.st_dev, state.st_ino


def _is_ours(descriptor: int) -> bool:
    """Tell whether a descriptor is still that of the lock: a program may close all, and open others."""
    try:
        return _file_of(descriptor) == _open.get(descriptor)
    except OSError:
        return False


def _try_lock(descriptor: int, *, is_shared: bool = False) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_in_child() -> None:
    for descriptor in filter(_is_ours, _open):
        os.close(descriptor)
    _open.clear()
    _kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
