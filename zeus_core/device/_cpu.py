"""What a CPU package can be asked, whatever stands behind it."""

from typing import NamedTuple, Protocol

__all__ = ["Cpu", "CpuEnergyCounters"]


class CpuEnergyCounters(NamedTuple):
    """The energy counters of one CPU package, read together. Only differences between two readings mean something.

    Attributes:
        package_joules: Energy of the whole package: cores, caches, memory controller.
        dram_joules: Energy of the memory attached to the package, which `package_joules` does not include; None where
            it is not measured.
    """

    package_joules: float
    dram_joules: float | None


class Cpu(Protocol):
    """One physical CPU package, a socket, with its memory. It knows nothing of training, windows or policies.

    Implementations raise `DeviceError` and its subclasses only, and can be used from several threads.
    """

    @property
    def index(self) -> int:
        """The number the operating system gives the package."""
        ...

    @property
    def name(self) -> str:
        """What to call the package when talking to people."""
        ...

    @property
    def has_dram(self) -> bool:
        """Whether the energy of the package's memory is measured too; never changes."""
        ...

    def read_energy_counters_joules(self) -> CpuEnergyCounters:
        """Energy since some fixed moment. Neither counter ever decreases."""
        ...
