"""Meters: the energy of one GPU by its counter, or by sampling its power."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NoReturn, TypeAlias

from zeus_core.device import Gpu
from zeus_core.device.retry import retried
from zeus_core.errors import DeviceError, DriverFaultError, NotSupportedError, UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor._counter_trail import CounterTrail
from zeus_core.monitor._integral import bridging_sums, integrated_energy, next_sums
from zeus_core.monitor.counted_energy import TRANSIENTS, counted_energy
from zeus_core.monitor.reading import GpuEdge
from zeus_core.ports import TimeSource
from zeus_core.process.lock import ProcessLock
from zeus_core.units import number_text

_logger = logging.getLogger(__name__)

UNKNOWN_PEAK_WATTS = TRANSIENTS * 1000.0
"""No less than boards without a known limit draw; more only widens the stated intervals."""


class CountingMeter:
    """Takes the difference of the energy counter: two driver calls at each edge.

    Args:
        gpu: The GPU.
        time_source: Source of the times of the readings.
        needs_sampling: Whether to read in between too, which shows more closely when the counter is updated.
    """

    def __init__(self, gpu: Gpu, time_source: TimeSource, needs_sampling: bool) -> None:
        self.needs_sampling = needs_sampling
        self._read_counter_joules = gpu.read_energy_counter_joules
        self._read_power_watts = gpu.read_power_watts
        self._power = PossiblePower(gpu)
        self._now = time_source.now
        self._period_seconds = gpu.energy_counter_period_seconds
        self.peak_watts: float = self._power.most_watts
        self._average_seconds = gpu.power_average_seconds
        self._trail = CounterTrail(self._period_seconds, self.peak_watts, time_source.now)
        self._follow = self._trail.follow

    def read(self) -> GpuEdge:
        """Read the counter and the power."""
        at = self._now()
        try:
            counter_joules = self._read_counter_joules()
        except DeviceError as error:
            return self._trail.fail(at, str(error), self._try_power_watts())
        try:
            power_watts = self._read_power_watts()
            if power_watts > self.peak_watts:
                self._power.drop(power_watts)
        except DeviceError:
            return self._follow(at, counter_joules, None)
        return self._follow(at, counter_joules, power_watts)

    def miss(self, at: float, reason: str) -> GpuEdge:
        """Return the reading of a moment at which the GPU was not read: the counter may make up for it."""
        return self._trail.fail(at, reason, None)

    def _try_power_watts(self) -> float | None:
        try:
            return self._power.read_watts()
        except DeviceError:
            return None

    def between(self, begin: GpuEdge, end: GpuEdge, seconds: float) -> DeviceEnergy:
        """Compute the energy between two readings; see `counted_energy`."""
        return counted_energy(begin, end, seconds, self._period_seconds, self.peak_watts, self._average_seconds)


class PowerMeter:
    """Integrates the power over all readings, those at the edges and those in between; see `integrated_energy`.

    Args:
        gpu: The GPU.
        time_source: Source of the times of the readings.
    """

    needs_sampling = True

    def __init__(self, gpu: Gpu, time_source: TimeSource) -> None:
        self._gpu = gpu
        self._time_source = time_source
        self._power = PossiblePower(gpu)
        self.peak_watts: float = self._power.most_watts
        self._last: GpuEdge | None = None
        self._good_at = time_source.now()
        self._lock = ProcessLock()

    def read(self) -> GpuEdge:
        """Take a sample."""
        with self._lock:  # samples of several threads must come in the order of time
            at = self._time_source.now()
            try:
                power_watts = self._power.read_watts()
            except NotSupportedError:
                return GpuEdge(at, None, None, self._gpu.no_power_because)
            except ImpossiblePowerError as error:
                bridge = bridging_sums(self._last, at, self._good_at, self.peak_watts)
                if bridge is None:
                    return GpuEdge(at, None, None, str(error))
                edge = self._last = GpuEdge(at, None, bridge[0], sums=bridge[1])
                return edge
            except DeviceError as error:
                return GpuEdge(at, None, None, str(error))
            self._good_at = at
            sums = next_sums(self._last, at, power_watts, self.peak_watts)
            edge = self._last = GpuEdge(at, None, power_watts, sums=sums)
            return edge

    def miss(self, at: float, reason: str) -> GpuEdge:
        """Return the reading of a moment at which the GPU was not read."""
        return GpuEdge(at, None, None, reason)

    def between(self, begin: GpuEdge, end: GpuEdge, seconds: float) -> DeviceEnergy:
        """Compute the energy between two samples; see `integrated_energy`."""
        return integrated_energy(begin, end, seconds, self.peak_watts, self._gpu.power_average_seconds)


Meter: TypeAlias = CountingMeter | PowerMeter
"""Reads one GPU at the edges of windows. Where it `needs_sampling`, it is also read now and then between them."""


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
    return CountingMeter(gpu, time_source, precise) if has_counter else PowerMeter(gpu, time_source)


def _has(read: Callable[[], float]) -> bool:
    """Whether a GPU has a reading at all. One that fails for another reason is there, and may work again."""
    try:
        read()
    except NotSupportedError:
        return False
    except DeviceError:
        return True
    return True


class ImpossiblePowerError(DriverFaultError):
    """A sensor shows a power that the board cannot draw."""


class PossiblePower:
    """Reads the power of a GPU without what the board cannot draw: garbage of the sensor, or a wrong scale of it.

    Args:
        gpu: The GPU. The first such reading is logged.
        most_watts: The most that the board can draw; that of `peak_watts` if None.
    """

    def __init__(self, gpu: Gpu, most_watts: float | None = None) -> None:
        self.most_watts: float = peak_watts(gpu) if most_watts is None else most_watts
        """The most that the board can draw."""
        self._gpu = gpu
        self._read_watts = gpu.read_power_watts
        self._is_logged = False

    def read_watts(self) -> float:
        """Read the power.

        Raises:
            ImpossiblePowerError: It is more than the board can draw.
            DeviceError: It cannot be read.
        """
        power_watts = self._read_watts()
        if power_watts > self.most_watts:
            self.drop(power_watts)
        return power_watts

    def drop(self, power_watts: float) -> NoReturn:
        """Raise `ImpossiblePowerError` for a power that was read, and log the first."""
        reason = f"the power sensor shows more than the {number_text(self.most_watts)} W that the board can draw"
        if not self._is_logged:
            self._is_logged = True
            gpu = f"{self._gpu.name} ({self._gpu.uuid})"
            _logger.warning("%s: %s, %s W; such readings are dropped", gpu, reason, number_text(power_watts))
        raise ImpossiblePowerError(reason)


def peak_watts(gpu: Gpu) -> float:
    """Return the most a GPU can draw: what it says, else its highest limit, and transients above it."""
    if gpu.peak_watts is not None:
        return gpu.peak_watts
    try:
        return TRANSIENTS * retried(gpu.read_power_limit_range_watts).highest_watts
    except DeviceError:
        return UNKNOWN_PEAK_WATTS
