"""Divides the energy between the updates of a counter among the classes of parts in it. Pure.

The energy from one update to the next is exact, but it may hold parts of several classes, such as training steps and an
evaluation. A regression tells what each class draws: E_j = h_j b + noise, with h_j the seconds of interval j in each
class and place of a part (near an edge, a part may draw another power than in its middle), and b the power there.

The energy of class c is then

    A_c = sum_j [h_jc b + s_jc (E_j - h_j b)] = S_c + G_c b,    S_c = sum_j s_jc E_j,    G_c = sum_j (h_jc - s_jc h_j)

with s_jc the share of c in what interval j has more or less than expected: each part may be off by a fraction of its
own energy, by less if an interval inside the part tells what it draws. It is exact where intervals hold one class only,
and the classes always add up to all energy. Only sums are kept, so the memory is fixed.

Energy that was not counted, or in one sum only that hides whole parts, is told by what was drawn near it; see
`_near_model`.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from zeus_core.monitor._parts._class_sums import ClassSums
from zeus_core.monitor._parts._mixed_interval import PART_NOISE, MixedInterval
from zeus_core.monitor._parts._near_model import NearModel, Stretch
from zeus_core.monitor._parts._near_power import NOISY_SECONDS, Gap, NearPower, Seen
from zeus_core.monitor._parts._part import Estimate, Part, edge_places, seconds_by_key
from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, padded, sum_of_rows
from zeus_core.monitor._parts._power_model import MIN_SHARE, PowerModel
from zeus_core.monitor._parts._power_regression import FINE, Group
from zeus_core.monitor._parts._power_samples import Sampled

__all__ = ["ClassEnergy"]

_TIMING = 0.45  # of the mean power, times the half-width of a knot: the noise that it adds
_TOLD_FAR = 2.0  # times the length of what was seen inside a part: of a longer time it tells no more than others do
# An interval of so many usual ones, as a counter that stood still leaves it, hides whole parts: these are off by more
# times what parts are whose ends only lie in an interval.
_LONG_INTERVALS, _LONG_REACH = 3.0, 1.5
# Of an interval inside a part: how far its ends can be off if it is to tell the power near it. The first one after a
# counter stood still may begin half a period early, and tell a third too little of all that hides before it.
_CLEAR = 0.1
_MIN_ALONE_SECONDS = 1.0  # of a class, by which its power is known apart from that of others
_SOLVED_ALONE = (4, 16, 64)  # intervals of a class only, after which its power is found anew
# In benchmarks/part_energy.py these hold 95 % and more of each class of part: fewer standard errors than of a normal
# distribution do, as the noise of an interval is taken for independent of the energy that its parts draw elsewhere.
_CLASS_QUANTILE = 1.3
_ALIKE = 2.5  # times the variance of the shares of intervals: parts near each other are off in the same direction
_UNSEEN = 0.8
_LATE = 1.0  # times how far the knots can be off together: calls that take long are late in the same direction


class ClassEnergy:
    """The energy of the classes of one device.

    Args:
        peak_watts: The most it can draw, for moments too.
    """

    def __init__(self, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self._model = PowerModel(peak_watts)
        self._columns, self._regression = self._model.columns, self._model.regression
        self._near_model = NearModel(peak_watts, self._model)
        self._sums: dict[Hashable, ClassSums] = {}
        self._inside: tuple[Hashable, Seen] | None = None  # the latest interval, if it is inside a part, and its class
        self._mixed: MixedInterval | None = None  # the latest one that is not, until the one after it is known
        self.near: NearPower = self._near_model.near
        """The recent power of the classes."""
        self.timing_seconds = 0.0
        """How far the knots of the next interval can be off together with others, in the same direction."""
        self.age_seconds = 0.0
        """How old the energy of a knot can be."""

    def add(self, energy_joules: float, parts: Sequence[Part], knots_seconds: float) -> dict[Hashable, float]:
        """Take in the exact energy of one interval, and divide it.

        Args:
            energy_joules: The energy.
            parts: All time of the interval.
            knots_seconds: How far the ends of the interval can be off.

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
            slack_seconds = knots_seconds + self.age_seconds
            sums.bound(energy_joules, share, times[key], seconds - times[key], slack_seconds)
        timing = (_TIMING * mean_watts * knots_seconds) ** 2
        fitted = [
            part.seconds * max(shares[part.key] * energy_joules / times[part.key], MIN_SHARE * mean_watts)
            for part in parts
        ]
        if len(parts) == 1:
            variance = (PART_NOISE * fitted[0]) ** 2 + timing
            self._see_inside(parts[0], Seen(seconds, energy_joules, whole), variance, knots_seconds)
        else:
            is_long = self._is_long(seconds)
            fitted = [_LONG_REACH * joules for joules in fitted] if is_long else fitted
            self._see_mixed(MixedInterval(energy_joules, rows, parts, fitted, timing))
        self._note_edges(parts, crossing)
        if self._regression.is_due or (len(parts) == 1 and self._sums[parts[0].key].alone in _SOLVED_ALONE):
            self._model.solve()
        return {key: shares[key] * energy_joules for key in keys}

    def begin_gap(self, sampled: Sequence[Sampled | None]) -> Gap:
        """Return a gap that begins with this moment: what comes after it tells nothing of the interval before it.

        Args:
            sampled: The energies that samples of the power tell of each of its parts.
        """
        mixed = self._mixed
        if mixed is not None and len(mixed.parts) == 2 and mixed.told[0]:
            # The rest of that interval is of the part that reaches into the gap, and may not be seen elsewhere.
            part = mixed.parts[-1]
            self.near.see(part.key, Seen(part.seconds, mixed.joules, mixed.rows[part.key]))
        self._close()
        self._inside = None
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
        self._model.solve_if_stale()
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
        self._close()
        self._model.solve_if_stale()
        regression = self._regression
        power, weights = regression.power_watts, regression.lag_weights
        crossing = FINE @ (power @ sums.edges)
        # Energies that are told late look like power that follows the load late: both are possible.
        lags = FINE @ LAGS_SECONDS
        half_age = np.minimum(self.age_seconds, np.maximum(lags, LAGS_SECONDS[1] / 2)) / 2
        energies = FINE @ (sums.shared + (sums.gain * power).sum(axis=1)) - half_age * crossing
        spread = FINE @ np.einsum("lf,lfg,lg->l", sums.gain, regression.covariance, sums.gain)
        noise = sums.variance @ regression.noise
        # Few intervals, few visits, and parts never seen alone err by more than their spread tells.
        few = 1 + 6 / (regression.counts[1:].sum() + 1) + 3 / (sums.turns + 1)
        few += _UNSEEN * (1 - sums.alone_seconds / sums.seconds)
        energy = float(weights @ energies)
        variance = (_CLASS_QUANTILE * few) ** 2 * (spread + _ALIKE * noise + (energies - energy) ** 2)
        variance += (_LATE * (FINE @ (power @ sums.late))) ** 2
        width = math.sqrt(float(weights @ variance)) + float(weights @ (half_age * np.abs(crossing)))
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

    def _see_mixed(self, mixed: MixedInterval) -> None:
        self._close()
        self._mixed = mixed
        if self._inside is not None:
            key, inside = self._inside
            is_long = mixed.parts[0].seconds > inside.seconds
            self._tell(mixed, 0, key, (self.near.of_part(key) if is_long else None) or inside)
        self._inside = None
        self._near_model.see_edge()

    def _see_inside(self, part: Part, inside: Seen, variance: float, knots_seconds: float) -> None:
        for key in part.keys:
            self._sums[key].shared += inside.joules
            self._sums[key].alone += 1
        self._regression.add(inside.row, inside.joules, variance, Group.ALONE)
        if knots_seconds < _CLEAR * inside.seconds:
            self.near.see(part.key, inside)
        if self._mixed is not None:
            self._tell(self._mixed, -1, part.key, inside)
        self._close()
        self._inside = part.key, inside

    def _tell(self, mixed: MixedInterval, number: int, key_inside: Hashable, inside: Seen) -> None:
        """Let an interval inside a part tell what the part draws at its end. The rest is shared."""
        part = mixed.parts[number]
        if key_inside != part.key:
            return
        told = inside.times(part.seconds / (inside.seconds + NOISY_SECONDS))
        mixed.joules -= told.joules
        mixed.told[number] = part.seconds <= _TOLD_FAR * inside.seconds
        for key in part.keys:
            mixed.rows[key] = padded(mixed.rows[key], len(self._columns)) - padded(told.row, len(self._columns))
            if key in self._sums:
                self._sums[key].shared += told.joules

    def _close(self) -> None:
        """Learn from an interval of several parts, of whose ends no more will be told, and share what is left."""
        mixed, self._mixed = self._mixed, None
        if mixed is None:
            return
        size = len(self._columns)
        keys = {part.key for part in mixed.parts}
        whole = sum((padded(mixed.rows[key], size) for key in keys), np.zeros((len(LAGS_SECONDS), size)))
        variances = mixed.variances()
        of_parts = sum(variances[key] for key in keys)
        variance = mixed.variance(of_parts)
        self._regression.add(whole, mixed.joules, variance, mixed.group)
        for key, of_key in variances.items():
            if key in self._sums:
                share = of_key / of_parts
                sums = self._sums[key]
                sums.shared += share * mixed.joules
                sums.gain += padded(mixed.rows[key], size) - share * whole
                sums.variance[mixed.group] += share * (1 - share) * variance

    def _grow(self) -> None:
        self._model.grow()
        for sums in self._sums.values():
            sums.grow(len(self._columns))

    def _is_long(self, seconds: float) -> bool:
        return seconds * float(self._regression.counts.sum()) > _LONG_INTERVALS * self._model.seconds

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
