"""The energy of each class, given that each of its parts may draw a power of its own. Pure.

A Kalman filter. Its state holds, beside the energy of each class so far, by how much each recent part or step draws
more than its class does, and how late the latest knot was. An interval between two knots tells the sum of what its
parts drew; so it divides that among them by what was seen of each before, and corrects what was told of them before.

All is linear in the power b of the columns of the regression (`_power_regression`): so the filter follows, beside each
energy, how it depends on b, and the regression finds b once and for all from what each interval has told that was not
expected. There is one filter for each kind of load (`_power_kinds`) and each lag of the power behind the load, and what
they expected decides between them.

Rauch, Tung and Striebel, "Maximum likelihood estimates of linear dynamic systems" (1965), smooth in the same way: sums
that are kept in the state are smoothed by all that is told later. The state holds what is not over: its size is fixed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.monitor._parts._amount import is_class
from zeus_core.monitor._parts._part import Part, seconds_by_key
from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, padded
from zeus_core.monitor._parts._power_kinds import KINDS, NOISE, Habit

__all__ = ["MAX_SLOTS", "Affine", "PowerFilter", "Surprise"]

MAX_SLOTS = 16
"""Parts and steps of an interval whose own power is followed; those after them share that of the latest of their class.

A driver that hangs for minutes leaves an interval of thousands.
"""

_NOISE_SECONDS = 0.05  # for which noise stays the same
_MIN_NOISE_SECONDS = 0.004
_UNIFORM = 3**-0.5  # the standard deviation of a number between -1 and 1
_MIN_LATE_SECONDS = 1e-4  # no knot is known more closely: the clock of a driver is another one
_READING_JOULES = 1.5e-3  # two last digits of a counter
_MIN_SCALE = 0.01
_FORGOTTEN = 1e-3  # of the power: what a part has left of it by then counts no more


class Affine(NamedTuple):
    """An energy as it depends on the power b of the columns, for each kind and lag.

    Attributes:
        joules: The energy where b is zero.
        seconds: The energy that each watt of each column adds.
        variance: How far it can be off, in units of the scale.
    """

    joules: Array
    seconds: Array
    variance: Array


class Surprise(NamedTuple):
    """The unexpected part of what an interval has told: joules - seconds b, for each kind and lag."""

    joules: Array
    seconds: Array
    variance: Array


class _Segment(NamedTuple):
    """A time in an interval whose power has no reason to change."""

    part: int
    slot: int
    seconds: float


class PowerFilter:
    """Follows the energies of classes and spans, for all kinds of loads at once.

    Args:
        stepping: The class that consists of steps.
    """

    def __init__(self, stepping: Hashable) -> None:
        self._stepping = stepping
        self._kinds = list(KINDS)
        shape = len(KINDS), len(LAGS_SECONDS)
        # The state: the energies of classes and spans, the own power of recent parts, how late the knot was.
        self._sums: list[Hashable] = []
        self._mean = np.zeros((*shape, 1, 1))  # of each item: its value where b is zero, and what each column adds
        self._covariance = np.zeros((*shape, 1, 1))
        self._following = np.zeros((len(LAGS_SECONDS), 0))  # the share of each slot in the power
        self._latest_slots: dict[Hashable, int] = {}
        self.most_slots = 0
        """The most parts and steps whose own power was followed at once."""
        self._part: tuple[Hashable, int] | None = None  # the class that goes on, and the phase of the step
        self._knot_watts = 0.0  # at the latest knot
        self._is_next = False  # whether the next interval begins at that
        self._over: dict[Hashable, Affine] = {}  # spans

    def add(
        self,
        energy_joules: float,
        parts: Sequence[Part],
        rows: Mapping[Hashable, Array],
        watts: float,
        knots: tuple[float, float],
        scale: Array,
    ) -> Surprise:
        """Take in the exact energy of one interval.

        Args:
            energy_joules: The energy.
            parts: All of its time.
            rows: The seconds of each class and span in each column, with each lag.
            watts: The mean power of all intervals.
            knots: How far the begin and the end of the interval can be off, in seconds.
            scale: That of all variances, as far as it is known.
        """
        self._begin_sums(parts)
        held, seconds = self._held(parts, self._segments(parts, watts))
        of_columns = np.stack([padded(rows[key], self._columns) for key in self._sums if key in rows], axis=1)
        places = [place for place, key in enumerate(self._sums) if key in rows]
        counts = np.array([is_class(key) for key in self._sums])
        scatter = np.zeros(len(self._sums))
        times = seconds_by_key(parts)
        for place in places:
            scatter[place] = _scatter_squares(times[self._sums[place]])
        scatter *= (NOISE * energy_joules / seconds) ** 2
        # How far knots can be off is no matter of scale.
        begin_late, end_late = ((_late_squares(off)) / np.maximum(scale, _MIN_SCALE) for off in knots)
        if not self._is_next:
            self._knot_watts, self._is_next = energy_joules / seconds, True
            self._covariance[:, :, -1, -1] = begin_late
        return self._update(energy_joules, energy_joules / seconds, held, of_columns, places, counts, scatter, end_late)

    def grow(self, columns: int) -> None:
        """Add columns."""
        self._mean = padded(self._mean, 1 + columns)

    def begin_gap(self) -> None:
        """Note that the time of the next interval is not next to that of the latest one."""
        self._part, self._is_next = None, False
        self._mean[:, :, -1], self._covariance[:, :, -1], self._covariance[..., -1] = 0.0, 0.0, 0.0

    def energy(self, key: Hashable) -> Affine:
        """Return the energy of a class or span."""
        if key in self._over:
            over = self._over[key]
            return over._replace(seconds=padded(over.seconds, self._columns))
        place = self._sums.index(key)
        mean, variance = self._mean[:, :, place], self._covariance[:, :, place, place]
        return Affine(mean[..., 0], mean[..., 1:], variance)

    def keep(self, is_kept: Array) -> None:
        """Drop all kinds but some."""
        self._kinds = [kind for kind, is_likely in zip(self._kinds, is_kept, strict=True) if is_likely]
        self._mean, self._covariance = self._mean[is_kept], self._covariance[is_kept]
        for key, over in self._over.items():
            self._over[key] = Affine(*(values[is_kept] for values in over))

    def forget(self, key: Hashable) -> None:
        """Drop a span that is over."""
        self._over.pop(key, None)

    @property
    def _columns(self) -> int:
        return int(self._mean.shape[-1]) - 1

    @property
    def _slots(self) -> int:
        """How many parts and steps have a power of their own."""
        return int(self._following.shape[-1])

    def _begin_sums(self, parts: Sequence[Part]) -> None:
        """Make room for new classes and spans; take out the spans that are over."""
        classes = dict.fromkeys(part.key for part in parts)
        spans = dict.fromkeys(part.span for part in parts if part.span is not None)
        keys = {**classes, **spans}  # in the order of time: that of a set would change last bits between processes
        for key in [key for key in self._sums if key not in keys and not is_class(key)]:
            self._over[key] = self.energy(key)
            self._delete([self._sums.index(key)])
            self._sums.remove(key)
        for key in [key for key in keys if key not in self._sums]:
            place = len(self._sums)
            self._insert(place)
            self._sums.append(key)
            if key in self._over:
                joules, seconds, variance = self._over.pop(key)
                self._mean[:, :, place, 0], self._mean[:, :, place, 1 : 1 + seconds.shape[-1]] = joules, seconds
                self._covariance[:, :, place, place] = variance

    def _insert(self, place: int) -> None:
        self._mean = np.insert(self._mean, place, 0.0, axis=2)
        self._covariance = np.insert(np.insert(self._covariance, place, 0.0, axis=2), place, 0.0, axis=3)

    def _delete(self, places: Sequence[int]) -> None:
        self._mean = np.delete(self._mean, places, axis=2)
        self._covariance = np.delete(np.delete(self._covariance, places, axis=2), places, axis=3)

    def _segments(self, parts: Sequence[Part], watts: float) -> list[_Segment]:
        """Divide an interval into times of one part, or step in it, and begin their slots."""
        segments: list[_Segment] = []
        begun = 0
        for number, part in enumerate(parts):
            does_go_on = number == 0 and self._part is not None and self._part[0] == part.key
            phase = self._part[1] if does_go_on and self._part is not None else 0
            if does_go_on:
                slot = self._latest_slots[part.key]
                self._let_walk(slot, part.key, watts, sum(one.seconds for one in parts))
            elif begun < MAX_SLOTS or part.key not in self._latest_slots:
                slot, begun = self._begin_slot(part.key, watts, is_step=False), begun + 1
            else:
                slot = self._latest_slots[part.key]
            for piece in part.pieces:
                if 0 < piece.phase < phase and begun < MAX_SLOTS:
                    slot, begun = self._begin_slot(part.key, watts, is_step=True), begun + 1
                phase = piece.phase or phase
                if segments and segments[-1][:2] == (number, slot):
                    segments[-1] = _Segment(number, slot, segments[-1].seconds + piece.seconds)
                else:
                    segments.append(_Segment(number, slot, piece.seconds))
            self._part = part.key, phase
        return segments

    def _habits(self, key: Hashable) -> list[Habit]:
        return [kind.steps if key == self._stepping else kind.others for kind in self._kinds]

    def _let_walk(self, slot: int, key: Hashable, watts: float, seconds: float) -> None:
        place = len(self._sums) + slot
        walks = np.array([habit.walk for habit in self._habits(key)]) * watts
        self._covariance[:, :, place, place] += walks[:, None] ** 2 * seconds

    def _begin_slot(self, key: Hashable, watts: float, is_step: bool) -> int:
        """Begin the own power of a part or step."""
        habits = self._habits(key)
        kept = np.array([habit.step_kept if is_step else habit.part_kept for habit in habits])[:, None]
        new = np.array([habit.step_new if is_step else habit.part_new for habit in habits])[:, None] * watts
        slot = self._slots
        place = len(self._sums) + slot
        self._insert(place)
        latest = self._latest_slots.get(key)
        if latest is None:
            variance = new**2 / (1 - np.minimum(kept, 0.99) ** 2)
        else:
            before = len(self._sums) + latest
            shared = kept[:, :, None] * self._covariance[:, :, before]
            variance = kept**2 * self._covariance[:, :, before, before] + new**2
            self._mean[:, :, place] = kept[:, :, None] * self._mean[:, :, before]
            self._covariance[:, :, place], self._covariance[:, :, :, place] = shared, shared
        self._covariance[:, :, place, place] = variance
        self._latest_slots[key] = slot
        self._following = padded(self._following, slot + 1)
        self.most_slots = max(self.most_slots, slot + 1)
        return slot

    def _held(self, parts: Sequence[Part], segments: Iterable[_Segment]) -> tuple[Array, float]:
        """Return for how long the power followed each slot in the time of each class and span, and the time of all."""
        held = np.zeros((len(LAGS_SECONDS), len(self._sums), self._slots))
        lags = LAGS_SECONDS[:, None]
        elapsed = 0.0
        for part, slot, seconds in segments:
            one = np.zeros(self._slots)
            one[slot] = 1.0
            kept = np.exp(-seconds / lags)
            after = self._following * kept + (1 - kept) * one
            of_slots = lags * (self._following - after) + seconds * one
            for key in parts[part].keys:
                held[:, self._sums.index(key)] += of_slots
            self._following = after
            elapsed += seconds
        return held, elapsed

    def _update(
        self,
        energy_joules: float,
        watts: float,
        held: Array,
        of_columns: Array,
        places: Sequence[int],
        counts: Array,
        scatter: Array,
        late: Array,
    ) -> Surprise:
        """Predict what the interval adds to the sums; correct all by what it tells."""
        mean, covariance = self._mean, self._covariance
        sums, slots = slice(0, len(self._sums)), slice(len(self._sums), len(self._sums) + self._slots)
        knot = -1
        seen = held[:, counts].sum(axis=1)  # by the energy of the interval
        scatter_of_classes = np.where(counts, scatter, 0.0)
        with_seen = (covariance[..., slots] @ seen[..., None])[..., 0] - self._knot_watts * covariance[..., knot]
        expected = (seen[:, None] @ mean[:, :, slots])[:, :, 0] - self._knot_watts * mean[:, :, knot]
        variance = (with_seen[..., slots] * seen).sum(axis=-1) - self._knot_watts * with_seen[..., knot]
        variance += scatter_of_classes.sum() + watts**2 * late + _READING_JOULES**2
        # The state after the interval, as it is expected.
        gain = with_seen
        gain[..., sums] += (held @ with_seen[..., slots, None])[..., 0] + scatter_of_classes
        gain[..., knot] = watts * late
        mean[:, :, sums] += held @ mean[:, :, slots]
        mean[:, :, places, 1:] += of_columns
        mean[:, :, knot] = 0.0
        covariance[:, :, sums] += held @ covariance[:, :, slots]
        covariance[..., sums] += covariance[..., slots] @ held.swapaxes(1, 2)
        diagonal = np.arange(len(self._sums))
        covariance[:, :, diagonal, diagonal] += scatter
        covariance[:, :, knot], covariance[..., knot] = 0.0, 0.0
        covariance[:, :, knot, knot] = late
        # What it tells.
        told = -expected
        told[..., 0] += energy_joules
        told[..., 1:] -= of_columns[:, counts[places]].sum(axis=1)
        mean += gain[..., None] * (told / variance[..., None])[:, :, None]
        covariance -= gain[..., None] * (gain / variance[..., None])[:, :, None]
        self._knot_watts = watts
        self._drop_slots()
        return Surprise(told[..., 0], -told[..., 1:], variance)

    def _drop_slots(self) -> None:
        """Take out the own power of parts that are over, but the latest of each class."""
        latest = set(self._latest_slots.values())
        over = [
            slot for slot in range(self._slots) if slot not in latest and self._following[:, slot].max() < _FORGOTTEN
        ]
        if not over:
            return
        left = [slot for slot in range(self._slots) if slot not in over]
        self._delete([len(self._sums) + slot for slot in over])
        self._following = self._following[:, left]
        self._latest_slots = {key: left.index(slot) for key, slot in self._latest_slots.items()}


def _late_squares(half_width_seconds: float) -> float:
    """Return the variance of a knot."""
    return (_UNIFORM * half_width_seconds) ** 2 + _MIN_LATE_SECONDS**2


def _scatter_squares(seconds: float) -> float:
    """Return the square of the scatter of an energy, for a scatter of the power by one watt."""
    return seconds * min(max(seconds, _MIN_NOISE_SECONDS), _NOISE_SECONDS)
