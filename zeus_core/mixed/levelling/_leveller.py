"""Which setting each rank of a job needs so that none waits for another, by the times of steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from zeus_core.mixed.levelling._rank_times import RankTimes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]
    _Places = NDArray[np.int64]


# The longest of several times that scatter is longer than the longest of their means: ranks that are exactly level make
# steps longer. The promise is 0.002 of a step, for the mean of each run. Settings are chosen such that steps get longer
# by the first fraction as far as is known, and raised once it is more than the second; between the two, what was chosen
# stays. Of many ranks, some seem quicker than they are while few steps are known: all are taken to be slower by this
# share of a standard error. In 48 runs at each of four scatters, the longest was 0.0018 (benchmarks/levelling.py).
_CHOSEN_LONGER_FRACTION = 0.0015
_CAUTION_ERRORS = 0.4
_MAX_LONGER_FRACTION = 0.0018
_HALVINGS = 11  # of a few percent of a step: to some millionths

_FIRST_STEPS = 8  # of all ranks are known before the first change
_MIN_STEPS = 3  # after a change, which takes effect within a step
_SETTLING_STEPS = 1
_CERTAIN_ERRORS = 2.0
_MIN_CHANGE_FRACTION = 0.004  # of a setting: a smaller change is not worth a call of the driver

# After each change that was undone, a rank waits so much longer for the next one; and after each change, all ranks do,
# until one is seen to be slower or quicker than before. Thus of n steps in which nothing happens no more than some
# 6 log10(n) can see a change, and not a share of them.
_BACK_OFF = 1.5

_LIMIT_SHARED_EXPONENT = 1.5  # of limits that share a budget: each change takes away a third to all of the difference
_MIN_APART_FRACTION = 0.006  # of times that are to be equal: limits 5 W apart are up to 0.8 % of time apart

_REACH = 6.0  # standard deviations, beyond which a time lies once in a billion cases
_POINTS = 33  # of the integral: within 1e-3 of a standard deviation of what 1,000 give, for 2 to 1,024 times

_AWAY = np.linspace(-_REACH, _REACH, 601)
_SHARE = np.array([0.5 * math.erfc(-away / math.sqrt(2)) for away in _AWAY])  # of a Gaussian that is below


class Leveller:
    """Chooses a setting for each rank: the lowest at which it does not hold the others up.

    A rank whose own work takes less time than that of the slowest one waits for it at each exchange. Its setting goes
    down until it takes as long, and up again once it holds others up. With a budget, the settings are power limits
    whose sum it is: it is divided so that all take the same time.

    All ranks get the same times, and so choose the same. On a busy machine a call took 0.4 to 0.6 ms for 1,024 ranks;
    where it chooses, some ten times in a run, 27 to 208 ms.

    Args:
        settings: The settings of each rank, highest first, which is the original one.
        are_limits: Whether they are power limits, and not clocks.
        budget: The highest sum of all; None for none.
    """

    def __init__(
        self, settings: Sequence[Sequence[int]], are_limits: bool = False, budget: float | None = None
    ) -> None:
        longest = max(map(len, settings))
        padded = [[*own, *[own[-1]] * (longest - len(own))] for own in settings]
        self._settings: _Numbers = np.array(padded, dtype=float)
        self._last: _Places = np.array([len(own) - 1 for own in settings])
        self._budget = budget
        self._needed_steps: _Numbers = np.full(len(settings), float(_MIN_STEPS))
        self._settling_steps = 0
        self._quiet_steps = 0  # since something has changed
        self._asked_steps = float(_FIRST_STEPS)  # of these, when it is asked next
        self._patience_steps = float(_MIN_STEPS)
        self._shared_exponent = _LIMIT_SHARED_EXPONENT
        self._best_shared: tuple[float, _Places] | None = None  # how far times were apart, and the limits
        self._places: _Places = np.zeros(len(settings), dtype=np.int64)
        if budget is not None:
            self._places = self._at_most(min(1.0, budget / self._settings[:, 0].sum()) * self._settings[:, 0])
        self._times = RankTimes(self._in_force, are_limits)
        self.changes: int = 0
        """How often settings were changed."""

    @property
    def settings(self) -> list[int]:
        """The setting that each rank is to have."""
        return [int(setting) for setting in self._in_force]

    @property
    def _in_force(self) -> _Numbers:
        return np.take_along_axis(self._settings, self._places[:, None], axis=1)[:, 0]

    def add_step(self, own_seconds: Sequence[float], effective: Sequence[float] | None = None) -> bool:
        """Add a step, and choose.

        Args:
            own_seconds: The time of the own work of each rank in it, without waiting for others.
            effective: The clock, or power, that each rank really had, where its setting is only a ceiling.

        Returns:
            Whether a setting has changed.
        """
        if self._settling_steps > 0:
            self._settling_steps -= 1
            return False
        setting, times = self._in_force, self._times
        had = setting if effective is None else np.minimum(np.asarray(effective, dtype=float), setting)
        has_shifted, is_stray = times.add_step(np.asarray(own_seconds, dtype=float), had, self._places == 0)
        self._quiet_steps += 1
        if has_shifted.any():
            self._needed_steps[has_shifted] = _MIN_STEPS
            self._asked_steps, self._patience_steps = 0.0, float(_MIN_STEPS)
        if is_stray or math.isnan(times.scatter) or times.steps.min() < min(_MIN_STEPS, self._asked_steps or 3):
            return False
        return self._apply(self._levelled() if self._budget is None else self._shared(self._budget))

    def _levelled(self) -> _Places:
        """Return the places of the settings at which steps last as long as with the highest ones."""
        times = self._times
        longest = times.top_seconds.max()
        certain = times.seconds * (1 - _CERTAIN_ERRORS * times.errors)
        is_late = bool((certain[self._places > 0] > (1 + _MAX_LONGER_FRACTION) * longest).any())
        if not is_late and self._quiet_steps < self._asked_steps:
            return self._places
        self._asked_steps = max(self._quiet_steps * _BACK_OFF, float(_MIN_STEPS))
        errors = times.errors_at(self._settings)
        predicted = times.predicted(self._settings) * (1 + _CAUTION_ERRORS * errors)
        top = mean_longest(times.top_seconds, times.top_deviations)
        chosen = self._lowest_within((1 + _CHOSEN_LONGER_FRACTION) * top, longest, predicted, errors)
        now = mean_longest(times.seconds, times.deviations(times.seconds, times.errors))
        if not is_late and now <= (1 + _MAX_LONGER_FRACTION) * top:
            chosen = np.maximum(chosen, self._places)
        is_allowed = times.steps >= self._needed_steps
        lower = np.take_along_axis(self._settings, chosen[:, None], axis=1)[:, 0]
        is_worth_it = lower < (1 - _MIN_CHANGE_FRACTION) * times.effective
        return np.where((chosen > self._places) & ~(is_allowed & is_worth_it), self._places, chosen)

    def _lowest_within(self, mean_seconds: float, longest: float, predicted: _Numbers, errors: _Numbers) -> _Places:
        """Return the lowest places with at most this mean of the longest time: all as long as one time, or shorter."""
        ranks = np.arange(len(predicted))

        def places(seconds: float) -> _Places:
            return np.asarray(np.clip((predicted <= seconds).sum(axis=1) - 1, 0, self._last))

        low, high = longest * (1 - 8 * self._times.scatter) * 0.98, longest * (1 + _CHOSEN_LONGER_FRACTION)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            chosen = places(middle)
            seconds = predicted[ranks, chosen]
            is_short = mean_longest(seconds, self._times.deviations(seconds, errors[ranks, chosen])) <= mean_seconds
            low, high = (middle, high) if is_short else (low, middle)
        return places(low)

    def _shared(self, budget: float) -> _Places:
        """Return the places of limits with this sum that bring the times of all ranks closer together."""
        times = self._times
        if (times.steps < np.maximum(self._needed_steps, _FIRST_STEPS)).any():
            return self._places
        error = times.scatter / math.sqrt(times.steps.min())
        apart = float(times.seconds.max() / times.seconds.min())
        if apart <= 1 + max(2 * error, _MIN_APART_FRACTION):
            return self._places
        if self._best_shared is not None and apart > self._best_shared[0] * (1 + error):
            self._shared_exponent /= 2  # it was too much: near their lowest limits, boards slow down by more
            places = self._best_shared[1]
            self._best_shared = None  # it is measured again, as the work may have changed
            return places
        self._best_shared = apart, self._places
        return self._within(budget)

    def _within(self, budget: float) -> _Places:
        """Return the places of limits with this sum by which all take the same time, by the times so far."""
        seconds, in_force = self._times.seconds, self._in_force

        def places(equal_seconds: float) -> _Places:
            return self._at_most(in_force * (seconds / equal_seconds) ** self._shared_exponent)

        def watts(equal_seconds: float) -> float:
            return float(self._settings[np.arange(len(seconds)), places(equal_seconds)].sum())

        low, high = 0.5 * float(seconds.min()), 2 * float(seconds.max())
        while watts(high) > budget and high < 1e6 * seconds.max():
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if watts(middle) <= budget else (middle, high)
        return places(high)

    def _at_most(self, values: _Numbers) -> _Places:
        """Return the places of the highest settings that are not above some values, or of the lowest."""
        return np.asarray(np.minimum((self._settings > values[:, None]).sum(axis=1), self._last))

    def _apply(self, wanted: _Places) -> bool:
        is_changed = wanted != self._places
        if not is_changed.any():
            return False
        is_undone = wanted < self._places if self._budget is None else is_changed
        self._needed_steps[is_undone] *= _BACK_OFF
        self._places = wanted
        self._times.change(is_changed, self._in_force)
        self.changes += 1
        self._settling_steps = _SETTLING_STEPS
        self._quiet_steps, self._asked_steps = 0, self._patience_steps
        self._patience_steps *= _BACK_OFF
        return True


def mean_longest(means: _Numbers, deviations: _Numbers) -> float:
    """Return the mean of the longest of some times, which are independent and Gaussian.

    With the probability F(t) = prod_i Phi((t - mean_i) / deviation_i) that all are below t, and an upper end h above
    which none lies, the mean is h - the integral of F up to h, by the trapezoidal rule.

    Args:
        means: Their means.
        deviations: Their standard deviations.
    """
    reach = _REACH * deviations
    low, high = float((means - reach).max()), float((means + reach).max())
    if high <= low or not deviations.any():
        return float(means.max())
    may_be_longest = means + reach > low
    means, deviations = means[may_be_longest], np.maximum(deviations[may_be_longest], 1e-12 * high)
    points = np.linspace(low, high, _POINTS)
    below = np.interp((points[:, None] - means) / deviations, _AWAY, _SHARE).prod(axis=1)
    width = (high - low) / (_POINTS - 1)
    return high - float(below.sum() - (below[0] + below[-1]) / 2) * width
