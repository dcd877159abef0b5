"""Files, written and opened so that other users cannot misuse it.

Others may have placed links in a folder that they can write to, such as /tmp.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from zeus_core.process.deadline import seconds_left

# Windows has no such flags, and no users as those of POSIX.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # for the other end of a pipe
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK
_MAX_LINKS = 40  # as many as Linux follows

# A document is read and replaced within some milliseconds. Training waits no longer for other processes than this.
_LOCK_SECONDS = 1.0
_LOCK_POLL_SECONDS = 0.005


def write_atomically(path: Path, content: str | bytes, is_lasting: bool = True) -> None:
    """Replace a file. A kill or a power cut leaves the old file or the new one.

    A link is replaced, not followed. The content is first written to a new file beside it, under a name that nobody can
    guess, so that others who may write to the folder cannot place a link there.

    Args:
        path: The file.
        content: The new content.
        is_lasting: Wait for the disk: otherwise a power cut, but no kill, may leave an empty file on some file systems.

    Raises:
        OSError: It cannot be written.
        ValueError: No file can have that name, or UTF-8 cannot hold the text.
    """
    data = content.encode() if isinstance(content, str) else content
    if is_special(path):
        raise OSError(errno.EINVAL, "it is a folder or a device, not a file", str(path))
    unfinished = path.with_name(f"{path.name}.unfinished-{os.urandom(8).hex()}")
    descriptor = os.open(unfinished, _NEW_FILE, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if is_lasting:
                os.fsync(descriptor)  # some file systems rename first, and a power cut then leaves an empty file
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def is_special(path: Path) -> bool:
    """Return whether there is something other than a file: a folder, a pipe, a device."""
    try:
        return path.exists() and not path.is_file()
    except OSError:  # to read or write it says why it cannot be looked at
        return False


def without_links(path: str, flags: int) -> int:
    """Open a file that this program has named: the `opener` of `open`.

    Raises:
        OSError: It cannot be opened; or it is a link, has a second name, or is no file: others have placed it there.
    """
    try:
        descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, which is not followed", path) from None
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no file, or one that has a second name (a hard link)", path)
    return descriptor


def following_own_links(path: str, flags: int) -> int:
    """Open a file that the user has named: the `opener` of `open`. See `follow_own_links`."""
    target = follow_own_links(Path(path))
    return os.open(target, flags | (0 if target.is_relative_to("/proc") else _NO_LINK), 0o666)


def follow_own_links(path: Path) -> Path:
    """Return the file that a link leads to, and any other path as it is.

    Raises:
        OSError: A link on the way belongs neither to this user nor to root, leads to itself, or cannot be read.
    """
    for _ in range(_MAX_LINKS):
        if not path.is_symlink():
            return path
        owner = path.lstat().st_uid
        if not _is_trusted(owner):
            raise OSError(errno.ELOOP, f"it is a link of user {owner}, which is not followed", str(path))
        target = path.parent / path.readlink()
        if path.exists() and not target.exists():  # an open file, such as /dev/stdout, which has no name to follow
            return path
        path = target
    raise OSError(errno.ELOOP, "it is a link to itself", str(path))


def check_only_ours(folder: Path) -> None:
    """Check that only this user, or root, can change the files in a folder.

    Raises:
        PermissionError: Others can, as they own it, a file in it or a folder around it, or may write to one of these;
            the message names it, and the remedy.
        OSError: The folder cannot be looked at.
    """
    place = folder.resolve(strict=True)
    state = place.stat()
    _check_closed(place, state, 0o022)
    for parent in place.parents:
        around = parent.stat()
        # In a sticky folder, such as /tmp, others cannot move what is ours.
        _check_closed(parent, around, 0 if around.st_mode & stat.S_ISVTX else 0o022)
    file_bits = 0o022 if state.st_mode & 0o077 else 0  # nobody reaches the files in a private folder
    for entry in place.iterdir():  # others may have placed some while the folder was open to them
        with contextlib.suppress(FileNotFoundError):  # written by another process, and renamed by now
            if not entry.is_dir() and not entry.is_socket():  # to write to a socket changes nothing here
                _check_closed(entry, entry.lstat(), file_bits)


def _is_trusted(user: int) -> bool:
    """Return whether a user is this one, or root."""
    return user == 0 or not hasattr(os, "geteuid") or user == os.geteuid()


def _check_closed(place: Path, state: os.stat_result, bits: int) -> None:
    if not _is_trusted(state.st_uid):
        raise PermissionError(errno.EPERM, f"it belongs to user {state.st_uid}", str(place))
    if state.st_mode & bits and not stat.S_ISLNK(state.st_mode) and os.name == "posix":
        raise PermissionError(errno.EPERM, f"others can change it: chmod go-w {shlex.quote(str(place))}", str(place))


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes that use this function from changing the files in a folder meanwhile.

    It leaves no file behind; the folder is made if need be. A folder that cannot be locked in time, or at all, as on
    some network file systems, is changed without: another process may then overwrite what this one writes.
    """
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            thread, waits = threading.get_ident(), 0
            patience_seconds = min(_LOCK_SECONDS, seconds_left.get(thread, _LOCK_SECONDS))
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    # Closing would not do while a child that was forked meanwhile has the descriptor too.
                    stack.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
                    break
                except BlockingIOError:
                    if waits * _LOCK_POLL_SECONDS >= patience_seconds:
                        break
                    time.sleep(_LOCK_POLL_SECONDS)
                    waits += 1
                    if thread in seconds_left:  # a hook waits no longer than a second in all
                        seconds_left[thread] -= _LOCK_POLL_SECONDS
        except (ImportError, OSError, ValueError):
            pass  # Windows; a file system without locks; a folder that cannot be, which the write reports
        yield
