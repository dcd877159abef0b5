"""The interface of all CPU packages, and what is found of them."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class CpuEnergyCounters(NamedTuple):
    """The energy counters of one CPU package, read together. Only differences between two readings mean something.

    Attributes:
        package_joules: Energy of the whole package: cores, caches, memory controller.
        dram_joules: Energy of the memory attached to the package, which `package_joules` does not include; None if
            it is not measured.
    """

    package_joules: float
    dram_joules: float | None


class Cpu(Protocol):
    """One physical CPU package, a socket, with its memory. It knows nothing of training, windows or policies.

    Implementations raise `DeviceError` and its subclasses only. Several threads may use one CPU at once. Every
    implementation passes the tests of `CpuContract`.
    """

    @property
    def index(self) -> int:
        """The number the operating system gives the package."""
        ...

    @property
    def name(self) -> str:
        """The name of the package, for people."""
        ...

    @property
    def has_dram(self) -> bool:
        """Whether the energy of the package's memory is measured too. Never changes."""
        ...

    def read_energy_counters_joules(self) -> CpuEnergyCounters:
        """Read the energy since some fixed moment. Neither counter ever decreases."""
        ...


@dataclass(frozen=True)
class CpuDiscovery:
    """The result of `discover_cpus`.

    Attributes:
        cpus: The packages, in the order of their indices.
        unavailable_because: Why something is not measured, and what to do about it. None if everything is; never None
            if there are no CPUs.
    """

    cpus: tuple[Cpu, ...]
    unavailable_because: str | None = None
