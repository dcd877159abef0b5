"""Divides the energy between the updates of a counter among the classes of parts in it. Pure.

The energy from one update to the next is exact, but it may hold parts of several classes, such as training steps and an
evaluation. A regression tells what each class draws in each place of a part (near an edge, a part may draw another
power than in its middle), and a filter what each part draws of its own, as far as parts differ at all: from intervals
inside it, or before and after it; see `_power_filter`. It is exact where intervals hold one class only, and the classes
always add up to all energy. Only sums are kept, so the memory is fixed.

Energy that was not counted, or in one sum only that hides whole parts, is told by what was drawn near it; see
`_near_model`.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from zeus_core.monitor._parts._class_sums import ClassSums
from zeus_core.monitor._parts._near_model import NearModel, Stretch
from zeus_core.monitor._parts._near_power import Gap, NearPower, Seen
from zeus_core.monitor._parts._part import Estimate, Part, edge_places, seconds_by_key
from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, sum_of_rows
from zeus_core.monitor._parts._power_filter import PowerFilter
from zeus_core.monitor._parts._power_model import PowerModel
from zeus_core.monitor._parts._power_regression import FINE
from zeus_core.monitor._parts._power_samples import Sampled

__all__ = ["ClassEnergy"]

_LONG_INTERVALS = 3.0  # an interval of so many usual ones, as a counter that stood still leaves it, hides whole parts
# Of an interval inside a part: how far its ends can be off if it is to tell the power near it. The first one after a
# counter stood still may begin half a period early, and tell a third too little of all that hides before it.
_CLEAR = 0.1
_MIN_ALONE_SECONDS = 1.0  # of a class, by which its power is known apart from that of others
_SOLVED_ALONE = (4, 16, 64)  # intervals of a class only, after which its power is found anew
# Standard errors, with which benchmarks/part_energy.py holds 95 % and more of each class of part; 1.96 of a normal
# distribution do not, as no kind of load that the filter knows is quite that of a training.
_QUANTILE = 2.2
_FEW_TURNS = 2.0  # added to that over the visits of a class: errors of few edges have no normal distribution
_LATE = 1.0  # times how far the knots can be off together: calls that take long are late in the same direction


class ClassEnergy:
    """The energy of the classes of one device.

    Args:
        peak_watts: The most it can draw, for moments too.
        stepping: The class that consists of steps.
    """

    def __init__(self, peak_watts: float, stepping: Hashable = None) -> None:
        self._peak_watts = peak_watts
        self._model = PowerModel(peak_watts)
        self._columns, self._regression = self._model.columns, self._model.regression
        self._filter = PowerFilter(stepping)
        self._near_model = NearModel(peak_watts, self._model)
        self._sums: dict[Hashable, ClassSums] = {}
        self._reaching: tuple[Hashable, Seen] | None = None  # the class and end of the latest interval, of two parts
        self._is_inside = False  # whether the latest interval lies inside a part
        self.near: NearPower = self._near_model.near
        """The recent power of the classes."""
        self.timing_seconds = 0.0
        """How far the knots of the next interval can be off together with others, in the same direction."""
        self.age_seconds = 0.0
        """How old the energy of a knot can be."""

    def add(self, energy_joules: float, parts: Sequence[Part], knots: tuple[float, float]) -> dict[Hashable, float]:
        """Take in the exact energy of one interval, and divide it.

        Args:
            energy_joules: The energy.
            parts: All time of the interval.
            knots: How far its begin and its end can be off, in seconds.

        Returns:
            The energy of each class.
        """
        rows, crossing = self._columns.rows(parts)
        self._grow()
        times = seconds_by_key(parts)
        keys = {part.key for part in parts}
        whole = sum((rows[key] for key in keys), np.zeros((len(LAGS_SECONDS), len(self._columns))))
        seconds = sum(times[key] for key in keys)
        self._near_model.compare(energy_joules, parts, whole, self._intervals_alone(parts[0].key) > _SOLVED_ALONE[0])
        self._model.joules += energy_joules
        self._model.seconds += seconds
        mean_watts = self._model.joules / self._model.seconds
        shares = self._model.shares(energy_joules, parts, rows)
        for key, share in shares.items():
            sums = self._sums.setdefault(key, ClassSums(len(self._columns), self._peak_watts))
            sums.seconds += times[key]
            slack_seconds = sum(knots) + self.age_seconds
            sums.bound(energy_joules, share, times[key], seconds - times[key], slack_seconds)
        surprise = self._filter.add(energy_joules, parts, rows, mean_watts, knots, self._regression.scale)
        self._regression.add(surprise, len(keys) > 1)
        if len(parts) == 1:
            self._sums[parts[0].key].alone += 1
            if sum(knots) < _CLEAR * seconds:
                self.near.see(parts[0].key, Seen(seconds, energy_joules, whole))
        else:
            self._near_model.see_edge()
        self._reaching = None
        if len(parts) == 2 and self._is_inside and len(keys) == 2:
            end = parts[-1]
            self._reaching = end.key, Seen(end.seconds, shares[end.key] * energy_joules, rows[end.key])
        self._is_inside = len(parts) == 1
        self._note_edges(parts, crossing)
        if self._regression.is_due or (len(parts) == 1 and self._sums[parts[0].key].alone in _SOLVED_ALONE):
            self._solve()
        return {key: shares[key] * energy_joules for key in keys}

    def begin_gap(self, sampled: Sequence[Sampled | None]) -> Gap:
        """Return a gap that begins with this moment: what comes after it tells nothing of the interval before it.

        Args:
            sampled: The energies that samples of the power tell of each of its parts.
        """
        if self._reaching is not None:  # the part that reaches into the gap may not be seen elsewhere
            self.near.see(*self._reaching)
        self._reaching, self._is_inside = None, False
        self._filter.begin_gap()
        return self.near.begin_gap(sampled)

    def is_better_told_by_near(self, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> bool:
        """Tell whether the division of an interval is better told by what its classes draw near it.

        An interval of so many usual ones, as a counter that stood still leaves it, hides whole parts, of which
        a regression takes none for more or less like the others.
        """
        return (
            self._is_long(sum(part.seconds for part in parts))
            and len({part.key for part in parts}) > 1
            and all(part.key in self._sums or power for part, power in zip(parts, sampled, strict=True))
            and any(self._is_known(part.key) or power for part, power in zip(parts, sampled, strict=True))
        )

    def fit(self, stretches: Sequence[Stretch]) -> list[dict[Hashable, Estimate]]:
        """Divide the energy of times without learning from them.

        Args:
            stretches: The times. They follow each other, and what was added last, or their energies are not known.

        Returns:
            The energy of each class and span. It is not known of classes that were never added.
        """
        known = [self._parts_that_can_be_told(stretch) for stretch in stretches]
        rows = iter(self._columns.peek([[part] for parts in known for part in parts.values()]))
        self._grow()
        self._solve_if_stale()
        fits = []
        for stretch, parts in zip(stretches, known, strict=True):
            of_parts = {number: next(rows) for number in parts}
            if stretch.energy_joules is not None and stretch.gap is None:
                fits.append(self._divided(stretch.energy_joules, list(parts.values()), sum_of_rows(of_parts.values())))
            else:
                fits.append(self._near_model.tell(stretch, of_parts, self._is_known))
        return fits

    def estimate(self, key: Hashable) -> Estimate:
        """Return the energy of a class or span so far."""
        sums = self._sums.get(key)
        if sums is None:
            return Estimate(0.0, 0.0)
        self._solve_if_stale()
        weights = self._regression.weights
        energies, variances = (values @ FINE.T for values in self._regression.energy(self._filter.energy(key)))
        power = self._regression.power_watts
        crossing, late = (power @ sums.edges) @ FINE.T, (power @ sums.late) @ FINE.T
        # Energies that are told late look like power that follows the load late: both are possible.
        lags = FINE @ LAGS_SECONDS
        half_age = np.minimum(self.age_seconds, np.maximum(lags, LAGS_SECONDS[1] / 2)) / 2
        energies -= half_age * crossing
        energy = float((weights * energies).sum())
        quantile = _QUANTILE + _FEW_TURNS / (sums.turns + 1)
        variances = quantile**2 * (variances + (energies - energy) ** 2) + (_LATE * late) ** 2
        width = math.sqrt(float((weights * variances).sum())) + float((weights * half_age * np.abs(crossing)).sum())
        return sums.bounded(energy, width)

    @property
    def mean_watts(self) -> float | None:
        """The mean power of all that was added; None if there is nothing."""
        return self._model.mean_watts

    def seconds(self, key: Hashable) -> float:
        """Return the time of a class that was added."""
        return self._sums[key].seconds if key in self._sums else 0.0

    @property
    def total_seconds(self) -> float:
        """The time of all that was added."""
        return self._model.seconds

    def forget(self, key: Hashable) -> None:
        """Drop the sums of a span."""
        self._sums.pop(key, None)
        self._filter.forget(key)

    def _solve(self) -> None:
        self._model.solve()
        is_kept = self._regression.likely_kinds()
        if is_kept is not None:
            self._regression.keep(is_kept)
            self._filter.keep(is_kept)

    def _solve_if_stale(self) -> None:
        if self._regression.is_stale:
            self._solve()

    def _grow(self) -> None:
        self._model.grow()
        self._filter.grow(len(self._columns))
        for sums in self._sums.values():
            sums.grow(len(self._columns))

    def _is_long(self, seconds: float) -> bool:
        return seconds * self._regression.count > _LONG_INTERVALS * self._model.seconds

    def _intervals_alone(self, key: Hashable) -> int:
        return self._sums[key].alone if key in self._sums else 0

    def _is_known(self, key: Hashable) -> bool:
        """Tell whether a class was seen apart from others."""
        return key in self._sums and self._sums[key].alone_seconds >= _MIN_ALONE_SECONDS

    def _parts_that_can_be_told(self, stretch: Stretch) -> dict[int, Part]:
        if self._model.seconds == 0:
            return {}
        parts = dict(enumerate(stretch.parts))
        if stretch.energy_joules is not None:
            return parts
        unknown = {part.key for number, part in parts.items() if stretch.sampled(number) is None} - self._sums.keys()
        return {number: part for number, part in parts.items() if part.key not in unknown}

    def _note_edges(self, parts: Sequence[Part], crossing: Mapping[Hashable, Array]) -> None:
        for key, power in crossing.items():
            if key in self._sums:
                self._sums[key].edges += power
                self._sums[key].late += self.timing_seconds * power
        for key, places in edge_places(parts).items():
            for place in places:
                self._sums[key].turns += 1
                self._sums[key].turn += cmath.exp(2j * math.pi * place)

    def _divided(
        self, energy_joules: float, parts: Sequence[Part], rows: Mapping[Hashable, Array]
    ) -> dict[Hashable, Estimate]:
        if not parts:
            return {}
        shares = self._model.shares(energy_joules, parts, rows)
        return {
            key: Estimate(share * energy_joules, min(share, 1 - share) * energy_joules) for key, share in shares.items()
        }
