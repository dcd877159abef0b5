"""The energy of a GPU without an energy counter, from samples of its power. Pure.

A sensor shows the power of a while ago, or the mean of some time. So the samples add up to the energy by a moment that
lies half of its delay before the latest one.
"""

from __future__ import annotations

import math
import random
from collections import deque

from zeus_core.monitor._integral import CANCELLING, SENSOR_DELAY_SECONDS
from zeus_core.monitor._parts._counter_phase import Knot

__all__ = ["PowerSum"]

_UNSEEN_FRACTION = 0.01  # of the energy, for bursts between two samples


class PowerSum:
    """Adds up the power of one GPU.

    Args:
        average_seconds: The time that each power is the mean of.
        reads_per_second: How often the power may be read, about.
        seed: The seed of the times of the reads, which must not be in step with the load.
    """

    is_of_power = True
    is_known = True

    def __init__(self, average_seconds: float, reads_per_second: float = 16.0, seed: int = 0) -> None:
        self.period_seconds = 1 / reads_per_second
        self.half_width_seconds = (average_seconds + SENSOR_DELAY_SECONDS) / 2
        self._random = random.Random(seed)
        self._planned_at = -math.inf
        self._last: tuple[float, float] | None = None
        self._joules = 0.0
        self._squares = 0.0
        self._knots: deque[Knot] = deque()

    @property
    def uncertainty_joules(self) -> float:
        """How far the energy from the first knot to the last can be off."""
        return CANCELLING * math.sqrt(self._squares) + _UNSEEN_FRACTION * self._joules

    def add(self, begin: float, end: float, power_watts: float) -> None:
        """Take in a read of the power, which was made between two moments."""
        at = (begin + end) / 2
        if self._last is not None:
            last_at, last_watts = self._last
            if at <= last_at:
                return
            seconds = at - last_at
            self._joules += (power_watts + last_watts) / 2 * seconds
            self._squares += ((power_watts - last_watts) * (seconds + 2 * self.half_width_seconds)) ** 2
        self._last = at, power_watts
        self._knots.append(Knot(at - self.half_width_seconds, self.half_width_seconds, self._joules))

    def knots_before(self, moment: float) -> list[Knot]:
        """Return the knots of the reads before a moment, each once."""
        knots = []
        while self._knots and self._knots[0].at + self.half_width_seconds < moment:
            knots.append(self._knots.popleft())
        return knots

    def pending_knots(self) -> list[Knot]:
        """Return the knots that `knots_before` has not returned yet."""
        return list(self._knots)

    def is_read_due(self, now: float, changed_at: float) -> bool:
        """Tell whether to read now; that the load has changed does not matter."""
        return now >= self._planned_at

    def stands_still(self, now: float, energy_joules: float) -> bool:
        """Tell that it does not: it is no counter."""
        return False

    def plan_read(self, now: float, calls: int) -> None:
        """Plan the next read after one that has ended now, and took so many calls of the driver."""
        self._planned_at = now + calls * self.period_seconds * self._random.uniform(0.6, 1.4)

    def next_look_at(self, now: float) -> float:
        """Return when to ask again whether a read is due."""
        return self._planned_at
