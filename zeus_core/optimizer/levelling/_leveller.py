"""Which setting each rank of a job needs so that none waits for another. Pure: it is told the times of steps."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

__all__ = ["Leveller"]

# The longest of several times that scatter is longer than the longest of their means: ranks that are exactly level make
# steps longer. Quick ranks are left so much quicker that steps get longer by this fraction at most, in the mean.
_LONGER_FRACTION = 0.002

_SHIFT_STEPS = 3  # in a row, all early or all late: one alone is a stray step, such as a slow batch
_SHIFT_ERRORS = 4.0  # by chance, a step is farther off than that once in 16,000, and three in a row never are
_MIN_SHIFT_FRACTION = 0.01
_SCATTER_STEPS = 64  # the latest ones of all ranks tell how far a step scatters
_FIRST_STEPS = 8  # of a rank are known before its first change
_SETTLING_STEPS = 1  # after a change, which takes effect within a step
_STANDARD_ERRORS = 1.0
_MIN_CHANGE_FRACTION = 0.01  # of a setting: a smaller change is not worth a call of the driver

# A setting bounds the speed: at a clock that is lower by 5 % work takes at most 5 % longer, and less if it waits for
# memory. So a rank is lowered in proportion to its lead, and what is left of the lead is measured. It is raised by more
# than in proportion, as it holds others up: a clock that is too high costs less than a step that is too long.
_RAISED_EXPONENT = 2.0
# Near the lowest limit of a board the time grows by up to twice the fraction that a power limit is lowered by; near its
# highest, by less than half of it (`zeus_core/device/simulated/_presets.py`, fitted to public measurements).
_LIMIT_LOWERED_EXPONENT = 0.5
_LIMIT_SHARED_EXPONENT = 1.5  # of limits that share a budget: each change takes away a third to all of the difference

# After each change that was undone, a rank waits so much longer for the next one. Thus of n steps in which nothing
# happens no more than some 6 log10(n) see a change, and not a share of them.
_BACK_OFF = 1.5


class _Rank:
    """A rank: its setting, and its share of the time of a step at it."""

    def __init__(self, settings: Sequence[int]) -> None:
        self.settings = settings
        self.setting = settings[0]
        self.needed_steps = float(_FIRST_STEPS)
        self.top = float(settings[0])  # what it really has at its highest setting
        self.effective = self.top
        self.forget()

    def forget(self) -> None:
        self.steps, self.mean = 0, 0.0
        self.latest: deque[float] = deque(maxlen=_SHIFT_STEPS)

    def add(self, share: float, effective: float) -> None:
        self.latest.append(share)
        self.steps += 1
        self.mean += (share - self.mean) / self.steps
        self.effective = min(effective, float(self.setting))
        if self.setting == self.settings[0]:
            self.top = self.effective

    def begin_anew(self) -> None:
        """Keep the latest steps alone."""
        kept = list(self.latest)
        self.forget()
        for share in kept:
            self.add(share, self.effective)

    @property
    def mean_before(self) -> float:
        """The mean without the latest steps."""
        return (self.mean * self.steps - sum(self.latest)) / (self.steps - len(self.latest))

    @property
    def least_at_top(self) -> float:
        """The time it would take at its highest setting, at least."""
        return self.mean * min(self.effective / self.top, 1.0)

    def at_least(self, setting: float) -> int:
        """Return its lowest setting that is not below a value; the highest one if all are, or if that has no effect."""
        if setting >= self.top:
            return self.settings[0]
        return next((own for own in reversed(self.settings) if own >= setting), self.settings[0])


class _Scatter:
    """The latest deviations of steps from their mean, as fractions."""

    def __init__(self, size: int) -> None:
        self._squares: deque[float] = deque(maxlen=size)
        self._sum = 0.0

    @property
    def is_unknown(self) -> bool:
        return not self._squares

    @property
    def deviation(self) -> float:
        return math.sqrt(max(self._sum, 0.0) / len(self._squares)) if self._squares else math.inf

    def add(self, deviation: float) -> None:
        if len(self._squares) == self._squares.maxlen:
            self._sum -= self._squares[0]
        self._squares.append(deviation**2)
        self._sum += deviation**2


class Leveller:
    """Chooses a setting for each rank: the lowest at which it does not hold the others up.

    A rank whose own work takes less time than that of the slowest one waits for it at each exchange. Its setting goes
    down until it takes as long, and up again once it holds others up. With a budget, the settings are power limits
    whose sum it is: it is divided so that all take the same time.

    All ranks are told the same, and so come to the same. A call takes some microseconds for each rank.

    Args:
        settings: The settings of each rank, highest first, which is the original one.
        are_limits: Whether they are power limits, and not clocks.
        budget: The highest sum of all; None for none.
    """

    def __init__(
        self, settings: Sequence[Sequence[int]], are_limits: bool = False, budget: float | None = None
    ) -> None:
        self._ranks = [_Rank(own) for own in settings]
        self._lowered_exponent = _LIMIT_LOWERED_EXPONENT if are_limits else 1.0
        self._budget = budget
        self._scatter = _Scatter(_SCATTER_STEPS * len(settings))
        self._settling_steps = 0
        self._shared_exponent = _LIMIT_SHARED_EXPONENT
        self._best_shared: tuple[float, list[int]] | None = None  # how far times were apart, and the limits
        self.changes: int = 0
        """How often settings were changed."""
        if budget is not None:
            share = min(1.0, budget / sum(own[0] for own in settings))
            for rank in self._ranks:
                rank.setting = _at_most(rank.settings, share * rank.settings[0])

    @property
    def settings(self) -> list[int]:
        """The setting that each rank is to have."""
        return [rank.setting for rank in self._ranks]

    def tell(self, own_seconds: Sequence[float], effective: Sequence[float] | None = None) -> bool:
        """Take in a step, and choose.

        Args:
            own_seconds: The time of the own work of each rank in it, without waiting for others.
            effective: The clock, or power, that each rank really had, where its setting is only a ceiling.

        Returns:
            Whether a setting has changed.
        """
        if self._settling_steps > 0:
            self._settling_steps -= 1
            return False
        usual = statistics.median(own_seconds)  # a batch that takes longer everywhere changes nothing
        for number, (rank, seconds) in enumerate(zip(self._ranks, own_seconds, strict=True)):
            rank.add(seconds / usual, math.inf if effective is None else effective[number])
        are_steady = {self._is_steady(rank) for rank in self._ranks}
        if False in are_steady or min(rank.steps for rank in self._ranks) < _SHIFT_STEPS or self._scatter.is_unknown:
            return False
        return self._apply(self._levelled() if self._budget is None else self._shared(self._budget))

    def _is_steady(self, rank: _Rank) -> bool:
        """Tell whether the latest step of a rank is like those before it, or like some that have begun a new time.

        Its work, or its GPU, may have changed; or it is a stray step. Learns from the others how far steps scatter.
        """
        if rank.steps < 2 * _SHIFT_STEPS:
            return True
        mean = rank.mean_before
        apart = [share / mean - 1 for share in rank.latest]
        limit = max(_SHIFT_ERRORS * self._stderr(1), _MIN_SHIFT_FRACTION)
        if min(apart) > limit or max(apart) < -limit:
            rank.begin_anew()
            rank.needed_steps = _FIRST_STEPS
            return True
        self._scatter.add(min(max(apart[-1], -limit), limit))  # a stray step is no scatter
        return abs(apart[-1]) <= limit

    def _stderr(self, steps: int) -> float:
        """Return the standard error of the mean of so many steps, as a fraction; infinite before anything is known."""
        return self._scatter.deviation / math.sqrt(steps)

    def _levelled(self) -> list[int]:
        """Return the settings at which all ranks take as long as the slowest one at its highest setting."""
        target = max(rank.least_at_top for rank in self._ranks)
        lead = _needed_lead(self._stderr(1), len(self._ranks))
        return [self._level(rank, target, lead) for rank in self._ranks]

    def _level(self, rank: _Rank, target: float, lead: float) -> int:
        error = _STANDARD_ERRORS * self._stderr(rank.steps)
        if rank.mean * (1 - error) > target:
            raised = rank.at_least(rank.effective * (rank.mean / target) ** _RAISED_EXPONENT)
            return max(raised, rank.setting)
        ratio = rank.mean * (1 + error) / (target * (1 - lead))
        enough = rank.effective * min(ratio, 1.0) ** self._lowered_exponent
        is_worth_it = enough < (1 - _MIN_CHANGE_FRACTION) * min(rank.setting, rank.effective)
        if not is_worth_it or rank.steps < rank.needed_steps:
            return rank.setting
        return min(rank.at_least(enough), rank.setting)

    def _shared(self, budget: float) -> list[int]:
        """Return limits with this sum that bring the times of all ranks closer together."""
        if any(rank.steps < rank.needed_steps for rank in self._ranks):
            return self.settings
        error = _STANDARD_ERRORS * self._stderr(min(rank.steps for rank in self._ranks))
        times = [rank.mean for rank in self._ranks]
        apart = max(times) / min(times)
        if apart <= 1 + max(2 * error, _MIN_CHANGE_FRACTION):
            return self.settings
        if self._best_shared is not None and apart > self._best_shared[0] * (1 + error):
            self._shared_exponent /= 2  # it was too much: near their lowest limits, boards slow down by more
            settings = self._best_shared[1]
            self._best_shared = None  # it is measured again, as the work may have changed
            return settings
        self._best_shared = apart, self.settings
        return self._within(budget)

    def _within(self, budget: float) -> list[int]:
        """Return the limits, with the budget as their sum, by which all take the same time as far as can be told."""

        def limits(seconds: float) -> list[int]:
            return [
                _at_most(rank.settings, rank.setting * (rank.mean / seconds) ** self._shared_exponent)
                for rank in self._ranks
            ]

        times = [rank.mean for rank in self._ranks]
        low, high = 0.5 * min(times), 2 * max(times)
        while sum(limits(high)) > budget and high < 1e6 * max(times):
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if sum(limits(middle)) <= budget else (middle, high)
        return limits(high)

    def _apply(self, wanted: Sequence[int]) -> bool:
        if list(wanted) == self.settings:
            return False
        for rank, setting in zip(self._ranks, wanted, strict=True):
            if setting > rank.setting or (self._budget is not None and setting != rank.setting):
                rank.needed_steps *= _BACK_OFF
            rank.setting = setting
            rank.forget()  # shares of a step change for all
        self.changes += 1
        self._settling_steps = _SETTLING_STEPS
        return True


def _needed_lead(scatter: float, ranks: int) -> float:
    """Return how much earlier than the slowest rank the others must be, as a fraction of a step.

    A rank that is earlier by m holds the others up by E[(d)+] in the mean, where d is Gaussian, with the mean -m and
    the standard deviation s = sqrt(2) times the scatter: s (phi(z) - z Phi(-z)) with z = m / s.
    """
    deviation = math.sqrt(2) * scatter
    if deviation == 0:
        return 0.0
    low, high = 0.0, 6.0
    for _ in range(30):
        middle = (low + high) / 2
        density = math.exp(-middle * middle / 2) / math.sqrt(2 * math.pi)
        late = deviation * (density - middle * math.erfc(middle / math.sqrt(2)) / 2)
        low, high = (middle, high) if (ranks - 1) * late > _LONGER_FRACTION else (low, middle)
    return high * deviation


def _at_most(settings: Sequence[int], value: float) -> int:
    """Return the highest setting that is not above a value; the lowest one if all are."""
    return next((setting for setting in settings if setting <= value), settings[-1])
