"""Reading the files of a powercap tree, and what each failure to do so means."""

import errno
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from zeus_core.errors import DeviceError, DeviceLostError, DriverFaultError, PermissionDeniedError

__all__ = ["ReadText", "UnreadableFileError", "permission_remedy", "read_count", "read_file", "read_word"]

ReadText = Callable[[Path], str]
"""Returns the text of a file, or raises `OSError` or `UnicodeDecodeError`."""

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


class UnreadableFileError(PermissionDeniedError):
    """This process may not read a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"this process may not read {path}. {permission_remedy([path])}")
        self.path = path


def permission_remedy(paths: Iterable[Path]) -> str:
    """What an admin runs so that everybody may read these files of zones, and what that costs."""
    patterns = sorted({f"{shlex.quote(str(path.parent.parent))}/intel-rapl:*/{path.name}" for path in paths})
    return (
        f"An admin can allow it until the next reboot: sudo chmod a+r {' '.join(patterns)} "
        "(this lets every user of the machine watch its power, a side channel: CVE-2020-8694)"
    )


def read_file(path: Path) -> str:
    """The text of a file, as of this moment."""
    return path.read_text(encoding="ascii")


def read_word(path: Path, read_text: ReadText) -> str:
    """The one line of a file.

    Raises:
        PermissionDeniedError: This process may not read it; an `UnreadableFileError`.
        DeviceLostError: There is no such file, or no device behind it any more.
        DriverFaultError: The read failed otherwise, or there is nothing in it.
    """
    try:
        word = read_text(path).strip()
    except PermissionError as error:
        raise UnreadableFileError(path) from error
    except OSError as error:
        raise _failed_read(path, error) from error
    except UnicodeDecodeError as error:
        raise DriverFaultError(f"{path} does not hold text") from error
    if not word:
        raise DriverFaultError(f"{path} is empty")
    return word


def read_count(path: Path, read_text: ReadText) -> int:
    """The whole number, not negative, in a file; raises what `read_word` does."""
    word = read_word(path, read_text)
    # The kernel prints a 64-bit number. int() alone would take "1_0" and "+1" too.
    if not (word.isascii() and word.isdigit() and len(word) <= 20):
        raise DriverFaultError(f"{path} holds {word[:40]!r}, which is not a number of microjoules")
    return int(word)


def _failed_read(path: Path, error: OSError) -> DeviceError:
    if error.errno in _GONE or isinstance(error, FileNotFoundError):
        return DeviceLostError(f"{path} is not there; container runtimes hide it, and so does unloading intel_rapl")
    return DriverFaultError(f"reading {path} failed: {error.strerror or error}")
