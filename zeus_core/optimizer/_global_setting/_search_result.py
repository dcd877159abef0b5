"""The result of a search for people, and what the search has cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zeus_core.adapters._result import duration_text, energy_text
from zeus_core.search import Trial
from zeus_core.search._comparison import Comparison, energy_error_fraction, percentage
from zeus_core.search._run_plan import Prediction

__all__ = ["SearchResult"]


@dataclass(frozen=True)
class SearchResult:
    """The facts at the end of a training.

    Attributes:
        name: The name of the setting, such as "power limit".
        unit: Its unit.
        original: The original setting.
        chosen: The setting that was chosen; None if none was.
        best: The best one so far; None if nobody knows.
        settings: The number of settings that the search looks at.
        rule: The name of the rule for the best one.
        not_changed_because: The reason that settings were not changed; None if they were.
        stepped_aside: The reason that training stayed at the original setting; None if it need not.
        prediction: The expected effect of what the rule would choose; None if settings were changed.
        command: The command that sets it.
        trials: The trials, by setting.
        comparison: Steps at the original and the chosen setting; None if they are one, or the choice is not confirmed.
        searched_steps: The steps of the search at each setting.
        chosen_steps: The steps at the choice.
        outlier_steps: The steps that took far too long, and are in no trial.
        original_text: The original state in words; that of the original setting if None.
        is_held: Whether another object or process controls a GPU, so that nobody here knows the setting in force.
    """

    name: str
    unit: str
    original: int
    chosen: int | None
    best: int | None
    settings: int
    rule: str
    not_changed_because: str | None
    stepped_aside: str | None
    prediction: Prediction | None
    command: str | None
    trials: Mapping[int, Trial]
    comparison: Comparison | None
    searched_steps: Mapping[int, int]
    chosen_steps: int
    outlier_steps: int
    original_text: str | None = None
    is_held: bool = False

    def rows(self) -> dict[str, str]:
        """Return the result as labelled lines."""
        rows = {self.name: self._setting_text()}
        if self.comparison is not None:
            rows["saving"] = _saving_text(self.comparison)
            rows["slowdown"] = _slowdown_text(self.comparison)
            rows["per step"] = _per_step_text(self.comparison)
        if self.prediction is not None and self.prediction.setting != self.original:
            rows["predicted"] = self._prediction_text(self.prediction)
            if self.command is not None:
                rows["to set it"] = self.command
        has_searched = len(self.searched_steps) > 1 and self.original in self.trials
        if self.chosen is not None and has_searched:
            rows["search"] = self._cost_text()
        return rows

    @property
    def _original_text(self) -> str:
        return self.original_text or f"{self.original} {self.unit}"

    def _setting_text(self) -> str:
        original = f"the original {self._original_text}"
        if self.is_held:
            return f"not changed, {self.not_changed_because}"
        if self.not_changed_because is not None:
            return f"not changed, {self.not_changed_because}; measured at {original}"
        if self.chosen is None:
            best = ""
            if self.best is not None and self.best != self.original:
                best = f", {self.best} {self.unit} the best so far"
            tried = f"{len(self.trials)} of {self.settings} settings measured"
            return f"search unfinished: {tried}{best}; {original} was restored"
        if self.chosen == self.original and self.stepped_aside is not None:
            return f"{original}: {self.stepped_aside}"
        if self.chosen == self.original:
            return f"{original} is the best of {self.settings} settings by {self.rule}"
        unconfirmed = "; saving unknown, as training ended too early" if self.comparison is None else ""
        best = f"{self.chosen} {self.unit} is the best of {self.settings} settings by {self.rule}"
        return f"{best}; {original}{unconfirmed}"

    def _prediction_text(self, prediction: Prediction) -> str:
        saving = _interval_text(prediction.saving_fraction, prediction.saving_interval)
        longer, interval = prediction.slowdown_factor - 1, prediction.slowdown_interval
        slowdown = _interval_text(longer, (interval[0] - 1, interval[1] - 1), sign="+")
        return (
            f"{prediction.setting} {self.unit} would save {saving} of the energy of a step, for {slowdown} time; not "
            "measured, but derived from GPUs that were"
        )

    def _cost_text(self) -> str:
        """Return what the search cost beyond as many steps at the original setting, and when that was earned back."""
        baseline = self.trials[self.original]
        others = {setting: steps for setting, steps in self.searched_steps.items() if setting != self.original}
        parts = [(steps, self.trials[setting]) for setting, steps in others.items() if setting in self.trials]
        seconds = sum(steps * (trial.seconds_per_step - baseline.seconds_per_step) for steps, trial in parts)
        joules = sum(steps * (trial.joules_per_step - baseline.joules_per_step) for steps, trial in parts)
        uncertainty = math.hypot(
            *(steps * _joules_error(trial) for steps, trial in parts),
            sum(steps for steps, _ in parts) * _joules_error(baseline),
        )
        at = f"at {self._original_text}"
        longer = f"{duration_text(abs(seconds))} {'longer' if seconds >= 0 else 'shorter'}"
        more = f"{energy_text(abs(joules), uncertainty)} {'more' if joules >= 0 else 'less'}"
        steps = f"{sum(self.searched_steps.values())} steps at {len(self.searched_steps)} settings"
        if self.outlier_steps:
            steps += f" ({self.outlier_steps} far too long, left out)"
        if abs(joules) <= uncertainty:
            return f"{steps}, {longer} than {at} for the same energy, as far as can be told"
        return f"{steps}, {longer} and {more} than {at}{self._earned_back(joules)}"

    def _earned_back(self, joules: float) -> str:
        comparison, at = self.comparison, f"at {self.chosen} {self.unit}"
        if joules <= 0 or comparison is None:
            return ""
        saved = comparison.before.joules_per_step - comparison.after.joules_per_step
        if saved <= 0 or not comparison.is_certain:
            return "; not earned back"
        needed = math.ceil(joules / saved)
        if needed <= self.chosen_steps:
            return f"; earned back after {needed} steps {at}"
        return f"; earned back in {needed - self.chosen_steps} more steps {at}"


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


def _per_step_text(comparison: Comparison) -> str:
    """Return the energy and the time of a step before and after, with their uncertainties."""
    texts = []
    for trial in (comparison.before, comparison.after):
        joules = energy_text(trial.joules_per_step, _joules_error(trial))
        texts.append(f"{joules} in {trial.seconds_per_step:.4g} s")
    return " before; ".join(texts) + " after"


def _interval_text(fraction: float, interval: Sequence[float], sign: str = "") -> str:
    lowest, highest = interval
    return f"{fraction:{sign}.1%} ({lowest:{sign}.1%} to {highest:{sign}.1%})"
