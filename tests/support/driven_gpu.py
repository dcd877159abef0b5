"""A GPU of the NVML driver for tests, in virtual time: a load, a counter and faults as a test describes them.

The truth is the driver's. The power follows the load with a lag and noise, and has bursts; it is given to the driver in
pieces of half a millisecond. Calls go through the product's own binding, and take time.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.nvml_driver import DeviceSpec, NvmlDriver, build_library
from zeus_core.device import discover_gpus
from zeus_core.testing import VirtualTime

_START_SECONDS = 1e8  # an uptime of three years, where a time has a resolution of 15 ns
_STEP_SECONDS = 5e-4
_SEGMENTS = 64  # of one load of the driver
_UNKNOWN_ERROR, _DRIVER_NOT_LOADED = 999, 9
_DRIFT_UPDATES = 60  # a wander of so many times the drift of a period changes it by that within 10 s


@dataclass(frozen=True)
class Physics:
    """How the GPU and its sensors behave.

    Attributes:
        period_seconds: Time between two updates of the counter; None if there is no counter.
        nominal_period_seconds: What the software takes it for at first.
        jitter_fraction: How far an update can be from its time, as a fraction of the period.
        lag_seconds: Time constant with which power follows the load.
        noise_fraction: Scatter of the power, anew every 50 ms.
        call_seconds: How long a call takes, at most.
        refresh_seconds: Time between two values of the power sensor.
        age_seconds: How much older than its update a value of the counter is.
        drift_fraction: How far the period wanders, as a fraction of it, over some seconds.
        peaks_per_second: Bursts of 1 to 2 ms at the highest power.
        power_gain: The power that the sensor shows, as a fraction of the true one.
        power_offset_watts: What it shows beyond that.
        spike_every: One in so many readings of the power is garbage; 0 for none.
        seed: Of all that is random.
    """

    period_seconds: float | None = 0.1
    nominal_period_seconds: float = 0.1
    jitter_fraction: float = 0.0
    lag_seconds: float = 0.0
    noise_fraction: float = 0.0
    call_seconds: float = 0.0
    refresh_seconds: float = 0.02
    age_seconds: float = 0.0
    drift_fraction: float = 0.0
    peaks_per_second: float = 0.0
    power_gain: float = 1.0
    power_offset_watts: float = 0.0
    spike_every: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Fault:
    """What the counter does for a while.

    Attributes:
        kind: "fails": calls raise. "sticks": it stands still, and then shows all. "loses": it stands still, and then
            goes on from there. "resets": it begins at zero again. "slips": it shows 0, or too much. "freezes": it
            stands still, and the power cannot be read. "leaves": the GPU falls off the bus. "unloads": the driver is
            unloaded. "reloads": and loaded again, with a counter at zero.
        begin: When it begins, in seconds of the script.
        end: When it ends.
    """

    kind: str
    begin: float
    end: float


class DrivenGpu:
    """A `Gpu` that runs a script from its creation on, until it is closed.

    Args:
        script: Watts and seconds, one after the other; the last watts are held.
        physics: How it behaves.
        faults: Of the counter.
    """

    is_simulated = True

    def __init__(self, script: Sequence[tuple[float, float]], physics: Physics, faults: Sequence[Fault] = ()) -> None:
        self.time_source = VirtualTime(_START_SECONDS)
        self._begin = self.time_source.now()
        self._physics = physics
        self._random = random.Random(physics.seed)
        self.highest_watts = 1.02 * max(watts for watts, _ in script)
        period = physics.period_seconds
        self._folder = tempfile.TemporaryDirectory()
        self._driver = NvmlDriver(
            Path(self._folder.name),
            [
                DeviceSpec(
                    idle_watts=0.0,
                    highest_limit_watts=max(self.highest_watts, 201.0),
                    has_energy_counter=period is not None,
                    counter_start_joules=50_000.0,
                    counter_period_seconds=period or 0.1,
                    counter_phase_seconds=self._begin + self._random.random(),
                    counter_jitter_seconds=physics.jitter_fraction * (period or 0.0),
                    counter_wander_seconds=_DRIFT_UPDATES * physics.drift_fraction * (period or 0.0),
                    counter_age_seconds=physics.age_seconds,
                    power_gain=physics.power_gain,
                )
            ],
            library=_library(),
        )
        self._driver.load_in_process()
        self._device = self._driver[0]
        self._load(_powers(script, physics))
        if physics.spike_every:
            self._device.spike_power(4e6, times=None, every=physics.spike_every)
        self._gpu = discover_gpus({})[0]
        self.uuid, self.name = self._gpu.uuid, self._gpu.name
        self.energy_counter_period_seconds, self.power_average_seconds = physics.nominal_period_seconds, 0.0
        self.calls: list[float] = []
        self._due = sorted(
            (at, number, act)
            for fault in faults
            for number, (at, act) in enumerate(zip((fault.begin, fault.end), self._acts(fault.kind), strict=True))
        )

    @property
    def seconds(self) -> float:
        """The time of the script."""
        return self.time_source.now() - self._begin

    def energy_until(self, seconds: float) -> float:
        """The true energy by a time of the script, in joules."""
        return self._device.computed_in_c_picojoules_until(round((self._begin + seconds) * 1e9)) / 1e12

    def close(self) -> None:
        """Give this process its own NVML back."""
        self._driver.close()
        self._folder.cleanup()

    def read_energy_counter_joules(self) -> float:
        """Read the counter."""
        return self._call(self._gpu.read_energy_counter_joules)

    def read_power_watts(self) -> float:
        """Read the sensor."""
        watts = self._call(self._gpu.read_power_watts, self._physics.refresh_seconds)
        return watts + self._physics.power_offset_watts

    def __getattr__(self, name: str) -> object:
        return getattr(self._gpu, name)

    def _call(self, read: Callable[[], float], refresh_seconds: float = 0.0) -> float:
        """Take as long as a call does; the value is of some moment meanwhile."""
        self.calls.append(self.seconds)
        seconds = self._physics.call_seconds * self._random.uniform(0.3, 1.0)
        before = seconds * self._random.random()
        self.time_source.advance(before)
        while self._due and self._due[0][0] <= self.seconds:
            at, _, act = self._due.pop(0)
            self._driver.set_clock(self._begin + at)
            act()
        moment = self.seconds
        if refresh_seconds:
            moment = math.floor(moment / refresh_seconds) * refresh_seconds
        self._driver.set_clock(self._begin + moment)
        try:
            return read()
        finally:
            self.time_source.advance(seconds - before)

    def _load(self, powers: np.ndarray) -> None:
        lengths = np.flatnonzero(np.diff(powers, append=math.nan)) + 1
        ends = lengths * _STEP_SECONDS
        values, begins = powers[lengths - 1].tolist(), [0.0, *ends[:-1].tolist()]
        segments = list(zip(np.diff(ends, prepend=0.0).tolist(), values, strict=True))
        self._driver.set_clock(self._begin - 5.0)
        self._device.set_load(values[0])
        for first in range(0, len(segments), _SEGMENTS):
            self._driver.set_clock(self._begin + begins[first])
            self._device.set_load(segments[first : first + _SEGMENTS])

    def _acts(self, kind: str) -> tuple[Callable[[], None], Callable[[], None]]:
        device, driver = self._device, self._driver
        slip_joules = self._random.choice([-1e6, 1e6])

        def freeze() -> None:
            device.stick_counter()
            for function in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage"):
                device.fail(function, _UNKNOWN_ERROR)

        def reload() -> None:
            driver.clear_faults()
            device.reset_counter()

        return {
            "fails": (
                lambda: device.fail("nvmlDeviceGetTotalEnergyConsumption", _UNKNOWN_ERROR),
                driver.clear_faults,
            ),
            "sticks": (device.stick_counter, device.release_counter),
            "loses": (device.stick_counter, device.release_counter_with_a_loss),
            "resets": (device.reset_counter, lambda: None),
            "freezes": (freeze, driver.clear_faults),
            "leaves": (device.lose, device.recover),
            "unloads": (lambda: driver.fail(None, _DRIVER_NOT_LOADED), driver.clear_faults),
            "reloads": (lambda: driver.fail(None, _DRIVER_NOT_LOADED), reload),
            "slips": (lambda: device.shift_counter(slip_joules), lambda: device.shift_counter(-slip_joules)),
        }[kind]


@functools.cache
def _library() -> Path:
    folder = tempfile.TemporaryDirectory()
    weakref.finalize(_library, folder.cleanup)
    return build_library(Path(folder.name))


def _powers(script: Sequence[tuple[float, float]], physics: Physics) -> np.ndarray:
    """Return the power of each step of time, in whole milliwatts."""
    ends = np.array(list(itertools.accumulate(seconds for _, seconds in script)))
    watts = np.array([power for power, _ in script])
    count = int(ends[-1] / _STEP_SECONDS)
    power = watts[
        np.minimum(np.searchsorted(ends, (np.arange(count) + 0.5) * _STEP_SECONDS, side="right"), len(watts) - 1)
    ]
    noise = np.random.default_rng(physics.seed).standard_normal(count // 100 + 1)
    power = np.clip(
        power * (1 + physics.noise_fraction * np.repeat(noise, 100)[:count]), min(1.0, watts.max()), watts.max()
    )
    if physics.lag_seconds > 0:
        kept = math.exp(-_STEP_SECONDS / physics.lag_seconds)
        level, followed = float(power[0]), np.empty_like(power)
        for number, target in enumerate(power.tolist()):
            level = kept * level + (1 - kept) * target
            followed[number] = level
        power = followed
    generator = np.random.default_rng(physics.seed + 1)
    for at in generator.integers(0, count, int(physics.peaks_per_second * ends[-1])):
        power[at : at + int(generator.integers(2, 5))] = watts.max()
    milliwatts: np.ndarray = np.round(power, 3)
    return milliwatts
