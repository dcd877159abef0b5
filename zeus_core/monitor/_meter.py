"""Meters: the energy of one GPU by its counter, by integrating its power, or by both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zeus_core._process.lock import ProcessLock
from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, NotSupportedError, UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor._counted_energy import counted_energy
from zeus_core.monitor._integral import AnchoredIntegral, HoldIntegral, Integral, PendingIntegral
from zeus_core.monitor._reading import GpuEdge, read_gpu
from zeus_core.ports import TimeSource

__all__ = ["CountingMeter", "Meter", "SamplingMeter", "make_meter"]

_UNKNOWN_PEAK_WATTS = 1000.0  # no less than boards that do not tell draw; more only widens the stated intervals


class Meter(Protocol):
    """Reads one GPU at the edges of windows."""

    @property
    def needs_sampling(self) -> bool:
        """Whether `read` must also be called now and then between the edges."""
        ...

    def read(self) -> GpuEdge:
        """Read the GPU. Never raises."""
        ...

    def between(self, begin: GpuEdge, end: GpuEdge) -> DeviceEnergy:
        """Compute the energy between two readings."""
        ...

    def watch(self, edge: GpuEdge) -> PendingIntegral | None:
        """Make an accumulator that refines an edge from the readings that follow it; None if they would not help."""
        ...


class CountingMeter:
    """Takes the difference of the energy counter: two driver calls at each edge, and none in between."""

    needs_sampling = False

    def __init__(self, gpu: Gpu, time_source: TimeSource) -> None:
        self._gpu = gpu
        self._time_source = time_source
        self._period_seconds = gpu.energy_counter_period_seconds
        self._peak_watts = _peak_watts(gpu)
        self._has_instant_power = gpu.power_average_seconds <= gpu.energy_counter_period_seconds

    def read(self) -> GpuEdge:
        """Read the counter and the power."""
        return read_gpu(self._gpu, True, self._time_source)

    def between(self, begin: GpuEdge, end: GpuEdge) -> DeviceEnergy:
        """Compute the energy between two readings; see `counted_energy`."""
        return counted_energy(begin, end, self._period_seconds, self._peak_watts, self._has_instant_power)

    def watch(self, edge: GpuEdge) -> PendingIntegral | None:
        """Refine an edge up to the counter's next update, if its power is that of the moment."""
        is_of_use = edge.fault is None and edge.power_watts is not None and self._has_instant_power
        return PendingIntegral(edge) if is_of_use else None


class SamplingMeter:
    """Integrates the power over all readings, those at the edges and those in between.

    Args:
        gpu: The GPU.
        time_source: Tells when a reading was taken.
        counting: If given, the integral is anchored to the counter, and the energy with the smaller uncertainty counts.
    """

    needs_sampling = True

    def __init__(self, gpu: Gpu, time_source: TimeSource, counting: CountingMeter | None) -> None:
        self._gpu = gpu
        self._time_source = time_source
        self._counting = counting
        self._integral: Integral = (
            AnchoredIntegral(gpu.energy_counter_period_seconds, _peak_watts(gpu))
            if counting is not None
            else HoldIntegral(gpu.power_average_seconds)
        )
        self._lock = ProcessLock()

    def read(self) -> GpuEdge:
        """Take a sample."""
        with self._lock:  # samples of several threads must come in the order of time
            edge = read_gpu(self._gpu, self._counting is not None, self._time_source)
            return edge if edge.power_watts is None else edge._replace(running=self._integral.add(edge))

    def between(self, begin: GpuEdge, end: GpuEdge) -> DeviceEnergy:
        """Compute the energy by the integral, or by the counter where that is surer."""
        counted = self._counting.between(begin, end) if self._counting is not None else None
        if counted is not None and counted.method == "lost":
            return counted
        if begin.running is None or end.running is None:
            return counted or DeviceEnergy.lost(begin.fault or end.fault or "the GPU has no power reading")
        integrated = self._integral.between(begin.running, end.running)
        if counted is None:
            return integrated
        return min(counted, integrated, key=lambda energy: energy.uncertainty_joules or 0.0)

    def watch(self, edge: GpuEdge) -> None:
        """Do nothing: samples are taken all the time."""


def make_meter(gpu: Gpu, time_source: TimeSource, precise: bool) -> Meter:
    """Make the meter that suits a GPU.

    Raises:
        UsageError: `precise`, and the GPU has no counter or no power to sample.
    """
    has_counter = _has(gpu.read_energy_counter_joules)
    if precise and not (has_counter and _has(gpu.read_power_watts) and gpu.power_average_seconds == 0):
        raise UsageError(
            f"precise=True needs an energy counter and a power reading of the moment, and {gpu.name} lacks one; "
            "leave it out"
        )
    counting = CountingMeter(gpu, time_source) if has_counter else None
    if counting is not None and not precise:
        return counting
    return SamplingMeter(gpu, time_source, counting)


def _has(read: Callable[[], float]) -> bool:
    """Tell whether a GPU has a reading at all. One that fails for another reason is there, and may work again."""
    try:
        read()
    except NotSupportedError:
        return False
    except DeviceError:
        return True
    return True


def _peak_watts(gpu: Gpu) -> float:
    try:
        return gpu.read_power_limit_range_watts().highest_watts
    except DeviceError:
        return _UNKNOWN_PEAK_WATTS
