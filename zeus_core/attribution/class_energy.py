"""Divides the energy between the updates of a counter among the classes of parts in it. Pure; see docs/attribution.md.

The energy y of an interval is exact, but it may hold parts of several classes. Part p is expected to draw e_p + x_p b
(`expected_energy`), with the power b of the columns. Class c gets the share s_c of the interval, in proportion to what
is expected of its parts. The rest of its energy, more or less than expected, is divided alike, so over all intervals a
class has

    E_c = A_c + B_c b,    A_c = sum e_c + s_c (y - e),    B_c = sum x_c - s_c x,

which is known anew, for any b; and all E_c together are exact. Two things are uncertain: b, with the variance
B_c cov(b) B_c', and how much more than expected each part draws. If it is the fraction d_p, E_c is off by d_p a_cp,
with a_cp = (1 if p is of class c, else 0, less s_c) times what is expected of p, summed over the intervals with p.
With the mean square k of d_p, that adds k a_cp^2. Only sums are kept: the memory is fixed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from zeus_core.attribution.columns import LAGS_SECONDS, padded
from zeus_core.attribution.expected_energy import Drawn, ExpectedEnergy, KnotInterval, PowerClass
from zeus_core.attribution.regression import Array
from zeus_core.attribution.timeline import Estimate, Part

_UNCOUNTED = "not counted"  # the key of all such time together
_QUANTILE = 2.3  # standard errors: those of a few dozen intervals are themselves estimates
_FEW_VISITS = 1.0  # added to that over the parts of a class: errors of few edges have no normal distribution


class _Sums:
    """The sums of a class or span."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.joules: Array = np.zeros(len(LAGS_SECONDS))  # A
        self.counted_joules = 0.0  # as it was divided
        self.columns: Array = np.zeros((len(LAGS_SECONDS), 0))  # B
        self.crossing: Array = np.zeros(0)  # how much power crosses its edges if the knots are late
        self.late: Array = np.zeros(0)  # the same, times how late they can be
        self.unlike: dict[PowerClass, float] = {}  # the sum of a^2
        self.noise = 0.0  # the variance of energies that samples of the power give

    def grow(self, columns: int) -> None:
        """Add columns that it has no time in."""
        if self.columns.shape[1] < columns:
            self.columns, self.crossing, self.late = (
                padded(array, columns) for array in (self.columns, self.crossing, self.late)
            )


def _by_class(drawn: Iterable[Drawn]) -> dict[Hashable, float]:
    joules: dict[Hashable, float] = {}
    for one in drawn:
        joules[one.part.key] = joules.get(one.part.key, 0.0) + one.joules
    return joules


class ClassEnergy:
    """The energy of the classes of one device.

    Args:
        peak_watts: The most it can draw, for moments too.

    Attributes:
        of_parts: The energy that parts are expected to draw.
        timing_seconds: How far the knots of the next interval can be off together with others, in the same direction.
        age_seconds: How old the energy of a knot can be.
    """

    def __init__(self, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self.of_parts: ExpectedEnergy = ExpectedEnergy(peak_watts)
        self._sums: dict[Hashable, _Sums] = {}
        self._under_way: dict[Hashable, dict[Hashable, float]] = {}  # by class, the a of its latest part
        self.timing_seconds: float = 0.0
        self.age_seconds: float = 0.0

    @property
    def mean_watts(self) -> float | None:
        """The mean power of all intervals; None if there is none."""
        return self.of_parts.mean_watts

    def add(self, interval: KnotInterval) -> dict[Hashable, float]:
        """Add an interval, and divide its energy; if nobody knows it, estimate that of the classes that were seen.

        Returns:
            The energy of each class.
        """
        drawn, crossing, begun = self.of_parts.of(interval)
        for key in begun:
            self._end_visit(key)
        if not drawn:
            return {}
        energy_joules = interval.energy_joules
        self._charge(drawn, energy_joules, interval.stderr_joules)
        if energy_joules is None:
            return _by_class(drawn)
        for key, power in crossing.items():
            sums = self._sums_of(key, len(power))
            sums.crossing += power
            sums.late += self.timing_seconds * power
        self.of_parts.learn(interval, energy_joules, drawn)
        total = sum(one.joules for one in drawn)
        return {key: energy_joules * joules / total for key, joules in _by_class(drawn).items()}

    def _charge(self, drawn: Sequence[Drawn], energy_joules: float | None, stderr_joules: float) -> None:
        """Add an interval to the sums of all classes and spans in it."""
        if stderr_joules:
            self._sums_of(_UNCOUNTED).noise += stderr_joules**2
        if len(drawn) == 1 and energy_joules is not None:
            for key in drawn[0].part.keys:
                sums = self._sums_of(key)
                sums.seconds += drawn[0].part.seconds
                sums.counted_joules += energy_joules
                sums.joules += energy_joules
                sums.noise += stderr_joules**2
            return
        total = sum(one.joules for one in drawn)
        constant = np.sum([one.constant for one in drawn], axis=0)
        row = np.sum([one.row for one in drawn], axis=0)
        by_key: dict[Hashable, list[Drawn]] = {}
        for one in drawn:
            for key in one.part.keys if energy_joules is not None else (*one.part.keys, _UNCOUNTED):
                by_key.setdefault(key, []).append(one)
        for key, of_key in by_key.items():
            share = 0.0 if energy_joules is None else sum(one.joules for one in of_key) / total
            sums = self._sums_of(key, row.shape[1])
            sums.seconds += sum(one.part.seconds for one in of_key)
            sums.counted_joules += share * (energy_joules or 0.0)
            sums.joules += np.sum([one.constant for one in of_key], axis=0)
            sums.joules += share * ((energy_joules or 0.0) - constant)
            sums.columns += np.sum([one.row for one in of_key], axis=0) - share * row
            sums.noise += (share * stderr_joules) ** 2
            for one in drawn:
                is_own = any(one is other for other in of_key)
                self._note(one, key, (float(is_own) - share) * one.joules)

    def _note(self, one: Drawn, key: Hashable, joules: float) -> None:
        """Note how much a class or span is off if a part draws more than expected, in one more interval: a."""
        if one.kind[1]:  # each edge is estimated by an interval of its own
            unlike = self._sums[key].unlike
            unlike[one.kind] = unlike.get(one.kind, 0.0) + joules**2
        elif joules:
            under_way = self._under_way.setdefault(one.part.key, {})
            under_way[key] = under_way.get(key, 0.0) + joules

    def _sums_of(self, key: Hashable, columns: int = 0) -> _Sums:
        sums = self._sums.setdefault(key, _Sums())
        sums.grow(columns)
        return sums

    def _end_visit(self, key: Hashable) -> None:
        """Note that the latest part of a class has ended."""
        for other, joules in self._under_way.pop(key, {}).items():
            if other in self._sums:
                unlike = self._sums[other].unlike
                unlike[key, False] = unlike.get((key, False), 0.0) + joules**2

    def estimate(self, key: Hashable) -> Estimate:
        """Return the energy of a class or span so far."""
        sums = self._sums.get(key)
        if sums is None:
            return Estimate(0.0, 0.0)
        energy, width = self._estimated(sums, key)
        possible = min(max(energy, 0.0), self._peak_watts * sums.seconds)
        return Estimate(possible, width + abs(possible - energy))

    def _estimated(self, sums: _Sums, key: Hashable) -> Estimate:
        self.of_parts.solve()
        regression = self.of_parts.regression
        weights = regression.weights
        sums.grow(regression.power_watts.shape[1])
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
        own = sum(self.of_parts.unlikeness(kind) * squares for kind, squares in unlike.items()) + sums.noise
        quantile = _QUANTILE + _FEW_VISITS / (self.of_parts.visits.get(key, 1) + 0.5)
        variances = quantile**2 * (variances + own + (energies - energy) ** 2) + late**2
        width = math.sqrt(float(weights @ variances)) + float(weights @ (half_age * np.abs(crossing)))
        return Estimate(energy, width)

    @property
    def uncounted(self) -> Estimate:
        """The energy that was not counted, but estimated, and how far all of that and what samples gave can be off."""
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
        return Estimate(joules, _QUANTILE * math.sqrt(self.of_parts.unlikeness((part.key, False))) * joules)

    def total_seconds(self, key: Hashable) -> float:
        """Return the time of a class that was added."""
        return self._sums[key].seconds if key in self._sums else 0.0

    def forget(self, key: Hashable) -> None:
        """Drop the sums of a span."""
        self._sums.pop(key, None)
