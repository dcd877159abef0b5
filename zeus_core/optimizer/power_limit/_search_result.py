"""The result of a search for people, and what the search has cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from zeus_core.adapters._result import duration_text, energy_text
from zeus_core.search import Trial
from zeus_core.search._comparison import Comparison, energy_error_fraction, percentage

__all__ = ["SearchResult"]


@dataclass(frozen=True)
class SearchResult:
    """The facts at the end of a training.

    Attributes:
        original_watts: The original limit.
        chosen_watts: The limit that was chosen; None if none was.
        is_denied: Whether limits may not be changed.
        settings: The number of limits that the search looks at.
        untried: How many of them have no trial yet.
        rule: The name of the rule for the best limit.
        trials: The trials, by limit.
        comparison: Steps at the original and the chosen limit; None if they are one, or until the choice is confirmed.
        searched_steps: The steps of the search at each limit.
        chosen_steps: The steps at the chosen limit.
        steps_left: The least number of steps until the end of the search; 0 after it.
    """

    original_watts: int
    chosen_watts: int | None
    is_denied: bool
    settings: int
    untried: int
    rule: str
    trials: Mapping[int, Trial]
    comparison: Comparison | None
    searched_steps: Mapping[int, int]
    chosen_steps: int
    steps_left: int

    def rows(self) -> dict[str, str]:
        """Return the result as labelled lines."""
        rows = {"power limit": self._limit_text()}
        if self.comparison is not None:
            rows["saving"] = _saving_text(self.comparison)
            rows["slowdown"] = _slowdown_text(self.comparison)
        has_searched = len(self.searched_steps) > 1 and self.original_watts in self.trials
        if self.chosen_watts is not None and has_searched:
            rows["search"] = self._cost_text()
        return rows

    def _limit_text(self) -> str:
        original = f"the original {self.original_watts} W"
        if self.is_denied:
            return f"not changed, as setting it is not permitted here; measured at {original}"
        if self.chosen_watts is None:
            tried = f"{self.settings - self.untried} of {self.settings} settings"
            return f"search unfinished: {tried}, at least {self.steps_left} steps more; {original} was restored"
        if self.chosen_watts == self.original_watts:
            return f"{original} is the best of {self.settings} settings by {self.rule}"
        unconfirmed = f"; saving unknown, at least {self.steps_left} steps more" if self.steps_left > 0 else ""
        return f"{self.chosen_watts} W is the best of {self.settings} settings by {self.rule}; {original}{unconfirmed}"

    def _cost_text(self) -> str:
        """Return what the search cost beyond as many steps at the original limit, and when that was earned back."""
        baseline = self.trials[self.original_watts]
        others = {limit: steps for limit, steps in self.searched_steps.items() if limit != self.original_watts}
        parts = [(steps, self.trials[limit]) for limit, steps in others.items() if limit in self.trials]
        seconds = sum(steps * (trial.seconds_per_step - baseline.seconds_per_step) for steps, trial in parts)
        joules = sum(steps * (trial.joules_per_step - baseline.joules_per_step) for steps, trial in parts)
        uncertainty = math.hypot(
            *(steps * _joules_error(trial) for steps, trial in parts),
            sum(steps for steps, _ in parts) * _joules_error(baseline),
        )
        longer = f"{duration_text(abs(seconds))} {'longer' if seconds >= 0 else 'shorter'}"
        more = f"{energy_text(abs(joules), uncertainty)} {'more' if joules >= 0 else 'less'}"
        steps = f"{sum(self.searched_steps.values())} steps"
        if abs(joules) <= uncertainty:
            return f"{steps}, {longer} than at {self.original_watts} W for the same energy, as far as can be told"
        return f"{steps}, {longer} and {more} than at {self.original_watts} W{self._earned_back(joules)}"

    def _earned_back(self, joules: float) -> str:
        comparison = self.comparison
        if joules <= 0 or comparison is None:
            return ""
        saved = comparison.before.joules_per_step - comparison.after.joules_per_step
        if saved <= 0 or not comparison.is_certain:
            return "; not earned back"
        needed = math.ceil(joules / saved)
        if needed <= self.chosen_steps:
            return f"; earned back after {needed} steps at {self.chosen_watts} W"
        return f"; earned back in {needed - self.chosen_steps} more steps at {self.chosen_watts} W"


def _joules_error(trial: Trial) -> float:
    """Return how far the energy of a step can be off, in joules."""
    return trial.joules_per_step * energy_error_fraction(trial)


def _saving_text(comparison: Comparison) -> str:
    saving = percentage(comparison.saving_fraction, comparison.saving_uncertainty)
    if not comparison.is_certain:
        return f"too small or too briefly measured to tell: {saving}"
    return f"{saving} of the energy of a step"


def _slowdown_text(comparison: Comparison) -> str:
    return f"{percentage(comparison.slowdown_factor - 1, comparison.slowdown_uncertainty, sign='+')} time per step"
