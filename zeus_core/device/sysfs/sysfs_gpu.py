"""One GPU, read and set through the files of its kernel driver."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from zeus_core._sysfs import Card, sysfs_root
from zeus_core.device.gpu import Gpu, PowerRange
from zeus_core.errors import DeviceError, DriverFaultError, NotSupportedError
from zeus_core.kinds import POWER_LIMIT

_AVERAGE_SECONDS = 1.0  # firmware periods are unpublished: no less than the average of any known sensor (judgement)
PERIOD_SECONDS = 0.1
"""The same for counters, which drivers refresh each millisecond at most (judgement)."""


class SysfsGpu(Gpu):
    """A GPU of sysfs. Each method reads a file, and raises as `Card.read` does.

    A board with several dies or partitions is one GPU: they share its sensors and its limit.

    Args:
        card: Its files.
        name: The product name.
        others: The PCI addresses of its other dies.
    """

    energy_counter_period_seconds: float = PERIOD_SECONDS

    def __init__(self, card: Card, name: str, others: Sequence[str] = ()) -> None:
        self._card = card
        self.uuid: str = card.uuid
        self.driver: str = card.driver
        self.is_simulated: bool = sysfs_root() != "/sys"
        self.name: str = f"{name} (simulated)" if self.is_simulated else name
        self.limit_path: str | None = card.limit_path
        addresses = filter(None, (card.pci_address, *others))
        self.pci_addresses: Collection[str] = frozenset(address.partition(".")[0] for address in addresses)
        self._has_power_file = Path(card.folder, card.hwmon("power1_input")).exists()
        self._power_file = "power1_input" if self._has_power_file else "power1_average"
        self.power_average_seconds: float = 0.0 if self._has_power_file else _AVERAGE_SECONDS

    def refusal(self, what: str) -> DeviceError:
        """Name the driver: others may show more of the same board."""
        return NotSupportedError(f"the {what} of {self.name} is not supported yet: its driver is {self.driver}")

    def read_driver_version(self) -> str:
        """Return the driver, which is a part of the kernel, and the kernel's version."""
        return f"{self.driver} of Linux {os.uname().release}"

    def read_power_watts(self) -> float:
        """Read `power1_input`, or else `power1_average`."""
        power_watts = self._card.read_watts(self._power_file)
        if power_watts <= 0:
            raise DriverFaultError(f"{self.name} ({self.uuid}) shows 0 W, which no board draws")
        return power_watts

    def read_power_limit_watts(self) -> float:
        """Read the limit that was set last."""
        return self._card.read_power_limit_watts()

    def read_default_power_limit_watts(self) -> float:
        """Read the limit that the driver begins with."""
        return self._card.read_default_power_limit_watts()

    def read_power_limit_range_watts(self) -> PowerRange:
        """Read the range, which may be another after each change and with each kernel."""
        return PowerRange(*self._card.read_power_limit_range_watts())

    def set_power_limit(self, limit_watts: float) -> None:
        """Set the limit, within the range of this moment, and read it back: drivers may clamp or ignore it in silence.

        Raises:
            DriverFaultError: The driver has ignored it.
        """
        limit_watts = self.read_power_limit_range_watts().checked(limit_watts, self.name)
        before_watts = self.read_power_limit_watts()
        self._card.set_power_limit(limit_watts)
        taken_watts = self.read_power_limit_watts()
        if self._is_ignored(limit_watts, before_watts, taken_watts):
            raise DriverFaultError(
                f"{self.limit_path} took a power limit of {limit_watts:g} W without an error, and still holds "
                f"{taken_watts:g} W"
            )

    def _is_ignored(self, limit_watts: float, before_watts: float, taken_watts: float) -> bool:
        return taken_watts == before_watts and abs(taken_watts - limit_watts) > POWER_LIMIT.max_rounding

    def read_temperature_celsius(self) -> float:
        """Read `temp1_input`, the edge of the chip; that of its hottest place or package where there is none."""
        return self._card.read_number(self._card.hwmon("temp1_input")) / 1000

    def read_sm_clock_mhz(self) -> int:
        """Read `freq1_input`, the clock of the shaders."""
        return self._card.read_number(self._card.hwmon("freq1_input")) // 1_000_000
