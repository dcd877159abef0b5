"""Totals of the energy of devices, which never fall, even if the driver fails or starts anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from zeus_core.adapters import contained
from zeus_core.device.sharing import identities_on
from zeus_core.errors import DeviceError
from zeus_core.exporter.jobs import GpuReading, JobTotals
from zeus_core.measurement import Device
from zeus_core.monitor import ZeusMonitor
from zeus_core.process.deadline import CALL_SECONDS
from zeus_core.process.parallel import ParallelCalls

_Value = TypeVar("_Value")
_HERTZ_PER_MHZ = 1_000_000


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
        sm_clock_hertz: The SM clock now; None as for the power.
        utilization: The share of the latest second or so in which it computed; None as for the power.
    """

    device: Device
    uuid: str
    name: str
    energy_joules: float = 0.0
    unmeasured_seconds: float = 0.0
    power_watts: float | None = None
    limit_watts: float | None = None
    sm_clock_hertz: float | None = None
    utilization: float | None = None


class DeviceTotals:
    """Adds up the energy of all devices of a monitor, from reading to reading. Threads may share it.

    A fault of the driver, or a counter that restarts, loses the energy between two readings at most. A driver that
    hangs is waited for a second at most.

    Args:
        monitor: Measures the devices. It keeps a window open, so that GPUs without a counter are sampled.
        jobs: Divides the energy among jobs; None to do without.
    """

    def __init__(self, monitor: ZeusMonitor, jobs: JobTotals | None = None) -> None:
        self._monitor = monitor
        self.jobs: JobTotals | None = jobs
        self._lock = threading.Lock()
        self._calls = ParallelCalls()
        self._states = [self._state_of(device) for device in monitor.devices]
        monitor.begin_window("exporter", sync_execution=False)
        self._latest = monitor.read(sync_execution=False)

    def refresh(self) -> list[DeviceState]:
        """Read all devices now, and return their states. A fault of a device is part of its state."""
        with self._lock:
            self._read()
            return list(self._states)

    @contained
    def _read(self) -> None:
        """Read all devices, and wait for drivers that hang no longer than a hook of training: a second in all."""
        reading = self._monitor.read(sync_execution=False)
        measurement = self._monitor.between(self._latest, reading)
        self._latest = reading
        readings = []
        for state in self._states:
            joules = measurement.devices[state.device].energy_joules
            if joules is None:
                state.unmeasured_seconds += measurement.time
            else:
                state.energy_joules += max(joules, 0.0)
            if state.device.kind == "gpu":
                processes = self._read_gpu(state)
                readings.append(GpuReading(processes, joules, measurement.time, state.utilization))
        if self.jobs is not None:
            self.jobs.add(readings)

    def _read_gpu(self, state: DeviceState) -> set[tuple[int, int]] | None:
        """Read what a GPU does now, and return the processes on it, if jobs are counted."""
        gpu, number = self._monitor.gpus[state.device.index], self._monitor.gpu_indices.index(state.device.index)

        def answer(call: Callable[[], _Value]) -> _Value | None:
            try:
                return self._calls.call_one_within(CALL_SECONDS, number, call)
            except DeviceError:
                return None

        state.power_watts = answer(gpu.read_power_watts)
        state.limit_watts = answer(gpu.read_enforced_power_limit_watts)
        clock_mhz = answer(gpu.read_sm_clock_mhz)
        state.sm_clock_hertz = None if clock_mhz is None else clock_mhz * _HERTZ_PER_MHZ
        state.utilization = answer(gpu.read_utilization)
        return None if self.jobs is None else answer(partial(identities_on, gpu))

    def _state_of(self, device: Device) -> DeviceState:
        if device.kind == "gpu":
            gpu = self._monitor.gpus[device.index]
            return DeviceState(device, gpu.uuid, gpu.name)
        return DeviceState(device, device.label, self._monitor.cpus[device.index].name)
