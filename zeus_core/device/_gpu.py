"""What a GPU can be asked and told, whatever stands behind it."""

from typing import NamedTuple, Protocol

from zeus_core.errors import DeviceError, UsageError

__all__ = ["Gpu", "PowerRange", "read_driver_version"]


class PowerRange(NamedTuple):
    """The lowest and the highest power limit a board accepts, in watts."""

    lowest_watts: float
    highest_watts: float

    def checked(self, limit_watts: float, gpu_name: str) -> float:
        """A limit the board accepts; `UsageError` for any other, NaN included."""
        if not self.lowest_watts <= limit_watts <= self.highest_watts:
            raise UsageError(
                f"limit_watts is {limit_watts!r}; {gpu_name} accepts {self.lowest_watts:g} to {self.highest_watts:g} W"
            )
        return float(limit_watts)


class Gpu(Protocol):
    """One physical GPU. It knows nothing of training, windows or policies.

    Implementations raise `DeviceError` and its subclasses only: `NotSupportedError` for what the device can never do,
    `PermissionDeniedError` for what this process may not do. They can be used from several threads.
    `zeus_core.testing.contracts.GpuContract` is the test every implementation passes.
    """

    @property
    def uuid(self) -> str:
        """The device's identity, `GPU-...`; indices are for people."""
        ...

    @property
    def name(self) -> str:
        """The product name; a simulated device says here that it is one."""
        ...

    @property
    def is_simulated(self) -> bool:
        """Whether the numbers come from a model rather than from hardware."""
        ...

    @property
    def energy_counter_period_seconds(self) -> float:
        """How long the energy counter stands still between two of its steps, at most."""
        ...

    @property
    def power_average_seconds(self) -> float:
        """How long `read_power_watts` looks back: 0 where it tells the power of the moment."""
        ...

    def read_energy_counter_joules(self) -> float:
        """Energy since the driver was loaded, as of the counter's latest step."""
        ...

    def read_power_watts(self) -> float:
        """The power drawn at this moment, as closely as the sensor knows."""
        ...

    def read_power_limit_watts(self) -> float:
        """The power limit requested last."""
        ...

    def read_enforced_power_limit_watts(self) -> float:
        """The limit in force, which other limiters of the machine may hold below the requested one."""
        ...

    def read_default_power_limit_watts(self) -> float:
        """The limit the board has after the driver is loaded."""
        ...

    def read_power_limit_range_watts(self) -> PowerRange:
        """The limits `set_power_limit` accepts."""
        ...

    def set_power_limit(self, limit_watts: float) -> None:
        """Request a power limit. `UsageError` outside the range of the board."""
        ...

    def read_sm_clock_mhz(self) -> int:
        """The present SM clock."""
        ...

    def read_supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """The SM clocks that can be locked, highest first."""
        ...

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Hold the SM clock at or below a supported clock. `UsageError` for any other."""
        ...

    def unlock_sm_clock(self) -> None:
        """Let the SM clock move freely again."""
        ...


def read_driver_version(gpu: Gpu) -> str | None:
    """The version of a GPU's driver; None where nothing tells, as of a GPU that is no `NvmlGpu`."""
    read = getattr(gpu, "read_driver_version", None)
    try:
        return None if read is None else str(read())
    except DeviceError:
        return None
