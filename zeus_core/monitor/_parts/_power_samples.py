"""The energy of parts by samples of the power, while the counter tells nothing. Pure.

A sensor shows the power of up to a while ago, so a sample is of a part only if that has begun long enough before. Such
samples hold from the middle between them and the one before to the middle between them and the next, at both ends of a
part as far as it goes. A change of the power is somewhere between two samples, so that each of them leaves the energy
as uncertain as it is large, and as the time is long in which it can lie.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from zeus_core.monitor._integral import SENSOR_DELAY_SECONDS
from zeus_core.monitor._parts._part import Part

__all__ = ["PowerSamples", "Sampled"]

_MOST_SAMPLES = 4096  # some ten minutes; then every other one is dropped, and taken from then on
# Times the root of the sum of squares of what each change can be late by, a standard error: in `_integral`, 95 % of
# parts of 0.1 to 3 s are off by 0.2 to 0.3 of that root.
_CHANGES = 0.15
_UNSEEN_CHANGE = 0.3  # of the power: the change that is expected in a part of which there is one sample
_BURSTS = 0.0025  # of the highest power, a standard error: bursts of milliseconds show in no sample


class Sampled(NamedTuple):
    """The energy of a part by samples of its power.

    Attributes:
        energy_joules: The energy.
        stderr_joules: The standard error of that, as far as the samples tell how much the power changes.
        samples: How many samples there are.
        changes_watts2: The sum of the squares of the changes from each of them to the next.
        unshown_seconds: The standard error, for each watt by which steps are unlike: samples show some steps only.
    """

    energy_joules: float
    stderr_joules: float
    samples: int
    changes_watts2: float
    unshown_seconds: float


class PowerSamples:
    """The samples of the power of one GPU since all was settled.

    Args:
        average_seconds: The time that each power is the mean of.
        peak_watts: The most the GPU can draw.
    """

    def __init__(self, average_seconds: float, peak_watts: float) -> None:
        self._peak_watts = peak_watts
        self._delay_seconds = average_seconds + SENSOR_DELAY_SECONDS
        self._moments: list[float] = []
        self._watts: list[float] = []
        self._next_at = -math.inf  # earlier ones are too many
        self._wait_seconds = 0.0

    def __len__(self) -> int:
        return len(self._moments)

    def add(self, begin: float, end: float, power_watts: float) -> None:
        """Take in a read of the power, which was made between two moments."""
        at = (begin + end) / 2
        if at <= self._next_at:
            return  # or it is of another thread, which was overtaken
        if len(self) == _MOST_SAMPLES:
            del self._moments[1::2], self._watts[1::2]
            self._wait_seconds = 0.75 * (at - self._moments[0]) / len(self)  # with some room for their scatter
        self._moments.append(at)
        self._watts.append(power_watts)
        self._next_at = at + self._wait_seconds

    def forget_before(self, moment: float) -> None:
        """Drop the samples of times that are settled."""
        first = bisect.bisect_right(self._moments, moment)
        self._wait_seconds = 0.0
        del self._moments[:first], self._watts[:first]

    def of_parts(self, begin: float, parts: Sequence[Part]) -> list[Sampled | None]:
        """Return what the samples tell of each part; None where there is none.

        Args:
            begin: When the first part begins.
            parts: One after the other.
        """
        if not self._moments:  # as always while the counter is sound
            return [None] * len(parts)
        begins = itertools.accumulate((part.seconds for part in parts), initial=begin)
        return [self._of_part(*of_part) for of_part in zip(begins, parts, strict=False)]

    def _of_part(self, begin: float, part: Part) -> Sampled | None:
        end = begin + part.seconds
        first = bisect.bisect_left(self._moments, begin + self._delay_seconds)
        last = bisect.bisect_right(self._moments, end)
        if first >= last:
            return None
        watts = self._watts[first:last]
        moments = [at - self._delay_seconds / 2 for at in self._moments[first:last]]
        middles = [(earlier + later) / 2 for earlier, later in itertools.pairwise(moments)]
        held = [until - since for since, until in itertools.pairwise([begin, *middles, end])]
        joules = sum(power * seconds for power, seconds in zip(watts, held, strict=True))
        changes = [later - earlier for earlier, later in itertools.pairwise(watts)]
        changes_watts2 = sum(change**2 for change in changes)
        unseen_watts = math.sqrt((changes_watts2 + (_UNSEEN_CHANGE * max(watts)) ** 2) / len(watts))
        changes = [unseen_watts, *changes, unseen_watts]
        waits = [later - earlier for earlier, later in itertools.pairwise([begin, *moments, end])]
        late = [change * (wait + self._delay_seconds) for change, wait in zip(changes, waits, strict=True)]
        stderr_joules = _CHANGES * math.hypot(*late) + _BURSTS * self._peak_watts * part.seconds
        unshown = max(1 / len(watts) - 1 / part.steps, 0.0)  # variance of the mean of some of all steps, for 1 W
        return Sampled(joules, stderr_joules, len(watts), changes_watts2, part.seconds * math.sqrt(unshown))
