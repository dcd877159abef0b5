"""Which setting to try next: where a trial is worth most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from zeus_core.search._aims import Prospects, normal_probability
from zeus_core.search._curves import Array
from zeus_core.search._observation import Observation
from zeus_core.search.belief import Curves

# A search ends once no trial promises to gain more, as a fraction of the cost; and the weight of the loss at the trial
# itself: one trial against the rest of training. Without it, a search of clocks goes far below the best one, and ends
# there.
_MIN_GAIN, _TRIAL_SHARE = 0.003, 0.1

# The same for a cost that every setting may have. Few trials tell little of what the estimate has wrong: the fourth
# one gained 0.12 % where 0.16 % was expected, and nothing where 0.67 % was. So the first four are made for little, and
# more only for much. With 0.0027 for all, as many trials had a regret of 0.36 % on a grid of 5 W, and have 0.31 % like
# this (benchmarks/search_replay.py).
_USUAL_TRIALS = 4
_MIN_TOLD_GAIN, _MIN_FURTHER_GAIN, _TOLD_TRIAL_SHARE = 0.0012, 0.006, 0.01
_MAX_LOG_LOSS = 3.0

_OUTCOMES = tuple(NormalDist().inv_cdf((part + 0.5) / 16) for part in range(16))  # of a trial, equally likely
_TINY = 1e-18


def most_promising(
    curves: Curves, prospects: Prospects, best: int, untried: Sequence[int], alike: Observation
) -> int | None:
    """Return the place of the untried setting where most is to be gained over the best one; None if too little is.

    Args:
        curves: The estimated curves.
        prospects: The possible gains.
        best: The place of the best setting.
        untried: The places of the settings to choose from.
        alike: An observation as precise as the next one will be.
    """
    exponents = prospects.seconds_exponent, prospects.watts_exponent
    variance = curves.difference_variance(best, *exponents)[: len(prospects.weights)] + _TINY
    noise = (exponents[0] * alike.seconds_stderr) ** 2 + (exponents[1] * alike.watts_stderr) ** 2
    learnt = variance / np.sqrt(variance + noise)  # the deviation of what a trial will tell of the difference
    gain = prospects.costs[:, [best]] - prospects.costs
    expected_gain = prospects.weights @ (prospects.will_keep * _mean_of_positive_part(gain, learnt))
    loss = prospects.weights @ np.expm1(np.clip(-gain, 0.0, _MAX_LOG_LOSS))
    if not untried or max(expected_gain[place] for place in untried) < _MIN_GAIN:
        return None
    return max(untried, key=lambda place: float(expected_gain[place] - _TRIAL_SHARE * loss[place]))


def most_telling(
    curves: Curves, prospects: Prospects, best: int, untried: Sequence[int], alike: Observation
) -> int | None:
    """Return the place of the untried setting whose trial lowers the cost most; None if none does enough.

    A trial also informs about the settings around it, and about the best one. So its worth is the expected cost at the
    best setting, less that at the setting which will look best after it, averaged over what it may measure.

    Args:
        curves: The estimated curves.
        prospects: The cost at each setting; they are open.
        best: The place of the best setting.
        untried: The places of the settings to choose from.
        alike: An observation as precise as the next one will be.
    """
    exponents = prospects.seconds_exponent, prospects.watts_exponent
    covariance = curves.covariance(prospects.costs, prospects.weights, *exponents)
    noise = (exponents[0] * alike.seconds_stderr) ** 2 + (exponents[1] * alike.watts_stderr) ** 2
    shifts = covariance / np.sqrt(np.diag(covariance) + noise + _TINY)  # of the costs, by a trial at each column
    costs = prospects.expected_costs[:, None]
    gain, shift = costs[best] - costs, shifts[best] - shifts
    worth = np.mean([(gain + outcome * shift).max(axis=0) for outcome in _OUTCOMES], axis=0)
    loss = np.expm1(np.clip(-gain[:, 0], 0.0, _MAX_LOG_LOSS))
    is_usual = len(curves.settings) - len(untried) < _USUAL_TRIALS
    min_gain = _MIN_TOLD_GAIN if is_usual else _MIN_FURTHER_GAIN
    if not untried or max(worth[place] for place in untried) < min_gain:
        return None
    return max(untried, key=lambda place: float(worth[place] - _TOLD_TRIAL_SHARE * loss[place]))


def _mean_of_positive_part(mean: Array, deviation: Array) -> Array:
    """Return the expectation of max(0, x) for normal x."""
    z = np.clip(mean / deviation, -30.0, 30.0)
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    return np.asarray(np.maximum(mean * normal_probability(z) + deviation * density, 0.0))
