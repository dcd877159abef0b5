"""The energy of a GPU by samples of its power: without an energy counter, or while that is silent. Pure.

A sensor shows the power of a while ago, or the mean of some time. So the samples add up to the energy by a moment that
lies half of its delay before the latest one.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from zeus_core.attribution.sensor import CANCELLING, SENSOR_DELAY_SECONDS
from zeus_core.attribution.updates import Knot

_UNSEEN_FRACTION = 0.01  # of the energy, for bursts between two samples
_MOST_SAMPLES = 4096  # some five minutes of a counter that is silent


class Sampled(NamedTuple):
    """The energy from one moment to another, by samples of the power.

    Attributes:
        end: The second moment.
        energy_joules: The energy.
        is_read: Whether the power was read often enough to know it.
    """

    end: float
    energy_joules: float
    is_read: bool


class PowerSum:
    """Adds up the power of one GPU.

    Args:
        average_seconds: The time that each power is the mean of.
        reads_per_second: How often the power may be read, about.
    """

    is_of_power = True
    is_known = True
    newest = None

    def __init__(self, average_seconds: float, reads_per_second: float) -> None:
        self.period_seconds: float = 1 / reads_per_second
        self.half_width_seconds: float = (average_seconds + SENSOR_DELAY_SECONDS) / 2
        self._random = random.Random(0)  # reads must not be in step with the load
        self._planned_at = -math.inf
        self._last: tuple[float, float] | None = None
        self._joules = 0.0
        self._squares = 0.0
        self._knots: deque[Knot] = deque(maxlen=_MOST_SAMPLES)

    @property
    def uncertainty_joules(self) -> float:
        """How far the energy from the first knot to the last can be off."""
        return CANCELLING * math.sqrt(self._squares) + _UNSEEN_FRACTION * self._joules

    @property
    def watts(self) -> float | None:
        """The latest power; None if none was read."""
        return None if self._last is None else self._last[1]

    def add(self, begin: float, end: float, power_watts: float) -> None:
        """Note a read of the power, which was made between two moments."""
        at = (begin + end) / 2
        if self._last is not None:
            last_at, last_watts = self._last
            if at <= last_at:
                return
            seconds = at - last_at
            self._joules += (power_watts + last_watts) / 2 * seconds
            self._squares += ((power_watts - last_watts) * (seconds + 2 * self.half_width_seconds)) ** 2
        seconds = 0.0 if self._last is None else at - self._last[0]
        self._last = at, power_watts
        self._knots.append(Knot(at - self.half_width_seconds, self.half_width_seconds, self._joules, seconds))

    def knots_before(self, moment: float) -> list[Knot]:
        """Return the knots of the reads before a moment, each once."""
        knots = []
        while self._knots and self._knots[0].at + self.half_width_seconds < moment:
            knots.append(self._knots.popleft())
        return knots

    def between(
        self, begin: float, end: float, longest_seconds: float, is_clear: Callable[[float, float], bool]
    ) -> list[Sampled]:
        """Return the energy of a time, piece by piece; nothing if fewer than two powers of that time are known.

        Args:
            begin: The beginning.
            end: The end.
            longest_seconds: The longest time from one sample to the next in which the power is known.
            is_clear: Whether no other part begins between two moments: then a late power is that of its own part.
        """
        inside = [knot for knot in self._knots if begin < knot.at < end]
        if len(inside) < 2:
            return []
        first, second, before, last = *inside[:2], *inside[-2:]
        head_watts = (second.energy_joules - first.energy_joules) / (second.at - first.at)
        tail_watts = (last.energy_joules - before.energy_joules) / (last.at - before.at)
        offset = first.energy_joules - head_watts * (first.at - begin)
        reach = self.half_width_seconds
        tail_joules = last.energy_joules + tail_watts * (end - last.at)
        marks = [Knot(begin, 0.0, offset), *inside, Knot(end, 0.0, tail_joules)]
        gaps = {pair for pair in itertools.pairwise(marks) if pair[1].at - pair[0].at > longest_seconds}
        known = {marks[0], marks[-1], *itertools.chain.from_iterable(gaps)}
        known |= {knot for knot in inside if is_clear(knot.at - reach, knot.at + reach)}
        return [
            Sampled(pair[1].at, pair[1].energy_joules - pair[0].energy_joules, pair not in gaps)
            for pair in itertools.pairwise(sorted(known))
        ]

    def forget_before(self, moment: float) -> None:
        """Drop the powers of times that are settled."""
        while self._knots and self._knots[0].at < moment:
            self._knots.popleft()

    def next_read_at(self, now: float, changed_at: float) -> float:
        """Return when to read next; that the load has changed does not matter."""
        return self._planned_at

    def stands_still(self, now: float, energy_joules: float) -> bool:
        """Whether it shows the same for too long: never, it is no counter."""
        return False

    def plan_read(self, now: float, calls: int) -> None:
        """Plan the next read after one that has ended now, and took so many calls of the driver."""
        self._planned_at = now + calls * self.period_seconds * self._random.uniform(0.6, 1.4)
