"""A trial as the estimate of curves takes it in: means, and how far they can be off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zeus_core.search.comparison import POWER_CV, STANDARD_ERRORS
from zeus_core.search.trial import Trial

# A trial's own error is never taken as smaller: two windows of the same work differ by this much (public repetitions).
MIN_STDERR = 0.003
_UNKNOWN_STEP_CV = 0.05


@dataclass(frozen=True)
class Observation:
    """A trial reduced to its means; the last two attributes are relative standard errors."""

    setting: int
    log_seconds: float
    watts_per_gpu: float
    gpus: int
    seconds_stderr: float
    watts_stderr: float

    @classmethod
    def from_trial(cls, trial: Trial) -> Observation:
        """Read a trial with a finite time and energy."""
        steps = math.sqrt(trial.steps)
        deviation = trial.step_seconds_deviation / (trial.seconds_per_step * steps) or _UNKNOWN_STEP_CV / steps
        joules = trial.measurement.total_energy or 0.0
        gpus = max(len(trial.measurement.gpu_energy), 1)
        counted = (trial.measurement.total_uncertainty_joules or 0.0) / (STANDARD_ERRORS * joules)
        return cls(
            trial.setting,
            math.log(trial.seconds_per_step),
            joules / trial.measurement.time / gpus,
            gpus,
            max(deviation, MIN_STDERR),
            max(math.hypot(counted, POWER_CV / steps), MIN_STDERR),
        )

    @classmethod
    def combined(cls, observations: Sequence[Observation]) -> Observation:
        """Return all observations at one setting as one, each weighted by its precision."""
        if len(observations) == 1:
            return observations[0]
        seconds, watts = (
            _weighted(values, stderrs)
            for values, stderrs in (
                ([one.log_seconds for one in observations], [one.seconds_stderr for one in observations]),
                ([one.watts_per_gpu for one in observations], [one.watts_stderr for one in observations]),
            )
        )
        first = observations[0]
        return cls(first.setting, seconds[0], watts[0], first.gpus, seconds[1], watts[1])


def _weighted(values: Sequence[float], stderrs: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values weighted by their precisions, and its standard error."""
    precisions = np.array(stderrs) ** -2.0
    return float(precisions @ np.array(values) / precisions.sum()), float(precisions.sum() ** -0.5)
