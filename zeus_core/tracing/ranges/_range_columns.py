"""The time in classes of ranges between updates of a counter: the columns of a regression. Pure.

The energy of a stretch of a class is a power times its duration, and an energy that is the same each time, however long
the stretch takes: a GPU that waits for a busy machine rests in the longer ones. It may rest at their end, at their
beginning, or all along: that energy has three columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Key = tuple[str, ...]
"""A class: the names of what is under way."""

Array = npt.NDArray[np.float64]

# Both by simulated ranges that take 3 % to five times longer while the GPU does the same: where 10 % went without these
# columns, steps nearly in step with the counter were up to five times the uncertainty off.
_SHORT_FRACTION = 0.02  # of the time of a class: so much is in the stretches in which the device waits least
_VARIED_FRACTION = 0.02  # of the time of a class: with less than that to wait in, its power is taken to be the same


@dataclass(frozen=True)
class Stretch:
    """A time of one class, until the next one begins.

    Attributes:
        begin: Its beginning, in seconds of the trace of the counter.
        key: Its class.
    """

    begin: float
    key: Key


class Columns:
    """The columns of all classes: the seconds of each, and then those of energies that are the same in each stretch.

    The latter have the sum 0 over a class: they move its energy from some stretches to others.

    Args:
        stretches: The classes in time, which follow each other without gaps.
        end: Where the last of them ends.
    """

    def __init__(self, stretches: Sequence[Stretch], end: float) -> None:
        merged = [next(same) for _, same in itertools.groupby(stretches, lambda stretch: stretch.key)]
        self.numbers: Mapping[Key, int] = {
            key: number for number, key in enumerate(dict.fromkeys(stretch.key for stretch in merged))
        }
        classes = np.array([self.numbers[stretch.key] for stretch in merged])
        moments = np.array([*(stretch.begin for stretch in merged), end])
        of_time: list[_Steps] = []
        of_stretches: list[_Steps] = []
        for number in range(len(self.numbers)):
            begins, ends = moments[:-1][classes == number], moments[1:][classes == number]
            of_time.append(_Steps.of(begins, ends, ends, 1.0, 0.0, ran_before=number == 0))
            of_stretches += _same_each_time(begins, ends)
        self._columns = [*of_time, *of_stretches]

    @property
    def size(self) -> int:
        """How many columns there are."""
        return len(self._columns)

    def following(self, lag_seconds: float) -> Callable[[Array], Array]:
        """Return the function from intervals to their columns, for a power that follows the work with a lag."""
        integrals = [column.following(lag_seconds) for column in self._columns]

        def between(times: Array) -> Array:
            return np.stack([up_to(times[:, 1]) - up_to(times[:, 0]) for up_to in integrals], axis=1)

        return between


def _same_each_time(begins: Array, ends: Array) -> list[_Steps]:
    """Return the columns of an energy that is the same in each stretch; none if all take about as long."""
    durations = ends - begins
    in_order = np.sort(durations)
    by_time = in_order.cumsum()
    short = in_order[np.searchsorted(by_time, _SHORT_FRACTION * by_time[-1])]
    at_work = np.minimum(durations, short)  # shorter ones are parts of a stretch that something cut
    mean = at_work.sum() / by_time[-1]
    if mean > 1 - _VARIED_FRACTION:
        return []
    return [
        _Steps.of(begins, begins + at_work, ends, 1 - mean, -mean),
        _Steps.of(begins, ends - at_work, ends, -mean, 1 - mean),
        _Steps.of(begins, ends, ends, at_work / durations - mean, 0.0),
    ]


class _Steps:
    """A step function of time.

    Args:
        moments: Where each value begins.
        values: The values; the last is 0.
        before: The value before the first moment.
    """

    def __init__(self, moments: Array, values: Array, before: float) -> None:
        self._moments, self._values, self._before = moments, values, before
        self._sums = np.concatenate([[0.0], (values[:-1] * np.diff(moments)).cumsum()])

    @classmethod
    def of(
        cls,
        begins: Array,
        middles: Array,
        ends: Array,
        first: Array | float,
        second: Array | float,
        ran_before: bool = False,
    ) -> _Steps:
        """Return the function that has one value from each begin to its middle, another until its end, and else 0."""
        values = np.zeros((len(begins), 3))
        values[:, 0], values[:, 1] = first, second
        moments = np.stack([begins, middles, ends], axis=1)
        return cls(moments.ravel(), values.ravel(), values[0, 0] if ran_before else 0.0)

    def following(self, lag_seconds: float) -> Callable[[Array], Array]:
        """Return the integral, up to any moment, of what follows the function with a lag."""
        if lag_seconds == 0:
            return self._up_to
        kept = np.exp(-np.diff(self._moments) / lag_seconds)
        pairs = zip(kept.tolist(), ((1 - kept) * self._values[:-1]).tolist(), strict=True)
        states = itertools.accumulate(pairs, lambda state, pair: pair[0] * state + pair[1], initial=self._before)
        followed = np.array(list(states))

        def up_to(moments: Array) -> Array:
            place, since = self._place(moments)
            share = np.exp(-since / lag_seconds)
            now = share * followed[place] + (1 - share) * self._values[place]
            integral: Array = self._up_to(moments) - lag_seconds * now
            return integral

        return up_to

    def _up_to(self, moments: Array) -> Array:
        place, since = self._place(moments)
        integral: Array = self._sums[place] + self._values[place] * since
        return integral

    def _place(self, moments: Array) -> tuple[npt.NDArray[np.intp], Array]:
        """Return which value is in force at each moment, and since when."""
        place = np.maximum(np.searchsorted(self._moments, moments, side="right") - 1, 0)
        return place, np.maximum(moments - self._moments[place], 0.0)
