"""Divides the energy between the updates of a counter among the classes of parts in it. Pure.

The energy from one update to the next is exact, but it may hold parts of several classes, such as training steps and an
evaluation. A regression tells what each class draws in each place of a part (near an edge, a part may draw another
power than in its middle), and a filter what each part draws of its own, as far as parts differ at all: from intervals
inside it, or before and after it; see `_power_filter`. It is exact where intervals hold one class only, and the classes
always add up to all energy. Only sums are kept, so the memory is fixed.

Energy that was not counted, or in one sum only that hides whole parts, is told by the same filter, and by samples of
the power.
"""

from __future__ import annotations

import cmath
import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import numpy as np

from zeus_core.monitor._parts._amount import is_class
from zeus_core.monitor._parts._class_sums import ClassSums
from zeus_core.monitor._parts._part import Estimate, Part, begins, seconds_by_key
from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array
from zeus_core.monitor._parts._power_filter import PowerFilter, Surprise
from zeus_core.monitor._parts._power_model import PowerModel
from zeus_core.monitor._parts._power_regression import FINE, PowerRegression
from zeus_core.monitor._parts._power_samples import Sampled
from zeus_core.monitor._parts._power_state import Affine, Chunk

__all__ = ["ClassEnergy"]

_LONG_INTERVALS = 3.0  # an interval of so many usual ones, as a counter that stood still leaves it, hides whole parts
_SOLVED_ALONE = (4, 16, 64)  # intervals of a class only, after which its power is found anew
# Standard errors, with which benchmarks/part_energy.py holds 95 % and more of each class of part; 1.96 of a normal
# distribution do not, as no kind of load that the filter knows is quite that of a training.
_QUANTILE = 2.2
_FEW_VISITS = 1.0  # added to that over the visits of a class: errors of few edges have no normal distribution
_UNSEEN = 1.5  # times the uncertainty of a time that only samples tell: how parts differ was seen before it only
_CHUNK_PIECES = 60  # six steps: few enough to follow the own power of each
_MOST_CHUNKS = 32  # of a part: a driver may hang for minutes of short steps
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
        self._sums: dict[Hashable, ClassSums] = {}
        self._seen: set[Hashable] = set()  # classes
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
        keys = dict.fromkeys(part.key for part in parts)
        seconds = sum(part.seconds for part in parts)
        self._model.add(energy_joules, seconds)
        mean_watts = self._model.joules / self._model.seconds
        shares = self._model.shares(energy_joules, parts, rows)
        self._seen.update(keys)
        for key, share in shares.items():
            sums = self._sums.setdefault(key, ClassSums(len(self._columns), self._peak_watts))
            sums.seconds += times[key]
            slack_seconds = sum(knots) + self.age_seconds
            sums.bound(energy_joules, share, times[key], seconds - times[key], slack_seconds)
        surprise = self._filter.add(energy_joules, parts, rows, mean_watts, knots, self._regression.scale)
        self._regression.add(surprise, len(keys) > 1)
        if len(parts) == 1:
            self._sums[parts[0].key].alone += 1
        self._note_edges(parts, crossing)
        if self._regression.is_due or (len(parts) == 1 and self._sums[parts[0].key].alone in _SOLVED_ALONE):
            self._solve()
        return {key: shares[key] * energy_joules for key in keys}

    def add_hidden(
        self,
        energy_joules: float,
        parts: Sequence[Part],
        sampled: Sequence[Sampled | None],
        knots: tuple[float, float],
        is_lost: Callable[[float], bool],
    ) -> tuple[dict[Hashable, float], bool]:
        """Take in a long time that hides whole parts, and divide its energy, or tell what was lost.

        Args:
            energy_joules: Its energy, unless some of it was lost.
            parts: All of it.
            sampled: The energies that samples of the power tell of each part.
            knots: How far its begin and its end can be off, in seconds.
            is_lost: Tells whether some was lost, given what the parts of which something is known have likely drawn.

        Returns:
            The energy of each class, and whether some was lost. `lost` tells more of that later.
        """
        before = {key: self._expected_joules(self._filter.energy(key)) for key in self._sums}
        chunks = [
            Chunk(number, piece, self._columns.rows([piece])[0][piece.key])
            for number, part in enumerate(parts)
            for piece in _chunked(part)
        ]
        self._grow()
        told = self._told(parts, sampled)
        surprises = self._filter.follow(chunks, told, self._model.mean_watts or 0.0, self._regression.scale)
        times, seconds = seconds_by_key(parts), sum(part.seconds for part in parts)
        self._learn(surprises)
        classes = [key for key in times if is_class(key)]
        known = self._known(parts, sampled)
        expected_joules = self._expected_joules(self._filter.blank())
        for key in [key for key in classes if key not in known]:
            expected_joules -= self._joules_since(before, key)
        was_lost = is_lost(expected_joules)
        self._seen.update(key for key in classes if key in known or not was_lost)
        if was_lost:
            self._filter.lose()
        else:
            self._model.add(energy_joules, seconds)
            scale = self._regression.scale
            self._learn([self._filter.count(energy_joules, energy_joules / seconds, knots, scale)])
        for key, of_key in times.items():
            sums = self._sums.setdefault(key, ClassSums(len(self._columns), self._peak_watts))
            sums.seconds += of_key
            if was_lost:
                sums.max_joules += self._peak_watts * of_key
            else:
                slack_seconds = sum(knots) + self.age_seconds
                sums.bound(energy_joules, of_key / seconds, of_key, seconds - of_key, slack_seconds)
        joules = {key: min(max(self._joules_since(before, key), 0.0), self._peak_watts * times[key]) for key in classes}
        if not was_lost:
            fitted = {key: max(of_class, 1e-3) for key, of_class in joules.items()}
            joules = {key: energy_joules * of_class / sum(fitted.values()) for key, of_class in fitted.items()}
        return joules, was_lost

    def lost(self) -> Estimate:
        """Return the energy that was not counted."""
        self._solve_if_stale()
        lost = self._filter.lost()
        return Estimate(0.0, 0.0) if lost is None else self._estimated(lost, self._regression)

    def hides_parts(self, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> bool:
        """Tell whether an interval is so many usual ones long, as a counter that failed leaves it, that it hides parts.

        Args:
            parts: All of its time.
            sampled: The energies that samples of the power tell of each.
        """
        keys = {part.key for part in parts}
        return (
            sum(part.seconds for part in parts) * self._model.intervals > _LONG_INTERVALS * self._model.seconds
            and len(keys) > 1
            and keys <= self._known(parts, sampled)
        )

    def divide(self, intervals: Sequence[tuple[Sequence[Part], float]]) -> list[dict[Hashable, Estimate]]:
        """Divide the energy of intervals that follow what was added last, without learning from them.

        Args:
            intervals: The parts and energy of each.

        Returns:
            The energy of each class and span; nothing where nothing was added.
        """
        if self._model.seconds == 0:
            return [{} for _ in intervals]
        rows_of_intervals = self._columns.peek([parts for parts, _ in intervals])
        self._grow()
        self._solve_if_stale()
        divided = []
        for (parts, joules), rows in zip(intervals, rows_of_intervals, strict=True):
            shares = self._model.shares(joules, parts, rows) if parts else {}
            divided.append(
                {key: Estimate(share * joules, min(share, 1 - share) * joules) for key, share in shares.items()}
            )
        return divided

    def tell(
        self, parts: Sequence[Part], sampled: Sequence[Sampled | None], *, do_follow: bool
    ) -> dict[Hashable, Estimate]:
        """Tell the energy of a time of which the counter tells nothing, without learning from it.

        Args:
            parts: All of it.
            sampled: The energies that samples of the power tell of each part; nothing if there are none.
            do_follow: Whether it follows what was added last.

        Returns:
            The energy of each class and span that was seen before, or sampled.
        """
        if self._model.seconds == 0:
            return {}
        told, classes = self._told(parts, sampled), self._known(parts, sampled)
        known = {number: part for number, part in enumerate(parts) if part.key in classes}
        if not known:
            return {}
        pieces = [(number, piece) for number, part in known.items() for piece in _chunked(part)]
        rows = self._columns.peek([[piece] for _, piece in pieces], do_follow=do_follow)
        chunks = [Chunk(number, piece, row[piece.key]) for (number, piece), row in zip(pieces, rows, strict=True)]
        self._grow()
        self._solve_if_stale()
        ahead, regression = self._filter.ahead(bool(told)) if do_follow else self._filter.anew(), self._regression
        watts = self._model.mean_watts or 0.0
        watts = max(watts, self._peak_watts / 2) if told else watts  # what is to come may be unlike all so far
        surprises = ahead.follow(chunks, told, watts, regression.scale)
        if surprises:
            regression = copy.deepcopy(regression)
            for surprise in surprises:
                regression.add(surprise, True)
            regression.solve(self._columns.numbers, self._model.joules / self._model.seconds)
        energies = {}
        for key, seconds in seconds_by_key(known.values()).items():
            joules, off_joules = self._estimated(ahead.energy(key), regression)
            most_joules = self._peak_watts * seconds
            joules = min(max(joules, 0.0), most_joules)
            off_joules *= _UNSEEN if told else 1.0
            energies[key] = Estimate(joules, min(off_joules, max(joules, most_joules - joules)))
        return energies

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
        quantile = _QUANTILE + _FEW_VISITS / (sums.visits + 0.5)
        variances = quantile**2 * (variances + (energies - energy) ** 2) + (_LATE * late) ** 2
        width = math.sqrt(float((weights * variances).sum())) + float((weights * half_age * np.abs(crossing)).sum())
        return sums.bounded(energy, width)

    @property
    def mean_watts(self) -> float | None:
        """The mean power of all that was added; None if there is nothing."""
        return self._model.mean_watts

    def _estimated(self, energy: Affine, regression: PowerRegression) -> Estimate:
        weights = regression.weights
        energies, variances = (values @ FINE.T for values in regression.energy(energy))
        joules = float((weights * energies).sum())
        variance = float((weights * (variances + (energies - joules) ** 2)).sum())
        return Estimate(joules, _QUANTILE * math.sqrt(max(variance, 0.0)))

    def _expected_joules(self, energy: Affine) -> float:
        joules = energy.joules + (energy.seconds * self._regression.power_watts).sum(axis=-1)
        return float((self._regression.weights * (joules @ FINE.T)).sum())

    def _joules_since(self, before: Mapping[Hashable, float], key: Hashable) -> float:
        return self._expected_joules(self._filter.energy(key)) - before.get(key, 0.0)

    def _known(self, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> set[Hashable]:
        """Return the classes of which something is known: what was seen before, and what is sampled."""
        return self._seen.union(part.key for part, power in zip(parts, sampled, strict=False) if power)

    def _told(self, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> dict[int, Sampled]:
        """Return the energies that samples tell, by the numbers of the parts, and how uncertain uneven parts make them.

        One sample in a step shows one of its powers; how unlike these are, the counter has told before.
        """
        told = {}
        for number, power in enumerate(sampled):
            if power is not None:
                part = parts[number]
                watts = self._regression.deviation_watts(self._columns.unevenness(part))
                # The root of the count is for errors that are independent; another, as each of more samples stands for
                # a time that is less uneven. 140 parts of steps were off by 1.8 times what the changes from sample to
                # sample tell, by .9 times what both do.
                off_joules = watts * part.seconds / power.samples
                told[number] = power._replace(stderr_joules=math.hypot(power.stderr_joules, off_joules))
        return told

    def _learn(self, surprises: Sequence[Surprise]) -> None:
        for surprise in surprises:
            self._regression.add(surprise, True)
        self._solve_if_stale()

    def is_seen(self, key: Hashable) -> bool:
        """Tell whether the energy of a class was ever counted, or sampled."""
        return key in self._seen

    def seconds(self, key: Hashable) -> float:
        """Return the time of a class that was added."""
        return self._sums[key].seconds if key in self._sums else 0.0

    def watts(self, key: Hashable) -> float:
        """Return the mean power of a class as far as it is known; that of all where it is not."""
        energy_joules, seconds = self.estimate(key).energy_joules, self.seconds(key)
        return energy_joules / seconds if energy_joules > 0 else self._model.mean_watts or 0.0

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

    def _note_edges(self, parts: Sequence[Part], crossing: Mapping[Hashable, Array]) -> None:
        for key, power in crossing.items():
            if key in self._sums:
                self._sums[key].edges += power
                self._sums[key].late += self.timing_seconds * power
        for key, place in begins(parts):
            self._sums[key].visits += 1
            self._sums[key].turn += cmath.exp(2j * math.pi * place)


def _chunked(part: Part) -> Iterable[Part]:
    """Divide a part of many steps, so that few of them are followed at once."""
    size = max(_CHUNK_PIECES, len(part.pieces) // _MOST_CHUNKS)
    return (Part(part.key, part.pieces[first : first + size], part.span) for first in range(0, len(part.pieces), size))
