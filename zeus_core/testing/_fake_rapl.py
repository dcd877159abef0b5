"""A powercap tree in a folder, whose energy a test adds."""

import errno
from pathlib import Path
from typing import Literal, get_args

from zeus_core.errors import UsageError
from zeus_core.validate import checked_one_of, checked_path

_RANGE_MICROJOULES = 262_143_328_850  # of most Intel processors: 2**32 - 1 units of 61.035 microjoules

Layout = Literal["sysfs", "flat", "nested"]


class FakeRapl:
    """Writes the files the kernel shows, as Documentation/power/powercap/powercap.rst describes them.

        rapl = FakeRapl(tmp_path)
        package = rapl.add_package(0)
        rapl.add_zone("dram", within=package)
        cpu, = discover_cpus(rapl.root, read_text=rapl.read_text).cpus
        rapl.add_energy(package, 5_000_000)

    Zones are known by the names of their folders, `intel-rapl:0`. All energies are whole microjoules, as in the files.
    A reader always finds a whole value, even during a write.

    Args:
        folder: The folder to put the tree in.
        layout: "sysfs" for the tree of a kernel: zones inside each other, links to all of them side by side, and links
            that lead back up. "flat" has all zones side by side only, "nested" inside each other only, as in some
            containers.

    Attributes:
        root: The folder in the place of /sys/class/powercap.

    Raises:
        UsageError: An argument is wrong; the message names it.
        OSError: The folder cannot be made.
    """

    def __init__(self, folder: Path, layout: Layout = "sysfs") -> None:
        folder = Path(checked_path("folder", folder, "tree", "folder")).resolve()
        checked_one_of("layout", layout, get_args(Layout))
        self.root: Path = folder / "class" / "powercap"
        self._devices = folder / "devices" / "virtual" / "powercap" if layout == "sysfs" else self.root
        self._layout = layout
        self._folders: dict[str, Path] = {}
        self._unreadable: set[Path] = set()
        self.root.mkdir(parents=True)

    def add_package(
        self, index: int, die: int | None = None, energy: int = 0, max_energy_range: int = _RANGE_MICROJOULES
    ) -> str:
        """Add the zone of a CPU package, or of one of its dies."""
        name = f"package-{index}" if die is None else f"package-{index}-die-{die}"
        return self.add_zone(name, energy=energy, max_energy_range=max_energy_range)

    def add_zone(
        self,
        name: str,
        within: str = "intel-rapl",
        energy: int = 0,
        max_energy_range: int = _RANGE_MICROJOULES,
    ) -> str:
        """Add any zone.

        Args:
            name: The name of the zone: "core", "uncore", "dram", "psys", "psys-1".
            within: The zone it is a part of, or the control type: "intel-rapl", or "intel-rapl-mmio" for a second
                way to the same package.
            energy: The value of its counter.
            max_energy_range: The highest value of the counter.

        Returns:
            The name of its folder.
        """
        siblings = sum(zone.rpartition(":")[0] == within for zone in self._folders)
        zone = f"{within}:{siblings:x}"
        self._folders[zone] = self._make_folder(zone, within)
        self.write(zone, "name", name)
        self.write(zone, "max_energy_range_uj", str(max_energy_range))
        self.write(zone, "energy_uj", str(energy))
        return zone

    def path(self, zone: str, file: str = "energy_uj") -> Path:
        """Return the path of a file of a zone, from the root."""
        return (self.root / zone if self._layout == "sysfs" else self._folders[zone]) / file

    def add_energy(self, zone: str, microjoules: int) -> None:
        """Add energy to a zone: its counter goes up, and from its highest value to 0."""
        highest = int(self.path(zone, "max_energy_range_uj").read_text())
        energy = int(self.path(zone).read_text())
        self.write(zone, "energy_uj", str((energy + microjoules) % (highest + 1)))

    def write(self, zone: str, file: str, text: str) -> None:
        """Replace the text of a file, as to damage it."""
        path = self._folders[zone] / file
        new = path.with_name(f".{file}")
        new.write_text(f"{text}\n" if text else "")
        new.replace(path)

    def remove(self, zone: str, file: str = "energy_uj") -> None:
        """Remove a file."""
        (self._folders[zone] / file).unlink()

    def make_unreadable(self, zone: str, file: str = "energy_uj") -> None:
        """Make `read_text` refuse a file from now on. File modes would not keep root from reading it."""
        self._unreadable.add((self._folders[zone] / file).resolve())

    def make_readable(self) -> None:
        """Make every file readable again, as an admin does."""
        self._unreadable.clear()

    def read_text(self, path: Path) -> str:
        """Read a file of the tree as a process without rights does."""
        if path.resolve() in self._unreadable:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return path.read_text(encoding="ascii")

    def _make_folder(self, zone: str, within: str) -> Path:
        if ":" in within and within not in self._folders:
            raise UsageError(f"within is {within!r}; the zones so far are {', '.join(self._folders)}")
        parent = self._folders.get(within, self._devices / within)
        folder = self._devices / zone if self._layout == "flat" else parent / zone
        folder.mkdir(parents=True)
        if self._layout == "sysfs":
            self._link(folder, parent)
        return folder

    def _link(self, folder: Path, parent: Path) -> None:
        (self.root / folder.name).symlink_to(folder)
        (folder / "device").symlink_to(parent)
        (folder / "subsystem").symlink_to(self.root)
        control_type = self.root / folder.name.partition(":")[0]
        if not control_type.is_symlink():
            control_type.symlink_to(self._devices / control_type.name)
