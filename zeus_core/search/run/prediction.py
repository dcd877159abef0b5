"""The predicted saving of a search for a power limit, before anything is measured.

Each shape of the prior, at each demand, is a kind of training with a weight (`_prior.py`, `_curves.py`). With t(l) and
e(l) the time and energy of a step at the limit l, over those at the original one, it saves within a slowdown F

    saving(F) = 1 - min { e(l) : t(l) <= F }

The prediction is the weighted median over all kinds, and the interval from the 5th to the 95th percentile. As the truth
differs from every shape, energies are smeared by a Gaussian. How often published sweeps lie in the interval, with their
own GPU model left out of the prior: `benchmarks/prediction.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from zeus_core.search._curves import FIELDS, Array
from zeus_core.search._prior import CurvePrior, read_prior
from zeus_core.search.belief import every_kind

WORKS = {"memory": (0.1, 0.4), "mixed": (0.3, 0.65), "compute": (0.55, 1.0)}
"""Share of a step that grows as the clock falls, from and to: d k of `_curves.py`. A third of the prior is below 0.4,
and a third above 0.57."""

_SMEAR = (
    0.03  # relative, of energies: `belief.ASSUMED_MISFIT` of power, its time at 5 to 10 % slowdown, and a rough 0.006
)
_SMEARED = np.linspace(-2, 2, 9)  # standard deviations
_DRAW_DEVIATION = 0.05  # relative: of a power that a person has read off a display
_QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True)
class Predicted:
    """A predicted quantity: its median, and the ends of the interval that holds 90 % of cases."""

    low: float
    median: float
    high: float


def predict_saving(
    limits: tuple[float, ...],
    slowdown: float,
    work: str | None = None,
    draw_watts: float | None = None,
    prior: CurvePrior | None = None,
) -> Predicted:
    """Predict the saving of a training's GPU energy, as a fraction, 0 or more.

    Args:
        limits: The limits in watts, the original one first.
        slowdown: The accepted time over that at the original limit, 1 or more.
        work: A key of `WORKS`; None if it is not known.
        draw_watts: Mean power at the original limit while training; None if it is not known.
        prior: The shapes of curves; those that ship with the package by default.
    """
    prior = prior or read_prior()
    weights, log_seconds, log_watts = _kinds(prior, limits)
    log_weights = np.log(weights)
    if draw_watts is not None:
        log_weights = log_weights - 0.5 * ((log_watts[:, 0] - math.log(draw_watts / limits[0])) / _DRAW_DEVIATION) ** 2
    if work is not None:
        lowest, highest = WORKS[work]
        shares = prior.parameters[:, FIELDS.index("computing")] * prior.parameters[:, FIELDS.index("compute_bound")]
        is_such = np.repeat((shares >= lowest) & (shares <= highest), len(log_weights) // len(shares))
        log_weights = np.where(is_such, log_weights, -np.inf)
    slower = log_seconds - log_seconds[:, :1]
    energies = np.exp(slower + log_watts - log_watts[:, :1])
    least = np.where(slower <= math.log(slowdown) + 1e-9, energies, np.inf).min(axis=1)
    savings = np.maximum(1 - np.outer(least, 1 + _SMEAR * _SMEARED), 0).ravel()
    smeared = np.outer(np.exp(log_weights - log_weights.max()), np.exp(-0.5 * _SMEARED**2)).ravel()
    order = np.argsort(savings)
    cumulated = np.cumsum(smeared[order])
    places = np.searchsorted(cumulated / cumulated[-1], _QUANTILES)
    return Predicted(*(float(savings[order][place]) for place in places))


@cache
def _kinds(prior: CurvePrior, limits: tuple[float, ...]) -> tuple[Array, Array, Array]:
    shapes, log_weights, _ = every_kind(prior)
    return np.exp(log_weights), *shapes.under_limits(np.array(limits) / limits[0])
