"""A GPU that draws what a script says, and whose counter and sensor have flaws of their own.

Its power approaches that of the script with a lag. The sensor shows the power as of its latest refresh, and the counter
the energy as of its latest update; both come with a jitter. Nothing here is taken from `zeus_core.monitor`.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.device import SimulatedGpu, find_preset
from zeus_core.errors import DriverFaultError, NotSupportedError
from zeus_core.testing import VirtualTime

__all__ = ["CounterFault", "ScriptedGpu", "Senses"]

HIGHEST_LIMIT_WATTS = 400.0  # of the A100 preset
_MARGIN_SECONDS = 2.0  # before the script, so that counter and sensor have been updated


@dataclass(frozen=True)
class Senses:
    """How the counter and the power sensor see the load.

    Attributes:
        counter_period_seconds: Time between two updates of the counter.
        counter_jitter: Of each update, as a share of the period, to either side.
        sensor_period_seconds: Time between two refreshes of the power reading; 0 for one that is always fresh.
        sensor_jitter: As of the counter.
        sensor_average_seconds: The reading is the mean over this time; 0 for the power of the moment.
        lag_seconds: Time constant of the power itself.
        has_counter: Whether there is one.
        seed: Of phases and jitters.
    """

    counter_period_seconds: float = 0.1
    counter_jitter: float = 0.0
    sensor_period_seconds: float = 0.0
    sensor_jitter: float = 0.0
    sensor_average_seconds: float = 0.0
    lag_seconds: float = 0.0
    has_counter: bool = True
    seed: int = 0


@dataclass(frozen=True)
class CounterFault:
    """The counter stands still, or fails, from `begin` to `end`, in seconds of the script; then it may go on lower.

    Attributes:
        begin: When it begins.
        end: When it ends.
        fails: Whether the call fails meanwhile; else the value stands still.
        drop_joules: The counter is lower by this afterwards; None: by what it did not show meanwhile.
    """

    begin: float
    end: float
    fails: bool = False
    drop_joules: float | None = 0.0


class ScriptedGpu(SimulatedGpu):
    """Plays segments of (seconds, watts) from the present moment on.

    Args:
        script: The segments; the last power is held.
        time_source: The virtual time.
        senses: How it is seen.
        faults: Of the counter, in the order of time.
    """

    def __init__(
        self,
        script: Sequence[tuple[float, float]],
        time_source: VirtualTime,
        senses: Senses | None = None,
        faults: Sequence[CounterFault] = (),
    ) -> None:
        super().__init__(find_preset("A100-SXM4-80GB"), time_source=time_source)
        self.senses = senses or Senses()
        self.energy_counter_period_seconds = self.senses.counter_period_seconds
        self.power_average_seconds = self.senses.sensor_average_seconds
        self._faults = faults
        self.start_seconds = time_source.now()
        self._play(script)
        seconds = sum(duration for duration, _ in script) + 60.0
        chance = random.Random(self.senses.seed)
        self._updates = _ticks(chance, self.senses.counter_period_seconds, self.senses.counter_jitter, seconds)
        self._refreshes = _ticks(chance, self.senses.sensor_period_seconds, self.senses.sensor_jitter, seconds)

    def exact_energy_joules(self) -> float:
        """The true energy up to this moment."""
        return self.energy_at(self._now())

    def energy_at(self, moment: float) -> float:
        """The true energy up to a moment of the script."""
        i = bisect.bisect_right(self._begins, moment) - 1
        return self._energies[i] + self._within(i, moment - self._begins[i])[0]

    def power_at(self, moment: float) -> float:
        """The true power at a moment of the script."""
        i = bisect.bisect_right(self._begins, moment) - 1
        return self._within(i, moment - self._begins[i])[1]

    def read_energy_counter_joules(self) -> float:
        """The energy as of the latest update, as far as the faults let it through."""
        if not self.senses.has_counter:
            raise NotSupportedError("no energy counter")
        now, drop = self._now(), 0.0
        for fault in self._faults:
            if fault.begin <= now < fault.end:
                if fault.fails:
                    raise DriverFaultError("not ready")
                now = fault.begin
            elif now >= fault.end:
                missed = self._counted(fault.end) - self._counted(fault.begin)
                drop += missed if fault.drop_joules is None else fault.drop_joules
        return round(1e5 + self._counted(now) - drop, 3)

    def read_power_watts(self) -> float:
        """The power, or its mean over a while, as of the latest refresh."""
        shown = _latest(self._refreshes, self._now())
        average = self.senses.sensor_average_seconds
        if average == 0:
            return round(self.power_at(shown), 3)
        return round((self.energy_at(shown) - self.energy_at(shown - average)) / average, 3)

    def _now(self) -> float:
        return self._time_source.now() - self.start_seconds

    def _counted(self, moment: float) -> float:
        return self.energy_at(_latest(self._updates, moment))

    def _play(self, script: Sequence[tuple[float, float]]) -> None:
        """Lay down the beginning of each segment, the power and the energy there, and its own power."""
        self._begins, self._targets = [-_MARGIN_SECONDS], [script[0][1]]
        self._powers, self._energies = [script[0][1]], [0.0]
        moment = 0.0
        for duration, watts in script:
            energy, power = self._within(len(self._begins) - 1, moment - self._begins[-1])
            self._energies.append(self._energies[-1] + energy)
            self._powers.append(power)
            self._begins.append(moment)
            self._targets.append(watts)
            moment += duration

    def _within(self, i: int, seconds: float) -> tuple[float, float]:
        """The energy of the first seconds of a segment, and the power then."""
        target, lag = self._targets[i], self.senses.lag_seconds
        if lag == 0:
            return target * seconds, target
        decay = math.exp(-seconds / lag)
        excess = self._powers[i] - target
        return target * seconds + excess * lag * (1 - decay), target + excess * decay


def _ticks(chance: random.Random, period: float, jitter: float, seconds: float) -> list[float] | None:
    """The moments of periodic updates; None for updates without end."""
    if period == 0:
        return None
    phase = chance.uniform(0, period) - _MARGIN_SECONDS
    count = int((seconds + _MARGIN_SECONDS) / period) + 2
    return [phase + (k + jitter * chance.uniform(-1, 1)) * period for k in range(count)]


def _latest(ticks: list[float] | None, moment: float) -> float:
    if ticks is None:
        return moment
    return ticks[max(bisect.bisect_right(ticks, moment) - 1, 0)]
