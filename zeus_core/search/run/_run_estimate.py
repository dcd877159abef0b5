"""An estimate for all settings from the blocks of a run, although the work drifts while they are measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zeus_core.kinds import Kind
from zeus_core.search._curves import Array
from zeus_core.search._observation import MIN_STDERR, Observation
from zeus_core.search._prior import CurvePrior
from zeus_core.search.belief import ASSUMED_MISFIT, Belief, Curves
from zeus_core.search.run._drift import BlockTime, changes, combined
from zeus_core.search.trial import Trial

# Curves drawn from the prior. The heaviest ones instead of a sample leave out the unusual kinds of work: bounds broken
# by more than 1 % went up from 0.5 to 2.3 % on measured sweeps (60 and 200 steps, benchmarks/search_run.py). 400 curves
# give the same, three times as slowly.
_CURVES = 100

# The scatter of a step until many are measured: as if so many had scattered by so much.
_USUAL_CV, _USUAL_CV_STEPS = 0.03, 4

# A block whose steps scatter more than usual by so many standard errors saw the work change. The part of their variance
# beyond the usual one does not average out.
_UNEVEN = 5.0

_UNKNOWN_VARIANCE = 1e4  # of a time that is not measured yet


@dataclass(frozen=True)
class RunBlock:
    """A block that was measured.

    Attributes:
        begin: The step of the run at which the measured steps begin.
        trial: The measurement.
    """

    begin: int
    trial: Trial


def pooled_cv(blocks: Sequence[RunBlock]) -> float:
    """Return the standard deviation of the duration of one step over its mean, of all blocks together."""
    return math.sqrt(_step_variances(blocks)[0])


def _step_variances(blocks: Sequence[RunBlock]) -> tuple[float, Array]:
    """Return the relative variance of a step, and how much more that of a block is if the work changed within it."""
    freedoms = np.array([block.trial.steps - 1 for block in blocks], dtype=float)
    variances = [(block.trial.step_seconds_deviation / block.trial.seconds_per_step) ** 2 for block in blocks]
    usual, most = float(np.median(variances or [0.0])), 1 + _UNEVEN * np.sqrt(2 / np.maximum(freedoms, 1))
    is_uneven = np.array(variances) > np.maximum(usual, _USUAL_CV**2) * most
    excess = np.where(is_uneven, np.array(variances) - usual, 0.0)
    total = _USUAL_CV_STEPS * _USUAL_CV**2 + float(freedoms @ (variances - excess))
    return total / (_USUAL_CV_STEPS + float(freedoms.sum())), excess


class RunEstimate:
    """Time and power at all settings, as estimated from the blocks of one run.

    Args:
        settings: The settings, the original one first.
        prior: The shapes of curves.
        kind: The kind of setting.
    """

    def __init__(self, settings: tuple[int, ...], prior: CurvePrior, kind: Kind) -> None:
        self._settings, self._kind = settings, kind
        self._belief = Belief(settings, prior, kind, ASSUMED_MISFIT, sampled=_CURVES)
        self._untimed: tuple[Observation, Curves] | None = None
        self.changed: int = 0
        """The number of the block at which the work has changed at once last; 0 if it has not."""

    def after(self, blocks: Sequence[RunBlock]) -> Curves:
        """Return the curves after some blocks at any of the settings, at least one of them at the original."""
        variance, excess = _step_variances(blocks)
        times = [
            BlockTime(
                block.trial.setting,
                block.begin,
                block.trial.steps,
                math.log(block.trial.seconds_per_step),
                variance / block.trial.steps + more,
            )
            for block, more in zip(blocks, excess, strict=True)
        ]
        changed = changes(times, self._kind.steepest_exponent)
        self.changed = max(changed, default=0)
        settings = sorted({block.setting for block in times}, reverse=True)
        draws = [_draw([block.trial for block in blocks if block.trial.setting == setting]) for setting in settings]
        slowdown, covariance = self._expected(draws[0], [self._settings.index(setting) for setting in settings])
        log_seconds, errors = combined(times, settings, slowdown, covariance, changed)
        observations = [replace(draw, log_seconds=float(value)) for draw, value in zip(draws, log_seconds, strict=True)]
        return self._belief.after(observations, errors)

    def _expected(self, draw: Observation, places: list[int]) -> tuple[Array, Array]:
        """Return the logarithm of the slowdown expected at some settings before they were timed, and its covariance.

        They tell a drift from a setting that is slower than others.
        """
        if self._untimed is None or self._untimed[0] != draw:
            self._untimed = draw, self._belief.after([draw], np.array([[_UNKNOWN_VARIANCE]]))
        curves = self._untimed[1]
        slowdowns = (curves.log_seconds - curves.log_seconds[:, :1])[:, places]
        mean = curves.mean(slowdowns)
        apart = slowdowns - mean
        within = np.array([curves.mean(curves.slowdown_covariance(place)[:, places]) for place in places])
        return mean, within + np.einsum("k,ki,kj->ij", curves.weights, apart, apart)


def _draw(trials: Sequence[Trial]) -> Observation:
    """Return the power of all trials at one setting; its time is left out."""
    observations = [Observation.from_trial(trial) for trial in trials]
    seconds = np.array([trial.measurement.time for trial in trials])
    shares = seconds / seconds.sum()
    watts = float(shares @ [one.watts_per_gpu for one in observations])
    stderr = math.hypot(*(share * one.watts_stderr for share, one in zip(shares, observations, strict=True)))
    return Observation(trials[0].setting, 0.0, watts, observations[0].gpus, 0.0, max(stderr, MIN_STDERR))
