"""Power, temperature and energy of GPUs over time, in bounded memory."""

from __future__ import annotations

import bisect
import math
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from zeus_core.device import Gpu
from zeus_core.device.gpu import read_or_none
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor.meter import peak_watts
from zeus_core.monitor.reading import Reading
from zeus_core.monitor.windows import ZeusMonitor
from zeus_core.ports.background import repeatedly
from zeus_core.ports.time_source import clock_seconds
from zeus_core.process.sampler import weakly
from zeus_core.validate import checked_number, checked_one_of, checked_whole_number

_DOMAINS = ("device_instant",)


class PowerSample(NamedTuple):
    """Readings of one GPU at one moment.

    Attributes:
        at_seconds: When, in seconds since 1970.
        power_watts: The power; None if it could not be read.
        temperature_celsius: The temperature of the chip; None if it is not known.
    """

    at_seconds: float
    power_watts: float | None
    temperature_celsius: float | None


class _Sample(NamedTuple):
    at: float  # by the time source
    reading: Reading
    temperatures_celsius: tuple[float | None, ...]


class PowerMonitor:
    """Samples the power and the temperature of GPUs in the background, from its creation until `close`.

    Once there are `max_samples`, every second one is dropped and the period doubles, so that a timeline covers the
    whole time. The energy between two samples stays as exact as before, as each has the reading of the energy counter,
    or the integral of the power. Any thread may call its methods. Times are seconds since 1970, as of `time.time()`.

    Args:
        monitor: Measures the GPUs; a new `ZeusMonitor` if None. Its windows may be used beside.
        period_seconds: The time between two samples.
        max_samples: The most that are kept, at least 16; each takes about 1 kB for each GPU.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: There is no GPU.
    """

    def __init__(
        self, monitor: ZeusMonitor | None = None, period_seconds: float = 0.1, max_samples: int = 4096
    ) -> None:
        self._monitor = ZeusMonitor() if monitor is None else monitor
        self.period_seconds: float = checked_number(
            "period_seconds", period_seconds, 0.0, math.inf, "seconds, such as 0.1", is_open=True
        )
        """The time between two samples; it doubles whenever there are too many."""
        self._max_samples = checked_whole_number("max_samples", max_samples, 16)
        self._time_source = self._monitor.time_source
        self._clock_ahead = clock_seconds(self._time_source) - self._time_source.now()
        self._gpus: Mapping[int, Gpu] = self._monitor.gpus
        self._peaks_watts = [peak_watts(gpu) for gpu in self._gpus.values()]
        self._samples: list[_Sample] = []
        self._lock = threading.Lock()
        self._window = f"__zeus_core_power_monitor_{id(self)}"
        self._monitor.begin_window(self._window, sync_execution=False)  # GPUs without a counter are sampled meanwhile
        stop = repeatedly(self._time_source, weakly(self._sample_if_due), self.period_seconds)
        self._stop = weakref.finalize(self, _end, stop, self._monitor, self._window)  # also of one that is dropped
        self.sample()

    def __enter__(self) -> PowerMonitor:
        """Return it, for a `with` statement that closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self.close()

    def close(self) -> None:
        """Take a last sample, and stop. The samples can still be asked for."""
        if self._stop.alive:
            self.sample()
            self._stop()

    def sample(self) -> None:
        """Take a sample now. Never raises for a device that fails."""
        at = self._time_source.now()
        reading = self._monitor.read(sync_execution=False)
        temperatures = tuple(self._monitor.ask(lambda gpu: read_or_none(gpu.read_temperature_celsius), None))
        with self._lock:
            if not self._samples or at > self._samples[-1].at:
                self._samples.append(_Sample(at, reading, temperatures))
            if len(self._samples) > self._max_samples:
                self._samples = self._samples[::2]
                self.period_seconds *= 2

    def _sample_if_due(self) -> None:
        """Take a sample if the period, which may have doubled, is over since the latest one."""
        with self._lock:
            latest = self._samples[-1].at if self._samples else -math.inf
        if self._time_source.now() - latest >= 0.999 * self.period_seconds:
            self.sample()

    def timeline(self, index: int, start_time: float | None = None, end_time: float | None = None) -> list[PowerSample]:
        """Return the samples of a GPU between two times, the earliest first.

        Raises:
            UsageError: It is not measured.
        """
        place = self._place_of(index)
        start, end = self._moment(start_time, -math.inf), self._moment(end_time, math.inf)
        with self._lock:
            samples = [sample for sample in self._samples if start <= sample.at <= end]
        return [
            PowerSample(
                sample.at + self._clock_ahead,
                sample.reading.gpus[place].power_watts,
                sample.temperatures_celsius[place],
            )
            for sample in samples
        ]

    def energy(self, start_time: float, end_time: float) -> dict[int, DeviceEnergy]:
        """Return the energy of each GPU between two times, with its uncertainty.

        From the sample before the start to the one after the end it is measured, as in a window. The time between these
        samples and the two times is taken off, at the power of the sample; there the GPU may have drawn anything.

        An end that is later than the latest sample is waited for, up to a period, and sampled.

        Raises:
            UsageError: The end is before the start.
        """
        start, end = self._moment(start_time, 0.0), self._moment(end_time, 0.0)
        if not start <= end:
            raise UsageError(f"end_time is {end_time!r}, before the start_time {start_time!r}")
        self._sample_until(end)
        with self._lock:
            samples = list(self._samples)
        moments = [sample.at for sample in samples]
        first, last = bisect.bisect_right(moments, start) - 1, bisect.bisect_left(moments, end)
        if first < 0 or last >= len(samples):
            lost = DeviceEnergy.lost("it was not sampled all the time between the two times")
            return dict.fromkeys(self._gpus, lost)
        before, after = samples[first], samples[last]
        measured = self._monitor.between(before.reading, after.reading)
        energies = {device.index: energy for device, energy in measured.devices.items() if device.kind == "gpu"}
        outside = (before, start - before.at), (after, after.at - end)
        found: dict[int, DeviceEnergy] = {}
        for place, (index, energy) in enumerate(energies.items()):
            edges = [(sample.reading.gpus[place].power_watts, seconds) for sample, seconds in outside]
            found[index] = _without(energy, edges, self._peaks_watts[place])
        return found

    # The names of zeus's PowerMonitor and TemperatureMonitor, with the shapes of their answers.

    def stop(self) -> None:
        """Take a last sample, and stop; see `close`."""
        self.close()

    def get_power_timeline(
        self,
        power_domain: str = "device_instant",
        gpu_index: int | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> dict[int, list[tuple[float, float]]]:
        """Return pairs of time and watts, by index of the GPU; `timeline` has the temperatures too.

        Raises:
            UsageError: There is no such domain, or the GPU is not measured.
        """
        checked_one_of("power_domain", power_domain, _DOMAINS)
        return {
            index: [(at, watts) for at, watts, _ in self.timeline(index, start_time, end_time) if watts is not None]
            for index in (self._gpus if gpu_index is None else [gpu_index])
        }

    def get_all_power_timelines(
        self, gpu_index: int | None = None, start_time: float | None = None, end_time: float | None = None
    ) -> dict[str, dict[int, list[tuple[float, float]]]]:
        """Return `get_power_timeline` by domain, of which there is one: "device_instant"."""
        return {domain: self.get_power_timeline(domain, gpu_index, start_time, end_time) for domain in _DOMAINS}

    def get_power(self, time: float | None = None) -> dict[int, float] | None:
        """Return the watts of each GPU in the sample nearest to a time, the latest one if None.

        None where the power of a GPU was not read.
        """
        return self._nearest(time, lambda sample: sample.power_watts)

    def get_energy(self, start_time: float, end_time: float) -> dict[int, float] | None:
        """Return the joules of each GPU between two times; None where one is not known. See `energy`."""
        energies = self.energy(start_time, end_time)
        known = {i: energy.energy_joules for i, energy in energies.items() if energy.energy_joules is not None}
        return known if len(known) == len(energies) else None

    def get_temperature(self, time: float | None = None) -> dict[int, float] | None:
        """Return the degrees Celsius of each GPU in the sample nearest to a time; see `get_power`."""
        return self._nearest(time, lambda sample: sample.temperature_celsius)

    def get_temperature_timeline(
        self, gpu_index: int | None = None, start_time: float | None = None, end_time: float | None = None
    ) -> dict[int, list[tuple[float, float]]]:
        """Return pairs of time and degrees Celsius, by index of the GPU."""
        return {
            index: [
                (at, degrees) for at, _, degrees in self.timeline(index, start_time, end_time) if degrees is not None
            ]
            for index in (self._gpus if gpu_index is None else [gpu_index])
        }

    def _nearest(self, time: float | None, value: Callable[[PowerSample], float | None]) -> dict[int, float] | None:
        moment = self._moment(time, math.inf)
        found: dict[int, float] = {}
        for index in self._gpus:
            samples = self.timeline(index)
            after = bisect.bisect_left([sample.at_seconds - self._clock_ahead for sample in samples], moment)
            beside = samples[max(after - 1, 0) : after + 1]
            known = value(min(beside, key=lambda sample: abs(sample.at_seconds - self._clock_ahead - moment)))
            if known is None:
                return None
            found[index] = known
        return found

    def _sample_until(self, end: float) -> None:
        """Take the sample that ends a time that is just over, or will be within a period."""
        while self._stop.alive and end - self._time_source.now() <= self.period_seconds:
            with self._lock:
                if self._samples[-1].at >= end:
                    return
            self._time_source.sleep(end - self._time_source.now())
            self.sample()

    def _moment(self, time: float | None, default: float) -> float:
        if time is None:
            return default
        return checked_number("a time", time, -math.inf, math.inf, "seconds since 1970") - self._clock_ahead

    def _place_of(self, index: int) -> int:
        return list(self._gpus).index(checked_one_of("index", index, list(self._gpus)))


def _without(energy: DeviceEnergy, outside: list[tuple[float | None, float]], peak_watts: float) -> DeviceEnergy:
    """Take off what was drawn before the first time and after the last one, which is between nothing and the peak."""
    if energy.energy_joules is None or any(watts is None and seconds > 0 for watts, seconds in outside):
        return energy if energy.energy_joules is None else DeviceEnergy.lost("the power at its edges was not read")
    known = [(watts or 0.0, seconds) for watts, seconds in outside]
    off_joules = math.fsum(max(watts, peak_watts - watts) * seconds for watts, seconds in known)
    return replace(
        energy,
        energy_joules=max(energy.energy_joules - math.fsum(watts * seconds for watts, seconds in known), 0.0),
        uncertainty_joules=(energy.uncertainty_joules or 0.0) + off_joules,
    )


def _end(stop: Callable[[], object], monitor: ZeusMonitor, window: str) -> None:
    stop()
    monitor.cancel(window)
