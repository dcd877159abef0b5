"""The energy of one GPU, divided among the classes of a timeline, from reads of its counter now and then. Pure.

Energy is exact between *knots*, the updates of the counter. A counter that stands still and catches up makes one long
interval, which is exact too; samples of the power meanwhile show how its energy lies in it. Where a counter steps
back, jumps, or does not catch up, those samples take its place; a gap of a few periods in them is bridged by what each
class drew beside it; a longer time that nothing was read in, or a class that was never seen elsewhere, is lost.

Energies are whole multiples of 2^-10 J, so sums of them are exact in any order, up to 8 TJ: parts add up to their
total to the last bit, over ranks, interruptions and files too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from zeus_core.attribution.amount import Amount, add_expected, in_quanta, is_class, lose, revise, whole_quanta
from zeus_core.attribution.class_energy import ClassEnergy
from zeus_core.attribution.expected_energy import Interval
from zeus_core.attribution.power_sum import PowerSum, Sampled
from zeus_core.attribution.sensor_comparison import SensorComparison
from zeus_core.attribution.timeline import Part, Timeline
from zeus_core.attribution.updates import STILL_PERIODS, CounterUpdates, Knot

_SETTLED_AFTER_SECONDS = 0.6  # later than the edges of parts that a piece can be near, and some updates
_UNKNOWN_PHASE_SECONDS = 2.5  # by then, the phase of the updates is known
_SILENT_SECONDS = 2.0  # a counter that has not answered by then is given up; before anything is settled
# The longest time without a reading whose energy is estimated from that beside it: a driver may skip one update, not
# five; six reads, as two calls are made at each while a counter is silent.
_OUTAGE_PERIODS, _OUTAGE_READS = 6, 6
_OUTAGE_SECONDS = 30.0  # of a counter that was sound: then its time is settled by the power, little by little
_LONG_INTERVALS = 3.0  # an interval of so many usual ones, as a counter that stood still leaves it, hides whole parts
_AGE_PERIODS = 0.05  # how old the energy of an update can be; nobody has published that of a board
_LOST = 0.6  # of what is expected while a counter stood still: if that is missing, it has lost all of it
_SAMPLED = 0.05  # of the energy between samples of the power, a standard error
_MOST_UNCLEAR_SECONDS = 1.0  # samples near edges count only if there was no other for so long


class Division(NamedTuple):
    """The energy of one GPU by class and span, and how far the sum of the classes can be off."""

    amounts: dict[Hashable, Amount]
    total_uncertainty_joules: float


class DividedEnergy:
    """The energy of one GPU by class.

    Args:
        source: Knows its energy at some moments.
        peak_watts: The most the GPU can draw.
        timeline: The activities in time.
        before: The class of the time before the first moment that counts.
        spare: Its power while the source is silent; it takes the place of a source that never answers.
        comparison: Compares the power that is sampled with the counter; nothing does if None.
        record: Notes each knot once it is known well, and whether it was counted; nothing does if None.
    """

    def __init__(
        self,
        source: CounterUpdates | PowerSum,
        peak_watts: float,
        timeline: Timeline,
        before: Hashable,
        spare: PowerSum,
        comparison: SensorComparison | None = None,
        record: Callable[[Knot, bool], None] | None = None,
    ) -> None:
        self.source = source
        self._spare = spare
        self._comparison = comparison
        self._record = record
        self._is_silent = not source.is_of_power  # so far
        self._peak_watts = peak_watts
        self._timeline = timeline
        self._before = before
        self._classes = ClassEnergy(peak_watts)
        self._answered_at = timeline.begin
        self._knot: Knot | None = None  # up to which all is settled
        self._following: Knot | None = None  # the next one, which is settled once the one after it is known
        self._settled: dict[Hashable, Amount] = {}
        self._total_joules = 0.0  # as divided last
        self._reported_more_joules = 0.0  # since
        self._lost_joules = 0.0

    @property
    def settled_until(self) -> float:
        """The moment up to which all is settled."""
        return -math.inf if self._knot is None else self._knot.at

    @property
    def settled_joules(self) -> float:
        """The energy that was counted until then, without that before the first moment that counts."""
        return sum(self._settled[key].energy_joules for key in self._counted(self._settled))

    def _counted(self, keys: Iterable[Hashable]) -> list[Hashable]:
        """Return the classes but for the time before the first moment that counts."""
        return [key for key in keys if is_class(key) and key != self._before]

    @property
    def lost_seconds(self) -> float:
        """The time whose energy nobody knows, as far as it is settled, but for that before the first moment."""
        return sum(self._settled[key].lost_seconds for key in self._counted(self._settled))

    @property
    def _outage_seconds(self) -> float:
        return max(_OUTAGE_PERIODS * self.source.period_seconds, _OUTAGE_READS * self._spare.period_seconds)

    @property
    def _reader(self) -> CounterUpdates | PowerSum:
        return self._spare if self._is_silent else self.source

    @property
    def _age_seconds(self) -> float:
        return 0.0 if self.source.is_of_power else _AGE_PERIODS * self.source.period_seconds

    def has_answered(self, now: float) -> bool:
        """Whether anything was read so recently that the power now is known from it."""
        return now - self._answered_at <= self._outage_seconds

    def needs_power(self, now: float, counter_joules: float | None) -> bool:
        """Whether the power is to be read, given what the counter shows now."""
        return counter_joules is None or self.source.stands_still(now, counter_joules)

    def next_read_at(self, now: float) -> float:
        """Return when to read next; the activity that has begun last counts."""
        return self._reader.next_read_at(now, self._timeline.changed_at)

    def plan_read(self, now: float, calls: int) -> None:
        """Plan the next read after one that has ended now, and took so many calls of the driver."""
        self._reader.plan_read(now, calls)

    def add_edge(self, begin: float, end: float, counter_joules: float | None, power_watts: float | None) -> None:
        """Note a read that was made between two moments; None is what was not read."""
        if power_watts is not None or counter_joules is not None:
            self._answered_at = end
        if power_watts is not None:
            self._spare.add(begin, end, power_watts)
        if counter_joules is not None and not self.source.is_of_power:
            self.source.add(begin, end, counter_joules)
            self._is_silent = False

    def settle(self, now: float, is_last: bool = False) -> None:
        """Divide what has become known well enough.

        Args:
            now: This moment.
            is_last: Divide all that is known.
        """
        if self._is_silent and (is_last or now - self._timeline.begin > _SILENT_SECONDS):
            self.source, self._is_silent = self._spare, False
        delay = _SETTLED_AFTER_SECONDS if self.source.is_known else _UNKNOWN_PHASE_SECONDS
        for knot in self.source.knots_before(math.inf if is_last else now - delay):
            if self._record is not None:
                self._record(knot, not self.source.is_of_power)
            self._follow(knot)
        if is_last and self._knot is not None and self._following is not None:
            self._divide(self._knot, self._following)
            self._knot, self._following = self._following, None
        self._settle_outage(now, is_last)
        if not self.source.is_of_power:
            self._spare.forget_before(self.settled_until - 1.0)

    def _settle_outage(self, now: float, is_last: bool) -> None:
        """Divide the energy of a source that is silent for good, or until the end, by the power."""
        last = self._following or self._knot or Knot(self._timeline.begin, 0.0, math.nan)
        if now - last.at - last.half_width_seconds <= (self._outage_seconds if is_last else _OUTAGE_SECONDS):
            return
        if self._knot is not None and self._following is not None:
            self._divide(self._knot, self._following)
        self._following, self._knot = None, Knot(now if is_last else now - _UNKNOWN_PHASE_SECONDS, 0.0, math.nan)
        self._divide(last, self._knot)

    def division(self, now: float, is_last: bool = False) -> Division:
        """Return the energy of each class up to now. The total never falls from one call to the next.

        Args:
            now: This moment.
            is_last: Revise how all was divided, by what is known by now.
        """
        amounts = {key: Amount(**vars(amount)) for key, amount in self._settled.items()}
        estimates = {key: self._classes.estimate(key) for key in amounts}
        off_joules = 0.0
        late_joules = self.source.half_width_seconds * (self._classes.mean_watts or 0.0)
        for key, estimate in estimates.items():
            if not is_class(key):
                amounts[key].energy_joules = whole_quanta(estimate.energy_joules)
            off = 0.0 if is_last else abs(estimate.energy_joules - amounts[key].energy_joules)
            amounts[key].uncertainty_joules = estimate.uncertainty_joules + off
            known_seconds = self._classes.of_parts.seconds  # 0 if all time so far is lost
            if self.source.is_of_power and known_seconds > 0.0:  # energies between samples are themselves uncertain
                share = self._classes.total_seconds(key) / known_seconds
                amounts[key].uncertainty_joules += self.source.uncertainty_joules * share + late_joules
        if self._comparison is not None:
            for key in amounts:
                differing_joules = self._comparison.off_watts(key) * self._classes.total_seconds(key)
                amounts[key].uncertainty_joules += differing_joules
                off_joules += differing_joules if is_class(key) and key != self._before else 0.0
        uncounted = self._classes.uncounted
        if is_last:
            most = {key: self._peak_watts * self._classes.total_seconds(key) for key in amounts}
            revise(amounts, self._counted(amounts), estimates, most)
        off = estimates[self._before].uncertainty_joules if self._before in estimates else 0.0
        off += self.source.uncertainty_joules + off_joules
        off += 2 * late_joules if self.source.is_of_power else self._age_seconds * (self._classes.mean_watts or 0.0)
        off += uncounted.uncertainty_joules + abs(uncounted.energy_joules - self._lost_joules)
        off += self._add_unsettled(amounts, now, is_last)
        return Division(amounts, off + self._keep_total(amounts))

    def report_more(self, energy_joules: float) -> None:
        """Note that so much more than at the latest division was reported: none of it is taken back."""
        self._reported_more_joules = max(energy_joules, self._reported_more_joules)

    def forget_spans_before(self, span: int) -> None:
        """Drop the spans with lower numbers."""
        for key in [key for key in self._settled if isinstance(key, int) and key < span]:
            self._classes.forget(key)
            del self._settled[key]

    def _follow(self, knot: Knot) -> None:
        last, following = self._knot, self._following
        self._following = knot
        if last is None:
            self._knot, self._following = knot, None
            if knot.at - knot.half_width_seconds > self._timeline.begin:  # the first reads have failed
                self._divide(Knot(self._timeline.begin, 0.0, math.nan), knot)
        elif following is not None:
            if self.source.is_of_power and self._is_unclear(last, following, knot):
                self._following = knot._replace(still_seconds=max(following.still_seconds, knot.still_seconds))
                return
            is_sound, does_go_on = self._may_follow(last, following), self._may_follow(following, knot)
            is_passed_by = not self.source.is_of_power and self._may_follow(last, knot)
            if not (is_sound and does_go_on) and (is_passed_by or not (is_sound or does_go_on)):
                return  # the one in between was a slip of the driver, or of an update that came late
            self._divide(last, following, knot if does_go_on else None)
            self._knot = following

    def _is_unclear(self, last: Knot, following: Knot, knot: Knot) -> bool:
        """Whether a sample is passed over, as a late power may be that of another part."""
        reach = following.half_width_seconds
        return knot.at - last.at < _MOST_UNCLEAR_SECONDS and not self._timeline.is_one_part(
            following.at - reach, following.at + reach
        )

    def _may_follow(self, first: Knot, second: Knot) -> bool:
        joules = second.energy_joules - first.energy_joules
        if self.source.is_of_power and second.still_seconds > self._outage_seconds:
            return False  # between two samples far from each other, any power is possible
        seconds = second.at - first.at + first.half_width_seconds + second.half_width_seconds
        return 0 <= joules <= self._peak_watts * seconds  # not if either is not known: nan

    def _divide(self, first: Knot, second: Knot, third: Knot | None = None) -> None:
        """Divide the energy between two knots; if that was not counted, or only one sum of much, with the power."""
        seconds = second.at - first.at
        if seconds <= 0:
            return
        classes, source, so_far = self._classes, self.source, self._classes.of_parts
        classes.timing_seconds, classes.age_seconds = source.half_width_seconds, self._age_seconds
        joules: float | None = (
            whole_quanta(second.energy_joules - first.energy_joules) if self._may_follow(first, second) else None
        )
        if joules is not None and self._comparison is not None and seconds <= self._outage_seconds:
            self._comparison.add_energy(first.at, second.at, joules)
        is_still = second.still_seconds >= STILL_PERIODS * source.period_seconds
        knots = first.half_width_seconds, second.half_width_seconds
        is_long = so_far.seconds > 0 and seconds > _LONG_INTERVALS * so_far.usual_seconds
        pieces: list[Sampled] = []
        if not source.is_of_power and (joules is None or is_still or is_long):
            pieces = self._spare.between(first.at, second.at, self._outage_seconds, self._timeline.is_one_part)
            expected = sum(piece.energy_joules for piece in pieces)
            if not pieces:
                parts = self._timeline.parts(first.at, second.at)
                expected = sum(classes.expected(part).energy_joules for part in parts)
            still = min(second.still_seconds / seconds, 1.0) if is_still and so_far.seconds > 0 else 0.0
            if joules is not None and still > 0 and joules < (1 - _LOST * still) * expected:
                joules = None  # it has not caught up
        if joules is None and not pieces and seconds > self._outage_seconds:
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
        lose(self._settled, self._timeline.parts(begin, end))
        self._classes.of_parts.skip()

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
        divided = self._classes.add(Interval(parts, joules, knots, stderr_joules, after))
        if joules is None:
            divided = {key: whole_quanta(of_class) for key, of_class in divided.items()}
            self._lost_joules += sum(divided.values())
            lose(self._settled, [part for part in parts if part.key not in divided])
        else:
            divided = in_quanta(divided, joules)
        for key, of_class in divided.items():
            self._settled.setdefault(key, Amount()).energy_joules += of_class
        for part in parts:
            for key in part.keys:
                self._settled.setdefault(key, Amount()).is_estimated |= is_estimated

    def _add_unsettled(self, amounts: dict[Hashable, Amount], now: float, is_last: bool) -> float:
        """Add what came after the last settled knot. Return how far the sum of that can be off."""
        knot, off_joules = self._knot, 0.0
        for newer in filter(None, (self._following, self.source.newest)):
            if knot is not None and newer.at > knot.at and self._may_follow(knot, newer):
                parts = self._timeline.parts(knot.at, newer.at)
                joules = whole_quanta(newer.energy_joules - knot.energy_joules)
                off_joules += self._add_expected(amounts, parts, joules)
                knot = newer
        begin = self._timeline.begin if knot is None else knot.at
        tail = self._timeline.parts(begin, now)
        watts = self._classes.mean_watts or self._spare.watts
        known_seconds, reach_seconds = self._outage_seconds, knot.half_width_seconds if knot else 0.0
        if not is_last and (knot is None or self.source.is_of_power):  # then what was read is not settled yet
            known_seconds += 2 * _SETTLED_AFTER_SECONDS + _MOST_UNCLEAR_SECONDS
        if now - begin - reach_seconds > known_seconds or watts is None:
            lose(amounts, tail)
            return off_joules
        self._add_expected(amounts, tail, None, watts)
        return off_joules + self._peak_watts * reach_seconds + max(watts, self._peak_watts - watts) * (now - begin)

    def _add_expected(
        self, amounts: dict[Hashable, Amount], parts: Sequence[Part], joules: float | None, watts: float = 0.0
    ) -> float:
        """Add what some parts likely draw. Return how far that of the time before the first moment can be off.

        Args:
            amounts: Where to.
            parts: All parts of some time.
            joules: Their energy as it was counted; None if it was not.
            watts: The power of classes that were never seen.
        """
        estimates = [self._classes.expected(part, watts) for part in parts]
        return add_expected(amounts, parts, estimates, joules).get(self._before, 0.0)

    def _keep_total(self, amounts: dict[Hashable, Amount]) -> float:
        """Let none of the total be taken back; return how much would have been."""
        self._total_joules, self._reported_more_joules = self._total_joules + self._reported_more_joules, 0.0
        counted = self._counted(amounts)
        if not counted or any(amounts[key].lost_seconds for key in counted):
            return 0.0
        total_joules = sum(amounts[key].energy_joules for key in counted)
        missing = max(self._total_joules - total_joules, 0.0)
        if missing > 0:
            largest = max(counted, key=lambda key: amounts[key].uncertainty_joules)
            amounts[largest].energy_joules += missing
            amounts[largest].uncertainty_joules += missing
        self._total_joules = max(total_joules, self._total_joules)
        return missing
