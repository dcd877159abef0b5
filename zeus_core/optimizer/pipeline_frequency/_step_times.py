"""When an energy counter stepped, made surer by its regularity.

A step is seen at the first call of the driver that shows it, and calls may take milliseconds. Counters step at a fixed
rate, however, so the steps around one tell when it was due. How far that can be trusted, the steps themselves show: if
they are off a straight line by no more than calls can be late, nothing but the calls is irregular.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from zeus_core.optimizer.pipeline_frequency._counter_watch import CounterStep

__all__ = ["likely_steps"]

_NEIGHBOURS = 10  # on each side, through which the line goes
_LEAST_STEPS = 5
_LEAST_SECONDS = 1e-6  # of the half width of a time that is as good as exact
_LEAST_SPREAD = 1e-9

Numbers = NDArray[np.float64]


def likely_steps(steps: Sequence[CounterStep]) -> list[CounterStep]:
    """The steps of a counter at their likeliest times, which lie within what was seen, and how far these can be off.

    Args:
        steps: The steps as they were seen, in order. Some may not have been seen.
    """
    half_widths = np.array([it.half_width_seconds for it in steps])
    if len(steps) < _LEAST_STEPS or not half_widths.any():
        return list(steps)
    at = np.array([it.at_seconds for it in steps])
    due = _due(at, half_widths)
    variance_of_seeing = float(np.square(half_widths).mean()) / 3  # that of a time which may be anywhere within
    variance = float(np.square(at - due).mean())
    irregularity = 1 - min(variance_of_seeing / max(variance, _LEAST_SECONDS**2), 1.0)
    times = np.clip(due + irregularity * (at - due), at - half_widths, at + half_widths)
    share = np.sqrt(irregularity + (1 - irregularity) / (2 * _NEIGHBOURS))
    widths = share * half_widths
    return [
        CounterStep(time, it.energy_joules, width)
        for it, time, width in zip(steps, times.tolist(), widths.tolist(), strict=True)
    ]


def _due(at: Numbers, half_widths: Numbers) -> Numbers:
    """When each step was due, by a line through it and its neighbours, [steps]."""
    periods = np.diff(at)
    usual_seconds = max(float(np.median(periods)), _LEAST_SECONDS)
    number = np.concatenate([[0.0], np.cumsum(np.maximum(np.round(periods / usual_seconds), 1.0))])
    own = np.arange(len(at))[:, np.newaxis]
    near = own + np.arange(-_NEIGHBOURS, _NEIGHBOURS + 1)  # [steps, neighbours]
    is_there = (near >= 0) & (near < len(at))
    near = np.where(is_there, near, own)
    weights = is_there / np.square(np.maximum(half_widths, _LEAST_SECONDS))[near]
    weights /= weights.sum(axis=1, keepdims=True)
    numbers, since = number[near] - number[own], at[near] - at[own]
    mean_number, mean_since = (weights * numbers).sum(axis=1), (weights * since).sum(axis=1)
    spread = np.maximum((weights * np.square(numbers)).sum(axis=1) - mean_number**2, _LEAST_SPREAD)
    slope = ((weights * numbers * since).sum(axis=1) - mean_number * mean_since) / spread
    due: Numbers = at + mean_since - slope * mean_number
    return due
