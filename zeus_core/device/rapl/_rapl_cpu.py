"""A CPU package measured by RAPL."""

from collections.abc import Sequence

from zeus_core.device._cpu import CpuEnergyCounters
from zeus_core.device.rapl._rapl_zone import RaplZone
from zeus_core.units import joules_from_microjoules


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

    @property
    def zones(self) -> tuple[RaplZone, ...]:
        """All zones of the package, for a `RaplKeeper`."""
        return self._package_zones + self._dram_zones

    def read_energy_counters_joules(self) -> CpuEnergyCounters:
        """Read the energy since discovery, summed over the zones.

        Raises:
            DeviceError: One of the zones cannot be read; see `RaplZone`.
        """
        package_joules = _sum_joules(self._package_zones)
        return CpuEnergyCounters(package_joules, _sum_joules(self._dram_zones) if self.has_dram else None)


def _sum_joules(zones: Sequence[RaplZone]) -> float:
    return joules_from_microjoules(sum(zone.read_energy_counter_microjoules() for zone in zones))
