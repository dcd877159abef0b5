"""The energy of one GPU, divided among the classes of a timeline, from reads of its counter now and then. Pure.

Energy is exact between *knots*, the updates of the counter. A counter that stands still and catches up makes one long
interval, which is exact too. Where it steps back, jumps, or does not catch up, a model of what each class draws tells
the energy of the gap, with the error that the model had elsewhere; where a class was never seen elsewhere, it is lost.

Energies are whole multiples of 2^-10 J, so sums of them are exact in any order, up to 8 TJ: parts add up to their total
to the last bit, over ranks, interruptions and files too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from zeus_core.monitor._parts._amount import Amount, in_quanta, is_class, lose, whole_quanta
from zeus_core.monitor._parts._class_energy import ClassEnergy
from zeus_core.monitor._parts._counter_phase import STILL_PERIODS, Knot
from zeus_core.monitor._parts._energy_source import EnergySource
from zeus_core.monitor._parts._part import Estimate, Part
from zeus_core.monitor._parts._power_samples import PowerSamples, Sampled
from zeus_core.monitor._parts._timeline import Timeline
from zeus_core.monitor._parts._unsettled_time import SILENT_SECONDS, UnsettledTime

__all__ = ["DividedEnergy", "Division"]

_SETTLED_AFTER_SECONDS = 0.6  # later than the edges of parts that a piece can be near, and some updates
_UNKNOWN_PHASE_SECONDS = 2.5  # by then, the phase of the updates is known
_OUTAGE_PERIODS = 6  # a driver may skip one update, not five
_AGE_PERIODS = 0.05  # how old the energy of an update can be; nobody has published that of a board
_LOST = 0.6  # of what is expected while a counter stood still: if that is missing, it has lost all of it
_SAMPLED = 0.5  # times the uncertainty of a class, on top, where power is sampled: its errors are not independent


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
        samples: Tell the power while the source tells nothing.
        spare: Takes the place of a source that never answers; None if there is none.
    """

    def __init__(
        self,
        source: EnergySource,
        peak_watts: float,
        timeline: Timeline,
        before: Hashable,
        samples: PowerSamples,
        spare: EnergySource | None = None,
    ) -> None:
        self.source = source
        self._spare = spare  # None once it is decided
        self._peak_watts = peak_watts
        self._timeline = timeline
        self._before = before
        self._classes = ClassEnergy(peak_watts, timeline.stepping)
        self._knot: Knot | None = None  # up to which all is settled
        self._following: Knot | None = None  # the next one, which is settled once the one after it is known
        self._settled: dict[Hashable, Amount] = {}
        self._samples = samples
        self._unsettled = UnsettledTime(self._classes, peak_watts, before)
        self._total_joules = 0.0  # as divided last
        self._told_more_joules = 0.0  # since
        self._lost_joules = 0.0
        self._unseen: list[Part] = []  # lost parts of classes that were never seen until then

    @property
    def settled_until(self) -> float:
        """The moment up to which all is settled."""
        return -math.inf if self._knot is None else self._knot.at

    @property
    def settled_joules(self) -> float:
        """The energy that was counted until then, without that before the first moment that counts."""
        return sum(
            amount.energy_joules for key, amount in self._settled.items() if is_class(key) and key != self._before
        )

    @property
    def _age_seconds(self) -> float:
        return 0.0 if self.source.is_of_power else _AGE_PERIODS * self.source.period_seconds

    def needs_power(self, now: float, counter_joules: float | None) -> bool:
        """Tell whether the power is to be read, given what the counter shows now."""
        return counter_joules is None or self.source.stands_still(now, counter_joules)

    def is_read_due(self, now: float) -> bool:
        """Tell whether to read now."""
        return (self._spare or self.source).is_read_due(now, self._timeline.changed_at)

    def plan_read(self, now: float, calls: int) -> None:
        """Plan the next read after one that has ended now, and took so many calls of the driver."""
        (self._spare or self.source).plan_read(now, calls)

    def next_look_at(self, now: float) -> float:
        """Return when to ask again whether a read is due."""
        return (self._spare or self.source).next_look_at(now)

    def settle(self, now: float, is_last: bool = False) -> None:
        """Divide what has become known well enough.

        Args:
            now: This moment.
            is_last: Divide all that is known.
        """
        if self._spare is not None and (is_last or now - self._timeline.begin > SILENT_SECONDS):
            self.source, self._spare = self._spare, None
        delay = _SETTLED_AFTER_SECONDS if self.source.is_known else _UNKNOWN_PHASE_SECONDS
        for knot in self.source.knots_before(math.inf if is_last else now - delay):
            self._take_in(knot)
        if is_last and self._knot is not None and self._following is not None:
            self._divide(self._knot, self._following)
            self._knot, self._following = self._following, None
        self._samples.forget_before(self.settled_until)

    def division(self, now: float, is_last: bool = False) -> Division:
        """Return the energy of each class up to now. The total never falls from one call to the next.

        Args:
            now: This moment.
            is_last: Revise how all was divided, by what is known by now.
        """
        amounts = {key: Amount(**vars(amount)) for key, amount in self._settled.items()}
        estimates = {key: self._classes.estimate(key) for key in amounts}
        sample_joules = self.source.half_width_seconds * (self._classes.mean_watts or 0.0)
        for key, estimate in estimates.items():
            if not is_class(key):
                amounts[key].energy_joules = whole_quanta(estimate.energy_joules)
            off = 0.0 if is_last else abs(estimate.energy_joules - amounts[key].energy_joules)
            amounts[key].uncertainty_joules = estimate.uncertainty_joules + off
            if self.source.is_of_power:  # energies between samples are themselves uncertain
                part_joules = self.source.uncertainty_joules * (
                    self._classes.seconds(key) / self._classes.total_seconds
                )
                amounts[key].uncertainty_joules += _SAMPLED * estimate.uncertainty_joules + part_joules + sample_joules
        if is_last:
            self._revise(amounts, estimates)
        off = estimates[self._before].uncertainty_joules if self._before in estimates else 0.0
        off += self.source.uncertainty_joules
        off += 2 * sample_joules if self.source.is_of_power else self._age_seconds * (self._classes.mean_watts or 0.0)
        lose(amounts, [part for part in self._unseen if not self._classes.is_seen(part.key)])
        off += self._add_unsettled(amounts, now, is_last)
        lost = self._classes.lost()
        off += lost.uncertainty_joules + (0.0 if is_last else abs(lost.energy_joules - self._lost_joules))
        return Division(amounts, off + self._keep_total(amounts))

    def tell_more(self, energy_joules: float) -> None:
        """Note that so much more than at the latest division was told: none of it is taken back."""
        self._told_more_joules = max(energy_joules, self._told_more_joules)

    def forget_spans_before(self, span: int) -> None:
        """Drop the spans with lower numbers."""
        for key in [key for key in self._settled if isinstance(key, int) and key < span]:
            self._classes.forget(key)
            del self._settled[key]

    def add_edge(self, begin: float, end: float, counter_joules: float | None, power_watts: float | None) -> None:
        """Take in a read that was made between two moments; None is what was not read."""
        if power_watts is not None:
            self._unsettled.power_watts = power_watts
            self._samples.add(begin, end, power_watts)
        value = power_watts if self.source.is_of_power else counter_joules
        if value is not None:
            self.source.add(begin, end, value)
            self._spare = None
        elif self._spare is not None and power_watts is not None:
            self._spare.add(begin, end, power_watts)

    def _take_in(self, knot: Knot) -> None:
        last, following = self._knot, self._following
        self._following = knot
        if last is None:
            self._knot, self._following = knot, None
            if knot.at - knot.half_width_seconds > self._timeline.begin:  # the first reads have failed
                missed = self._timeline.parts(self._timeline.begin, knot.at)
                self._unsettled.miss(missed, self._samples.of_parts(self._timeline.begin, missed))
        elif following is not None:
            is_sound, does_go_on = self._may_follow(last, following), self._may_follow(following, knot)
            is_passed_by = self._may_follow(last, knot)
            if not (is_sound and does_go_on) and (is_passed_by or not (is_sound or does_go_on)):
                return  # the one in between was a slip of the driver, or of an update that came late
            self._divide(last, following)
            self._knot = following

    def _may_follow(self, first: Knot, second: Knot) -> bool:
        joules = second.energy_joules - first.energy_joules
        seconds = second.at - first.at + first.half_width_seconds + second.half_width_seconds
        return 0 <= joules <= self._peak_watts * seconds

    def _divide(self, first: Knot, second: Knot) -> None:
        parts = self._timeline.parts(first.at, second.at)
        if not parts:
            return
        self._classes.timing_seconds = self.source.half_width_seconds
        self._classes.age_seconds = self._age_seconds
        sampled = self._samples.of_parts(first.at, parts)
        is_sound = self._may_follow(first, second)
        energy_joules = whole_quanta(second.energy_joules - first.energy_joules) if is_sound else 0.0
        is_still = second.still_seconds >= STILL_PERIODS * self.source.period_seconds
        knots = first.half_width_seconds, second.half_width_seconds
        if not is_sound or is_still or self._classes.hides_parts(parts, sampled):
            still_fraction = self._still_fraction(second.still_seconds, parts, sampled) if is_still else 0.0

            def is_lost(expected_joules: float) -> bool:
                is_less = energy_joules < (1 - _LOST * still_fraction) * expected_joules
                return not is_sound or (is_still and is_less)  # one that never stood still has lost nothing

            if self._classes.total_seconds > 0:
                self._divide_hidden(energy_joules, parts, sampled, knots, is_lost)
                return
            if not is_sound:
                self._unsettled.miss(parts, sampled)
                return
        divided = self._classes.add(energy_joules, parts, knots)
        for key, joules in in_quanta(divided, energy_joules).items():
            self._settled.setdefault(key, Amount()).energy_joules += joules
        for part in parts:
            if part.span is not None:
                self._settled.setdefault(part.span, Amount())

    def _divide_hidden(
        self,
        energy_joules: float,
        parts: Sequence[Part],
        sampled: Sequence[Sampled | None],
        knots: tuple[float, float],
        is_lost: Callable[[float], bool],
    ) -> None:
        """Divide a long time, unless the counter has lost some of its energy: then tell what that was."""
        divided, was_lost = self._classes.add_hidden(energy_joules, parts, sampled, knots, is_lost)
        if was_lost:
            self._unseen += [part for part in parts if not self._classes.is_seen(part.key)]
            divided = {key: whole_quanta(joules) for key, joules in divided.items()}
            self._lost_joules += sum(divided.values())
        else:
            divided = in_quanta(divided, energy_joules)
        for part in parts:
            for key in part.keys:
                self._settled.setdefault(key, Amount()).is_estimated |= was_lost
        for key, joules in divided.items():
            self._settled[key].energy_joules += joules

    def _still_fraction(self, still_seconds: float, parts: Sequence[Part], sampled: Sequence[Sampled | None]) -> float:
        """Return the fraction of the energy of some time that was likely drawn while the counter stood still.

        Args:
            still_seconds: For how long it did, from the begin on.
            parts: All of the time.
            sampled: The energies that samples of the power tell of each.
        """
        until_now = still_joules = all_joules = 0.0
        for part, power in zip(parts, sampled, strict=True):
            joules = power.energy_joules if power else part.seconds * self._classes.watts(part.key)
            still_joules += joules * min(max(still_seconds - until_now, 0.0) / part.seconds, 1.0)
            all_joules += joules
            until_now += part.seconds
        return still_joules / all_joules if all_joules > 0 else 0.0

    def _add_unsettled(self, amounts: dict[Hashable, Amount], now: float, is_last: bool) -> float:
        """Add what came after the last settled knot. Return how far the sum of that can be off."""
        chain = [] if self._knot is None else [self._knot]
        for knot in [*filter(None, [self._following]), *self.source.pending_knots()]:
            if not chain or self._may_follow(chain[-1], knot):
                chain.append(knot)
        begin = chain[-1].at if chain else self._timeline.begin
        intervals = [
            (self._timeline.parts(first.at, second.at), second.energy_joules - first.energy_joules)
            for first, second in itertools.pairwise(chain)
        ]
        period_seconds = self.source.period_seconds
        is_outage = now - begin > max(_OUTAGE_PERIODS * period_seconds, 2 * _SETTLED_AFTER_SECONDS)
        tail = self._timeline.parts(begin, now)
        off_joules = self._unsettled.add_to(
            amounts,
            intervals,
            tail,
            self._samples.of_parts(begin, tail) if is_outage and is_last else (),
            period_seconds=period_seconds,
            is_outage=is_outage,
            is_last=is_last,
        )
        # So much earlier or later the latest part of it may have begun, at any power.
        return off_joules + self._peak_watts * (chain[-1].half_width_seconds if chain else 0.0)

    def _keep_total(self, amounts: dict[Hashable, Amount]) -> float:
        """Let none of the total be taken back; return how much would have been."""
        self._total_joules, self._told_more_joules = self._total_joules + self._told_more_joules, 0.0
        counted = [key for key in amounts if is_class(key) and key != self._before]
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

    def _revise(self, amounts: dict[Hashable, Amount], estimates: dict[Hashable, Estimate]) -> None:
        """Divide all that was counted once more, by what is known by now."""
        counted = [key for key in amounts if is_class(key) and key != self._before]
        total_joules = sum(amounts[key].energy_joules for key in counted)
        total_joules += whole_quanta(self._classes.lost().energy_joules) - self._lost_joules
        for key in counted:
            amounts[key].energy_joules = whole_quanta(estimates[key].energy_joules)
        left = total_joules - sum(amounts[key].energy_joules for key in counted)
        for key in sorted(counted, key=lambda key: -amounts[key].uncertainty_joules):
            room_joules = self._peak_watts * self._classes.seconds(key) - amounts[key].energy_joules
            given = whole_quanta(min(max(left, -amounts[key].energy_joules), max(room_joules, 0.0)))
            amounts[key].energy_joules += given
            amounts[key].uncertainty_joules += abs(given)
            left -= given
