"""The powercap tree, in which Linux shows RAPL: where its zones are, how a file is read, and what each failure means.

A zone is a folder such as `intel-rapl:0`, and a zone within it `intel-rapl:0:1`; the numbers are hexadecimal
(drivers/powercap/powercap_sys.c, `powercap_register_zone`). /sys/class/powercap shows all of them side by side, and
each once more inside the zone or the control type (`intel-rapl`) it belongs to. AMD processors use the same names.
`intel-rapl-mmio` is another way to the same package and is passed over.
"""

import errno
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from zeus_core.errors import DeviceError, DeviceLostError, DriverFaultError, PermissionDeniedError

POWERCAP_ROOT = Path("/sys/class/powercap")

ReadText = Callable[[Path], str]
"""Returns the text of a file, or raises `OSError` or `UnicodeDecodeError`."""

_CONTROL_TYPE = "intel-rapl"
_ZONE = re.compile(_CONTROL_TYPE + "(:[0-9a-f]+)+", re.ASCII)
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})
_WITH_RAPL = ("x86_64", "amd64", "i686")
_CONTAINER_MARKS = (".dockerenv", "run/.containerenv", "run/systemd/container", "run/secrets/kubernetes.io")
_MAX_DIGITS = 20  # of a 64-bit number, which is all that the kernel prints


class UnreadableFileError(PermissionDeniedError):
    """This process may not read a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(f"this process may not read {path}. {permission_remedy([path])}")
        self.path = path


def find_zone_folders(root: Path) -> list[Path]:
    """Find the folder of each zone, once, in the order of their numbers. Empty without a tree."""
    folders: dict[str, Path] = {}
    to_visit = [root, root / _CONTROL_TYPE]
    while to_visit:
        for folder in _zones_in(to_visit.pop(0)):
            if folder.name not in folders:  # which also ends the walk, for the tree has links that lead back up
                folders[folder.name] = folder
                to_visit.append(folder)
    return sorted(folders.values(), key=_zone_numbers)


def is_within(inner: Path, outer: Path) -> bool:
    """Tell whether one zone is a part of another, from their names."""
    return inner.name.startswith(f"{outer.name}:")


def permission_remedy(paths: Iterable[Path]) -> str:
    """Return the command by which an admin lets everybody read these files, and what that costs."""
    patterns = sorted({f"{shlex.quote(str(path.parent.parent))}/intel-rapl:*/{path.name}" for path in paths})
    return (
        f"An admin can allow it until the next reboot: sudo chmod a+r {' '.join(patterns)} "
        "(this lets every user of the machine watch its power, a side channel: CVE-2020-8694); or start the zeus-core "
        "daemon, which reads it for the members of one group (docs/daemon.md)"
    )


def why_no_zones(root: Path = Path("/"), machine: str = os.uname().machine) -> str:
    """Return why a machine shows no zones, with the command that may help where one can.

    Args:
        root: The root of its files.
        machine: The name of its architecture.
    """
    if machine.lower() not in _WITH_RAPL:
        return f"processors of {machine} have none"
    try:
        is_virtual = " hypervisor" in (root / "proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        is_virtual = False
    if is_virtual or any((root / mark).exists() for mark in _CONTAINER_MARKS):
        return "virtual machines and containers hide them"
    return "try `sudo modprobe intel_rapl_msr` (for AMD too)"


def read_file(path: Path) -> str:
    """Read the text of a file."""
    return path.read_text(encoding="ascii")


def read_word(path: Path, read_text: ReadText) -> str:
    """Read the one line of a file.

    Raises:
        PermissionDeniedError: This process may not read it; an `UnreadableFileError`.
        DeviceLostError: There is no such file, or no device behind it any more.
        DriverFaultError: The read failed otherwise, or the file is empty.
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
    """Read the whole number, not negative, in a file. Raises what `read_word` raises."""
    word = read_word(path, read_text)
    if not (word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS):  # int() alone takes "1_0" and "+1" too
        raise DriverFaultError(f"{path} holds {word[:40]!r}, which is not a number of microjoules")
    return int(word)


def _failed_read(path: Path, error: OSError) -> DeviceError:
    if error.errno in _GONE or isinstance(error, FileNotFoundError):
        return DeviceLostError(f"{path} is not there; container runtimes hide it, and so does unloading intel_rapl")
    return DriverFaultError(f"reading {path} failed: {error.strerror or error}")


def _zones_in(folder: Path) -> Iterator[Path]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return
    yield from (entry for entry in entries if _ZONE.fullmatch(entry.name))


def _zone_numbers(folder: Path) -> list[int]:
    return [int(number, 16) for number in folder.name.split(":")[1:]]
