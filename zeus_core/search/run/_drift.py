"""Step times of blocks at different times of a run, when the work drifts while they are measured.

The duration of a step at one setting changes in training: sequences get longer, the GPU gets warmer, data wait for a
disk. So two blocks differ by more than the scatter of their steps. The logarithm of the mean duration of a block is

    log seconds = curve(setting) + drift(its steps) + scatter / sqrt(steps)

with a Gaussian drift: one of some standard deviation and correlation length, or a steady trend. Nobody knows which.
Each is weighted by its marginal likelihood: how well it explains the blocks. Without a drift in the model, 17 to 37 %
of simulated runs broke their bound when the work drifted by 2 %.

Where the work changes at once, so that neither a setting nor a drift explains it, another level begins, about which
nothing is known: blocks before and after it are not compared with each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zeus_core.search._curves import Array

# Standard deviations and correlation lengths, in steps, that a drift may have; changes by a trend, of the logarithm
# from the first step to the latest one; and the probability of neither. With one slope alone, or none, runs that get
# faster by 5 % broke their bound by up to 1.1 and 2.2 % instead of 0.8 (benchmarks/search_run.py).
_DEVIATIONS = (0.003, 0.01, 0.025)
_LENGTHS = (30.0, 300.0, 3000.0)
_SLOPES = (0.01, 0.04)
_NO_DRIFT = 0.2

# Large trends, such as answers that get longer or shorter as a model learns: so rare that they count only where nothing
# else explains the blocks. Without these and `changes`, 10 of 40 runs whose visits got shorter, by and by or at once,
# were beyond their bound, by up to 3.4 %; with them none (benchmarks/activities.py, 5 mixes, 2026-11-27).
_RARE_SLOPES, _RARE = (0.16, 0.6), 0.01

_UNKNOWN = 10.0  # how long a step takes
_LEVEL = 1.0  # standard deviation of the logarithm of a change at once: wide beside what blocks show

# Standard deviations, of the scatter and of the largest drift, beyond what a setting can change: then the work has. By
# chance that is 1 of 30,000 pairs of blocks. Without drifts, 216 runs save the same as without `changes`.
_SURE = 4.0
_COMPARED = 3  # blocks before each: changes at once, not trends, are looked for


@dataclass(frozen=True)
class BlockTime:
    """The duration of the steps of a block.

    Attributes:
        setting: Their setting.
        begin: The step of the run before the first one.
        steps: How many they are.
        log_seconds: Logarithm of their mean duration, in seconds.
        variance: Its variance due to the scatter of the steps.
    """

    setting: int
    begin: float
    steps: int
    log_seconds: float
    variance: float


def combined(
    blocks: Sequence[BlockTime], settings: list[int], slowdown: Array, covariance: Array, changed: Sequence[int] = ()
) -> tuple[Array, Array]:
    """Combine the blocks at each setting.

    Args:
        blocks: The blocks.
        settings: Their settings.
        slowdown: The logarithm of the slowdown that is expected at each setting without these times.
        covariance: Its covariance.
        changed: See `changes`.

    Returns:
        The logarithm of the mean duration of a step at each setting, and its covariance.
    """
    places = np.array([[float(block.setting == setting) for setting in settings] for block in blocks])
    log_seconds = np.array([block.log_seconds for block in blocks])
    covariances = np.diag([block.variance for block in blocks]) + _drifts(blocks)
    covariances += _levels(len(blocks), changed)
    rare = len(_RARE_SLOPES)
    drifting = (1 - _NO_DRIFT) / (len(covariances) - 1 - rare)
    log_prior = np.log([_NO_DRIFT] + [drifting] * (len(covariances) - 1 - rare) + [_RARE / rare] * rare)
    surprise = log_seconds - log_seconds[0] - places @ slowdown
    expected = np.linalg.inv(covariances + places @ (covariance + _UNKNOWN**2) @ places.T)
    misfit = np.einsum("i,hij,j->h", surprise, expected, surprise)
    log_posterior = log_prior - 0.5 * (misfit - np.linalg.slogdet(expected)[1])
    weights = np.exp(log_posterior - log_posterior.max())
    weights /= weights.sum()
    precisions = np.linalg.inv(covariances)
    errors = np.linalg.inv(places.T @ precisions @ places)
    means = (errors @ (places.T @ (precisions @ log_seconds[:, None])))[..., 0]
    mean = weights @ means
    apart = means - mean
    return mean, np.einsum("h,hij->ij", weights, errors + apart[:, :, None] * apart[:, None])


def changes(blocks: Sequence[BlockTime], steepest: float) -> list[int]:
    """Return the numbers of the blocks at which the work has changed at once.

    Work never gets quicker at a lower setting, nor slower at a higher one. Each block is compared with the ones before.
    If work got slower, and then is as before again, lower settings are slower than they were, rather than the work.

    Args:
        blocks: The blocks.
        steepest: The power of the ratio of two settings by which work is slower at the lower one, at most.
    """
    found: list[int] = []
    is_slower = False  # since the latest of them
    for number, block in enumerate(blocks):
        earlier, since = [0, 0, *found][-2:]
        beyond = _beyond(blocks[since:number], block, steepest)
        if beyond > 0 or (beyond < 0 and not (is_slower and not _beyond(blocks[earlier:since], block, steepest))):
            found.append(number)
            is_slower = beyond > 0
        elif beyond < 0:
            found.pop()
            is_slower = False
    return found


def _beyond(before: Sequence[BlockTime], block: BlockTime, steepest: float) -> float:
    """Return by how much a block is surely slower than some before it, or quicker (< 0), other than by its setting."""
    for one in before[-_COMPARED:]:
        change, most = block.log_seconds - one.log_seconds, steepest * math.log(one.setting / block.setting)
        beyond = max(change - max(most, 0.0), 0.0) + min(change - min(most, 0.0), 0.0)
        if abs(beyond) > _SURE * math.sqrt(one.variance + block.variance + 2 * _DEVIATIONS[-1] ** 2):
            return beyond
    return 0.0


def _levels(count: int, changed: Sequence[int]) -> Array:
    """Return the covariance of the levels of all pairs of blocks, less that of the first one."""
    after = (np.arange(count)[:, None] >= np.array(changed, dtype=int)).astype(float)
    return np.asarray(_LEVEL**2 * after @ after.T)


def _drifts(blocks: Sequence[BlockTime]) -> Array:
    """Return the covariance of the mean drift of all pairs of blocks: without any, and for each kind of drift."""
    middles = np.array([block.begin + block.steps / 2 for block in blocks]) / (blocks[-1].begin + blocks[-1].steps)
    trend, correlations = np.outer(middles, middles)[None], _correlations(blocks)
    varying = [deviation**2 * correlations for deviation in _DEVIATIONS]
    return np.concatenate([0 * trend, *varying, *(slope**2 * trend for slope in (*_SLOPES, *_RARE_SLOPES))])


def _correlations(blocks: Sequence[BlockTime]) -> Array:
    """Return the correlation of the mean drift of all pairs of blocks, for each length."""
    begins = np.array([block.begin for block in blocks])
    counts = np.array([float(block.steps) for block in blocks])
    ends = begins + counts
    lengths = np.array(_LENGTHS)[:, None, None]

    def twice_integrated(ends: Array, begins: Array) -> Array:
        """Integrate exp(-|x| / length) twice."""
        distance = np.abs(np.subtract.outer(ends, begins)) / lengths
        return np.asarray(lengths**2 * (np.exp(-distance) + distance))

    total = twice_integrated(ends, begins) + twice_integrated(begins, ends)
    total -= twice_integrated(begins, begins) + twice_integrated(ends, ends)
    return np.asarray(total / np.outer(counts, counts))
