"""The state of the filter of what each part draws (`_power_filter`), and what it expects of time to come. Pure.

The energy of each class and span so far, the own power of recent parts and steps, and how late the latest knot was;
for each kind of load and each lag. All depends on the power b of the columns of the regression, in a linear way.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.monitor._parts._amount import is_class
from zeus_core.monitor._parts._part import Part
from zeus_core.monitor._parts._power_columns import LAGS_SECONDS, Array, padded
from zeus_core.monitor._parts._power_kinds import KINDS, NOISE, Habit

__all__ = ["LOST", "MAX_SLOTS", "Affine", "Chunk", "PowerState", "scatter_squares"]

MAX_SLOTS = 16
"""Parts and steps of an interval whose own power is followed; those after them share that of the latest of their class.

A driver that hangs for minutes leaves an interval of thousands.
"""

LOST = -1
"""The sum of all times whose energy was not counted. Spans have numbers from 0 on."""

_NOISE_SECONDS = 0.05  # for which noise stays the same
_MIN_NOISE_SECONDS = 0.004
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


class Segment(NamedTuple):
    """A time in an interval whose power has no reason to change."""

    part: int
    slot: int
    seconds: float


class Chunk(NamedTuple):
    """A part of a time of whose energy nothing is known yet, or some of a part.

    Attributes:
        number: The number of the part.
        part: The time.
        row: Its seconds in each column, with each lag.
    """

    number: int
    part: Part
    row: Array


class PowerState:
    """The state for all kinds of loads at once.

    Args:
        stepping: The class that consists of steps.
    """

    def __init__(self, stepping: Hashable) -> None:
        self._stepping = stepping
        self._kinds = list(KINDS)
        shape = len(KINDS), len(LAGS_SECONDS)
        self._sums: list[Hashable] = []
        self._mean = np.zeros((*shape, 1, 1))  # of each item: its value where b is zero, and what each column adds
        self._covariance = np.zeros((*shape, 1, 1))
        self._following = np.zeros((len(LAGS_SECONDS), 0))  # the share of each slot in the power
        self._latest_slots: dict[Hashable, int] = {}
        self.most_slots = 0
        """The most parts and steps whose own power was followed at once."""
        self._part: tuple[Hashable, int] | None = None  # the class that goes on, and the phase of the step
        self._over: dict[Hashable, Affine] = {}  # spans

    def grow(self, columns: int) -> None:
        """Add columns."""
        self._mean = padded(self._mean, 1 + columns)

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
        """Drop a span that is over, also if nothing was told since."""
        self._over.pop(key, None)
        if key in self._sums:
            self._end_sum(key)

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
        for key in [key for key in self._sums if key not in keys and not is_class(key) and key != LOST]:
            self._over[key] = self.energy(key)
            self._end_sum(key)
        for key in [key for key in keys if key not in self._sums]:
            self._begin_sum(key)
            if key in self._over:
                place = self._sums.index(key)
                joules, seconds, variance = self._over.pop(key)
                self._mean[:, :, place, 0], self._mean[:, :, place, 1 : 1 + seconds.shape[-1]] = joules, seconds
                self._covariance[:, :, place, place] = variance

    def _insert(self, place: int) -> None:
        self._mean = np.insert(self._mean, place, 0.0, axis=2)
        self._covariance = np.insert(np.insert(self._covariance, place, 0.0, axis=2), place, 0.0, axis=3)

    def _delete(self, places: Sequence[int]) -> None:
        self._mean = np.delete(self._mean, places, axis=2)
        self._covariance = np.delete(np.delete(self._covariance, places, axis=2), places, axis=3)

    def _segments(self, parts: Sequence[Part], watts: Array) -> list[Segment]:
        """Divide an interval into times of one part, or step in it, and begin their slots."""
        segments: list[Segment] = []
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
                    segments[-1] = Segment(number, slot, segments[-1].seconds + piece.seconds)
                else:
                    segments.append(Segment(number, slot, piece.seconds))
            self._part = part.key, phase
        return segments

    def _habits(self, key: Hashable) -> list[Habit]:
        return [kind.steps if key == self._stepping else kind.others for kind in self._kinds]

    def _let_walk(self, slot: int, key: Hashable, watts: Array, seconds: float) -> None:
        place = len(self._sums) + slot
        walks = np.array([habit.walk for habit in self._habits(key)])[:, None] * watts
        self._covariance[:, :, place, place] += walks**2 * seconds

    def _begin_slot(self, key: Hashable, watts: Array, is_step: bool) -> int:
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

    def _held(self, parts: Sequence[Part], segments: Iterable[Segment]) -> tuple[Array, float]:
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

    def _add_held(self, held: Array) -> None:
        """Predict what the own power of parts adds to the sums, given for how long the power followed each slot."""
        sums, slots = slice(0, len(self._sums)), slice(len(self._sums), len(self._sums) + self._slots)
        self._mean[:, :, sums] += held @ self._mean[:, :, slots]
        self._covariance[:, :, sums] += held @ self._covariance[:, :, slots]
        self._covariance[..., sums] += self._covariance[..., slots] @ held.swapaxes(1, 2)

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

    def _follow_chunk(
        self, chunk: Chunk, keys: Iterable[Hashable], tally: Hashable | None, watts: float, own_watts: Array
    ) -> None:
        """Predict what some time adds to its class and span, to other sums, and to what samples of the power show.

        Args:
            chunk: The time.
            keys: The sums that it adds to.
            tally: The sum of the power as samples show it, once it has followed the load; None if there is none.
            watts: The mean power of all intervals, which the noise is a fraction of.
            own_watts: The power that the own power of parts is a fraction of, for each kind and lag.
        """
        segments = self._segments([chunk.part], own_watts)
        of_part, seconds = self._held([chunk.part], segments)
        held = np.zeros_like(of_part)
        of_columns = np.zeros((len(LAGS_SECONDS), len(self._sums), self._columns))
        places = [self._sums.index(key) for key in keys]
        held[:, places] = of_part[:, [self._sums.index(chunk.part.key)]]
        of_columns[:, places] = padded(chunk.row, self._columns)[:, None]
        if tally is not None:
            places.append(place := self._sums.index(tally))
            for segment in segments:
                held[:, place, segment.slot] += segment.seconds
            of_columns[:, place] = padded(chunk.row[0], self._columns)
        self._add_held(held)
        self._mean[:, :, : len(self._sums), 1:] += of_columns
        self._covariance[:, :, np.array(places)[:, None], places] += scatter_squares(seconds) * (NOISE * watts) ** 2
        self._drop_slots()

    def _begin_sum(self, key: Hashable) -> None:
        self._insert(len(self._sums))
        self._sums.append(key)

    def _end_sum(self, key: Hashable) -> None:
        self._delete([self._sums.index(key)])
        self._sums.remove(key)


def scatter_squares(seconds: float) -> float:
    """Return the square of the scatter of an energy, for a scatter of the power by one watt."""
    return seconds * min(max(seconds, _MIN_NOISE_SECONDS), _NOISE_SECONDS)
