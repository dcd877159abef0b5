"""Selectors as an optimizer uses them: completed by what it knows, and their choices checked. Pure."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

from zeus_core.errors import UsageError
from zeus_core.search import Trial
from zeus_core.search._comparison import Comparison
from zeus_core.search._objectives import OptimumSelector, PowerLimitMeasurement, longest_factor
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
    objective = selector.objective
    if objective is None:
        return True
    cost = objective.cost(PowerLimitMeasurement.from_trial(trial, 1), PowerLimitMeasurement.from_trial(original, 1))
    return not math.isinf(cost)


def breaks_bound(selector: OptimumSelector, trial: Trial, original: Trial) -> bool:
    """Return whether a trial certainly breaks a bound of time, or costs more for it, beside one at the original."""
    return longest_factor(selector) is not None and verdict_on(selector, Comparison(original, trial)).holds is False


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
    changes = list(zip(choices, originals, strict=True))
    best = 0
    for place in range(1, len(changes)):
        if selector.prefers(changes[place], changes[best]):
            best = place
    return best


def with_power(selector: OptimumSelector, original_watts: float | None) -> OptimumSelector:
    """Return a selector that knows the highest power of a GPU, where the settings are none.

    Raises:
        UsageError: Nobody knows it.
    """
    if not selector.needs_max_power:
        return selector
    if original_watts is None:
        raise UsageError("the GPUs report no power limit: pass ZeusCost(max_power_watts=...), the highest power of one")
    return selector.completed(original_watts)
