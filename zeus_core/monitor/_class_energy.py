"""Divides the energy between the updates of a counter among the classes of parts in it. Pure.

The energy from one update to the next is exact, but it may hold parts of several classes, such as training steps and an
evaluation. A regression tells what each class draws: E_j = h_j b + noise, with h_j the seconds of interval j in each
class and place of a part (near an edge, a part may draw another power than in its middle), and b the power there. Where
the power follows the load with a lag, each second counts for the parts just before it too: several lags are tried at
once.

The energy of class c is then

    A_c = sum_j [h_jc b + s_jc (E_j - h_j b)] = S_c + G_c b,    S_c = sum_j s_jc E_j,    G_c = sum_j (h_jc - s_jc h_j)

with s_jc the share of c in interval j by the b known at that time. It is exact where intervals hold one class only, and
the classes always add up to all energy. Only sums are kept, so the memory is fixed.
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["EDGES_SECONDS", "ClassEnergy", "Estimate", "Part", "Piece"]

_Array = npt.NDArray[np.float64]

EDGES_SECONDS = (0.01, 0.02, 0.045, 0.1)
"""Distances from the nearer edge of a part that bound the places near an edge; what is farther is the middle."""

_LAGS_SECONDS = np.array([1e-6, 0.005, 0.01, 0.02, 0.04])  # boards follow their load within 1 to 50 ms
_NOISE = 0.15  # of the mean power, to begin with; then as it is seen
_PHASE_STDERR = 0.4  # of the mean power: how far a tenth of a step may differ from the mean of the steps
_EDGE_STDERR = 0.12  # of the mean power: how far the power near an edge may differ; beyond that, the lags tell
_TIMING = 0.3  # of the highest power, times the half-width of a knot: the noise that it adds

_MIN_LOCKED_EDGES = 12  # fewer may lie at the same place by chance
_FREE, _LOCKED = 0.6, 0.9  # mean resultant lengths of the places of edges; those of random ones are below 0.5
_TEMPER = 0.75  # of the evidence for a lag: errors of neighbouring intervals are related
_QUANTILE = 2.1  # standard errors
# In benchmarks/part_energy.py these hold 97 % and more of each class of part: fewer standard errors than of a normal
# distribution do, as the noise of an interval is taken for independent of the energy that its parts draw elsewhere.
_CLASS_QUANTILE = 1.5
_UNSEEN = 0.8
_BLOCK_LENGTHS = 8  # up to 128 intervals
_SOLVE_EVERY = 16  # intervals of several classes


class Piece(NamedTuple):
    """An uninterrupted time of one class, within which the power has no reason to change.

    Attributes:
        seconds: How long.
        phase: The part of a step that it lies in; 0 where steps are not told apart.
        edge: 0 in the middle of a part; else the number of its place after the begin of the part, or minus that before
            its end.
    """

    seconds: float
    phase: int = 0
    edge: int = 0


class Part(NamedTuple):
    """The pieces of one class in a row, within one interval.

    Attributes:
        key: The class.
        pieces: All of its time.
        span: A longer time whose energy is wanted too, such as one evaluation; None if there is none.
    """

    key: Hashable
    pieces: Sequence[Piece]
    span: Hashable = None

    @property
    def seconds(self) -> float:
        """How long it is."""
        return sum(piece.seconds for piece in self.pieces)


class Estimate(NamedTuple):
    """An energy and how far it can be off, in joules."""

    energy_joules: float
    uncertainty_joules: float


class _Sums:
    """What is kept of one class."""

    def __init__(self, lags: int, features: int) -> None:
        self.seconds = self.alone_seconds = 0.0
        self.shared = 0.0  # S_c
        self.gain = np.zeros((lags, features))  # G_c
        self.variance = 0.0  # of the shares, in units of the noise
        self.min_joules = self.max_joules = 0.0
        self.edges = np.zeros(features)  # how much power crosses its edges if the knots are late
        self.late = np.zeros(features)  # the same, times how late they can be
        self.turns, self.turn = 0, 0j  # where in an interval its edges lie

    @property
    def locked_fraction(self) -> float:
        """How far parts are in step with the updates: then the counter hardly tells how energy is divided."""
        if self.turns < _MIN_LOCKED_EDGES:
            return 0.0
        concentration = abs(self.turn) / self.turns
        return min(max((concentration - _FREE) / (_LOCKED - _FREE), 0.0), 1.0)


class _Block:
    """The errors of the model over blocks of one length."""

    def __init__(self) -> None:
        self.squares = self.seconds = 0.0
        self.count = 0
        self.waiting = (0.0, 0.0)


class ClassEnergy:
    """The energy of the classes of one device.

    Args:
        peak_watts: The most it can draw, for moments too.
    """

    def __init__(self, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self._columns: dict[tuple[Hashable, str, int], int] = {}
        self._lags = len(_LAGS_SECONDS)
        self._state = np.zeros((self._lags, 0))  # which place the power follows, with each lag
        self._normal = np.zeros((2, self._lags, 0, 0))  # of the intervals of one class, and of several
        self._right = np.zeros((2, self._lags, 0))
        self._squares = np.zeros(2)
        self._counts = np.zeros(2)
        self._noise = np.ones(2)
        self._sums: dict[Hashable, _Sums] = {}
        self._power = np.zeros((self._lags, 0))
        self._inverse = np.zeros((self._lags, 0, 0))
        self._evidence = np.zeros(self._lags)
        self._best = 0
        self._unsolved = 0
        self._blocks = [_Block() for _ in range(_BLOCK_LENGTHS)]
        self._joules = self._seconds = 0.0
        self._last: tuple[Hashable, list[int]] | None = None
        self.timing_seconds = 0.0
        """How far all knots can be off together, in the same direction."""
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
        taken, crossing = self._features(parts)
        places = _places(parts)
        keys = {part.key for part in parts}
        whole = sum((taken[key] for key in keys), np.zeros((self._lags, len(self._columns))))
        times = _times(parts)
        seconds = sum(times[key] for key in keys)
        self._joules += energy_joules
        self._seconds += seconds
        mean_watts = self._joules / self._seconds
        variance = (_NOISE * mean_watts * seconds) ** 2 + (_TIMING * 1.5 * mean_watts * knots_seconds) ** 2
        self._check_model(energy_joules, whole, seconds)
        self._take_in(int(len(keys) > 1), whole, energy_joules, variance)
        shares = self._shares(energy_joules, parts, taken, times, mean_watts)
        for key, share in shares.items():
            sums = self._sums.setdefault(key, _Sums(self._lags, len(self._columns)))
            sums.seconds += times[key]
            sums.shared += share * energy_joules
            sums.gain += taken[key] - share * whole
            sums.variance += share * (1 - share) * variance
            if share < 1:
                slack = self._peak_watts * (knots_seconds + self.age_seconds)
                sums.min_joules += max(0.0, energy_joules - self._peak_watts * (seconds - times[key]) - slack)
                sums.max_joules += min(energy_joules, self._peak_watts * times[key] + slack)
            else:
                sums.alone_seconds += times[key]
                sums.min_joules += energy_joules
                sums.max_joules += energy_joules
            if key in crossing:
                sums.edges += crossing[key]
                sums.late += self.timing_seconds * crossing[key]
            for place in places.get(key, ()):
                sums.turns += 1
                sums.turn += cmath.exp(2j * math.pi * place)
        self._unsolved += len(keys) > 1
        if self._unsolved >= _SOLVE_EVERY or self._counts[1] in (4, 8):
            self.solve()
        return {key: shares[key] * energy_joules for key in keys}

    def _take_in(self, group: int, whole: _Array, energy_joules: float, variance: float) -> None:
        weighted = whole / variance
        self._normal[group] += weighted[:, :, None] * whole[:, None, :]
        self._right[group] += weighted * energy_joules
        self._squares[group] += energy_joules**2 / variance
        self._counts[group] += 1

    def _shares(
        self,
        energy_joules: float,
        parts: Sequence[Part],
        taken: Mapping[Hashable, _Array],
        times: Mapping[Hashable, float],
        mean_watts: float,
    ) -> dict[Hashable, float]:
        keys = {part.key for part in parts}
        fitted = {key: mean_watts * times[key] for key in taken}
        fitted = {
            key: max(self._fitted_joules(taken[key], times[key], mean_watts), 0.02 * fitted[key]) for key in taken
        }
        scale = sum(fitted[key] for key in keys)
        shares = _clipped(
            {key: fitted[key] / scale for key in keys},
            energy_joules,
            {key: self._peak_watts * times[key] for key in keys},
        )
        for span in taken.keys() - keys:
            within: dict[Hashable, float] = {}
            for part in parts:
                if part.span == span:
                    within[part.key] = within.get(part.key, 0.0) + part.seconds
            shares[span] = min(1.0, sum(shares[key] * seconds / times[key] for key, seconds in within.items()))
        return shares

    def fit(self, intervals: Sequence[tuple[float | None, Sequence[Part]]]) -> list[dict[Hashable, Estimate]]:
        """Divide the energy of intervals without learning from them.

        Args:
            intervals: The energy of each, None where the model must tell it, and all its time. They follow each other,
                and what was added last.

        Returns:
            The energy of each class and span. It is not known of classes that were never added.
        """
        state, last = self._state, self._last
        fits = [self._fit(energy_joules, parts) for energy_joules, parts in intervals]
        self._state, self._last = np.pad(state, ((0, 0), (0, len(self._columns) - state.shape[1]))), last
        return fits

    def _fit(self, energy_joules: float | None, parts: Sequence[Part]) -> dict[Hashable, Estimate]:
        known = [part for part in parts if part.key in self._sums]
        if self._unsolved or self._inverse.shape[1] < len(self._columns):
            self.solve()
        if self._seconds == 0 or (energy_joules is None and len(known) < len(parts)):
            parts = known if self._seconds > 0 else []
        if not parts:
            return {}
        taken, _ = self._features(parts)
        if self._inverse.shape[1] < len(self._columns):
            self.solve()
        times = _times(parts)
        mean_watts = self._joules / self._seconds
        keys = {part.key for part in parts}
        seconds = sum(times[key] for key in keys)
        if energy_joules is not None:
            shares = self._shares(energy_joules, parts, taken, times, mean_watts)
            result = {}
            for key, share in shares.items():
                others = energy_joules - share * energy_joules
                result[key] = Estimate(share * energy_joules, min(share * energy_joules, others))
            return result
        result = {}
        for key in taken:
            fitted = min(
                max(self._fitted_joules(taken[key], times[key], mean_watts), 0.0), self._peak_watts * times[key]
            )
            power = taken[key][self._best]
            spread = _QUANTILE * math.sqrt(max(float(power @ self._inverse[self._best] @ power), 0.0))
            off = self._model_error_joules(seconds) * times[key] / seconds + 0.02 * fitted + spread
            result[key] = Estimate(fitted, min(off, max(fitted, self._peak_watts * times[key] - fitted)))
        return result

    def _fitted_joules(self, taken: _Array, seconds: float, mean_watts: float) -> float:
        if self._inverse.shape[1] == 0:
            return mean_watts * seconds
        return float(taken[self._best] @ self._power[self._best])

    def _check_model(self, energy_joules: float, whole: _Array, seconds: float) -> None:
        """Note how far the model is off, over blocks of 1, 2, 4 and more intervals."""
        mean_watts = (self._joules - energy_joules) / max(self._seconds - seconds, 1e-9)
        if self._seconds - seconds <= 0:
            return
        error, length = energy_joules - self._fitted_joules(whole, seconds, mean_watts), seconds
        for block in self._blocks:
            block.squares += error * error
            block.seconds += length
            block.count += 1
            if block.count % 2 == 1:
                block.waiting = (error, length)
                return
            error, length = error + block.waiting[0], length + block.waiting[1]

    def _model_error_joules(self, seconds: float) -> float:
        """Return how far the model can be off over some time."""
        known = [block for block in self._blocks if block.count >= 3]
        if not known:
            return self._peak_watts * seconds
        for block in known:
            length = block.seconds / block.count
            if length >= seconds:
                return _QUANTILE * math.sqrt(block.squares / block.count * seconds / length)
        block = known[-1]
        return _QUANTILE * math.sqrt(block.squares / block.count) * seconds * block.count / block.seconds

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

    def estimate(self, key: Hashable) -> Estimate:
        """Return the energy of a class or span so far."""
        sums = self._sums.get(key)
        if sums is None:
            return Estimate(0.0, 0.0)
        if self._unsolved or self._inverse.shape[1] < len(self._columns):
            self.solve()
        weights = np.exp(_TEMPER * (self._evidence - self._evidence.max()))
        weights /= weights.sum()
        crossing = self._power @ sums.edges
        # Energies that are told late look like power that follows the load late: both are possible.
        half_age = np.minimum(self.age_seconds, np.maximum(_LAGS_SECONDS, _LAGS_SECONDS[1] / 2)) / 2
        energies = sums.shared + (sums.gain * self._power).sum(axis=1) - half_age * crossing
        spread = np.einsum("lf,lfg,lg->l", sums.gain, self._inverse, sums.gain)
        noise = sums.variance * self._noise[1]
        # Few intervals, few visits, and parts never seen alone err by more.
        few = 1 + 4 / (self._counts[1] + 1) + 2 / (sums.turns + 1) + _UNSEEN * (1 - sums.alone_seconds / sums.seconds)
        energy = float(weights @ energies)
        variance = (_CLASS_QUANTILE * few) ** 2 * (spread + noise + (energies - energy) ** 2)
        variance += (self._power @ sums.late) ** 2
        width = math.sqrt(float(weights @ variance)) + float(weights @ (half_age * np.abs(crossing)))
        low, high = max(energy - width, sums.min_joules), min(energy + width, sums.max_joules)
        locked = sums.locked_fraction
        low, high = low + locked * (sums.min_joules - low), high + locked * (sums.max_joules - high)
        if low > high:
            low, high = sums.min_joules, sums.max_joules
        energy = min(max(energy, low), high, self._peak_watts * sums.seconds)
        return Estimate(energy, float(max(high - energy, energy - low)))

    def solve(self) -> None:
        """Find the power of all places, for each lag."""
        self._unsolved = 0
        size = len(self._columns)
        if size == 0 or self._seconds == 0:
            return
        mean = self._joules / self._seconds
        prior, expected = self._prior(mean)
        self._power = np.zeros((self._lags, size))
        self._inverse = np.zeros((self._lags, size, size))
        residuals = np.zeros((self._lags, 2))
        freedom = np.zeros((self._lags, 2))
        for lag in range(self._lags):
            normal = self._normal[0, lag] / self._noise[0] + self._normal[1, lag] / self._noise[1] + prior
            right = self._right[0, lag] / self._noise[0] + self._right[1, lag] / self._noise[1] + prior @ expected
            inverse = np.linalg.inv(normal)
            power = inverse @ right
            self._power[lag], self._inverse[lag] = power, inverse
            for group in (0, 1):
                residuals[lag, group] = (
                    self._squares[group]
                    - 2 * power @ self._right[group, lag]
                    + power @ self._normal[group, lag] @ power
                )
                freedom[lag, group] = (inverse * self._normal[group, lag]).sum() / self._noise[group]
            away = power - expected
            self._evidence[lag] = -0.5 * (
                residuals[lag, 1] / self._noise[1] + away @ prior @ away + np.linalg.slogdet(normal)[1]
            )
        self._best = int(self._evidence.argmax())
        left = np.maximum(self._counts - freedom[self._best], 0.3 * self._counts)
        self._noise = np.where(
            self._counts > 3, (np.maximum(residuals[self._best], 0.0) + 0.02) / (left + 1e-9), self._noise
        )
        self._noise = np.clip(self._noise, 1e-4, 100.0)

    def _prior(self, mean_watts: float) -> tuple[_Array, _Array]:
        size = len(self._columns)
        precision, expected = np.zeros((size, size)), np.zeros(size)
        of_class: dict[Hashable, list[int]] = {}
        for (key, kind, _), column in self._columns.items():
            if kind == "edge":
                precision[column, column] = (_EDGE_STDERR * mean_watts) ** -2
            else:
                of_class.setdefault(key, []).append(column)
                expected[column] = mean_watts
        phase = (_PHASE_STDERR * mean_watts) ** 2
        level = max(mean_watts, self._peak_watts - mean_watts) ** 2
        for columns in of_class.values():
            count = len(columns)
            block = (np.eye(count) - np.ones((count, count)) * level / (phase + count * level)) / phase
            precision[np.ix_(columns, columns)] = block
        return precision, expected

    def _features(self, parts: Sequence[Part]) -> tuple[dict[Hashable, _Array], dict[Hashable, _Array]]:
        """Return the seconds of each class in each column, with each lag; and the columns at the edges it crosses."""
        self._grow(parts)
        size = len(self._columns)
        taken: dict[Hashable, _Array] = {}
        crossing: dict[Hashable, _Array] = {}
        for part in parts:
            columns = [self._columns_of(part.key, piece) for piece in part.pieces]
            durations = np.array([piece.seconds for piece in part.pieces])
            held = np.zeros((len(columns), size))
            for row, of_piece in enumerate(columns):
                held[row, of_piece] = 1.0
            left = durations[::-1].cumsum()[::-1] - durations  # from the end of the piece to the end of the part
            rates = -1 / _LAGS_SECONDS[:, None]
            response = np.exp(rates * left) - np.exp(rates * (left + durations))
            after = self._state * np.exp(rates * durations.sum()) + response @ held
            seconds = _LAGS_SECONDS[:, None] * (self._state - after) + durations @ held
            self._state = after
            for key in {part.key, part.span} - {None}:
                taken[key] = taken[key] + seconds if key in taken else seconds
            if self._last is not None and self._last[0] != part.key:
                for key, sign in ((part.key, 1.0), (self._last[0], -1.0)):
                    crossing.setdefault(key, np.zeros(size))[self._last[1]] += sign
            self._last = part.key, columns[-1]
        return taken, crossing

    def _columns_of(self, key: Hashable, piece: Piece) -> list[int]:
        column = self._columns[key, "phase", piece.phase]
        return [column, self._columns[key, "edge", piece.edge]] if piece.edge else [column]

    def _grow(self, parts: Sequence[Part]) -> None:
        before = len(self._columns)
        for part in parts:
            for piece in part.pieces:
                self._columns.setdefault((part.key, "phase", piece.phase), len(self._columns))
                if piece.edge:
                    self._columns.setdefault((part.key, "edge", piece.edge), len(self._columns))
        more = len(self._columns) - before
        if more == 0:
            return
        self._state = np.pad(self._state, ((0, 0), (0, more)))
        self._normal = np.pad(self._normal, ((0, 0), (0, 0), (0, more), (0, more)))
        self._right = np.pad(self._right, ((0, 0), (0, 0), (0, more)))
        self._power = np.pad(self._power, ((0, 0), (0, more)))
        for (_, kind, _), column in self._columns.items():
            if kind == "phase" and column >= before:
                self._power[:, column] = self.mean_watts or 0.0
        for sums in self._sums.values():
            sums.gain = np.pad(sums.gain, ((0, 0), (0, more)))
            sums.edges = np.pad(sums.edges, (0, more))
            sums.late = np.pad(sums.late, (0, more))


def _places(parts: Sequence[Part]) -> dict[Hashable, list[float]]:
    """Return where in an interval the edges of each class lie, from 0 to 1."""
    seconds, elapsed = sum(part.seconds for part in parts), 0.0
    places: dict[Hashable, list[float]] = {}
    for part, following in itertools.pairwise(parts):
        elapsed += part.seconds
        if part.key != following.key:
            for key in (part.key, following.key):
                places.setdefault(key, []).append(elapsed / seconds)
    return places


def _times(parts: Sequence[Part]) -> dict[Hashable, float]:
    times: dict[Hashable, float] = {}
    for part in parts:
        for key in {part.key, part.span} - {None}:
            times[key] = times.get(key, 0.0) + part.seconds
    return times


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
