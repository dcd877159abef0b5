"""A CPU package measured by RAPL: its power zones, folders of the powercap tree with an energy counter in each.

A zone counts from 0 to its `max_energy_range_uj` and then from 0 again, so it has `max_energy_range_uj` + 1 values.

Behind both files is a register of 32 bits that counts in units of energy, and the kernel multiplies it by that unit
(drivers/powercap/intel_rapl_common.c: `get_energy_counter` and `get_max_energy_counter`; the latter is the register at
0xffffffff). The range is therefore one unit short of the true period, and a wrap-around is counted at most one unit
too low: 61 microjoules in 262 kilojoules on most machines. It is never counted too high.
"""

from collections.abc import Sequence
from pathlib import Path

from zeus_core.device.cpu import CpuEnergyCounters
from zeus_core.device.rapl.powercap import ReadText, read_count, read_file
from zeus_core.errors import DriverFaultError
from zeus_core.process.lock import ProcessLock
from zeus_core.units import joules_from_microjoules


class RaplZone:
    """The energy of one zone since this object was made, counted on across wrap-arounds.

    Wrap-arounds are counted as long as the zone is read more than once in each, which takes minutes: a monitor reads
    it each half minute. A counter that was reset otherwise, as by reloading intel_rapl, cannot be
    distinguished from one that wrapped around.

    Several threads may use it. A forked process goes on counting by itself from where its parent was.

    Args:
        folder: Holds `energy_uj` and `max_energy_range_uj`.
        name: The kernel's name of the zone: "package-0", "dram", "psys".
        read_text: Reads a file.

    Raises:
        DeviceError: A file is missing, may not be read or does not hold what it should; the message names it.
    """

    def __init__(self, folder: Path, name: str, read_text: ReadText = read_file) -> None:
        self.name = name
        self._energy_file = folder / "energy_uj"
        self._read_text = read_text
        self._lock = ProcessLock()
        self._max_energy_range_microjoules = _read_range_microjoules(folder / "max_energy_range_uj", read_text)
        self._counter = WrappingCounter(self._max_energy_range_microjoules, self._read_raw_microjoules())

    def read_energy_counter_microjoules(self) -> int:
        """Read the exact total, which never decreases.

        Raises:
            PermissionDeniedError: The right to read the file was taken away.
            DeviceLostError: The file vanished.
            DriverFaultError: The read failed, or the file does not hold a value of this counter.
        """
        with self._lock:  # held while reading: readings must be counted in the order in which they were taken
            return self._counter.advance(self._read_raw_microjoules())

    def read_energy_counter_joules(self) -> float:
        """Read the total in joules. Raises what `read_energy_counter_microjoules` raises."""
        return joules_from_microjoules(self.read_energy_counter_microjoules())

    def _read_raw_microjoules(self) -> int:
        raw_microjoules = read_count(self._energy_file, self._read_text)
        if raw_microjoules > self._max_energy_range_microjoules:
            raise DriverFaultError(
                f"{self._energy_file} holds {raw_microjoules}, more than the range of its counter, "
                f"{self._max_energy_range_microjoules}"
            )
        return raw_microjoules


def _read_range_microjoules(path: Path, read_text: ReadText) -> int:
    range_microjoules = read_count(path, read_text)
    if range_microjoules == 0:
        raise DriverFaultError(f"{path} holds 0, which is not the range of a counter")
    return range_microjoules


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


class RaplCpu:
    """A CPU package, counted since its zones were found. See `Cpu` for the methods.

    Args:
        index: The number in the names of its zones.
        package_zones: One zone, or one for each die of the package: their energies add up.
        dram_zones: The DRAM zones within them; none if the processor does not measure its memory.
    """

    def __init__(self, index: int, package_zones: Sequence[RaplZone], dram_zones: Sequence[RaplZone] = ()) -> None:
        self.index = index
        self.name = f"package-{index}"
        self._package_zones = tuple(package_zones)
        self._dram_zones = tuple(dram_zones)

    @property
    def has_dram(self) -> bool:
        """Whether there are zones for the memory."""
        return bool(self._dram_zones)

    def read_energy_counters_joules(self) -> CpuEnergyCounters:
        """Read the energy since discovery, summed over the zones.

        Raises:
            DeviceError: One of the zones cannot be read; see `RaplZone`.
        """
        package_joules = _sum_joules(self._package_zones)
        return CpuEnergyCounters(package_joules, _sum_joules(self._dram_zones) if self.has_dram else None)


def _sum_joules(zones: Sequence[RaplZone]) -> float:
    return joules_from_microjoules(sum(zone.read_energy_counter_microjoules() for zone in zones))
