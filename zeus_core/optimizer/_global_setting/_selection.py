"""Selectors as an optimizer uses them: completed by what it knows, and their choices checked. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from copy import copy

from zeus_core.errors import UsageError
from zeus_core.search import Trial
from zeus_core.search._comparison import Comparison
from zeus_core.search._objectives import (
    MaxSlowdownConstraint,
    Objective,
    OptimumSelector,
    PowerLimitMeasurement,
    Time,
    ZeusCost,
)
from zeus_core.search._verdict import verdict_on
from zeus_core.settings.kinds import Kind

__all__ = ["better_choice", "breaks_bound", "chosen_by", "keeps_bound", "with_power"]


def chosen_by(
    selector: OptimumSelector, trials: Sequence[Trial], settings: Sequence[int], steps: int, kind: Kind
) -> int:
    """Return the setting that a selector chooses.

    Args:
        selector: The selector.
        trials: The trials, of which it is shown those within the settings.
        settings: The settings, the highest first.
        steps: The number of steps that the energies and times it is shown are for.
        kind: The kind of setting.

    Raises:
        UsageError: It returned something that is no possible setting.
        Exception: It raised it.
    """
    shown = sorted((trial for trial in trials if settings[-1] <= trial.setting <= settings[0]), key=_highest_first)
    choice: object = selector.select([PowerLimitMeasurement.from_trial(trial, steps) for trial in shown])
    try:
        setting = operator.index(choice)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(
            f"{type(selector).__name__}.select returned {choice!r}; it must return a {kind.words} in whole "
            f"{kind.unit}, such as measurements[0].power_limit"
        ) from None
    kind.check(setting, settings)
    return setting


def keeps_bound(selector: OptimumSelector, trial: Trial, original: Trial) -> bool:
    """Return whether a setting may be chosen by a trial at it, beside one at the original setting."""
    if not isinstance(selector, Objective):
        return True
    cost = selector.cost(PowerLimitMeasurement.from_trial(trial, 1), PowerLimitMeasurement.from_trial(original, 1))
    return not math.isinf(cost)


def breaks_bound(selector: OptimumSelector, trial: Trial, original: Trial) -> bool:
    """Return whether a trial certainly breaks a bound of time, or costs more for it, beside one at the original."""
    is_bound = isinstance(selector, MaxSlowdownConstraint | Time)
    return is_bound and verdict_on(selector, Comparison(original, trial)).holds is False


def _highest_first(trial: Trial) -> int:
    return -trial.setting


def better_choice(
    selector: OptimumSelector, originals: Sequence[PowerLimitMeasurement], choices: Sequence[PowerLimitMeasurement]
) -> int:
    """Return which of the choices of several searches is the best: its place.

    Args:
        selector: The rule by which each was chosen.
        originals: A step at the original setting, as each search knows it.
        choices: A step at the choice of each.
    """
    pairs = list(zip(choices, originals, strict=True))
    if type(selector) in (MaxSlowdownConstraint, Time):  # all keep the bound
        costs = [choice.energy / original.energy for choice, original in pairs]
    elif isinstance(selector, Objective):
        costs = [_relative(selector.cost(choice, one), selector.cost(one, one)) for choice, one in pairs]
    else:
        best = selector.select(list(choices))
        costs = [float(choice.power_limit != best) for choice in choices]
    return costs.index(min(costs))


def _relative(cost: float, original: float) -> float:
    """Return the change of a cost, which may be negative, or 0 at the original setting, if it is the user's own."""
    return (cost - original) / (abs(original) or 1.0)


def with_power(selector: OptimumSelector, original_watts: float | None) -> OptimumSelector:
    """Return a selector that knows the highest power of a GPU, where the settings are none.

    Raises:
        UsageError: Nobody knows it.
    """
    if not isinstance(selector, ZeusCost) or selector.max_power_watts is not None:
        return selector
    if original_watts is None:
        raise UsageError("the GPUs report no power limit: pass ZeusCost(max_power_watts=...), the highest power of one")
    known = copy(selector)
    known.max_power_watts = original_watts
    return known
