"""A GPU of its own physics, for tests of measuring: it shares no assumption with the code that measures it.

Power follows a script of segments with a lag and noise. The energy counter is updated with a period, phase and jitter
of its own; the power sensor refreshes and averages as it likes; calls take time, and fail or tell nonsense on demand.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zeus_core.device import PowerRange
from zeus_core.errors import DriverFaultError, NotSupportedError
from zeus_core.testing import VirtualTime

_STEP_SECONDS = 5e-4


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
        average_seconds: The time that the sensor averages.
        age_seconds: How much older than its update a value of the counter is.
        drift_fraction: How far the period wanders, as a fraction of it, over some seconds.
        peaks_per_second: Bursts of 1 to 2 ms at the highest power.
        seed: Of all that is random.
    """

    period_seconds: float | None = 0.1
    nominal_period_seconds: float = 0.1
    jitter_fraction: float = 0.0
    lag_seconds: float = 0.0
    noise_fraction: float = 0.0
    call_seconds: float = 0.0
    refresh_seconds: float = 0.02
    average_seconds: float = 0.0
    age_seconds: float = 0.0
    drift_fraction: float = 0.0
    peaks_per_second: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Fault:
    """What the counter does for a while.

    Attributes:
        kind: "fails": calls raise. "sticks": it stands still, and then shows all. "loses": it stands still, and then
            goes on from there. "resets": it begins at zero again. "slips": it tells nonsense.
        begin: When it begins, in seconds of the script.
        end: When it ends.
    """

    kind: str
    begin: float
    end: float


class PhysicalGpu:
    """A `Gpu` that runs a script from its creation on.

    Args:
        time_source: Its time.
        script: Watts and seconds, one after the other; the last watts are held.
        physics: How it behaves.
        faults: Of the counter.
    """

    uuid = "GPU-00000000-0000-0000-0000-00000000cafe"
    name = "Physical GPU"
    is_simulated = True

    def __init__(
        self,
        time_source: VirtualTime,
        script: Sequence[tuple[float, float]],
        physics: Physics,
        faults: Sequence[Fault] = (),
    ) -> None:
        self._time_source = time_source
        self._begin = time_source.now()
        self._physics = physics
        self._faults = faults
        self._random = random.Random(physics.seed)
        self.highest_watts = 1.02 * max(watts for watts, _ in script)
        self.energy_counter_period_seconds = physics.nominal_period_seconds
        self.power_average_seconds = physics.average_seconds
        self._energy = _energy_of(script, physics)
        self.calls: list[float] = []
        self.shown: list[
            tuple[int, float]
        ] = []  # how often a fault has begun another count, and when it counted so far
        if physics.period_seconds is not None:
            seconds = sum(duration for _, duration in script) + 3.0
            generator = np.random.default_rng(physics.seed)
            count = int(seconds / physics.period_seconds) + 3
            numbers = np.arange(-2, count)
            updates = (
                numbers
                + physics.drift_fraction * np.cumsum(np.sin(numbers * physics.period_seconds / 3.0))
                + generator.uniform()
                + physics.jitter_fraction * generator.uniform(-1, 1, count + 2)
            )
            self._updates = np.sort(updates * physics.period_seconds)

    @property
    def seconds(self) -> float:
        """The time of the script."""
        return self._time_source.now() - self._begin

    def energy_until(self, seconds: float) -> float:
        """The true energy by a time of the script, in joules."""
        at = seconds / _STEP_SECONDS
        if at <= 0:
            return float(self._energy[1] - self._energy[0]) * at
        if at >= len(self._energy) - 1:
            return float(self._energy[-1] + (self._energy[-1] - self._energy[-2]) * (at - len(self._energy) + 1))
        low = int(at)
        return float(self._energy[low] + (self._energy[low + 1] - self._energy[low]) * (at - low))

    def read_energy_counter_joules(self) -> float:
        """Read the counter."""
        if self._physics.period_seconds is None:
            raise NotSupportedError("no counter")
        moment = self._call()
        shown, offset, count = moment, 50_000.0, 0
        for fault in self._faults:
            is_now = fault.begin <= moment < fault.end
            if is_now and fault.kind == "fails":
                raise DriverFaultError("unknown error")
            if is_now and fault.kind in {"sticks", "loses"}:
                shown = min(shown, fault.begin)
            if moment >= fault.end and fault.kind == "loses":
                offset -= self._counted(fault.end) - self._counted(fault.begin)
                count += 1
            if moment >= fault.begin and fault.kind == "resets":
                offset = -self._counted(fault.begin)
                count += 1
            if is_now and fault.kind == "slips":
                return self._random.choice([0.0, 1e6])
        self.shown.append((count, self._counted_until(shown)))
        return round(self._counted(shown) + offset, 3)

    def read_power_watts(self) -> float:
        """Read the sensor."""
        moment = self._call()
        refresh = self._physics.refresh_seconds
        seen = math.floor(moment / refresh) * refresh
        length = max(self._physics.average_seconds, 2 * _STEP_SECONDS)
        return round((self.energy_until(seen) - self.energy_until(seen - length)) / length, 3)

    def read_power_limit_watts(self) -> float:
        """Read the limit, which nothing changes."""
        return self.highest_watts

    read_enforced_power_limit_watts = read_default_power_limit_watts = read_power_limit_watts

    def read_power_limit_range_watts(self) -> PowerRange:
        """Read the range."""
        return PowerRange(100.0, self.highest_watts)

    def _counted(self, moment: float) -> float:
        return self.energy_until(self._counted_until(moment))

    def _counted_until(self, moment: float) -> float:
        update = float(self._updates[np.searchsorted(self._updates, moment, side="right") - 1])
        return update - self._physics.age_seconds

    def _call(self) -> float:
        """Take as long as a call does; return the moment that it tells of."""
        self.calls.append(self.seconds)
        seconds = self._physics.call_seconds * self._random.uniform(0.3, 1.0)
        before = seconds * self._random.random()
        self._time_source.advance(before)
        moment = self.seconds
        self._time_source.advance(seconds - before)
        return moment


def _energy_of(script: Sequence[tuple[float, float]], physics: Physics) -> np.ndarray:
    ends = np.cumsum([seconds for _, seconds in script])
    watts = np.array([*(power for power, _ in script), script[-1][0]])
    count = int((ends[-1] + 3.0) / _STEP_SECONDS)
    power = watts[np.searchsorted(ends, (np.arange(count) + 0.5) * _STEP_SECONDS, side="right")]
    noise = np.random.default_rng(physics.seed).standard_normal(count // 100 + 1)
    power = np.clip(power * (1 + physics.noise_fraction * np.repeat(noise, 100)[:count]), 1.0, watts.max())
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
    energy: np.ndarray = np.concatenate([[0.0], np.cumsum(power) * _STEP_SECONDS])
    return energy
