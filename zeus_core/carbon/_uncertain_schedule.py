"""Cost of each setting now, and of the rest of the steps later, where the course of the signal is not known for sure.

A schedule for the expected course would wait for a gain that may not come, and could not change its mind when it does
not. So each interval has some values that the signal may have, from which it goes on to those of the next (a Markov
chain of the same mean, variance and persistence), and the cost C of w steps left, at the value v of interval i, is

    C_i(v, w) = min over the points p of  v P_p s_p + E[C_i+1(v', w - S_p s_p)]

with the power P and the speed S of a point, and the seconds s_p at it: the interval, or less if the work ends within.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zeus_core.carbon._forecasts import SignalCourse
from zeus_core.carbon.operating_points import TrainingPoint

_Floats = npt.NDArray[np.float64]

_VALUES = 9
_AMOUNTS = 48  # of steps left
# The model is an estimate, too: later values count as dearer by so many standard deviations. Of 0, 0.3 and 1, in 8 runs
# each of benchmarks/carbon_replay.py at twice the time (2026-11-26), 0.3 had the largest share of foresight's gain with
# prices below 0 (66, 85, 64 %); on wind that forgets the worst run lost 3 % with it, and 27 % without.
_CAUTION = 0.3


def expected_costs(hull: Sequence[TrainingPoint], seconds: _Floats, course: SignalCourse, steps: float) -> _Floats:
    """Return what the steps left are expected to cost if the first interval is spent at each point.

    Args:
        hull: The points, slowest first.
        seconds: The durations of the intervals, from now to the deadline.
        course: The values in them. That of the first is taken for certain. Below 0 electricity is taken to be free.
        steps: The steps left.

    Returns:
        In joules times the unit of the signal; infinite for points after which the deadline cannot be kept.
    """
    speeds = np.array([[point.steps_per_second] for point in hull])
    watts = np.array([[point.power_watts] for point in hull])
    size, count = _VALUES, _AMOUNTS
    departures = np.linspace(-1.0, 1.0, size) * math.sqrt(size - 1)
    values = np.maximum(course.mean[:, None] + course.deviation[:, None] * (_CAUTION + departures), 0.0)
    values[0] = max(course.mean[0], 0.0)
    chains = _chains(np.append(course.persistence[1:], 0.0), size)
    # What is certain now says nothing on the departure of the next value from what is expected of it.
    chains[0] = _chains(np.zeros(1), size)[0]
    # The most steps that can be left at the begin of each interval; none after the last.
    most = np.minimum(np.append(np.cumsum(seconds[::-1])[::-1], 0.0) * speeds[-1, 0], steps)
    later: _Floats | None = None  # expected at the begin of the next interval, by value and by steps left
    for number in range(len(seconds) - 1, -1, -1):
        amounts = most[number] * np.linspace(0.0, 1.0, count) if number else np.array([steps])
        done = speeds * seconds[number]
        used = np.where(done > amounts, amounts / np.where(done > 0, done, 1.0), 1.0) * (amounts > 0)
        rest = np.maximum(amounts - done, 0.0)
        costs = values[number][:, None, None] * (watts * seconds[number] * used)
        if later is not None:
            place = np.minimum(rest / most[number + 1], 1.0) * (count - 1)
            below = np.minimum(place.astype(int), count - 2)
            share = place - below
            expected = chains[number] @ later
            costs = costs + (1 - share) * expected[:, below] + share * expected[:, below + 1]
        costs = np.where(rest > most[number + 1] * (1 + 1e-9) + 1e-9 * steps, np.inf, costs)
        if number:
            later = costs.min(axis=1)
    first: _Floats = costs[0, :, 0]
    return first


def _chains(persistence: _Floats, values: int) -> _Floats:
    """Return a Markov chain for each persistence, on the same values: its mean and variance are exact (Rouwenhorst)."""
    stays = ((1 + persistence) / 2)[:, None, None]
    chains = np.ones((len(persistence), 1, 1))
    for size in range(2, values + 1):
        larger = np.zeros((len(persistence), size, size))
        larger[:, :-1, :-1] += stays * chains
        larger[:, :-1, 1:] += (1 - stays) * chains
        larger[:, 1:, :-1] += (1 - stays) * chains
        larger[:, 1:, 1:] += stays * chains
        larger[:, 1:-1] /= 2
        chains = larger
    return chains
