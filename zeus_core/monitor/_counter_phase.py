"""The moments at which an energy counter is updated, from few reads of it. Pure.

A counter is updated at phi + k T, give or take a jitter J. A read that shows a new value says that an update happened
between the begin of the previous read and the end of this one; such a bracket may be as wide as T. But all brackets
hold an update of one grid, so phi and T are soon known within a millisecond, and the energy at each update, a *knot*,
is exact: only the division of energy between two knots is not known.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["CounterPhase", "Knot"]

_REMEMBERED_UPDATES = 64  # enough for a period within 0.1 %; a phase that drifts is followed within some seconds
_PERIOD_TOLERANCE = 0.03  # how far the true period may be from the nominal one; boards are within 2 %
_PERIOD_STDERR = 0.015  # the same, as a standard error
_NARROW_FRACTION = 0.35  # of the period: a bracket that begins a phase
_JITTERS = 0.0005 * 2 ** np.arange(8.0)  # scales of the jitter, as fractions of the period: up to 6 %
_USUAL_JITTER = 4  # number of a scale: a larger one must be needed, 0.8 %
_MAX_JITTER_FRACTION = 0.04  # of the period: beyond, the grid tells no more than the brackets alone
_FEW_UPDATES = 8  # by then, the phase is known as well as it will be for a while
_NEWTON_STEPS = 6  # from the grid before, which is near
_FIT_TOLERANCE = 1.5  # of log-likelihood
_MOST_SURPRISING = 1 - 1e-12  # so that one update that is far out of step does not rule out every scale
_LOPSIDED = 0.3  # of the jitter: how far its mean can be from its middle
_FIT_EVERY = 4  # brackets
_WATCH_FRACTION = 1 / 12  # of the period: the time between two reads of the watch that finds the phase
_WATCH_READS = 15  # of one watch: one update at least is among them
_MAX_BURST_READS = 40
_GUARD = 1.5  # times the reach of an update: mistaking one for the next is worse than passing over it
_GUARD_FRACTION = 0.003  # of the period, on top of that
_BEYOND_FRACTION = 0.02  # of the period: a jitter of real boards
_SHARP_FRACTION = 0.03  # of the period: updates known less closely are looked for more often
_MAX_UNCLEAR = 6  # values in succession that cannot be told to be of one update
_MARGIN_SECONDS = 1e-3  # a thread wakes no more precisely

_Array = npt.NDArray[np.float64]


class Knot(NamedTuple):
    """A moment at which the energy is exactly known.

    Attributes:
        at: The moment, as far as it is known.
        half_width_seconds: How far it can be off.
        energy_joules: The counter.
        still_seconds: How long the counter was seen to stand still before it showed that.
    """

    at: float
    half_width_seconds: float
    energy_joules: float
    still_seconds: float = 0.0


class _Change(NamedTuple):
    """A value of the counter, and when the update that it is as of happened."""

    low: float
    high: float
    begin: float
    energy_joules: float
    still_seconds: float


class CounterPhase:
    """Follows the updates of one counter.

    Args:
        period_seconds: The nominal time between two updates.
        reads_per_second: How often the counter may be read, about.
        seed: Of the times of the reads, which must not be in step with the load.
    """

    is_of_power = False
    uncertainty_joules = 0.0

    def __init__(self, period_seconds: float, reads_per_second: float = 16.0, seed: int = 0) -> None:
        self._nominal_seconds = period_seconds
        self._random = random.Random(seed)
        self._reads_per_second = reads_per_second
        self._grid: _Grid | None = None  # None while it is not known
        self._brackets: deque[_Bracket] = deque(maxlen=_REMEMBERED_UPDATES)
        self._unfitted = 0
        self._unclear = 0
        self._last_begin: float | None = None
        self._last_joules = self._first_begin = self._shown_since = math.nan
        self._was_back = False
        self._changes: deque[_Change] = deque()
        self._latest_knot: int | None = None
        self._still_seconds = 0.0  # before changes that made no knot
        self._is_watching = True
        self._allowed_at = -math.inf
        self._allowance = float(_MAX_BURST_READS)
        self._sought: int | None = None  # the update that was looked for near its time
        self._next_sought: int | None = None

    @property
    def period_seconds(self) -> float:
        """The time between two updates, as far as it is known."""
        return self._nominal_seconds if self._grid is None else self._grid.period_seconds

    @property
    def is_known(self) -> bool:
        """Whether the updates are known more closely than by single reads."""
        return self._grid is not None and len(self._brackets) >= _FEW_UPDATES

    @property
    def half_width_seconds(self) -> float:
        """How far all knots can be off together, in the same direction."""
        if self._grid is None:
            return self.period_seconds / 2
        return 2 * self._grid.stderr_seconds(self._brackets[-1].number) + _LOPSIDED * self._grid.jitter_seconds

    def add(self, begin: float, end: float, energy_joules: float) -> None:
        """Take in a read of the counter, which was made between two moments."""
        if self._last_begin is not None and begin <= self._last_begin:
            return  # of another thread, which was overtaken
        last_begin, self._last_begin = self._last_begin, begin
        if energy_joules == self._last_joules:
            return
        is_back, self._last_joules = energy_joules < self._last_joules, energy_joules
        if is_back or self._was_back:  # it has begun again, or told nonsense: at any moment, not at an update
            self._was_back, self._shown_since = is_back, end
            return
        still_seconds = 0.0 if last_begin is None else last_begin - self._shown_since
        self._shown_since = end
        longest = (1 + _PERIOD_TOLERANCE) * self.period_seconds
        low = begin - longest if last_begin is None else max(last_begin, begin - longest)
        self._changes.append(_Change(low, end, begin, energy_joules, still_seconds))
        if last_begin is None:
            self._first_begin = begin
        else:
            self._learn(low, end)

    def knots_before(self, moment: float) -> list[Knot]:
        """Return the knots of the reads before a moment, each once. Later reads make them surer."""
        knots = []
        while self._changes and self._changes[0].begin < moment:
            knots += self._knots([self._changes.popleft()])
        return knots

    def pending_knots(self) -> list[Knot]:
        """Return the knots that `knots_before` has not returned yet, as far as they are known."""
        latest = self._latest_knot, self._still_seconds
        knots = self._knots(list(self._changes))
        self._latest_knot, self._still_seconds = latest
        return knots

    def next_read_at(self, now: float) -> float:
        """Return when the counter should be read next."""
        most = 1.1 * self._reads_per_second
        self._allowance = min(self._allowance + most * (now - self._allowed_at), _MAX_BURST_READS)
        self._allowed_at = now
        self._allowance -= 1
        at, allowed_at = self._wanted_read_at(now), now + (1 - self._allowance) / most
        if at >= allowed_at or self._allowance >= 1:
            return at
        if self._grid is None:
            return allowed_at
        self._sought = self._next_sought = None  # else a read amid updates would tell nothing
        return self._after(self._grid, self._grid.number_near(allowed_at) + 1)

    def _wanted_read_at(self, now: float) -> float:
        if self._grid is not None:
            return max(self._next_known_read_at(now, self._grid), now)
        if not 1 <= self._allowance < _WATCH_READS:
            self._is_watching = self._allowance >= 1
        if self._is_watching:
            return now + self.period_seconds * _WATCH_FRACTION
        return now + self._random.uniform(1.2, 2.8) / self._reads_per_second  # saves up for the next watch

    def _next_known_read_at(self, now: float, grid: _Grid) -> float:
        period, last = grid.period_seconds, self._brackets[-1].number
        sought, self._sought = self._sought, None
        if sought is not None and last < sought and (at := self._after(grid, sought)) > now:
            return at
        if self._next_sought is not None:
            self._sought, self._next_sought = self._next_sought, None
            return self._near(grid, self._sought)
        number = max(last, math.floor((now - self._after(grid, last)) / period) + last)
        is_sharp = grid.reach_seconds(number + 1) < _SHARP_FRACTION * period
        if period * self._reads_per_second > 1.3:  # each update is read
            if not is_sharp or self._random.random() < 0.6:
                self._sought = number + 1
                return self._near(grid, self._sought)
            return self._after(grid, number + 1)
        between = 1.5 / self._reads_per_second  # a fifth of the reads look for the phase
        skipped = max(1, round(between / period * self._random.uniform(0.6, 1.4)))
        while skipped > 1 and grid.reach_seconds(number + skipped) > period / 4:
            skipped -= 1  # else the update could be taken for another
        if not is_sharp or self._random.random() < 0.3:
            self._next_sought = number + skipped + 1
        return self._after(grid, number + skipped)

    def _after(self, grid: _Grid, number: int) -> float:
        """Return when an update has surely happened."""
        return grid.at(number) + _GUARD * grid.reach_seconds(number) + _MARGIN_SECONDS

    def _near(self, grid: _Grid, number: int) -> float:
        """Return a time near an update: whether it has happened by then tells the phase."""
        reach = grid.reach_seconds(number)
        # Some of them look beyond the jitter that is known, for that which is not.
        reach = 0.6 * reach if self._random.random() < 0.7 else reach + _BEYOND_FRACTION * grid.period_seconds
        return grid.at(number) + reach * self._random.uniform(-1.0, 1.0)

    def _knots(self, changes: Sequence[_Change]) -> list[Knot]:
        knots = []
        for change in changes:
            self._still_seconds = max(self._still_seconds, change.still_seconds)
            knot = self._knot(change)
            if knot is not None:
                knots.append(knot._replace(still_seconds=self._still_seconds))
                self._still_seconds = 0.0
        return knots

    def _knot(self, change: _Change) -> Knot | None:
        low, high = change.low, change.high
        if self._grid is not None:
            number = self._number(self._grid, low, high, self._latest_knot)
            if number is None:  # the first one says where all begins
                is_first = change.begin == self._first_begin
                return _knot_of(change, low, high) if is_first else None
            self._latest_knot = number
            at, reach = self._grid.at(number), self._grid.reach_seconds(number)
            if max(low, at - reach) <= min(high, at + reach):  # else the update was out of step
                low, high = max(low, at - reach), min(high, at + reach)
        return _knot_of(change, low, high)

    def _number(self, grid: _Grid, low: float, high: float, latest: int | None) -> int | None:
        """Return the number of the latest update in a bracket; None if it could be one of two.

        Args:
            grid: The grid.
            low: The begin of the bracket.
            high: The end of the bracket.
            latest: The number of an update that was seen before.
        """
        near = grid.number_near(high)
        distances: dict[int, float] = {}
        for number in range(near - 2, near + 2):
            if latest is None or number > latest:
                at = grid.at(number)
                reach = _GUARD * grid.reach_seconds(number) + _GUARD_FRACTION * grid.period_seconds
                if at - reach <= high and at + reach >= low:
                    is_clear = at + reach <= high
                    if is_clear:
                        distances.clear()
                    distances[number] = 0.0
                elif not any(distance == 0 for distance in distances.values()):
                    distances[number] = max(low - at, at - high)
        inside = [number for number, distance in distances.items() if distance == 0]
        if len(inside) > 1 or not distances:
            return None
        return min(distances, key=lambda number: distances[number])

    def _learn(self, low: float, high: float) -> None:
        if self._grid is None:
            if high - low <= _NARROW_FRACTION * self._nominal_seconds:
                self._brackets.clear()
                self._brackets.append(_Bracket(0, low, high))
                self._grid = _Grid(self._brackets, self._nominal_seconds)
                self._unclear, self._latest_knot, self._sought, self._next_sought = 0, None, None, None
            return
        number = self._number(self._grid, low, high, self._brackets[-1].number)
        self._unclear = 0 if number is not None else self._unclear + 1
        if number is not None:
            at, reach = self._grid.at(number), self._grid.reach_seconds(number)
            self._brackets.append(_Bracket(number, low, high))
            self._unfitted += 1
            if at - reach < low or at + reach > high or self._unfitted >= _FIT_EVERY:  # it tells something new
                self._grid = _Grid(self._brackets, self._nominal_seconds, self._grid)
                self._unfitted = 0
        nominal, period = self._nominal_seconds, self._grid.period_seconds
        is_wild = self._grid.jitter_seconds > _MAX_JITTER_FRACTION * nominal
        if self._unclear > _MAX_UNCLEAR or is_wild or abs(period - nominal) > _PERIOD_TOLERANCE * nominal:
            self._grid = None


def _knot_of(change: _Change, low: float, high: float) -> Knot:
    return Knot((low + high) / 2, (high - low) / 2, change.energy_joules)


class _Bracket(NamedTuple):
    number: int  # of the update
    low: float
    high: float


class _Grid:
    """The grid phi + k T of the updates, and their jitter: a logistic regression of what was seen when.

    An update with number k had not happened at the low end of its bracket, and had at the high end:

        P(not yet at low) = f((phi + k T - low) / s),   P(happened by high) = f((high - phi - k T) / s),
        f(x) = 1 / (1 + exp(-x))

    The largest scale s that explains the brackets about as well as the best one counts: few brackets fit any grid.

    Attributes:
        period_seconds: T.
        jitter_seconds: s; nearly all updates are within three times that.
    """

    def __init__(self, brackets: Sequence[_Bracket], nominal_seconds: float, previous: _Grid | None = None) -> None:
        numbers, lows, highs = (np.array(column, float) for column in zip(*brackets, strict=True))
        self._last = int(numbers[-1])
        numbers -= self._last
        powers = numbers[:, None] ** np.arange(3.0)
        scales = nominal_seconds * _JITTERS[:, None]
        anchor = lows[-1]
        first_phi = (highs[-1] - lows[-1]) / 2 if previous is None else previous.at(self._last) - anchor
        phi = np.full_like(scales, first_phi)
        period = np.full_like(scales, nominal_seconds if previous is None else previous.period_seconds)
        precision = (_PERIOD_STDERR * nominal_seconds) ** -2
        variance = np.full_like(scales, ((highs - lows).min() / 4) ** 2)  # of the time of each update
        least_weight = 1e-3 / (highs - lows) ** 2  # a thousandth of that of a uniform distribution, so that it is not 0
        beyond = np.empty((2, len(scales), len(lows)))  # how far an update is before its bracket, and behind it
        for _ in range(_NEWTON_STEPS):
            at = phi + numbers * period + anchor
            np.subtract(lows, at, out=beyond[0])
            np.subtract(at, highs, out=beyond[1])
            wide = np.sqrt(scales**2 + math.pi / 8 * variance)
            early, late = surprise = _logistic(beyond / wide)
            weight = (surprise * (1 - surprise)).sum(axis=0) / (scales * wide) + least_weight
            a, b, c = (weight @ powers).T[:, :, None]
            c = c + precision
            u, v = (((early - late) / scales) @ powers[:, :2]).T[:, :, None]
            v = v + precision * (nominal_seconds - period)
            determinant = a * c - b * b
            phi_step = (c * u - b * v) / determinant
            period_step = (a * v - b * u) / determinant
            longest = np.maximum(np.abs(phi_step), np.abs(phi_step + numbers[0] * period_step))
            damping = np.minimum(1.0, 3 * wide.min(axis=1, keepdims=True) / np.maximum(longest, 1e-12))
            phi = phi + damping * phi_step
            period = period + damping * period_step
            variance = (c - 2 * numbers * b + powers[:, 2] * a) / determinant
        surprise = _logistic(beyond / scales)
        fit = np.log1p(-np.minimum(surprise, _MOST_SURPRISING)).sum(axis=(0, 2))
        fitting = np.flatnonzero(fit >= fit.max() - _FIT_TOLERANCE)
        chosen = int(max(fitting[0], min(fitting[-1], _USUAL_JITTER)))
        self.period_seconds: float = float(period[chosen, 0])
        self.jitter_seconds = float(scales[chosen, 0])
        self._origin = float(phi[chosen, 0]) + float(anchor)
        self._variance = float(c[chosen, 0] / determinant[chosen, 0])
        self._covariance = -float(b[chosen, 0] / determinant[chosen, 0])
        self._period_variance = float(a[chosen, 0] / determinant[chosen, 0])

    def number_near(self, moment: float) -> int:
        """Return the number of the update nearest to a moment."""
        return self._last + round((moment - self._origin) / self.period_seconds)

    def at(self, number: int) -> float:
        """Return the likeliest time of an update."""
        return self._origin + (number - self._last) * self.period_seconds

    def stderr_seconds(self, number: int) -> float:
        """Return the standard error of that, without the jitter."""
        distance = number - self._last
        variance = self._variance + 2 * distance * self._covariance + distance**2 * self._period_variance
        return math.sqrt(max(variance, 0.0))

    def reach_seconds(self, number: int) -> float:
        """Return how far an update can be from its likeliest time."""
        return 2 * self.stderr_seconds(number) + 3 * self.jitter_seconds


def _logistic(x: _Array) -> _Array:
    result: _Array = 0.5 + 0.5 * np.tanh(0.5 * x)
    return result
