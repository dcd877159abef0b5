"""The search port: which setting of a knob to try next; and the simplest of searches."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Protocol

from zeus_core.search.objectives import OptimumSelector, PowerLimitMeasurement
from zeus_core.search.trial import Trial
from zeus_core.validate import checked_whole_number, wrong_argument


class Search(Protocol):
    """Decides which settings are tried. Pure: it knows no device, no source of time and no framework.

    Its trials are all it knows. To resume a search, tell a new one the same trials: it asks for the same setting next.
    """

    def ask(self) -> int | None:
        """Return the setting to try next; None once enough is known. It changes with `tell` only."""
        ...

    def tell(self, trial: Trial) -> None:
        """Take in a trial, whether it was asked for or not (such as one measured in an earlier run)."""
        ...

    @property
    def choice(self) -> int | None:
        """The best setting so far, among or between those tried; None to let the rule choose among the trials."""
        ...


def checked_settings(settings: Sequence[int]) -> tuple[int, ...]:
    """Return each setting once, the highest first.

    Raises:
        UsageError: There is none, or one is not a whole number of at least 1.
    """
    if not len(settings):
        raise wrong_argument("settings", settings, "at least one setting, such as [300, 250]")
    numbers = {checked_whole_number(f"settings[{place}]", setting, 1) for place, setting in enumerate(settings)}
    return tuple(sorted(numbers, reverse=True))


class Told:
    """The trials. A setting may have several, such as the one that led to its choice and the one that confirms it."""

    def __init__(self) -> None:
        self._trials: list[Trial] = []

    def add(self, trial: Trial) -> None:
        """Take in a trial."""
        self._trials.append(trial)

    def __contains__(self, setting: int) -> bool:
        return any(trial.setting == setting for trial in self._trials)

    def usable(self) -> list[Trial]:
        """Return the trials with a finite time and a finite, positive energy, the highest setting first."""
        trials = sorted(self._trials, key=lambda trial: -trial.setting)
        return [trial for trial in trials if is_usable(trial)]


def selected(selector: OptimumSelector, trials: Sequence[Trial]) -> int | None:
    """Return the setting that a rule chooses; None if it fails, or chooses what it was not offered.

    The latest of several trials of a setting counts.
    """
    latest = {trial.setting: trial for trial in trials}
    return selected_among(selector, [PowerLimitMeasurement.from_trial(trial, 1) for trial in latest.values()])


def selected_among(selector: OptimumSelector, measurements: Sequence[PowerLimitMeasurement]) -> int | None:
    """Return the setting that a rule chooses; None if it fails, or chooses what it was not offered."""
    try:
        setting = operator.index(selector.select(measurements))
    except Exception:  # a rule of the user's may raise anything; who applies its choice reports it
        return None
    return setting if any(one.power_limit == setting for one in measurements) else None


def is_usable(trial: Trial) -> bool:
    return math.isfinite(trial.seconds_per_step) and math.isfinite(trial.joules_per_step) and trial.joules_per_step > 0


class GridSearch:
    """A `Search` that tries each of the given settings once, in the given order.

    Args:
        settings: The settings.
        selector: Not used: the optimizer makes every search from the settings and the selector.

    Raises:
        UsageError: A setting is not a whole number.
    """

    def __init__(self, settings: Sequence[int], selector: OptimumSelector | None = None) -> None:
        self._untried = [
            checked_whole_number(f"settings[{place}]", setting, 0) for place, setting in enumerate(settings)
        ]

    def ask(self) -> int | None:
        """Return the first setting that has not been tried."""
        return self._untried[0] if self._untried else None

    def tell(self, trial: Trial) -> None:
        """Remove the trial's setting from those to try."""
        if trial.setting in self._untried:
            self._untried.remove(trial.setting)

    @property
    def choice(self) -> None:
        """None: the rule for the best setting chooses among the trials."""
        return None
