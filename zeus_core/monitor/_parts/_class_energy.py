"""Divides the energy between the updates of a counter among the classes of parts in it. Pure.

The energy from one update to the next is exact, but it may hold parts of several classes, such as training steps and an
evaluation. A regression tells what each class draws: E_j = h_j b + noise, with h_j the seconds of interval j in each
class and place of a part (near an edge, a part may draw another power than in its middle), and b the power there.

The energy of class c is then

    A_c = sum_j [h_jc b + s_jc (E_j - h_j b)] = S_c + G_c b,    S_c = sum_j s_jc E_j,    G_c = sum_j (h_jc - s_jc h_j)

with s_jc the share of c in what interval j has more or less than expected: each part may be off by a fraction of its
own energy, by less if an interval inside the part tells what it draws. It is exact where intervals hold one class only,
and the classes always add up to all energy. Only sums are kept, so the memory is fixed.

Energy that was not counted is told by what the same part, or else the same class, drew near it, with the error that
this had elsewhere.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.monitor._parts._class_sums import ClassSums
from zeus_core.monitor._parts._mixed_interval import PART_NOISE, MixedInterval
from zeus_core.monitor._parts._model_error import ModelError
from zeus_core.monitor._parts._near_power import Gap, NearPower, Seen
from zeus_core.monitor._parts._part import Estimate, Part, edge_places, seconds_by_key
from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, PowerColumns, padded
from zeus_core.monitor._parts._power_regression import Group, PowerRegression

__all__ = ["ClassEnergy", "Stretch"]

_TIMING = 0.45  # of the mean power, times the half-width of a knot: the noise that it adds
_TOLD_FAR = 2.0  # times the length of what was seen inside a part: of a longer time it tells no more than others do
# An interval of so many usual ones, as a counter that stood still leaves it, hides whole parts: these are off by more
# times what parts are whose ends only lie in an interval.
_LONG_INTERVALS, _LONG_REACH = 3.0, 1.5
_MIN_SHARE = 0.02  # of what a class would have at the mean power

# An interval inside a part tells what the part draws near it, less by its noise: as if some time of it told nothing.
_NOISY_SECONDS = 0.02

_SOLVED_ALONE = (4, 16, 64)  # intervals of a class only, after which its power is found anew
_QUANTILE = 2.1  # standard errors
# Times the error of some time of a class between others: most of that was seen within parts, not from one to the next.
_UNLIKE = 1.5
_MODEL_FRACTION = 0.01  # of an energy that only the model tells: how far it can be off, on top
# In benchmarks/part_energy.py these hold 97 % and more of each class of part: fewer standard errors than of a normal
# distribution do, as the noise of an interval is taken for independent of the energy that its parts draw elsewhere.
_CLASS_QUANTILE = 1.5
_UNSEEN = 0.8
_LATE = 1.5  # times how far the knots can be off together: calls that take long are late in the same direction


class Stretch(NamedTuple):
    """A time whose energy is to be divided, or told.

    Attributes:
        parts: All of it.
        energy_joules: Its energy; None if that is not known.
        gap: The power known around it, if its energy is not known.
    """

    parts: Sequence[Part]
    energy_joules: float | None = None
    gap: Gap | None = None


class ClassEnergy:
    """The energy of the classes of one device.

    Args:
        peak_watts: The most it can draw, for moments too.
    """

    def __init__(self, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self._columns = PowerColumns()
        self._regression = PowerRegression(peak_watts)
        self._model_error = ModelError()
        self._model_errors: dict[Hashable, ModelError] = {}  # of intervals of one class
        self._part_errors: dict[Hashable, ModelError] = {}  # of those, compared within each part
        self._sums: dict[Hashable, ClassSums] = {}
        self._joules = self._seconds = 0.0
        self._inside: tuple[Hashable, Seen] | None = None  # the latest interval, if it is inside a part, and its class
        self._mixed: MixedInterval | None = None  # the latest one that is not, until the one after it is known
        self.near = NearPower()
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
        self._compare(energy_joules, parts, whole, seconds)
        self._joules += energy_joules
        self._seconds += seconds
        mean_watts = self._joules / self._seconds
        shares = self._shares(energy_joules, parts, rows)
        for key, share in shares.items():
            sums = self._sums.setdefault(key, ClassSums(len(self._columns), self._peak_watts))
            sums.seconds += times[key]
            slack_seconds = knots_seconds + self.age_seconds
            sums.bound(energy_joules, share, times[key], seconds - times[key], slack_seconds)
        timing = (_TIMING * mean_watts * knots_seconds) ** 2
        fitted = [
            part.seconds * max(shares[part.key] * energy_joules / times[part.key], _MIN_SHARE * mean_watts)
            for part in parts
        ]
        if len(parts) == 1:
            variance = (PART_NOISE * fitted[0]) ** 2 + timing
            self._see_inside(parts[0], Seen(seconds, energy_joules, whole), variance)
        else:
            is_long = seconds * self._regression.counts.sum() > _LONG_INTERVALS * self._seconds
            fitted = [_LONG_REACH * joules for joules in fitted] if is_long else fitted
            self._see_mixed(MixedInterval(energy_joules, rows, parts, fitted, timing))
        self._note_edges(parts, crossing)
        if self._regression.is_due or (len(parts) == 1 and self._sums[parts[0].key].alone in _SOLVED_ALONE):
            self._solve()
        return {key: shares[key] * energy_joules for key in keys}

    def fit(self, stretches: Sequence[Stretch]) -> list[dict[Hashable, Estimate]]:
        """Divide the energy of times without learning from them.

        Args:
            stretches: The times. They follow each other, and what was added last, or their energies are not known.

        Returns:
            The energy of each class and span. It is not known of classes that were never added.
        """
        known = [self._known(stretch) for stretch in stretches]
        all_rows = self._columns.peek(known)
        self._grow()
        if self._regression.is_stale:
            self._solve()
        return [
            self._modelled(stretch, parts, rows)
            if stretch.energy_joules is None
            else self._divided(stretch.energy_joules, parts, rows)
            for stretch, parts, rows in zip(stretches, known, all_rows, strict=True)
        ]

    def estimate(self, key: Hashable) -> Estimate:
        """Return the energy of a class or span so far."""
        sums = self._sums.get(key)
        if sums is None:
            return Estimate(0.0, 0.0)
        self._close()
        if self._regression.is_stale:
            self._solve()
        regression = self._regression
        power, weights = regression.power_watts, regression.lag_weights
        crossing = power @ sums.edges
        # Energies that are told late look like power that follows the load late: both are possible.
        half_age = np.minimum(self.age_seconds, np.maximum(LAGS_SECONDS, LAGS_SECONDS[1] / 2)) / 2
        energies = sums.shared + (sums.gain * power).sum(axis=1) - half_age * crossing
        spread = np.einsum("lf,lfg,lg->l", sums.gain, regression.covariance, sums.gain)
        noise = sums.variance @ regression.noise
        # Few intervals, few visits, and parts never seen alone err by more.
        few = 1 + 4 / (regression.counts[1:].sum() + 1) + 2 / (sums.turns + 1)
        few += _UNSEEN * (1 - sums.alone_seconds / sums.seconds)
        energy = float(weights @ energies)
        variance = (_CLASS_QUANTILE * few) ** 2 * (spread + noise + (energies - energy) ** 2)
        variance += (_LATE * (power @ sums.late)) ** 2
        width = math.sqrt(float(weights @ variance)) + float(weights @ (half_age * np.abs(crossing)))
        return sums.bounded(energy, width)

    @property
    def mean_watts(self) -> float | None:
        """The mean power of all that was added; None if there is nothing."""
        return self._joules / self._seconds if self._seconds > 0 else None

    def seconds(self, key: Hashable) -> float:
        """Return the time of a class that was added."""
        return self._sums[key].seconds if key in self._sums else 0.0

    @property
    def total_seconds(self) -> float:
        """The time of all that was added."""
        return self._seconds

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
        self.near.see_edge()
        for error in self._part_errors.values():
            error.restart()

    def _compare(self, energy_joules: float, parts: Sequence[Part], whole: Array, seconds: float) -> None:
        """Note how far the model is off in an interval."""
        if self._seconds == 0:
            return
        error_joules = energy_joules - self._fitted_joules(whole, seconds)
        self._model_error.add(error_joules, seconds)
        key = parts[0].key
        if len(parts) == 1 and key in self._sums and self._sums[key].alone > _SOLVED_ALONE[0]:
            for errors in (self._model_errors, self._part_errors):
                errors.setdefault(key, ModelError()).add(error_joules, seconds)

    def _see_inside(self, part: Part, inside: Seen, variance: float) -> None:
        for key in part.keys:
            self._sums[key].shared += inside.joules
            self._sums[key].alone += 1
        self._regression.add(inside.row, inside.joules, variance, Group.ALONE)
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
        told = inside.times(part.seconds / (inside.seconds + _NOISY_SECONDS))
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
        self._regression.grow(self._columns.numbers, self.mean_watts or 0.0)
        for sums in self._sums.values():
            sums.grow(len(self._columns))

    def _solve(self) -> None:
        if self._seconds > 0:
            self._regression.solve(self._columns.numbers, self._joules / self._seconds)

    def _fitted_joules(self, row: Array, seconds: float) -> float:
        joules = self._regression.joules(row)
        return self._joules / self._seconds * seconds if joules is None else joules

    def _shares(
        self, energy_joules: float, parts: Sequence[Part], rows: Mapping[Hashable, Array]
    ) -> dict[Hashable, float]:
        """Return the share of each class and span in the energy of an interval, by what the model tells."""
        times, keys = seconds_by_key(parts), {part.key for part in parts}
        mean_watts = self._joules / self._seconds
        fitted = {
            key: max(self._fitted_joules(rows[key], times[key]), _MIN_SHARE * mean_watts * times[key]) for key in keys
        }
        scale = sum(fitted.values())
        shares = _clipped(
            {key: fitted[key] / scale for key in keys},
            energy_joules,
            {key: self._peak_watts * times[key] for key in keys},
        )
        for span in rows.keys() - keys:
            within: dict[Hashable, float] = {}
            for part in parts:
                if part.span == span:
                    within[part.key] = within.get(part.key, 0.0) + part.seconds
            shares[span] = min(1.0, sum(shares[key] * seconds / times[key] for key, seconds in within.items()))
        return shares

    def _note_edges(self, parts: Sequence[Part], crossing: Mapping[Hashable, Array]) -> None:
        for key, power in crossing.items():
            if key in self._sums:
                self._sums[key].edges += power
                self._sums[key].late += self.timing_seconds * power
        for key, places in edge_places(parts).items():
            for place in places:
                self._sums[key].turns += 1
                self._sums[key].turn += cmath.exp(2j * math.pi * place)

    def _known(self, stretch: Stretch) -> Sequence[Part]:
        """Return the parts of a time whose energy can be told."""
        if self._seconds == 0:
            return []
        is_told = stretch.energy_joules is None
        return [part for part in stretch.parts if part.key in self._sums] if is_told else stretch.parts

    def _divided(
        self, energy_joules: float, parts: Sequence[Part], rows: Mapping[Hashable, Array]
    ) -> dict[Hashable, Estimate]:
        if not parts:
            return {}
        shares = self._shares(energy_joules, parts, rows)
        return {
            key: Estimate(share * energy_joules, min(share, 1 - share) * energy_joules) for key, share in shares.items()
        }

    def _modelled(
        self, stretch: Stretch, parts: Sequence[Part], rows: Mapping[Hashable, Array]
    ) -> dict[Hashable, Estimate]:
        """Return the energy of a time by what its classes draw, and by how far they drew more or less near it."""
        gap = stretch.gap or self.near.gap_now()
        times, all_seconds = seconds_by_key(parts), sum(part.seconds for part in parts)
        told = dict.fromkeys(rows, Seen(0.0, 0.0, np.zeros_like(next(iter(rows.values()), np.zeros(0)))))
        off = dict.fromkeys(rows, 0.0)
        unlike: dict[tuple[Hashable, Hashable, bool], float] = {}  # seconds that only others of the class tell
        for part in parts:
            near = gap.near(part.key, part is stretch.parts[0], part is stretch.parts[-1])
            weight = part.seconds / (near.seen.seconds + _NOISY_SECONDS)
            stderr = None
            if near.is_of_part and part.key in self._part_errors:
                stderr = self._part_errors[part.key].stderr_joules(part.seconds, near.has_both_sides)
            for key in part.keys:
                told[key] = told[key].and_more(near.seen.times(weight))
                if stderr is None:
                    name = key, part.key, near.has_both_sides
                    unlike[name] = unlike.get(name, 0.0) + part.seconds
                else:
                    off[key] += stderr**2
        for (key, class_key, has_both_sides), seconds in unlike.items():
            error = _UNLIKE * self._model_error_joules(class_key, seconds, all_seconds, has_both_sides)
            off[key] += error**2
        return {
            key: self._told(row, times[key], told[key], _QUANTILE * math.sqrt(off[key])) for key, row in rows.items()
        }

    def _told(self, row: Array, seconds: float, told: Seen, off: float) -> Estimate:
        """Return the energy of a time of which something is told; the rest is modelled."""
        most_joules = self._peak_watts * seconds
        row = row - padded(told.row, row.shape[-1])
        fitted = min(max(told.joules + self._fitted_joules(row, seconds - told.seconds), 0.0), most_joules)
        off += _MODEL_FRACTION * fitted + _QUANTILE * self._regression.stderr_joules(row)
        return Estimate(fitted, min(off, max(fitted, most_joules - fitted)))

    def _model_error_joules(self, key: Hashable, seconds: float, all_seconds: float, has_both_sides: bool) -> float:
        """Return how far the model can be off for some time of a class, within all the time that it tells."""
        of_class = self._model_errors.get(key)
        stderr = None if of_class is None else of_class.stderr_joules(seconds, has_both_sides)
        if stderr is None:
            stderr = self._model_error.stderr_joules(all_seconds, has_both_sides)
            stderr = None if stderr is None else stderr * seconds / all_seconds
        return self._peak_watts * seconds if stderr is None else stderr


def _clipped(shares: dict[Hashable, float], energy: float, highest: dict[Hashable, float]) -> dict[Hashable, float]:
    """Move energy that a class cannot have drawn to the others."""
    for _ in shares:
        over = {key for key, share in shares.items() if share * energy > highest[key] * (1 + 1e-9)}
        room = {key: highest[key] - shares[key] * energy for key in shares.keys() - over}
        if not over or sum(room.values()) <= 0:
            break
        excess = sum(shares[key] * energy - highest[key] for key in over)
        fraction = min(1.0, excess / sum(room.values()))
        shares = {
            key: highest[key] / energy if key in over else share + fraction * room[key] / energy
            for key, share in shares.items()
        }
    return shares
