"""CPU and DRAM energy from RAPL, the energy counters of Intel and AMD processors, through Linux's powercap files.

    discovery = discover_cpus()
    keeper = RaplKeeper(discovery.zones)
    keeper.start()
    for cpu in discovery.cpus:
        print(cpu.name, cpu.read_energy_counters_joules())

The files are described in the kernel's Documentation/power/powercap/powercap.rst. Nothing is read before
`discover_cpus` is called.
"""

from zeus_core.device.rapl._counter import WrappingCounter, count_microjoules
from zeus_core.device.rapl._cpu import RaplCpu
from zeus_core.device.rapl._discovery import POWERCAP_ROOT, CpuDiscovery, discover_cpus
from zeus_core.device.rapl._files import ReadText
from zeus_core.device.rapl._keeper import RaplKeeper
from zeus_core.device.rapl._zone import RaplZone

__all__ = [
    "POWERCAP_ROOT",
    "CpuDiscovery",
    "RaplCpu",
    "RaplKeeper",
    "RaplZone",
    "ReadText",
    "WrappingCounter",
    "count_microjoules",
    "discover_cpus",
]
