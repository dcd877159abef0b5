"""The two knobs of one device as the daemon uses them: what the board accepts, the original, and the change."""

from __future__ import annotations

from zeus_core.device import Gpu, PowerRange
from zeus_core.device.remote._protocol import POWER_LIMIT
from zeus_core.errors import DeviceError, UsageError
from zeus_core.leases._entry import KnobName

__all__ = ["Board"]


class Board:
    """The knobs of one device. Every method may raise `DeviceError`.

    Args:
        gpu: The device.
        original_sm_clock_mhz: The clock that an administrator keeps locked; None if there is none.
    """

    def __init__(self, gpu: Gpu, original_sm_clock_mhz: int | None) -> None:
        self._gpu = gpu
        self._original_sm_clock_mhz = original_sm_clock_mhz
        self._power_range: PowerRange | None = None  # read once: they do not change
        self._supported_clocks_mhz: frozenset[int] | None = None

    def bounds(self, knob: KnobName) -> tuple[float, float]:
        """Return the lowest and the highest value that the board accepts."""
        if knob == POWER_LIMIT:
            return self._range()
        return min(self._clocks_mhz()), max(self._clocks_mhz())

    def check(self, knob: KnobName, value: float) -> None:
        """Raise `UsageError` for a value that the board does not accept."""
        if knob == POWER_LIMIT:
            self._range().checked(value, self._gpu.name)
        elif value not in self._clocks_mhz():
            raise UsageError(f"{value:g} MHz is no SM clock that {self._gpu.name} supports")

    def read_original(self, knob: KnobName) -> float | None:
        """Return the value before any change: the limit in force, and the clock that the administrator has named."""
        if knob == POWER_LIMIT:
            return self._gpu.read_power_limit_watts()
        return None if self._original_sm_clock_mhz is None else float(self._original_sm_clock_mhz)

    def set(self, knob: KnobName, value: float) -> None:
        """Change the device."""
        if knob == POWER_LIMIT:
            self._gpu.set_power_limit(value)
        else:
            self._gpu.lock_sm_clock(int(value))

    def read_enforced(self, knob: KnobName) -> float | None:
        """Return the limit that the board enforces; None for a clock, and if the board does not report it."""
        if knob != POWER_LIMIT:
            return None
        try:
            return self._gpu.read_enforced_power_limit_watts()
        except DeviceError:
            return None

    def _range(self) -> PowerRange:
        if self._power_range is None:
            self._power_range = self._gpu.read_power_limit_range_watts()
        return self._power_range

    def _clocks_mhz(self) -> frozenset[int]:
        if self._supported_clocks_mhz is None:
            self._supported_clocks_mhz = frozenset(self._gpu.read_supported_sm_clocks_mhz())
        return self._supported_clocks_mhz
