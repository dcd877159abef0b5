"""Whether the power sensor of a GPU shows what its energy counter does. Pure.

A sample p_i of the power at t_i is of the time w before it, which the sensor averages over or is late by. With E the
energy by the counter, between its updates in proportion to time, that has shown q_i = (E(t_i) - E(t_i - w)) / w. Over n
samples in the parts of one class they differ by d = mean(p - q), with a standard error s: s^2 = var(p - q) / n times
(1 + r) / (1 - r), with the correlation r of neighbours. They disagree where abs(d) - 3 s is more than a fifth of
mean(q). The samples come at random times; a sensor whose refresh is in step with the load shows one phase of it
nevertheless, which r shows while that phase drifts.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from zeus_core.attribution.amount import is_class
from zeus_core.attribution.sensor import SENSOR_DELAY_SECONDS
from zeus_core.attribution.timeline import ClassTimeline

_DIFFERENT = 0.2  # of the power by the counter: boards state 5 % for a sensor, and users report 75 % and more
_STANDARD_ERRORS = 3.0  # some hundred looks at a training of an hour, each with the scatter of a few samples
_LEAST_SECONDS, _LEAST_SAMPLES = 10.0, 8
_MOST_LOOKS = 6  # so many times that without a clear answer: later samples alone count
_MOST_ALIKE = 0.9  # r, of so few samples
_LEAST_WATTS = 1.0  # what a sensor of whole watts cannot show
_MOST_AGREED = 3  # times in turn: then a quarter of the samples is enough
_FAILED_SECONDS = 10.0  # a sensor that fails, or that a board has not, costs a call in so many
_MOST_PENDING = 1024  # samples of half an hour whose energy is not settled


@dataclass
class _Pairs:
    """The sums over some samples of one class."""

    count: int = 0
    sensor_watts: float = 0.0
    counter_watts: float = 0.0
    squares: float = 0.0
    products: float = 0.0
    latest_watts: float = 0.0
    seconds: float = 0.0  # that they are samples of

    def add(self, sensor_watts: float, counter_watts: float, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        self.products += self.latest_watts * (sensor_watts - counter_watts)
        self.latest_watts = sensor_watts - counter_watts
        self.sensor_watts += sensor_watts
        self.counter_watts += counter_watts
        self.squares += (sensor_watts - counter_watts) ** 2

    @property
    def off_watts(self) -> float:
        """d: by how much more the sensor shows, in the mean."""
        return (self.sensor_watts - self.counter_watts) / self.count

    @property
    def stderr_watts(self) -> float:
        """The standard error of d: s."""
        variance = max(self.squares / self.count - self.off_watts**2, 0.0)
        alike = self.products / (self.count - 1) - self.off_watts**2
        correlation = min(max(alike / variance, 0.0), _MOST_ALIKE) if variance > 0 else 0.0
        return math.sqrt(variance / (self.count - 1) * (1 + correlation) / (1 - correlation))


class SensorComparison:
    """Compares the sensor of one GPU with its counter, by class.

    Args:
        timeline: The classes in time.
        average_seconds: The time that each power is the mean of.
        samples_per_second: How often the power may be read; in a class in which both agree, it is read less often.

    Attributes:
        next_at: When to read the power next.
    """

    def __init__(self, timeline: ClassTimeline, average_seconds: float, samples_per_second: float) -> None:
        self._timeline = timeline
        self._window_seconds = average_seconds + SENSOR_DELAY_SECONDS
        self._spacing_seconds = self._usual_seconds = 1 / samples_per_second
        self._agreed: dict[Hashable, int] = {}  # how often both have agreed, in turn
        self._random = random.Random(0)
        self.next_at: float = timeline.begin
        self._samples: deque[tuple[float, float]] = deque(maxlen=_MOST_PENDING)
        self._knots: list[tuple[float, float]] = []  # moments and E, without a gap
        self._block: dict[Hashable, _Pairs] = {}
        self._all: dict[Hashable, _Pairs] = {}
        self._different: dict[Hashable, None] = {}

    def add_sample(self, at: float, watts: float | None) -> None:
        """Note the power at a moment; None if it could not be read."""
        self.next_at = at + self._random.uniform(0.4, 1.6) * self._spacing_seconds
        if watts is None:
            self.next_at += _FAILED_SECONDS
        else:
            self._samples.append((at, watts))

    def add_energy(self, begin: float, end: float, energy_joules: float) -> None:
        """Note the energy between two updates of the counter, in the order of time."""
        if not self._knots or self._knots[-1][0] != begin:
            self._knots = [(begin, 0.0)]
        self._knots.append((end, self._knots[-1][1] + energy_joules))
        while self._samples and self._samples[0][0] <= end:
            self._compare(*self._samples.popleft())
        needed = bisect.bisect_right(self._knots, end - self._window_seconds, key=lambda knot: knot[0]) - 1
        if self._samples:
            first = self._samples[0][0] - self._window_seconds
            needed = min(needed, bisect.bisect_right(self._knots, first, key=lambda knot: knot[0]) - 1)
        del self._knots[: max(needed, 0)]

    def _compare(self, at: float, watts: float) -> None:
        begin = at - self._window_seconds
        key = self._timeline.key_within(begin, at)
        if key is None or begin < self._knots[0][0]:
            return
        counter_watts = (self._joules_until(at) - self._joules_until(begin)) / self._window_seconds
        block = self._block.setdefault(key, _Pairs())
        for pairs in (block, self._all.setdefault(key, _Pairs())):
            pairs.add(watts, counter_watts, self._spacing_seconds)
        self._spacing_seconds = self._usual_seconds * (1 + min(self._agreed.get(key, 0), _MOST_AGREED))
        if block.seconds < _LEAST_SECONDS or block.count < _LEAST_SAMPLES:
            return
        limit = max(_DIFFERENT * block.counter_watts / block.count, _LEAST_WATTS)
        slack_watts = _STANDARD_ERRORS * block.stderr_watts
        if abs(block.off_watts) - slack_watts > limit:
            self._different[key], self._agreed[key] = None, 0
        elif abs(block.off_watts) + slack_watts <= limit:
            self._agreed[key] = self._agreed.get(key, 0) + 1
        elif block.seconds < _MOST_LOOKS * _LEAST_SECONDS:
            return
        del self._block[key]

    def _joules_until(self, at: float) -> float:
        after = min(max(bisect.bisect_left(self._knots, at, key=lambda knot: knot[0]), 1), len(self._knots) - 1)
        (begin, first), (end, last) = self._knots[after - 1 : after + 1]
        return first + (last - first) * (at - begin) / (end - begin)

    @property
    def differences(self) -> dict[Hashable, tuple[float, float]]:
        """The mean power by the counter and by the sensor, of the classes in which they disagreed for some time."""
        means = {key: self._all[key] for key in self._different}
        return {key: (one.counter_watts / one.count, one.sensor_watts / one.count) for key, one in means.items()}

    def off_watts(self, key: Hashable) -> float:
        """Return by how much the mean power of a class can differ by both; of a span, by the most of any class."""
        keys = [key] if is_class(key) else list(self._different)
        pairs = [self._all[other] for other in keys if other in self._different]
        return max((abs(one.off_watts) + 2 * one.stderr_watts for one in pairs), default=0.0)
