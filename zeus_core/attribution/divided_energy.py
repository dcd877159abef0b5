"""The energy of one GPU, divided among the classes of a timeline, from reads of its counter now and then. Pure.

Energy is exact between *knots*, the updates of the counter. Time between two of them is divided once both are
known well (`settled_energy`), and the time since then by what its classes likely draw.

Energies are whole multiples of 2^-10 J, so sums of them are exact in any order, up to 8 TJ: parts add up to their
total to the last bit, over ranks, interruptions and files too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from zeus_core.attribution.amount import Amount, add_expected, is_class, lose, revise, whole_quanta
from zeus_core.attribution.power_sum import PowerSum
from zeus_core.attribution.sensor_comparison import SensorComparison
from zeus_core.attribution.settled_energy import SettledEnergy
from zeus_core.attribution.timeline import ClassTimeline, Part
from zeus_core.attribution.updates import CounterUpdates, Knot

_SETTLED_AFTER_SECONDS = 0.6  # later than the edges of parts that a piece can be near, and some updates
_UNKNOWN_PHASE_SECONDS = 2.5  # by then, the phase of the updates is known
_SILENT_SECONDS = 2.0  # a counter that has not answered by then is given up; before anything is settled
_OUTAGE_SECONDS = 30.0  # of a counter that was sound: then its time is settled by the power, little by little
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
        spare: Its power while the source is silent; it takes the place of a source that never answers.
        comparison: Compares the power that is sampled with the counter; nothing does if None.
        record: Notes each knot once it is known well; nothing does if None.
    """

    def __init__(
        self,
        source: CounterUpdates | PowerSum,
        peak_watts: float,
        timeline: ClassTimeline,
        spare: PowerSum,
        comparison: SensorComparison | None = None,
        record: Callable[[Knot], None] | None = None,
    ) -> None:
        self._settled = SettledEnergy(source, peak_watts, timeline, spare, comparison)
        self._classes = self._settled.classes
        self._spare = spare
        self._comparison = comparison
        self._record = record
        self._is_silent = not source.is_of_power  # so far
        self._peak_watts = peak_watts
        self._timeline = timeline
        self._before = timeline.before
        self._answered_at = timeline.begin
        self._knot: Knot | None = None  # up to which all is settled
        self._following: Knot | None = None  # the next one, which is settled once the one after it is known
        self._total_joules = 0.0  # as divided last
        self._reported_more_joules = 0.0  # since

    @property
    def source(self) -> CounterUpdates | PowerSum:
        """Knows the energy at some moments."""
        return self._settled.source

    @property
    def settled_until(self) -> float:
        """The moment up to which all is settled."""
        return -math.inf if self._knot is None else self._knot.at

    @property
    def settled_joules(self) -> float:
        """The energy that was counted until then, without that before the first moment that counts."""
        return sum(self._settled.amounts[key].energy_joules for key in self._counted(self._settled.amounts))

    def _counted(self, keys: Iterable[Hashable]) -> list[Hashable]:
        """Return the classes but for the time before the first moment that counts."""
        return [key for key in keys if is_class(key) and key != self._before]

    @property
    def lost_seconds(self) -> float:
        """The time whose energy nobody knows, as far as it is settled, but for that before the first moment."""
        return sum(self._settled.amounts[key].lost_seconds for key in self._counted(self._settled.amounts))

    @property
    def _reader(self) -> CounterUpdates | PowerSum:
        return self._spare if self._is_silent else self.source

    def has_answered(self, now: float) -> bool:
        """Whether anything was read so recently that the power now is known from it."""
        return now - self._answered_at <= self._settled.outage_seconds

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
            self._settled.source, self._is_silent = self._spare, False
        delay = _SETTLED_AFTER_SECONDS if self.source.is_known else _UNKNOWN_PHASE_SECONDS
        for knot in self.source.knots_before(math.inf if is_last else now - delay):
            if self._record is not None:
                self._record(knot)
            self._follow(knot)
        if is_last and self._knot is not None and self._following is not None:
            self._settled.divide(self._knot, self._following)
            self._knot, self._following = self._following, None
        self._settle_outage(now, is_last)
        if not self.source.is_of_power:
            self._spare.forget_before(self.settled_until - 1.0)

    def _settle_outage(self, now: float, is_last: bool) -> None:
        """Divide the energy of a source that is silent for good, or until the end, by the power."""
        last = self._following or self._knot or Knot(self._timeline.begin, 0.0, math.nan)
        if now - last.at - last.half_width_seconds <= (self._settled.outage_seconds if is_last else _OUTAGE_SECONDS):
            return
        if self._knot is not None and self._following is not None:
            self._settled.divide(self._knot, self._following)
        self._following, self._knot = None, Knot(now if is_last else now - _UNKNOWN_PHASE_SECONDS, 0.0, math.nan)
        self._settled.divide(last, self._knot)

    def division(self, now: float, is_last: bool = False) -> Division:
        """Return the energy of each class up to now. The total never falls from one call to the next.

        Args:
            now: This moment.
            is_last: Revise how all was divided, by what is known by now.
        """
        amounts = {key: Amount(**vars(amount)) for key, amount in self._settled.amounts.items()}
        self._classes.of_parts.solve(is_last)
        estimates = {key: self._classes.estimate(key) for key in amounts}
        off_joules, mean_watts = 0.0, self._classes.mean_watts or 0.0
        late_joules = self.source.half_width_seconds * mean_watts
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
        off += 2 * late_joules if self.source.is_of_power else self._settled.age_seconds * mean_watts
        off += uncounted.uncertainty_joules + abs(uncounted.energy_joules - self._settled.estimated_joules)
        off += self._add_unsettled(amounts, now, is_last)
        return Division(amounts, off + self._keep_total(amounts))

    def report_more(self, energy_joules: float) -> None:
        """Note that so much more than at the latest division was reported: none of it is taken back."""
        self._reported_more_joules = max(energy_joules, self._reported_more_joules)

    def forget_spans_before(self, span: int) -> None:
        """Drop the spans with lower numbers."""
        for key in [key for key in self._settled.amounts if isinstance(key, int) and key < span]:
            self._classes.forget(key)
            del self._settled.amounts[key]

    def _follow(self, knot: Knot) -> None:
        last, following = self._knot, self._following
        self._following = knot
        if last is None:
            self._knot, self._following = knot, None
            if knot.at - knot.half_width_seconds > self._timeline.begin:  # the first reads have failed
                self._settled.divide(Knot(self._timeline.begin, 0.0, math.nan), knot)
        elif following is not None:
            if self.source.is_of_power and self._is_unclear(last, following, knot):
                self._following = knot._replace(still_seconds=max(following.still_seconds, knot.still_seconds))
                return
            is_sound, does_go_on = self._settled.may_follow(last, following), self._settled.may_follow(following, knot)
            is_passed_by = not self.source.is_of_power and self._settled.may_follow(last, knot)
            if not (is_sound and does_go_on) and (is_passed_by or not (is_sound or does_go_on)):
                return  # the one in between was a slip of the driver, or of an update that came late
            self._settled.divide(last, following, knot if does_go_on else None)
            self._knot = following

    def _is_unclear(self, last: Knot, following: Knot, knot: Knot) -> bool:
        """Whether a sample is passed over, as a late power may be that of another part."""
        reach = following.half_width_seconds
        return knot.at - last.at < _MOST_UNCLEAR_SECONDS and not self._timeline.is_one_part(
            following.at - reach, following.at + reach
        )

    def _add_unsettled(self, amounts: dict[Hashable, Amount], now: float, is_last: bool) -> float:
        """Add what came after the last settled knot. Return how far the sum of that can be off."""
        knot, off_joules = self._knot, 0.0
        for newer in filter(None, (self._following, self.source.newest)):
            if knot is not None and newer.at > knot.at and self._settled.may_follow(knot, newer):
                parts = self._timeline.parts(knot.at, newer.at)
                joules = whole_quanta(newer.energy_joules - knot.energy_joules)
                off_joules += self._add_expected(amounts, parts, joules)
                knot = newer
        begin = self._timeline.begin if knot is None else knot.at
        tail = self._timeline.parts(begin, now)
        watts = self._classes.mean_watts or self._spare.watts
        known_seconds, reach_seconds = self._settled.outage_seconds, knot.half_width_seconds if knot else 0.0
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
