"""The energy that each part of an interval is expected to draw, by its class or an interval beside it. Pure.

Part p is expected to draw e_p + x_p b, with the power b of the columns (`regression`):

    x_p = x, its seconds in each column,  e_p = 0        where nothing else is known of the part;
    x_p = m (x - r z),                    e_p = m x b    where an interval beside it lies in the same part:
                                                         m = y' / z b, r = x b / z b.

The energy y' and the seconds z of that one show how much more this part draws than others: m. k is the mean square of
the fraction by which parts drew more or less.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from zeus_core.attribution.columns import LAGS_SECONDS, PowerColumns, padded
from zeus_core.attribution.regression import Array, PowerRegression
from zeus_core.attribution.timeline import Part

_MIN_WATTS = 1e-3  # the least mean power: a sensor may show nothing but 0 W
_MIN_SHARE = 0.02  # of the mean power: no class has less, even if a regression of few intervals says less
_NOISE = 0.02  # of the energy of an interval, a standard error: its weight in the regression
# How unlike expectation parts are before any is seen, without and with an interval beside them, and how many intervals
# that counts as.
_UNLIKE, _UNLIKE_BESIDE, _UNLIKE_STRENGTH = 0.2, 0.08, 2.0
_BETTER, _FIRST_ERRORS = 0.4, 0.02  # of the d^2 of parts whose power is expected to be that of others, to count
_MOST_UNLIKE = 1.0  # d of one interval: one slip of a counter is not what parts are like
_LEVELS = 0.1, 10.0  # of m, so that a sensor that shows nonsense does no more harm
_PHASE_STDERR = 0.4  # of the mean power: how far a tenth of a step may differ from the mean of the steps
# Intervals, and the share of those so far, without which the powers that were estimated hold: it takes 0.1 ms, and they
# change by no more than that share.
_SOLVE_EVERY, _SOLVE_SHARE = 4, 0.02

PowerClass = tuple[Hashable, bool]
"""A class, and whether an interval beside a part estimates it better."""


class KnotInterval(NamedTuple):
    """The time between two knots.

    Attributes:
        parts: All of it.
        energy_joules: Its energy; None if nobody knows it.
        knots: How far its begin and its end can be off, in seconds.
        stderr_joules: The standard error of the energy; 0 if it was counted.
        after: Energy and time of the next interval, if that lies in the last of the parts.
    """

    parts: Sequence[Part]
    energy_joules: float | None
    knots: tuple[float, float]
    stderr_joules: float = 0.0
    after: tuple[float, Part] | None = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return sum(part.seconds for part in self.parts)


class Drawn(NamedTuple):
    """The energy that a part is expected to draw in an interval: e + x b.

    Attributes:
        part: The part.
        kind: Its class, and whether an interval beside it estimates it better.
        constant: e, with each lag.
        row: x, with each lag.
        joules: The energy by the likeliest lag.
    """

    part: Part
    kind: PowerClass
    constant: Array
    row: Array
    joules: float


class ExpectedEnergy:
    """Learns from intervals what parts draw.

    Args:
        peak_watts: The most the device can draw, for moments too.

    Attributes:
        regression: The power of each column.
        seconds: The time of all intervals that were counted.
        joules: Their energy.
        seen: The classes of which something was counted.
        visits: The parts of each class.
    """

    def __init__(self, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self._columns = PowerColumns()
        self.regression: PowerRegression = PowerRegression(len(LAGS_SECONDS))
        self._unlike: dict[PowerClass, tuple[float, float]] = {}  # intervals and the sum of d^2
        self._errors: dict[Hashable, tuple[float, float]] = {}  # the sum of d^2 without and with an interval beside
        self._beside: tuple[float, Array] | None = None  # y' and z of the latest interval, if it lies in one part
        self._latest: Hashable = None
        self._unsolved = self._intervals = 0
        self.seconds: float = 0.0
        self.joules: float = 0.0
        self.seen: set[Hashable] = set()
        self.visits: dict[Hashable, int] = {}

    @property
    def mean_watts(self) -> float | None:
        """The mean power of all intervals; None if there is none."""
        return self.joules / self.seconds if self.seconds > 0 else None

    @property
    def usual_seconds(self) -> float:
        """The mean duration of an interval."""
        return self.seconds / max(self._intervals, 1)

    @property
    def _level_watts(self) -> float:
        return max(self.mean_watts or 0.0, _MIN_WATTS)

    def of(self, interval: KnotInterval) -> tuple[list[Drawn], dict[Hashable, Array], list[Hashable]]:
        """Return what the parts of the next interval are expected to draw, but for classes that were never seen.

        Returns:
            The energies; how often the power of each column crosses an edge of each class; the classes of which
            another part begins.
        """
        parts, energy_joules = interval.parts, interval.energy_joules
        following = None if interval.after is None else (interval.after[0], self._columns.alone(interval.after[1]))
        rows, crossing = self._columns.rows(parts)
        if energy_joules is not None:
            self.joules += energy_joules
            self.seconds += interval.seconds
            self._intervals += 1
            self.seen.update(part.key for part in parts)
        does_go_on = parts[0].key == self._latest
        begun = [part.key for part in parts[does_go_on:]]
        for key in begun:
            self.visits[key] = self.visits.get(key, 0) + 1
        before = self._beside if does_go_on else None
        power = padded(self.regression.power_watts, len(self._columns), self._level_watts)
        drawn = []
        for number, (part, row) in enumerate(zip(parts, rows, strict=True)):
            if part.key not in self.seen:
                continue
            beside = before if number == 0 else following if number == len(parts) - 1 else None
            one = self._drawn(part, row, power)
            if beside is not None:
                if energy_joules is not None and len(parts) == 1:
                    self._compare(energy_joules, one, power, beside)
                if self._is_unlike(part.key):
                    one = self._drawn_beside(one, power, beside)
            drawn.append(one)
        self._beside = (energy_joules, rows[0]) if energy_joules is not None and len(parts) == 1 else None
        self._latest = parts[-1].key
        return drawn, crossing, begun

    def skip(self) -> None:
        """Note that the next interval does not follow the one before: nothing is known of the time in between."""
        self._beside, self._latest = None, None
        self._columns.skip()

    def _compare(self, energy_joules: float, plain: Drawn, power: Array, beside: tuple[float, Array]) -> None:
        """Note by how much an interval in one part is off what its class, and what the one beside it, show."""
        best, beside_joules, near = self.regression.best, beside[0], beside[1][self.regression.best]
        of_near = max(float(near @ power[best][: len(near)]), _MIN_SHARE * self._level_watts * float(near.sum()))
        level = min(max(beside_joules / of_near, _LEVELS[0]), _LEVELS[1])
        joules = self._possible(plain.part, level * float(plain.row[best] @ power[best]))
        errors = self._errors.get(plain.part.key, (0.0, 0.0))
        off = [min(abs(energy_joules / one - 1), _MOST_UNLIKE) ** 2 for one in (plain.joules, joules)]
        self._errors[plain.part.key] = errors[0] + off[0], errors[1] + off[1]

    def _is_unlike(self, key: Hashable) -> bool:
        """Whether parts of a class are so unlike that an interval beside one estimates it better than all do."""
        plain, by_beside = self._errors.get(key, (0.0, 0.0))
        return by_beside + _FIRST_ERRORS < _BETTER * (plain + _FIRST_ERRORS)

    def _drawn(self, part: Part, row: Array, power: Array) -> Drawn:
        """Return what a part is expected to draw by the power of each column."""
        best = self.regression.best
        joules = self._possible(part, float(row[best] @ power[best]))
        return Drawn(part, (part.key, False), np.zeros(len(LAGS_SECONDS)), row, joules)

    def _drawn_beside(self, plain: Drawn, power: Array, beside: tuple[float, Array]) -> Drawn:
        """Return the same by an interval beside it: its energy, and its seconds in each column."""
        near = padded(beside[1], len(self._columns))
        of_near = np.maximum((near * power).sum(axis=1), _MIN_SHARE * self._level_watts * near.sum(axis=1))
        level = np.clip(beside[0] / of_near, *_LEVELS)
        expected = (plain.row * power).sum(axis=1)
        row = level[:, None] * (plain.row - (expected / of_near)[:, None] * near)
        constant = level * expected
        joules = self._possible(plain.part, float(constant[self.regression.best]))
        return Drawn(plain.part, (plain.part.key, True), constant, row, joules)

    def _possible(self, part: Part, joules: float) -> float:
        return max(joules, _MIN_SHARE * self._level_watts * part.seconds)

    def learn(self, interval: KnotInterval, energy_joules: float, drawn: Sequence[Drawn]) -> None:
        """Learn from what an interval has drawn."""
        timing = self._level_watts**2 * (interval.knots[0] ** 2 + interval.knots[1] ** 2)
        variance = _NOISE**2 * (self._level_watts * interval.seconds) ** 2 + timing + interval.stderr_joules**2
        variance += sum(self.unlikeness(one.kind) * one.joules**2 for one in drawn)
        total = sum(one.joules for one in drawn)
        off = energy_joules - total
        row, constant = reduce(np.add, [one.row for one in drawn]), reduce(np.add, [one.constant for one in drawn])
        is_known = self.regression.power_watts.shape[1] > 0
        self.regression.add(row, energy_joules - constant, variance, off)
        if is_known:
            fraction = min(off**2 / sum(one.joules**2 for one in drawn), _MOST_UNLIKE**2)
            for one in drawn:
                count, squares = self._unlike.get(one.kind, (0.0, 0.0))
                share = one.joules / total
                self._unlike[one.kind] = count + share, squares + share * fraction
        self._unsolved += 1
        if self._unsolved >= _SOLVE_EVERY:
            self.solve()

    def unlikeness(self, kind: PowerClass) -> float:
        """Return the mean square by which parts draw more or less than expected, as a fraction of that: k."""
        count, squares = self._unlike.get(kind, (0.0, 0.0))
        key, is_beside = kind
        first = (_UNLIKE_BESIDE if is_beside else _UNLIKE) ** 2
        few = 1.0 if is_beside else 1 + 1 / max(self.visits.get(key, 1) - 1, 1)
        return few * (squares + _UNLIKE_STRENGTH * first) / (count + _UNLIKE_STRENGTH)

    def solve(self, is_last: bool = False) -> None:
        """Estimate the power of each column, if much has come since it was last estimated; if anything has, at last."""
        size = len(self._columns)
        least = 0.0 if is_last else _SOLVE_SHARE * self.regression.count
        if self._unsolved <= least and self.regression.power_watts.shape[1] == size:
            return
        self._unsolved = 0
        phase = (_PHASE_STDERR * self._level_watts) ** 2
        level = max(self._level_watts, self._peak_watts - self._level_watts) ** 2
        precision = np.eye(size) / phase
        for numbers in self._columns.of_class.values():  # phases of one level: the inverse of phase I + level 11'
            precision[np.ix_(numbers, numbers)] -= level / (phase + len(numbers) * level) / phase
        self.regression.solve(np.full(size, self._level_watts), precision)
