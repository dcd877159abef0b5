"""Divides the energy between the updates of a counter among the classes of parts in it. Pure; see docs/attribution.md.

The energy y of an interval is exact, but it may hold parts of several classes. Part p is expected to draw e_p + x_p b:

    x_p = x, its seconds in each column,  e_p = 0        where nothing else is known of the part;
    x_p = m (x - r z),                    e_p = m x b    where an interval beside it lies in the same part:
                                                         m = y' / z b, r = x b / z b.

The energy y' and the seconds z of that one show how much more this part draws than others: m. Class c gets the share
s_c of the interval, in proportion to what is expected of its parts. The rest of its energy, more
or less than expected, is divided alike, so over all intervals a class has

    E_c = A_c + B_c b,    A_c = sum e_c + s_c (y - e),    B_c = sum x_c - s_c x,

which is known anew, whatever b becomes; and all E_c together are exact. Two things are uncertain: b, with the variance
B_c cov(b) B_c', and how much more than expected each part draws. If it is the fraction d_p, E_c is off by d_p a_cp,
with a_cp = (1 if p is of class c, else 0, less s_c) times what is expected of p, summed over the intervals with p.
With the mean square k of d_p, from what intervals of such parts were off, that adds k a_cp^2. Only sums are kept: the
memory is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.attribution.columns import LAGS_SECONDS, PowerColumns, padded
from zeus_core.attribution.regression import Array, PowerRegression
from zeus_core.attribution.timeline import Estimate, Part

__all__ = ["ClassEnergy"]

_UNCOUNTED = "not counted"  # the key of all such time together
MIN_WATTS = 1e-3
"""The least mean power: a sensor may show nothing but 0 W."""

_MIN_SHARE = 0.02  # of the mean power: no class has less, even if a regression of few intervals says less
_QUANTILE = 2.2  # standard errors: those of a few dozen intervals are themselves estimates
_FEW_VISITS = 1.0  # added to that over the parts of a class: errors of few edges have no normal distribution
_NOISE = 0.02  # of the energy of an interval, a standard error: its weight in the regression
# How unlike expectation parts are before any is seen, without and with an interval beside them, and how many intervals
# that counts as.
_UNLIKE, _UNLIKE_BESIDE, _UNLIKE_STRENGTH = 0.2, 0.08, 2.0
_BETTER, _FIRST_ERRORS = 0.4, 0.02  # of the d^2 of parts whose power is expected to be that of others, to count
_MOST_UNLIKE = 1.0  # d of one interval: one slip of a counter is not what parts are like
_LEVELS = 0.1, 10.0  # of m, so that a sensor that shows nonsense does no more harm
_PHASE_STDERR = 0.4  # of the mean power: how far a tenth of a step may differ from the mean of the steps
_EDGE_STDERR = 0.12  # of the mean power: how far the power near an edge may differ; beyond that, the lags tell
_SOLVE_EVERY = 16  # intervals of several classes
_FIRST_SOLVED = (4, 8)  # of them, while they are few


_Kind = tuple[Hashable, bool]
"""A class, and whether an interval beside tells more of a part."""


class _Sums:
    """The sums of a class or span."""

    def __init__(self, columns: int) -> None:
        shape = len(LAGS_SECONDS), columns
        self.seconds = 0.0
        self.joules: Array = np.zeros(len(LAGS_SECONDS))  # A
        self.counted_joules = 0.0  # as it was divided
        self.columns: Array = np.zeros(shape)  # B
        self.min_joules = self.max_joules = 0.0  # what is certain
        self.crossing = np.zeros(columns)  # how much power crosses its edges if the knots are late
        self.late = np.zeros(columns)  # the same, times how late they can be
        self.unlike: dict[_Kind, float] = {}  # the sum of a^2
        self.noise = 0.0  # the variance of energies that samples of the power tell

    def bound(self, energy_joules: float | None, off_joules: float, others_joules: float, most_joules: float) -> None:
        """Add what an interval proves.

        Args:
            energy_joules: Its energy; None if nobody knows it.
            off_joules: How far that can be off.
            others_joules: The most that others have drawn of it.
            most_joules: The most that this one can have drawn, if it shares the interval.
        """
        if energy_joules is None:
            self.max_joules += most_joules
            return
        self.min_joules += max(energy_joules - off_joules - others_joules, 0.0)
        self.max_joules += min(energy_joules + off_joules, most_joules)

    def grow(self, columns: int) -> None:
        self.columns, self.crossing, self.late = (
            padded(array, columns) for array in (self.columns, self.crossing, self.late)
        )


class _Drawn(NamedTuple):
    """The energy that a part is expected to draw in an interval: e + x b.

    Attributes:
        part: The part.
        kind: Its class, and whether an interval beside it tells more.
        constant: e, with each lag.
        row: x, with each lag.
        joules: The energy by the likeliest lag.
    """

    part: Part
    kind: _Kind
    constant: Array
    row: Array
    joules: float


def _by_class(drawn: Iterable[_Drawn]) -> dict[Hashable, float]:
    joules: dict[Hashable, float] = {}
    for one in drawn:
        joules[one.part.key] = joules.get(one.part.key, 0.0) + one.joules
    return joules


class ClassEnergy:
    """The energy of the classes of one device.

    Args:
        peak_watts: The most it can draw, for moments too.

    Attributes:
        timing_seconds: How far the knots of the next interval can be off together with others, in the same direction.
        age_seconds: How old the energy of a knot can be.
        seconds: The time of all intervals.
        joules: The energy of all intervals that were counted.
        seen: The classes of which something was counted.
    """

    def __init__(self, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self._columns = PowerColumns()
        self._regression = PowerRegression(len(LAGS_SECONDS))
        self._sums: dict[Hashable, _Sums] = {}
        self._under_way: dict[Hashable, dict[Hashable, float]] = {}  # by class, the a of its latest part
        self._unlike: dict[_Kind, tuple[float, float]] = {}  # intervals and the sum of d^2
        self._errors: dict[Hashable, tuple[float, float]] = {}  # the sum of d^2 without and with an interval beside
        self._beside: tuple[float, Array] | None = None  # y' and z of the latest interval, if it lies in one part
        self._latest: Hashable = None
        self._visits: dict[Hashable, int] = {}
        self._mixed = self._unsolved = 0
        self._intervals = 0
        self.timing_seconds: float = 0.0
        self.age_seconds: float = 0.0
        self.seconds: float = 0.0
        self.joules: float = 0.0
        self.seen: set[Hashable] = set()

    @property
    def mean_watts(self) -> float | None:
        """The mean power of all intervals; None if there is none."""
        return self.joules / self.seconds if self.seconds > 0 else None

    @property
    def usual_seconds(self) -> float:
        """The mean duration of an interval."""
        return self.seconds / max(self._intervals, 1)

    def add(
        self,
        energy_joules: float | None,
        parts: Sequence[Part],
        knots: tuple[float, float],
        stderr_joules: float = 0.0,
        after: tuple[float, Part] | None = None,
    ) -> dict[Hashable, float]:
        """Add an interval, and divide its energy.

        Args:
            energy_joules: The energy; None if nobody knows it: then it is estimated, of the classes that were seen.
            parts: All time of the interval.
            knots: How far its begin and its end can be off, in seconds.
            stderr_joules: The standard error of the energy; 0 if it was counted.
            after: Energy and time of the next interval, if that lies in the last of the parts.

        Returns:
            The energy of each class.
        """
        following = None if after is None else (after[0], self._columns.of_power_alone(after[1]))
        rows, crossing = self._columns.rows(parts)
        self._grow()
        seconds = sum(part.seconds for part in parts)
        if energy_joules is not None:
            self.joules += energy_joules
            self.seconds += seconds
            self._intervals += 1
            self.seen.update(part.key for part in parts)
        drawn = self._expect(parts, rows, energy_joules, following)
        if not drawn:
            return {}
        self._charge(drawn, energy_joules, seconds, sum(knots), stderr_joules)
        if energy_joules is None:
            return _by_class(drawn)
        for key, power in crossing.items():
            self._sums_of(key).crossing += power
            self._sums_of(key).late += self.timing_seconds * power
        self._learn(drawn, energy_joules, seconds, knots, stderr_joules)
        total = sum(one.joules for one in drawn)
        return {key: energy_joules * joules / total for key, joules in _by_class(drawn).items()}

    def _expect(
        self,
        parts: Sequence[Part],
        rows: Sequence[Array],
        energy_joules: float | None,
        following: tuple[float, Array] | None,
    ) -> list[_Drawn]:
        """Return what the parts of an interval are expected to draw, but for classes that were never seen."""
        does_go_on = parts[0].key == self._latest
        before = self._beside if does_go_on else None
        self._beside, self._latest = None, parts[-1].key
        drawn = []
        for number, (part, row) in enumerate(zip(parts, rows, strict=True)):
            beside = before if number == 0 else following if number == len(parts) - 1 else None
            if number > 0 or not does_go_on:
                self._end_visit(part.key)
            if part.key not in self.seen:
                continue
            one = self._drawn(part, row, None)
            if beside is not None:
                by_beside = self._drawn(part, row, beside)
                if energy_joules is not None and len(parts) == 1:
                    self._compare(energy_joules, one, by_beside)
                one = by_beside if self._is_unlike(part.key) else one
            drawn.append(one)
        if energy_joules is not None and len(parts) == 1:
            self._beside = energy_joules, rows[0]
        return drawn

    def _compare(self, energy_joules: float, plain: _Drawn, by_beside: _Drawn) -> None:
        """Note by how much an interval in one part is off what its class, and what the one beside it, tell."""
        errors = self._errors.get(plain.part.key, (0.0, 0.0))
        off = [min(abs(energy_joules / one.joules - 1), _MOST_UNLIKE) ** 2 for one in (plain, by_beside)]
        self._errors[plain.part.key] = errors[0] + off[0], errors[1] + off[1]

    def _is_unlike(self, key: Hashable) -> bool:
        """Whether parts of a class are so unlike each other that an interval beside tells more of one than all do."""
        plain, by_beside = self._errors.get(key, (0.0, 0.0))
        return by_beside + _FIRST_ERRORS < _BETTER * (plain + _FIRST_ERRORS)

    def _drawn(self, part: Part, row: Array, beside: tuple[float, Array] | None) -> _Drawn:
        """Return what a part is expected to draw, by an interval beside it if there is one."""
        mean_watts = max(self.mean_watts or 0.0, MIN_WATTS)
        power = self._regression.power_watts
        known = power.shape[1]
        if known < len(self._columns):
            power = np.pad(power, ((0, 0), (0, len(self._columns) - known)))
            power[:, self._columns.levels(known)] = mean_watts
        expected = (row * power).sum(axis=1)
        constant = np.zeros(len(LAGS_SECONDS))
        if beside is not None:
            near_joules, near = beside
            near = padded(near, len(self._columns))
            of_near = np.maximum((near * power).sum(axis=1), _MIN_SHARE * mean_watts * near.sum(axis=1))
            level = np.clip(near_joules / of_near, *_LEVELS)
            row = level[:, None] * (row - (expected / of_near)[:, None] * near)
            expected = constant = level * expected
        joules = max(float(expected[self._regression.best]), _MIN_SHARE * mean_watts * part.seconds)
        return _Drawn(part, (part.key, beside is not None), constant, row, joules)

    def _charge(
        self,
        drawn: Sequence[_Drawn],
        energy_joules: float | None,
        seconds: float,
        knots_seconds: float,
        stderr_joules: float,
    ) -> None:
        """Add an interval to the sums of all classes and spans in it."""
        if len(drawn) == 1 and energy_joules is not None:
            for key in drawn[0].part.keys:
                sums = self._sums_of(key)
                sums.seconds += seconds
                sums.counted_joules += energy_joules
                sums.joules += energy_joules
                sums.bound(energy_joules, 3 * stderr_joules, 0.0, math.inf)
                sums.noise += stderr_joules**2
            if stderr_joules:
                self._sums_of(_UNCOUNTED).noise += stderr_joules**2
            return
        total = sum(one.joules for one in drawn)
        constant = np.sum([one.constant for one in drawn], axis=0)
        row = np.sum([one.row for one in drawn], axis=0)
        by_key: dict[Hashable, list[_Drawn]] = {}
        for one in drawn:
            for key in one.part.keys if energy_joules is not None else (*one.part.keys, _UNCOUNTED):
                by_key.setdefault(key, []).append(one)
        slack_joules = self._peak_watts * (knots_seconds + self.age_seconds)
        for key, of_key in by_key.items():
            share = 0.0 if energy_joules is None else sum(one.joules for one in of_key) / total
            own_seconds = sum(one.part.seconds for one in of_key)
            sums = self._sums_of(key)
            sums.seconds += own_seconds
            sums.counted_joules += share * (energy_joules or 0.0)
            sums.joules += np.sum([one.constant for one in of_key], axis=0)
            sums.joules += share * ((energy_joules or 0.0) - constant)
            sums.columns += np.sum([one.row for one in of_key], axis=0) - share * row
            sums.noise += (share * stderr_joules) ** 2
            is_all = len(of_key) == len(drawn)
            others_joules = 0.0 if is_all else self._peak_watts * (seconds - own_seconds) + slack_joules
            most_joules = self._peak_watts * own_seconds + slack_joules
            sums.bound(energy_joules, 3 * stderr_joules, others_joules, most_joules)
            for one in drawn:
                is_own = any(one is other for other in of_key)
                self._note(one, key, (float(is_own) - share) * one.joules)
        if stderr_joules:
            self._sums_of(_UNCOUNTED).noise += stderr_joules**2

    def _note(self, one: _Drawn, key: Hashable, joules: float) -> None:
        """Note how much a class or span is off if a part draws more than expected, in one more interval: a."""
        if one.kind[1]:  # each edge is told by an interval of its own
            unlike = self._sums[key].unlike
            unlike[one.kind] = unlike.get(one.kind, 0.0) + joules**2
        elif joules:
            under_way = self._under_way.setdefault(one.part.key, {})
            under_way[key] = under_way.get(key, 0.0) + joules

    def _sums_of(self, key: Hashable) -> _Sums:
        if key not in self._sums:
            self._sums[key] = _Sums(len(self._columns))
        return self._sums[key]

    def _end_visit(self, key: Hashable) -> None:
        """Note that the latest part of a class has ended."""
        for other, joules in self._under_way.pop(key, {}).items():
            if other in self._sums:
                unlike = self._sums[other].unlike
                unlike[key, False] = unlike.get((key, False), 0.0) + joules**2
        self._visits[key] = self._visits.get(key, 0) + 1

    def _learn(
        self,
        drawn: Sequence[_Drawn],
        energy_joules: float,
        seconds: float,
        knots: tuple[float, float],
        stderr_joules: float,
    ) -> None:
        mean_watts = max(self.mean_watts or 0.0, MIN_WATTS)
        timing = mean_watts**2 * (knots[0] ** 2 + knots[1] ** 2)
        variance = _NOISE**2 * (mean_watts * seconds) ** 2 + timing + stderr_joules**2
        variance += sum(self._unlikeness(one.kind) * one.joules**2 for one in drawn)
        total = sum(one.joules for one in drawn)
        off = energy_joules - total
        row, constant = np.sum([one.row for one in drawn], axis=0), np.sum([one.constant for one in drawn], axis=0)
        self._regression.add(row, energy_joules - constant, variance, off)
        if self._regression.power_watts.shape[1]:
            fraction = min(off**2 / sum(one.joules**2 for one in drawn), _MOST_UNLIKE**2)
            for one in drawn:
                count, squares = self._unlike.get(one.kind, (0.0, 0.0))
                share = one.joules / total
                self._unlike[one.kind] = count + share, squares + share * fraction
        is_mixed = len(drawn) > 1
        self._mixed += is_mixed
        self._unsolved += 1
        if (is_mixed and (self._mixed in _FIRST_SOLVED or self._mixed % _SOLVE_EVERY == 0)) or (
            not is_mixed and self._unsolved in (4, 16, 64)
        ):
            self._solve()

    def estimate(self, key: Hashable) -> Estimate:
        """Return the energy of a class or span so far."""
        sums = self._sums.get(key)
        if sums is None:
            return Estimate(0.0, 0.0)
        energy, width = self._estimated(sums, key)
        low, high = max(energy - width, sums.min_joules), min(energy + width, sums.max_joules)
        if low > high:
            low, high = sums.min_joules, max(sums.max_joules, sums.min_joules)
        energy = min(max(energy, low), high, self._peak_watts * sums.seconds)
        return Estimate(energy, max(high - energy, energy - low))

    def _estimated(self, sums: _Sums, key: Hashable) -> Estimate:
        self._solve_if_stale()
        regression = self._regression
        weights = regression.weights
        energies = sums.joules + (sums.columns * regression.power_watts).sum(axis=1)
        variances = regression.scale * np.einsum("vf,vfg,vg->v", sums.columns, regression.covariance, sums.columns)
        crossing, late = regression.power_watts @ sums.crossing, regression.power_watts @ sums.late
        # Energies that are old look like power that follows the load late: both are possible.
        half_age = np.minimum(self.age_seconds, np.maximum(LAGS_SECONDS, LAGS_SECONDS[1] / 2)) / 2
        energies = energies - half_age * crossing
        energy = float(weights @ energies)
        unlike = dict(sums.unlike)
        for other, under_way in self._under_way.items():
            unlike[other, False] = unlike.get((other, False), 0.0) + under_way.get(key, 0.0) ** 2
        own = sum(self._unlikeness(kind) * squares for kind, squares in unlike.items()) + sums.noise
        quantile = _QUANTILE + _FEW_VISITS / (self._visits.get(key, 1) + 0.5)
        variances = quantile**2 * (variances + own + (energies - energy) ** 2) + late**2
        width = math.sqrt(float(weights @ variances)) + float(weights @ (half_age * np.abs(crossing)))
        return Estimate(energy, width)

    def _unlikeness(self, kind: _Kind) -> float:
        """Return the mean square by which parts draw more or less than expected, as a fraction of that: k."""
        count, squares = self._unlike.get(kind, (0.0, 0.0))
        key, is_beside = kind
        first = (_UNLIKE_BESIDE if is_beside else _UNLIKE) ** 2
        few = 1.0 if is_beside else 1 + 1 / max(self._visits.get(key, 1) - 1, 1)
        return few * (squares + _UNLIKE_STRENGTH * first) / (count + _UNLIKE_STRENGTH)

    @property
    def uncounted(self) -> Estimate:
        """The energy that was not counted, but estimated, and how far all of that and what samples told can be off."""
        sums = self._sums.get(_UNCOUNTED)
        return Estimate(0.0, 0.0) if sums is None else self._estimated(sums, _UNCOUNTED)

    def expected(self, part: Part, watts: float = 0.0) -> Estimate:
        """Return what a part likely draws, by the mean power of its class so far.

        Args:
            part: The part.
            watts: Its power if its class was never seen.
        """
        sums = self._sums.get(part.key)
        if sums is None or sums.counted_joules <= 0:
            joules = min(watts or self.mean_watts or 0.0, self._peak_watts) * part.seconds
            return Estimate(joules, max(joules, self._peak_watts * part.seconds - joules))
        joules = sums.counted_joules / sums.seconds * part.seconds
        return Estimate(joules, _QUANTILE * math.sqrt(self._unlikeness((part.key, False))) * joules)

    def total_seconds(self, key: Hashable) -> float:
        """Return the time of a class that was added."""
        return self._sums[key].seconds if key in self._sums else 0.0

    def forget(self, key: Hashable) -> None:
        """Drop the sums of a span."""
        self._sums.pop(key, None)

    def _solve_if_stale(self) -> None:
        if self._unsolved or self._regression.power_watts.shape[1] < len(self._columns):
            self._solve()

    def _solve(self) -> None:
        self._unsolved = 0
        mean_watts = max(self.mean_watts or 0.0, MIN_WATTS)
        size = len(self._columns)
        precision, expected = np.zeros((size, size)), np.zeros(size)
        of_class: dict[Hashable, list[int]] = {}
        for column, number in self._columns.numbers.items():
            if column.is_edge:
                precision[number, number] = (_EDGE_STDERR * mean_watts) ** -2
            else:
                of_class.setdefault(column.key, []).append(number)
                expected[number] = mean_watts
        phase = (_PHASE_STDERR * mean_watts) ** 2
        level = max(mean_watts, self._peak_watts - mean_watts) ** 2
        for numbers in of_class.values():  # phases with a common level: the inverse of phase I + level 11'
            count = len(numbers)
            block = (np.eye(count) - np.ones((count, count)) * level / (phase + count * level)) / phase
            precision[np.ix_(numbers, numbers)] = block
        self._regression.solve(expected, precision)

    def _grow(self) -> None:
        size = len(self._columns)
        self._regression.grow(size)
        for sums in self._sums.values():
            sums.grow(size)
