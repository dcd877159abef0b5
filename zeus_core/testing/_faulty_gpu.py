"""A GPU whose calls fail, or hang, on demand."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from zeus_core.device import Gpu
from zeus_core.device.gpu import PowerRange
from zeus_core.validate import checked_one_of, checked_whole_number


@dataclass
class _Fault:
    """The error a method raises, and the number of times left; None for always."""

    error: Exception
    times_left: int | None = None


@dataclass
class _Hang:
    """A method that does not return before it is healed."""

    is_healed: threading.Event


def _same(name: str) -> Any:
    """Return an attribute that has the value of the GPU behind it."""

    def read(faulty: FaultyGpu) -> Any:
        return getattr(faulty._gpu, name)

    return property(read)


class FaultyGpu(Gpu):
    """A `Gpu` that forwards every call to another one, except those that are set to fail.

        gpu = FaultyGpu(SimulatedGpu(find_preset("A40")))
        gpu.fail("read_power_watts", DriverFaultError("no answer"), times=2)
        gpu.hang("set_power_limit")
        ...
        gpu.heal()

    A call that fails does not reach the other GPU; one that hangs does when it is healed. Several threads may use it.

    Args:
        gpu: The GPU behind it.
    """

    uuid: str = _same("uuid")
    name: str = _same("name")
    is_simulated: bool = _same("is_simulated")
    energy_counter_period_seconds: float = _same("energy_counter_period_seconds")
    power_average_seconds: float = _same("power_average_seconds")

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._lock = threading.Lock()
        self._faults: dict[str, _Fault | _Hang] = {}

    def fail(self, method: str, error: Exception, times: int | None = None) -> None:
        """Make a method raise from now on.

        Args:
            method: Name of the method, such as "set_power_limit".
            error: The error to raise.
            times: The number of calls that fail before it works again; all of them if None.

        Raises:
            UsageError: A `Gpu` has no such method, or `times` is not a number of calls.
        """
        checked_one_of("method", method, _METHODS)
        if times is not None:
            checked_whole_number("times", times, 1, "at least 1, or None for all calls")
        with self._lock:
            self._faults[method] = _Fault(error, times)

    def hang(self, method: str) -> None:
        """Make a method wait from now on, like a driver that does not answer, until the GPU is healed.

        Args:
            method: Name of the method, such as "set_power_limit".

        Raises:
            UsageError: A `Gpu` has no such method.
        """
        checked_one_of("method", method, _METHODS)
        with self._lock:
            self._faults[method] = _Hang(threading.Event())

    def heal(self) -> None:
        """Make every method work again, also calls that hang."""
        with self._lock:
            for fault in self._faults.values():
                if isinstance(fault, _Hang):
                    fault.is_healed.set()
            self._faults.clear()

    def read_energy_counter_joules(self) -> float:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_energy_counter_joules").read_energy_counter_joules()

    def read_power_watts(self) -> float:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_power_watts").read_power_watts()

    def read_power_limit_watts(self) -> float:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_power_limit_watts").read_power_limit_watts()

    def read_enforced_power_limit_watts(self) -> float:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_enforced_power_limit_watts").read_enforced_power_limit_watts()

    def read_default_power_limit_watts(self) -> float:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_default_power_limit_watts").read_default_power_limit_watts()

    def read_power_limit_range_watts(self) -> PowerRange:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_power_limit_range_watts").read_power_limit_range_watts()

    def set_power_limit(self, limit_watts: float) -> None:
        """Forward the call, or fail."""
        self._gpu_unless_faulty("set_power_limit").set_power_limit(limit_watts)

    def read_sm_clock_mhz(self) -> int:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_sm_clock_mhz").read_sm_clock_mhz()

    def read_supported_sm_clocks_mhz(self) -> tuple[int, ...]:
        """Forward the call, or fail."""
        return self._gpu_unless_faulty("read_supported_sm_clocks_mhz").read_supported_sm_clocks_mhz()

    def lock_sm_clock(self, clock_mhz: int) -> None:
        """Forward the call, or fail."""
        self._gpu_unless_faulty("lock_sm_clock").lock_sm_clock(clock_mhz)

    def unlock_sm_clock(self) -> None:
        """Forward the call, or fail."""
        self._gpu_unless_faulty("unlock_sm_clock").unlock_sm_clock()

    def _gpu_unless_faulty(self, method: str) -> Gpu:
        with self._lock:
            fault = self._faults.get(method)
            if fault is None:
                return self._gpu
            if isinstance(fault, _Fault) and fault.times_left is not None:
                fault.times_left -= 1
                if fault.times_left == 0:
                    del self._faults[method]
        if isinstance(fault, _Fault):
            raise fault.error
        fault.is_healed.wait()
        return self._gpu


_METHODS = sorted(name for name in vars(FaultyGpu) if name.startswith(("read_", "set_", "lock_", "unlock_")))
