"""The CPU packages of this machine: those that can be measured, and why others cannot."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.device.cpu import Cpu
from zeus_core.device.rapl._rapl_cpu import RaplCpu, RaplZone
from zeus_core.device.rapl.powercap import (
    POWERCAP_ROOT,
    ReadText,
    UnreadableFileError,
    find_zone_folders,
    is_within,
    permission_remedy,
    read_file,
    read_word,
    why_no_zones,
)
from zeus_core.errors import DeviceError, PermissionDeniedError
from zeus_core.process.deadline import CALL_SECONDS, RESTORE_SECONDS
from zeus_core.process.parallel import ParallelCalls
from zeus_core.validate import checked_path

if TYPE_CHECKING:
    from zeus_core.device.remote.client import DaemonConnection


class _DirectOrDaemon:
    """Reads files of the powercap tree: itself, or by the daemon what this process may not read, if there is one.

    Raises what `read_file` raises. Several threads may use it, and a forked process has a connection of its own.
    """

    def __init__(self) -> None:
        self._connection: DaemonConnection | None = None
        self._calls = ParallelCalls()

    def __call__(self, path: Path) -> str:
        """Return the text of a file."""
        try:
            return read_file(path)
        except PermissionError:
            if path.name != "energy_uj":
                raise
            try:
                return str(self._ask(path.parent.name))
            except PermissionDeniedError:  # there is no daemon, or it does not allow it
                pass
            except DeviceError as error:
                raise OSError(str(error)) from error
            raise

    def _ask(self, zone: str) -> int:
        """Return the microjoules of a zone. Raises `DeviceError`."""
        if self._connection is None:
            from zeus_core.device.remote.client import DaemonConnection

            self._connection = DaemonConnection()
        # Longer than anybody waits: a daemon that does not answer occupies the thread, and is not asked meanwhile.
        ask = partial(self._connection.ask, "energy", {"zone": zone}, RESTORE_SECONDS)
        return int(self._calls.call_one_within(CALL_SECONDS, 0, ask)["microjoules"])


direct_or_daemon: _DirectOrDaemon = _DirectOrDaemon()
"""One for the process, which thereby has one connection, opened where it is needed."""


_PACKAGE = re.compile(r"package-([0-9]{1,6})(-die-[0-9]+)?", re.ASCII)
_DRAM = re.compile("dram")
_PSYS = re.compile(r"psys(-[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class CpuDiscovery:
    """The result of `discover_cpus`.

    Attributes:
        cpus: The packages, in the order of their indices.
        unavailable_because: Why something is not measured, and what to do about it. None if everything is; never None
            if there are no CPUs.
        psys: The zones of the whole platform, which include the packages and are not one of them. Mostly none.
    """

    cpus: tuple[Cpu, ...]
    unavailable_because: str | None = None
    psys: tuple[RaplZone, ...] = ()


def discover_cpus(root: Path = POWERCAP_ROOT, read_text: ReadText = direct_or_daemon) -> CpuDiscovery:
    """Find the CPU packages whose energy this process can read: by RAPL, or of Apple silicon. No fault of it raises.

    A package is left out if one of its dies cannot be read: its energy would be too low.

    Args:
        root: The powercap tree; elsewhere if a container has it mounted elsewhere.
        read_text: Reads a file. By default the zeus-core daemon reads what this process may not read, if there is one.

    Raises:
        UsageError: An argument is of another type.
    """
    if sys.platform == "darwin":
        from zeus_core.device.apple import find_apple_cpus

        return CpuDiscovery(*find_apple_cpus())
    folder = Path(checked_path("root", root, str(POWERCAP_ROOT), "folder"))
    survey = _Survey(folder, read_text)
    cpus = tuple(survey.find_cpus())
    psys = tuple(zone for folder in survey.named(_PSYS) for zone in survey.open([folder]))
    return CpuDiscovery(cpus, survey.explain(cpus), psys)


class _Survey:
    """One walk over the tree, which collects the reasons why something cannot be read."""

    def __init__(self, root: Path, read_text: ReadText) -> None:
        self._read_text = read_text
        self._unreadable: list[Path] = []
        self._faults: list[str] = []
        self._names: dict[Path, str] = {}
        for folder in find_zone_folders(root):
            self._read_name(folder)

    def named(self, pattern: re.Pattern[str]) -> list[Path]:
        """Return the folders of the zones whose name matches."""
        return [folder for folder, name in self._names.items() if pattern.fullmatch(name)]

    def find_cpus(self) -> Iterator[RaplCpu]:
        """Yield each package that can be read, with its memory if that can be read too."""
        folders_of: dict[int, list[Path]] = {}
        for folder, name in self._names.items():
            if match := _PACKAGE.fullmatch(name):
                folders_of.setdefault(int(match[1]), []).append(folder)
        for index, folders in sorted(folders_of.items()):
            package_zones = self.open(folders)
            dram_zones = self.open(self._dram_within(folders))
            if package_zones:
                yield RaplCpu(index, package_zones, dram_zones)

    def open(self, folders: Iterable[Path]) -> Sequence[RaplZone]:
        """Open all of these zones, or none of them if one cannot be read."""
        zones = [self._open(folder) for folder in folders]
        return [zone for zone in zones if zone] if all(zones) else []

    def explain(self, cpus: Sequence[RaplCpu]) -> str | None:
        """Return all reasons in one text; None if there are none."""
        reasons = [*self._faults]
        if self._unreadable:
            files = ", ".join(map(str, self._unreadable))
            reasons.insert(0, f"this process may not read {files}. {permission_remedy(self._unreadable)}")
        if not reasons and not cpus:
            reasons.append(f"this machine has no RAPL energy counters of CPUs; {why_no_zones()}")
        return "; ".join(reasons) or None

    def _dram_within(self, folders: Sequence[Path]) -> list[Path]:
        return [dram for dram in self.named(_DRAM) if any(is_within(dram, folder) for folder in folders)]

    def _read_name(self, folder: Path) -> None:
        try:
            self._names[folder] = read_word(folder / "name", self._read_text)
        except DeviceError as error:
            self._note(error)

    def _open(self, folder: Path) -> RaplZone | None:
        try:
            return RaplZone(folder, self._names[folder], self._read_text)
        except DeviceError as error:
            self._note(error)
            return None

    def _note(self, error: DeviceError) -> None:
        if isinstance(error, UnreadableFileError):
            self._unreadable.append(error.path)
        else:
            self._faults.append(str(error))
