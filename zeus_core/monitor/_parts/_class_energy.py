"""Divides the energy between the updates of a counter among the classes of parts in it. Pure.

The energy from one update to the next is exact, but it may hold parts of several classes, such as training steps and an
evaluation. A regression tells what each class draws: E_j = h_j b + noise, with h_j the seconds of interval j in each
class and place of a part (near an edge, a part may draw another power than in its middle), and b the power there.

The energy of class c is then

    A_c = sum_j [h_jc b + s_jc (E_j - h_j b)] = S_c + G_c b,    S_c = sum_j s_jc E_j,    G_c = sum_j (h_jc - s_jc h_j)

with s_jc the share of c in interval j by the b known at that time. It is exact where intervals hold one class only, and
the classes always add up to all energy. Only sums are kept, so the memory is fixed.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.monitor._parts._model_error import ModelError
from zeus_core.monitor._parts._part import Estimate, Part, edge_places, seconds_by_key
from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, PowerColumns, padded
from zeus_core.monitor._parts._power_regression import Group, PowerRegression

__all__ = ["ClassEnergy"]

_NOISE = 0.15  # of the mean power, to begin with; then as it is seen
_TIMING = 0.45  # of the mean power, times the half-width of a knot: the noise that it adds
_MIN_SHARE = 0.02  # of what a class would have at the mean power

# An interval inside a part tells what the part draws near it, less by its noise: as if some time of it told nothing.
_NOISY_SECONDS = 0.02

_MIN_LOCKED_EDGES = 12  # fewer may lie at the same place by chance
_FREE, _LOCKED = 0.6, 0.9  # mean resultant lengths of the places of edges; those of random ones are below 0.5
_QUANTILE = 2.1  # standard errors
_MODEL_FRACTION = 0.02  # of an energy that only the model tells: how far it can be off, on top
# In benchmarks/part_energy.py these hold 97 % and more of each class of part: fewer standard errors than of a normal
# distribution do, as the noise of an interval is taken for independent of the energy that its parts draw elsewhere.
_CLASS_QUANTILE = 1.5
_UNSEEN = 0.8


class _Sums:
    """What is kept of one class."""

    def __init__(self, columns: int) -> None:
        self.seconds = self.alone_seconds = 0.0
        self.shared = 0.0  # S_c
        self.gain = np.zeros((len(LAGS_SECONDS), columns))  # G_c
        self.variance = np.zeros(len(Group))  # of the shares, in units of the noise
        self.min_joules = self.max_joules = 0.0
        self.edges = np.zeros(columns)  # how much power crosses its edges if the knots are late
        self.late = np.zeros(columns)  # the same, times how late they can be
        self.turns, self.turn = 0, 0j  # where in an interval its edges lie

    def grow(self, columns: int) -> None:
        """Add columns."""
        self.gain = padded(self.gain, columns)
        self.edges, self.late = padded(self.edges, columns), padded(self.late, columns)

    @property
    def locked_fraction(self) -> float:
        """How far parts are in step with the updates: then the counter hardly tells how energy is divided."""
        if self.turns < _MIN_LOCKED_EDGES:
            return 0.0
        concentration = abs(self.turn) / self.turns
        return min(max((concentration - _FREE) / (_LOCKED - _FREE), 0.0), 1.0)


class _Inside(NamedTuple):
    """An interval that lies inside one part."""

    key: Hashable
    seconds: float
    joules: float
    row: Array


class _Mixed:
    """An interval of several parts, whose first one has begun before it, and whose last one goes on behind it.

    Attributes:
        joules: Its energy, less what is told of its ends.
        row: Its seconds in each column, less the same.
        told: Of how many of its ends an interval inside the part has told.
    """

    def __init__(
        self, joules: float, row: Array, variance: float, parts: Sequence[Part], shares: Mapping[Hashable, float]
    ) -> None:
        self.joules, self.row, self.variance = joules, row, variance
        self.parts, self.shares = parts, shares
        self.told = 0

    @property
    def group(self) -> Group:
        """The group of intervals whose noise it has."""
        return Group.TOLD if self.told == len(self.parts) == 2 else Group.MIXED


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
        self._sums: dict[Hashable, _Sums] = {}
        self._joules = self._seconds = 0.0
        self._inside: _Inside | None = None  # the latest interval, if it is inside a part
        self._mixed: _Mixed | None = None  # the latest one that is not, until the one after it is known
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
        if self._seconds > 0:
            error_joules = energy_joules - self._fitted_joules(whole, seconds)
            self._model_error.add(error_joules, seconds)
            if len(keys) == 1:
                self._model_errors.setdefault(parts[0].key, ModelError()).add(error_joules, seconds)
        self._joules += energy_joules
        self._seconds += seconds
        mean_watts = self._joules / self._seconds
        variance = (_NOISE * mean_watts * seconds) ** 2 + (_TIMING * mean_watts * knots_seconds) ** 2
        shares = self._shares(energy_joules, parts, rows)
        for key, share in shares.items():
            sums = self._sums.setdefault(key, _Sums(len(self._columns)))
            sums.seconds += times[key]
            sums.shared += share * energy_joules
            sums.gain += rows[key] - share * whole
            self._bound(sums, energy_joules, share, times[key], seconds - times[key], knots_seconds)
        if len(parts) == 1:
            self._regression.add(whole, energy_joules, variance, Group.ALONE)
            self._see_inside(_Inside(parts[0].key, seconds, energy_joules, whole))
        else:
            self._see_mixed(_Mixed(energy_joules, whole, variance, parts, shares))
        self._note_edges(parts, crossing)
        if self._regression.is_due:
            self._solve()
        return {key: shares[key] * energy_joules for key in keys}

    def fit(self, intervals: Sequence[tuple[float | None, Sequence[Part]]]) -> list[dict[Hashable, Estimate]]:
        """Divide the energy of intervals without learning from them.

        Args:
            intervals: The energy of each, None where the model must tell it, and all its time. They follow each other,
                and what was added last.

        Returns:
            The energy of each class and span. It is not known of classes that were never added.
        """
        known = [(energy_joules, self._known(energy_joules, parts)) for energy_joules, parts in intervals]
        all_rows = self._columns.peek([parts for _, parts in known])
        self._grow()
        if self._regression.is_stale:
            self._solve()
        return [
            self._modelled(parts, rows) if energy_joules is None else self._divided(energy_joules, parts, rows)
            for (energy_joules, parts), rows in zip(known, all_rows, strict=True)
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
        variance += (power @ sums.late) ** 2
        width = math.sqrt(float(weights @ variance)) + float(weights @ (half_age * np.abs(crossing)))
        return self._bounded(energy, width, sums)

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

    def _see_mixed(self, mixed: _Mixed) -> None:
        self._close()
        self._mixed = mixed
        if self._inside is not None:
            self._tell(mixed, mixed.parts[0], self._inside)
        self._inside = None

    def _see_inside(self, inside: _Inside) -> None:
        if self._mixed is not None:
            self._tell(self._mixed, self._mixed.parts[-1], inside)
        self._close()
        self._inside = inside

    def _tell(self, mixed: _Mixed, part: Part, inside: _Inside) -> None:
        """Let an interval inside a part tell what the part draws at its end. What is then left is shared."""
        if inside.key != part.key:
            return
        weight = min(part.seconds / (inside.seconds + _NOISY_SECONDS), 1.0)
        joules, row = weight * inside.joules, weight * padded(inside.row, len(self._columns))
        mixed.joules -= joules
        mixed.row = padded(mixed.row, len(self._columns)) - row
        mixed.told += 1
        for key, share in mixed.shares.items():
            if key in self._sums:
                own = (key in part.keys) - share
                self._sums[key].shared += own * joules
                self._sums[key].gain -= own * row

    def _close(self) -> None:
        """Learn from an interval of several parts, of whose ends no more will be told."""
        mixed, self._mixed = self._mixed, None
        if mixed is None:
            return
        self._regression.add(padded(mixed.row, len(self._columns)), mixed.joules, mixed.variance, mixed.group)
        for key, share in mixed.shares.items():
            if key in self._sums:
                self._sums[key].variance[mixed.group] += share * (1 - share) * mixed.variance

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

    def _bound(
        self,
        sums: _Sums,
        energy_joules: float,
        share: float,
        seconds: float,
        others_seconds: float,
        knots_seconds: float,
    ) -> None:
        """Add what an interval proves of the energy of a class."""
        if share == 1:
            sums.alone_seconds += seconds
            sums.min_joules += energy_joules
            sums.max_joules += energy_joules
            return
        slack = self._peak_watts * (knots_seconds + self.age_seconds)
        sums.min_joules += max(0.0, energy_joules - self._peak_watts * others_seconds - slack)
        sums.max_joules += min(energy_joules, self._peak_watts * seconds + slack)

    def _note_edges(self, parts: Sequence[Part], crossing: Mapping[Hashable, Array]) -> None:
        for key, power in crossing.items():
            if key in self._sums:
                self._sums[key].edges += power
                self._sums[key].late += self.timing_seconds * power
        for key, places in edge_places(parts).items():
            for place in places:
                self._sums[key].turns += 1
                self._sums[key].turn += cmath.exp(2j * math.pi * place)

    def _bounded(self, energy: float, width: float, sums: _Sums) -> Estimate:
        """Cut an interval by what is proven of a class; widen it where its parts are in step with the updates."""
        low, high = max(energy - width, sums.min_joules), min(energy + width, sums.max_joules)
        locked = sums.locked_fraction
        low, high = low + locked * (sums.min_joules - low), high + locked * (sums.max_joules - high)
        if low > high:
            low, high = sums.min_joules, sums.max_joules
        energy = min(max(energy, low), high, self._peak_watts * sums.seconds)
        return Estimate(energy, float(max(high - energy, energy - low)))

    def _known(self, energy_joules: float | None, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts of an interval whose energy can be told."""
        if self._seconds == 0:
            return []
        return [part for part in parts if part.key in self._sums] if energy_joules is None else parts

    def _divided(
        self, energy_joules: float, parts: Sequence[Part], rows: Mapping[Hashable, Array]
    ) -> dict[Hashable, Estimate]:
        if not parts:
            return {}
        shares = self._shares(energy_joules, parts, rows)
        return {
            key: Estimate(share * energy_joules, min(share, 1 - share) * energy_joules) for key, share in shares.items()
        }

    def _modelled(self, parts: Sequence[Part], rows: Mapping[Hashable, Array]) -> dict[Hashable, Estimate]:
        times = seconds_by_key(parts)
        class_of = {key: part.key for part in parts for key in part.keys}
        result = {}
        for key, row in rows.items():
            most_joules = self._peak_watts * times[key]
            fitted = min(max(self._fitted_joules(row, times[key]), 0.0), most_joules)
            off = self._model_error_joules(class_of[key], times[key], sum(part.seconds for part in parts))
            off += _MODEL_FRACTION * fitted + _QUANTILE * self._regression.stderr_joules(row)
            result[key] = Estimate(fitted, min(off, max(fitted, most_joules - fitted)))
        return result

    def _model_error_joules(self, key: Hashable, seconds: float, all_seconds: float) -> float:
        """Return how far the model can be off for some time of a class, within all the time that it tells."""
        of_class = self._model_errors.get(key)
        stderr = None if of_class is None else of_class.stderr_joules(seconds)
        if stderr is None:
            stderr = self._model_error.stderr_joules(all_seconds)
            stderr = None if stderr is None else stderr * seconds / all_seconds
        return self._peak_watts * seconds if stderr is None else _QUANTILE * stderr


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
