"""Divides the energy between two knots after the other, also where a fault hides it. Pure.

A counter that stands still and catches up makes one long interval, which is exact; samples of the power meanwhile show
how its energy lies in it. Where a counter steps back, jumps, or does not catch up, those samples take its place; a gap
of a few periods in them is bridged by what each class drew beside it; a longer time that nothing was read in, or a
class that was never seen elsewhere, is lost.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from zeus_core.attribution.amount import Amount, in_quanta, lose, whole_quanta
from zeus_core.attribution.class_energy import ClassEnergy
from zeus_core.attribution.expected_energy import KnotInterval
from zeus_core.attribution.power_sum import PowerSum, Sampled
from zeus_core.attribution.sensor_comparison import SensorComparison
from zeus_core.attribution.timeline import ClassTimeline, Part
from zeus_core.attribution.updates import STILL_PERIODS, CounterUpdates, Knot

# The longest time without a reading whose energy is estimated from that beside it: a driver may skip one update, not
# five; six reads, as two calls are made at each while a counter is silent.
_OUTAGE_PERIODS, _OUTAGE_READS = 6, 6
_LONG_INTERVALS = 3.0  # an interval of so many usual ones, as a counter that stood still leaves it, hides whole parts
_AGE_PERIODS = 0.05  # how old the energy of an update can be; nobody has published that of a board
_LOST = 0.6  # of what is expected while a counter stood still: if that is missing, it has lost all of it
_SAMPLED = 0.05  # of the energy between samples of the power, a standard error


class SettledEnergy:
    """The energy of one GPU by class and span, of intervals that are known well.

    Args:
        source: Knows its energy at some moments.
        peak_watts: The most the GPU can draw.
        timeline: The activities in time.
        spare: Its power while the source is silent.
        comparison: Compares the power that is sampled with the counter; nothing does if None.

    Attributes:
        source: As passed.
        classes: The power of each class.
        amounts: The energy of each class and span.
        estimated_joules: The part of it that nothing but the classes shows.
    """

    def __init__(
        self,
        source: CounterUpdates | PowerSum,
        peak_watts: float,
        timeline: ClassTimeline,
        spare: PowerSum,
        comparison: SensorComparison | None,
    ) -> None:
        self.source = source
        self.classes: ClassEnergy = ClassEnergy(peak_watts)
        self.amounts: dict[Hashable, Amount] = {}
        self.estimated_joules: float = 0.0
        self._peak_watts = peak_watts
        self._timeline = timeline
        self._spare = spare
        self._comparison = comparison

    @property
    def outage_seconds(self) -> float:
        """The longest time without a reading whose energy is estimated from that beside it."""
        return max(_OUTAGE_PERIODS * self.source.period_seconds, _OUTAGE_READS * self._spare.period_seconds)

    @property
    def age_seconds(self) -> float:
        """How old the energy of a knot can be."""
        return 0.0 if self.source.is_of_power else _AGE_PERIODS * self.source.period_seconds

    def may_follow(self, first: Knot, second: Knot) -> bool:
        """Whether the energies of two knots can both be true, with nothing that was not read in between."""
        joules = second.energy_joules - first.energy_joules
        if self.source.is_of_power and second.still_seconds > self.outage_seconds:
            return False  # between two samples far from each other, any power is possible
        seconds = second.at - first.at + first.half_width_seconds + second.half_width_seconds
        return 0 <= joules <= self._peak_watts * seconds  # not if either is not known: nan

    def divide(self, first: Knot, second: Knot, third: Knot | None = None) -> None:
        """Divide the energy between two knots; if that was not counted, or only one sum of much, with the power."""
        seconds = second.at - first.at
        if seconds <= 0:
            return
        classes, source, so_far = self.classes, self.source, self.classes.of_parts
        classes.timing_seconds, classes.age_seconds = source.half_width_seconds, self.age_seconds
        joules: float | None = (
            whole_quanta(second.energy_joules - first.energy_joules) if self.may_follow(first, second) else None
        )
        if joules is not None and self._comparison is not None and seconds <= self.outage_seconds:
            self._comparison.add_energy(first.at, second.at, joules)
        is_still = second.still_seconds >= STILL_PERIODS * source.period_seconds
        knots = first.half_width_seconds, second.half_width_seconds
        is_long = so_far.seconds > 0 and seconds > _LONG_INTERVALS * so_far.usual_seconds
        pieces: list[Sampled] = []
        if not source.is_of_power and (joules is None or is_still or is_long):
            pieces = self._spare.between(first.at, second.at, self.outage_seconds, self._timeline.is_one_part)
            expected = sum(piece.energy_joules for piece in pieces)
            if not pieces:
                parts = self._timeline.parts(first.at, second.at)
                expected = sum(classes.expected(part).energy_joules for part in parts)
            still = min(second.still_seconds / seconds, 1.0) if is_still and so_far.seconds > 0 else 0.0
            if joules is not None and still > 0 and joules < (1 - _LOST * still) * expected:
                joules = None  # it has not caught up
        if joules is None and not pieces and seconds > self.outage_seconds:
            self._lose(first.at, second.at)
            return
        if not pieces:
            after, is_one_part = None, self._timeline.is_one_part
            if third is not None and is_one_part(second.at, third.at) and not is_one_part(first.at, second.at):
                after = third.energy_joules - second.energy_joules, self._timeline.parts(second.at, third.at)[0]
            self._add(first.at, second.at, joules, knots, 0.0, after, is_estimated=joules is None)
            return
        self._add_pieces(first, second, pieces, joules, 1.0 if joules is None or expected <= 0 else joules / expected)

    def _add_pieces(
        self, first: Knot, second: Knot, pieces: Sequence[Sampled], joules: float | None, scale: float
    ) -> None:
        """Add the energy between two knots by samples of the power, scaled to their sum if that is known."""
        knots = first.half_width_seconds, second.half_width_seconds
        rest, begin = joules, first.at
        for number, (end, of_piece, is_read) in enumerate(pieces):
            is_end = number == len(pieces) - 1
            if joules is None and not is_read:
                self._lose(begin, end)
                begin = end
                continue
            some = whole_quanta(scale * of_piece) if rest is None or not is_end else rest
            rest = None if rest is None else rest - some
            stderr = _SAMPLED * some if len(pieces) > 1 or joules is None else 0.0
            if joules is None and (number == 0 or is_end):  # the power was another before or after
                stderr = math.hypot(stderr, self._spare.half_width_seconds * self._peak_watts / 3)
            self._add(begin, end, some, knots, stderr, is_estimated=joules is None)
            begin = end

    def _lose(self, begin: float, end: float) -> None:
        """Note that nothing was read between two moments."""
        lose(self.amounts, self._timeline.parts(begin, end))
        self.classes.of_parts.skip()

    def _add(
        self,
        begin: float,
        end: float,
        joules: float | None,
        knots: tuple[float, float],
        stderr_joules: float,
        after: tuple[float, Part] | None = None,
        *,
        is_estimated: bool,
    ) -> None:
        parts = self._timeline.parts(begin, end)
        divided = self.classes.add(KnotInterval(parts, joules, knots, stderr_joules, after))
        if joules is None:
            divided = {key: whole_quanta(of_class) for key, of_class in divided.items()}
            self.estimated_joules += sum(divided.values())
            lose(self.amounts, [part for part in parts if part.key not in divided])
        else:
            divided = in_quanta(divided, joules)
        for key, of_class in divided.items():
            self.amounts.setdefault(key, Amount()).energy_joules += of_class
        for part in parts:
            for key in part.keys:
                self.amounts.setdefault(key, Amount()).is_estimated |= is_estimated
