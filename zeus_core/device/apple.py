"""The GPU and the CPU of Apple silicon, measured by the package `zeus-apple-silicon`, without root. Nothing can be set.

The numbers come from a model of the chip (IOReport, "Energy Model"). They are updated about twice in 2.1 s, unevenly
(github.com/lablup/all-smi/issues/415), so that short windows are uncertain: those of 10 s or more are to be trusted.
"""

from __future__ import annotations

import platform
import re
import subprocess
import threading
import time
import uuid
from typing import Any

from zeus_core.device.cpu import Cpu, CpuEnergyCounters
from zeus_core.device.gpu import Gpu
from zeus_core.errors import DeviceError, DriverFaultError, NoDeviceError, NotSupportedError
from zeus_core.installed import install_command

_PERIOD_SECONDS = 2.1
# The most that a whole Mac with a chip of this class draws from the wall, as measured by Apple (Apple, 102027
# and the like): Mac mini with M4 65 W and with M4 Pro 140 W, Mac Studio with M2 Max 145 W and with M2 Ultra 295 W.
_PEAKS_WATTS = {"Pro": 140.0, "Max": 145.0, "Ultra": 300.0}
_BASE_PEAK_WATTS = 65.0
_CHIP = re.compile(r"Apple M\d+(?: (Pro|Max|Ultra))?", re.ASCII)


class AppleGpu(Gpu):
    """The GPU of Apple silicon. Several objects of a process may measure beside each other.

    Args:
        name: The name of the chip, such as "Apple M3 Max".

    Raises:
        DeviceError: The package cannot measure here.
    """

    energy_counter_period_seconds: float = _PERIOD_SECONDS
    power_average_seconds: float = _PERIOD_SECONDS

    def __init__(self, name: str) -> None:
        self.peak_watts: float | None = _peak_watts(name)  # which no driver reports
        self.name: str = f"{name} GPU"
        self.uuid: str = f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'Apple silicon {uuid.getnode():x}')}"
        self._lock = threading.Lock()
        self._moves: list[tuple[float, float]] = []  # when the counter was seen to move, and its joules
        self._chip = _Chip(name)
        self.read_energy_counter_joules()

    def read_energy_counter_joules(self) -> float:
        """Read `gpu_mj`, and `gpu_sram_mj` where the chip has it."""
        with self._lock:
            gpu_joules, sram_joules = self._chip.read_joules("gpu_mj", "gpu_sram_mj")
            if gpu_joules is None:
                raise NotSupportedError(f"{self.name} reports no energy")
            joules = gpu_joules + (sram_joules or 0.0)
            if not self._moves or joules != self._moves[-1][1]:
                self._moves = [*self._moves[-1:], (time.monotonic(), joules)]
            return joules

    def read_power_watts(self) -> float:
        """Return the mean power between the latest two moves of the counter, as there is no sensor."""
        self.read_energy_counter_joules()
        if len(self._moves) < 2:
            raise DriverFaultError(f"the power of {self.name} is not known yet")
        (begin, before), (end, after) = self._moves
        return max(after - before, 0.0) / max(end - begin, 1e-3)

    def read_driver_version(self) -> str:
        """Return the package that measures, and its version."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            return f"zeus-apple-silicon {version('zeus-apple-silicon')}"
        except PackageNotFoundError:
            return "zeus-apple-silicon"


class AppleCpu:
    """The CPU with the neural engine, and the memory of the chip. See `Cpu` for the methods."""

    index = 0
    energy_counter_period_seconds: float = _PERIOD_SECONDS
    """The time between two updates of the counters."""

    def __init__(self, name: str) -> None:
        self.name: str = f"{name} CPU and neural engine"
        self._chip = _Chip(name)
        cpu_joules, dram_joules = self._chip.read_joules("cpu_total_mj", "dram_mj")
        if cpu_joules is None:
            raise NotSupportedError(f"{self.name} reports no energy")
        self.has_dram: bool = dram_joules is not None

    def read_energy_counters_joules(self) -> CpuEnergyCounters:
        """Read `cpu_total_mj` with `ane_mj`, and `dram_mj`."""
        cpu_joules, ane_joules, dram_joules = self._chip.read_joules("cpu_total_mj", "ane_mj", "dram_mj")
        return CpuEnergyCounters((cpu_joules or 0.0) + (ane_joules or 0.0), dram_joules)


class _Chip:
    """The counters of the package, in joules since this object was made."""

    def __init__(self, name: str) -> None:
        import zeus_apple_silicon

        self._name = name
        try:
            self._monitor: Any = zeus_apple_silicon.AppleEnergyMonitor()
        except Exception as error:  # of any kind, such as a virtual machine without the channels
            raise DeviceError(f"zeus-apple-silicon cannot measure {name}: {error}") from error

    def read_joules(self, *fields: str) -> list[float | None]:
        try:
            metrics = self._monitor.get_cumulative_energy()
            return [None if (value := getattr(metrics, field)) is None else value / 1e3 for field in fields]
        except Exception as error:  # of any kind
            raise DriverFaultError(f"reading the energy of {self._name} failed: {error}") from error


def find_apple_cpus() -> tuple[tuple[Cpu, ...], str | None]:
    """Find the CPU of this machine, or the reason why its energy is not measured."""
    try:
        return (AppleCpu(_chip_name()),), None
    except ImportError as error:
        return (), _missing_package("CPU", error)
    except DeviceError as error:
        return (), str(error)


def find_apple_gpus() -> list[Gpu]:
    """Find the GPU of this machine.

    Raises:
        NoDeviceError: It has no Apple silicon.
        DeviceError: The package is not installed, or does not work here.
    """
    if platform.machine() != "arm64" or platform.system() != "Darwin":
        raise NoDeviceError("this is no Apple silicon")
    try:
        return [AppleGpu(_chip_name())]
    except ImportError as error:
        raise DeviceError(_missing_package("GPU", error)) from error


def _peak_watts(chip: str) -> float:
    """Return the most that a Mac with a chip draws; that of the largest where the chip is not known."""
    known = _CHIP.fullmatch(chip)
    return max(_PEAKS_WATTS.values()) if known is None else _PEAKS_WATTS.get(known[1], _BASE_PEAK_WATTS)


def _missing_package(device: str, error: ImportError) -> str:
    return f"the {device} of Apple silicon is measured by a package: {install_command('apple')} ({error})"


def _chip_name() -> str:
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=5.0, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        found = ""
    return found or "Apple silicon"
