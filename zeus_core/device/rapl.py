"""CPU and DRAM energy from RAPL, the energy counters of Intel and AMD processors, through Linux's powercap files.

A zone is a folder such as `intel-rapl:0`, and a zone within it `intel-rapl:0:1`; the numbers are hexadecimal
(drivers/powercap/powercap_sys.c, `powercap_register_zone`). /sys/class/powercap shows all of them side by side, and
each once more inside the zone or the control type (`intel-rapl`) it belongs to. AMD processors use the same names.
`intel-rapl-mmio` is another way to the same package and is passed over.

A zone counts from 0 to its `max_energy_range_uj` and then from 0 again, so it has `max_energy_range_uj` + 1 values.
Behind both files is a register of 32 bits that counts in units of energy, and the kernel multiplies it by that unit
(drivers/powercap/intel_rapl_common.c: `get_energy_counter` and `get_max_energy_counter`; the latter is the register at
0xffffffff). The range is therefore one unit short of the true period, and a wrap-around is counted at most one unit
too low: 61 microjoules in 262 kilojoules on most machines. It is never counted too high.
"""

import errno
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from zeus_core.device.cpu import CpuDiscovery, CpuEnergyCounters
from zeus_core.errors import DeviceError, DeviceLostError, DriverFaultError, PermissionDeniedError
from zeus_core.process.deadline import CALL_SECONDS, RESTORE_SECONDS
from zeus_core.process.lock import ProcessLock
from zeus_core.process.parallel import ParallelCalls
from zeus_core.units import joules_from_microjoules

if TYPE_CHECKING:
    from zeus_core.device.remote.client import DaemonConnection

POWERCAP_ROOT = Path("/sys/class/powercap")

_Answer = TypeVar("_Answer")

ReadText = Callable[[Path], str]
"""Returns the text of a file, or raises `OSError` or `UnicodeDecodeError`."""

_CONTROL_TYPE = "intel-rapl"
_ZONE = re.compile(_CONTROL_TYPE + "(:[0-9a-f]+)+", re.ASCII)
_PACKAGE = re.compile(r"package-([0-9]{1,6})(-die-[0-9]+)?", re.ASCII)
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
        try:
            zones = [entry for entry in to_visit.pop(0).iterdir() if _ZONE.fullmatch(entry.name)]
        except OSError:
            continue
        for folder in zones:
            if folder.name not in folders:  # which also ends the walk, for the tree has links that lead back up
                folders[folder.name] = folder
                to_visit.append(folder)
    return sorted(folders.values(), key=lambda folder: [int(number, 16) for number in folder.name.split(":")[1:]])


def read_count(path: Path, read_text: ReadText) -> int:
    """Read the whole number, not negative, in a file.

    Raises:
        PermissionDeniedError: This process may not read it; an `UnreadableFileError`.
        DeviceLostError: There is no such file, or no device behind it any more.
        DriverFaultError: The read failed otherwise, or the file holds something else.
    """
    word = _read_word(path, read_text)
    if not (word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS):  # int() alone takes "1_0" and "+1" too
        raise DriverFaultError(f"{path} holds {word[:40]!r}, which is not a number of microjoules")
    return int(word)


def _read_word(path: Path, read_text: ReadText) -> str:
    """Read the one line of a file. Raises what `read_count` raises."""
    try:
        word = read_text(path).strip()
    except PermissionError as error:
        raise UnreadableFileError(path) from error
    except OSError as error:
        if error.errno in _GONE or isinstance(error, FileNotFoundError):
            raise DeviceLostError(
                f"{path} is not there; container runtimes hide it, and so does unloading intel_rapl"
            ) from error
        raise DriverFaultError(f"reading {path} failed: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise DriverFaultError(f"{path} does not hold text") from error
    if not word:
        raise DriverFaultError(f"{path} is empty")
    return word


def read_file(path: Path) -> str:
    """Read the text of a file."""
    return path.read_text(encoding="ascii")


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


class WrappingCounter:
    """The energy since a first reading of a counter that wraps around, exact to the microjoule.

    Not for several threads at once, but never half changed: a fork that interrupts `advance` finds the counter as it
    was before or after it.

    Args:
        max_energy_range_microjoules: The highest value of the counter.
        first_microjoules: The raw reading from which on energy is counted.
    """

    def __init__(self, max_energy_range_microjoules: int, first_microjoules: int) -> None:
        self.max_energy_range_microjoules = max_energy_range_microjoules
        self._latest_and_total_microjoules = (first_microjoules, 0)

    def advance(self, raw_microjoules: int) -> int:
        """Count up to a new reading.

        Args:
            raw_microjoules: From 0 to the highest value, taken less than one wrap-around after the reading before it.

        Returns:
            The energy since the first reading, in microjoules. It never decreases.
        """
        latest, total = self._latest_and_total_microjoules
        total += (raw_microjoules - latest) % (self.max_energy_range_microjoules + 1)
        self._latest_and_total_microjoules = (raw_microjoules, total)
        return total


class RaplZone:
    """The energy of one zone since this object was made, counted on across wrap-arounds.

    Wrap-arounds are counted as long as the zone is read more than once in each, which takes minutes: a monitor reads
    it each half minute. A counter that was reset otherwise, as by reloading intel_rapl, cannot be
    distinguished from one that wrapped around.

    Several threads may use it. A forked process goes on counting by itself from where its parent was.

    Args:
        folder: Holds `energy_uj` and `max_energy_range_uj`.
        read_text: Reads a file.

    Raises:
        DeviceError: A file is missing, may not be read or does not hold what it should; the message names it.
    """

    def __init__(self, folder: Path, read_text: ReadText = read_file) -> None:
        self._energy_file = folder / "energy_uj"
        self._read_text = read_text
        self._lock = ProcessLock()
        self._max_microjoules = read_count(folder / "max_energy_range_uj", read_text)
        if self._max_microjoules == 0:
            raise DriverFaultError(f"{folder / 'max_energy_range_uj'} holds 0, which is not the range of a counter")
        self._counter = WrappingCounter(self._max_microjoules, self._read_raw_microjoules())

    def read_energy_counter_microjoules(self) -> int:
        """Read the exact total, which never decreases.

        Raises:
            DeviceError: The file may not be read any more, vanished, or does not hold a value of this counter.
        """
        with self._lock:  # held while reading: readings must be counted in the order in which they were taken
            return self._counter.advance(self._read_raw_microjoules())

    def _read_raw_microjoules(self) -> int:
        microjoules = read_count(self._energy_file, self._read_text)
        if microjoules > self._max_microjoules:
            raise DriverFaultError(
                f"{self._energy_file} holds {microjoules}, more than the range of its counter, {self._max_microjoules}"
            )
        return microjoules


class RaplCpu:
    """A CPU package, counted since its zones were found. See `Cpu` for the methods.

    Args:
        index: The number in the names of its zones.
        package_zones: One zone, or one for each die of the package: their energies add up.
        dram_zones: The DRAM zones within them; none if the processor does not measure its memory.
    """

    def __init__(self, index: int, package_zones: Sequence[RaplZone], dram_zones: Sequence[RaplZone] = ()) -> None:
        self.index = index
        self.name: str = f"package-{index}"
        self.has_dram: bool = bool(dram_zones)
        self._package_zones, self._dram_zones = tuple(package_zones), tuple(dram_zones)

    def read_energy_counters_joules(self) -> CpuEnergyCounters:
        """Read the energy since discovery, summed over the zones.

        Raises:
            DeviceError: One of the zones cannot be read; see `RaplZone`.
        """
        package_joules = _sum_joules(self._package_zones)
        return CpuEnergyCounters(package_joules, _sum_joules(self._dram_zones) if self.has_dram else None)


def _sum_joules(zones: Sequence[RaplZone]) -> float:
    return joules_from_microjoules(sum(zone.read_energy_counter_microjoules() for zone in zones))


def find_rapl_cpus(root: Path, read_text: ReadText) -> CpuDiscovery:
    """Find the CPU packages whose energy this process can read. No fault of a machine raises.

    A package is left out if one of its dies cannot be read: its energy would be too low.

    Args:
        root: The powercap tree.
        read_text: Reads a file.
    """
    survey = _Survey(root, read_text)
    cpus = tuple(survey.find_cpus())
    return CpuDiscovery(cpus, survey.explain(cpus))


class _Survey:
    """One walk over the tree, which collects the reasons why something cannot be read."""

    def __init__(self, root: Path, read_text: ReadText) -> None:
        self._read_text = read_text
        self._unreadable: list[Path] = []
        self._faults: list[str] = []
        names = {
            folder: self._read(partial(_read_word, folder / "name", read_text)) for folder in find_zone_folders(root)
        }
        self._drams = [folder for folder, name in names.items() if name == "dram"]
        self._packages: dict[int, list[Path]] = {}
        for folder, name in names.items():
            if match := _PACKAGE.fullmatch(name or ""):
                self._packages.setdefault(int(match[1]), []).append(folder)

    def find_cpus(self) -> Iterator[RaplCpu]:
        """Yield each package that can be read, with its memory if that can be read too."""
        for index, folders in sorted(self._packages.items()):
            inner = tuple(f"{folder.name}:" for folder in folders)
            package_zones = self._open(folders)
            dram_zones = self._open([dram for dram in self._drams if dram.name.startswith(inner)])
            if package_zones:
                yield RaplCpu(index, package_zones, dram_zones)

    def explain(self, cpus: Sequence[RaplCpu]) -> str | None:
        """Return all reasons in one text; None if there are none."""
        reasons = [*self._faults]
        if self._unreadable:
            files = ", ".join(map(str, self._unreadable))
            reasons.insert(0, f"this process may not read {files}. {permission_remedy(self._unreadable)}")
        if not reasons and not cpus:
            reasons.append(f"this machine has no RAPL energy counters of CPUs; {why_no_zones()}")
        return "; ".join(reasons) or None

    def _open(self, folders: Iterable[Path]) -> Sequence[RaplZone]:
        """Open all of these zones, or none of them if one cannot be read."""
        zones = [self._read(partial(RaplZone, folder, self._read_text)) for folder in folders]
        return [zone for zone in zones if zone] if all(zones) else []

    def _read(self, read: Callable[[], _Answer]) -> _Answer | None:
        """Return what can be read; None, and the reason is noted, if it cannot."""
        try:
            return read()
        except UnreadableFileError as error:
            self._unreadable.append(error.path)
        except DeviceError as error:
            self._faults.append(str(error))
        return None


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
