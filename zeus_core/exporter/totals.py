"""Totals of the energy of devices, which never fall, even if the driver fails or starts anew."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from zeus_core.device import Gpu
from zeus_core.device.gpu import identities_on, read_utilization
from zeus_core.errors import DeviceError
from zeus_core.exporter.jobs import GpuReading, JobTotals
from zeus_core.measurement import Device
from zeus_core.monitor import ZeusMonitor
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls

_Value = TypeVar("_Value")


@dataclass
class DeviceState:
    """A device as it is exported.

    Attributes:
        device: The device.
        uuid: Its identity within the machine, over reboots too.
        name: Its product name.
        energy_joules: Its energy since the exporter began, without that of `unmeasured_seconds`.
        unmeasured_seconds: The time whose energy was lost.
        power_watts: Its power now; None if that cannot be read, and for CPUs.
        limit_watts: The power limit in force; None as for the power.
        sm_clock_mhz: The SM clock now; None as for the power.
        utilization: The share of the latest second or so in which it computed; None as for the power.
    """

    device: Device
    uuid: str
    name: str
    energy_joules: float = 0.0
    unmeasured_seconds: float = 0.0
    power_watts: float | None = None
    limit_watts: float | None = None
    sm_clock_mhz: float | None = None
    utilization: float | None = None


@dataclass
class DeviceTotals:
    """Adds up the energy of all devices of a monitor, from reading to reading. Threads may share it.

    A fault of the driver, or a counter that restarts, loses the energy between two readings at most.

    Attributes:
        monitor: Measures the devices. It keeps a window open, so that GPUs without a counter are sampled.
        jobs: Divides the energy among jobs; None to do without.
    """

    monitor: ZeusMonitor
    jobs: JobTotals | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _refreshed_seconds: float = -math.inf

    def __post_init__(self) -> None:
        """Begin to count."""
        self._calls = ParallelCalls()
        self._states = [self._state_of(device) for device in self.monitor.devices]
        self.monitor.begin_window("exporter", sync_execution=False)
        self._latest = self.monitor.read(sync_execution=False)

    def refresh(self, max_age_seconds: float = 0.0) -> list[DeviceState]:
        """Read all devices now, and return their states. A fault of a device is part of its state.

        Args:
            max_age_seconds: Return the latest states, if they are no older than this.
        """
        with self._lock:
            if self.monitor.time_source.now() < self._refreshed_seconds + max_age_seconds:
                return list(self._states)
            self._refreshed_seconds = self.monitor.time_source.now()
            reading = self.monitor.read(sync_execution=False)
            measurement = self.monitor.between(self._latest, reading)
            self._latest = reading
            readings = []
            for state in self._states:
                joules = measurement.devices[state.device].energy_joules
                if joules is None:
                    state.unmeasured_seconds += measurement.time
                else:
                    state.energy_joules += max(joules, 0.0)
                if state.device.kind == "gpu":
                    gpu = self.monitor.gpus[state.device.index]
                    self._read_present(state, gpu)
                    if self.jobs is not None:
                        processes = self._read(self._number_of(state), partial(identities_on, gpu))
                        energy = measurement.devices[state.device]
                        readings.append(GpuReading(processes, energy, measurement.time, state.utilization))
            if self.jobs is not None:
                self.jobs.add(readings)
            return list(self._states)

    def close(self) -> None:
        """Stop counting."""
        self.monitor.cancel("exporter")

    def _read_present(self, state: DeviceState, gpu: Gpu) -> None:
        number = self._number_of(state)
        state.power_watts = self._read(number, gpu.read_power_watts)
        state.limit_watts = self._read(number, gpu.read_enforced_power_limit_watts)
        state.sm_clock_mhz = self._read(number, gpu.read_sm_clock_mhz)
        state.utilization = self._read(number, partial(read_utilization, gpu))

    def _number_of(self, state: DeviceState) -> int:
        return self.monitor.gpu_indices.index(state.device.index)

    def _read(self, number: int, call: Callable[[], _Value]) -> _Value | None:
        try:
            return self._calls.call_one_within(CALL_SECONDS, number, partial(call))
        except DeviceError:
            return None

    def _state_of(self, device: Device) -> DeviceState:
        if device.kind == "gpu":
            gpu = self.monitor.gpus[device.index]
            return DeviceState(device, gpu.uuid, gpu.name)
        return DeviceState(device, device.label, self.monitor.cpus[device.index].name)
