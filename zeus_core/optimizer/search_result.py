"""The result of a search for people, and what the search has cost. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zeus_core.optimizer.setting_history import SettingChange
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison, energy_error_fraction, percentage
from zeus_core.search.run.run_plan import Prediction
from zeus_core.search.verdict import Verdict
from zeus_core.settings.entry import setting_text
from zeus_core.units import duration_text, energy_text

CHOSEN = "chosen"
"""The mark of the choice in tables and pictures."""


_ROUNDING = 1e-6  # of a number of steps
_WARMING_CELSIUS = 10.0  # leakage adds about 0.1 to 0.2 % of the power for each degree (J): 1 to 2 %, as much as drifts

_UNRESTORED = {
    "failed": "was NOT restored on {}",
    "replaced": "was not restored on {}, where somebody else has set another",
    "unknown": "may not be in force again on {}, as the driver does not answer",
}  # by reason


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
        ended_because: The reason that the search was given up; None if it was not.
        verdict: Whether the choice does what the rule demands; None if nobody has judged it.
        run_slowdown: The slowdown of the whole run, and how far it can be off; None if it is unknown, or no part of
            what the rule demands.
        choices: The steps measured since a setting was chosen, by setting.
        unrestored: The commands for the GPUs of this rank that are not known to have their original setting again, each
            with the reason; None while training goes on.
        ranks: The number of ranks.
        temperatures_celsius: The temperature of the hottest GPU of this rank at the end of each block, if it is known.
        refused: The settings that a board does not enforce, each with the reason.
        activities: The facts that an extension of the search knows of steps and activities, by name, in JSON types.
        is_kept: Whether the choice certainly does better than the original; False where its saving may be none.
        waits: Whether the search waited at the original setting until the end, as no energy could be measured.
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
    ended_because: str | None = None
    verdict: Verdict | None = None
    run_slowdown: tuple[float, float] | None = None
    choices: Mapping[int, Trial] = field(default_factory=dict)
    unrestored: Mapping[str, str] | None = field(default_factory=dict)
    ranks: int = 1
    refused: Mapping[int, str] = field(default_factory=dict)
    temperatures_celsius: tuple[float, ...] = ()
    activities: Mapping[str, Any] = field(default_factory=dict)
    is_kept: bool = True
    waits: bool = False

    def rows(self) -> dict[str, str]:
        """Return the result as labelled lines."""
        rows = {self.name: self._setting_text(), **restoring_rows(self.unrestored)}
        if self.ended_because is not None:
            return rows
        if self.refused:
            rows["not enforced"] = "; ".join(self.refused.values())
        if self.comparison is not None:
            rows["saving"] = self.comparison.saving_text
        if self._warming_text:
            rows["temperature"] = self._warming_text
        if self.slowdown_text:
            rows["slowdown"] = self.slowdown_text
        comparison = self.comparison
        is_known = comparison is not None and comparison.doubt is None and math.isfinite(comparison.saving_uncertainty)
        if comparison is not None and is_known and comparison.is_of_the_trials:
            rows["per step"] = _per_step_text(comparison)
        if self.prediction is not None and self.prediction.setting != self.original:
            rows["predicted"] = self._prediction_text(self.prediction)
            if self.command is not None:
                rows["to set it"] = self.command
        has_searched = len(self.searched_steps) > 1 and self.original in self.trials
        if self.chosen is not None and has_searched:
            rows["search"] = self._cost_text()
        return rows

    def points(self) -> list[tuple[Trial, str]]:
        """Return all that was measured, with marks for people: the trials, and apart the steps at each choice.

        The highest setting comes first. A choice that was not measured since it was made is marked at its trial.
        """
        trials = [(trial, self._mark(setting, is_choice=False)) for setting, trial in self.trials.items()]
        choices = [(trial, self._mark(setting, is_choice=True)) for setting, trial in self.choices.items()]
        return sorted([*trials, *choices], key=lambda point: -point[0].setting)

    @property
    def _warming_text(self) -> str:
        """A change of temperature that explains why blocks at one setting differ; empty if neither is there."""
        comparison, known = self.comparison, self.temperatures_celsius
        has_changed = comparison is not None and (comparison.has_drifted or comparison.doubt is not None)
        if not has_changed or not known or max(known) - min(known) < _WARMING_CELSIUS:
            return ""
        first, last = known[0], known[-1]
        ends = f"from {first:.0f} to {last:.0f}" if abs(last - first) >= _WARMING_CELSIUS else "up and down between"
        between = "" if "from" in ends else f" {min(known):.0f} and {max(known):.0f}"
        return f"the GPUs went {ends}{between} degrees C meanwhile, which explains a change of power and clocks"

    @property
    def is_comparable(self) -> bool:
        """Whether trials can be compared as they are: of one part of the run, in which the work has not changed."""
        comparison, original = self.comparison, self.trials.get(self.original)
        if comparison is None or original is None:
            return True
        is_of_one_part = comparison.before.steps >= original.steps
        return is_of_one_part and comparison.doubt is None and not comparison.has_drifted

    def _mark(self, setting: int, is_choice: bool) -> str:
        if setting == self.chosen and is_choice == (setting in self.choices):
            return CHOSEN
        return "chosen before" if is_choice else "original" if setting == self.original else ""

    @property
    def slowdown_text(self) -> str:
        """How much longer a step takes at the choice, and the whole run if the rule bounds that; empty if unknown."""
        comparison, parts = self.comparison, []
        if comparison is not None:
            factor, uncertainty = comparison.slowdown_factor, comparison.slowdown_uncertainty
            is_known = comparison.doubt is None or math.isfinite(uncertainty)
            change = percentage(factor - 1, uncertainty, sign="+")
            parts.append(f"{change} time per step" if is_known else "not known")
        if self.run_slowdown is not None:
            factor, uncertainty = self.run_slowdown
            parts.append(f"{percentage(factor - 1, uncertainty, sign='+')} over the run")
        return ", ".join(parts)

    @property
    def _original_text(self) -> str:
        return self.original_text or setting_text(self.original, self.unit)

    def _setting_text(self) -> str:
        original = f"the original {self._original_text}"
        if self.is_held:
            return f"not changed, {self.not_changed_because}"
        restored = restored_text(self.unrestored, original, self.ranks)
        unrestored = restored if self.unrestored else ""
        if self.ended_because is not None:
            return self.ended_because + restored
        if self.not_changed_because is not None:
            return f"not changed, {self.not_changed_because}; measured at {original}{unrestored}"
        if self.chosen is None:
            best = ""
            if self.best is not None and self.best != self.original:
                known = "the best so far" if self.best in self.trials else "expected to be the best"
                best = f", {setting_text(self.best, self.unit)} {known}"
            tried = f"{len(self.trials)} of {self.settings} settings measured"
            waits = ", as the energy cannot be measured any more" if self.waits else ""
            return f"search unfinished: {tried}{waits}{best}{restored}"
        verdict = self.verdict or Verdict(None, "")
        if self.chosen == self.original:
            broken = "; the run did not keep its bound" if verdict.holds is False else ""
            if not self.stepped_aside:
                return f"{original} is the best of {self._tried_text}, by {self.rule}{broken}{unrestored}"
            back = "" if self._tried == {self.original} else "back at "
            return f"{back}{original}: {self.stepped_aside}{broken}{unrestored}"
        unconfirmed = "; saving unknown, as training ended too early" if self.comparison is None else ""
        best = "the best" if verdict.holds else "chosen"
        chosen = setting_text(self.chosen, self.unit)
        choice = f"{chosen} is {best} of {self._tried_text}, by {self.rule}{verdict.text}"
        if not self.is_kept:
            choice = f"{chosen} was chosen of {self._tried_text}, and is not kept, as its saving may be none"
        return f"{choice}{unrestored or f'; {original}'}{unconfirmed}"

    @property
    def _tried(self) -> set[int]:
        """The settings at which steps were measured in this run, or in one that the search knows, and the original."""
        return {self.original, *self.trials, *self.choices, *self.searched_steps}

    @property
    def _tried_text(self) -> str:
        tried = len(self._tried)
        return f"{self.settings} settings" if tried == self.settings else f"{tried} tried, of {self.settings}"

    def _prediction_text(self, prediction: Prediction) -> str:
        saving = _interval_text(prediction.saving_fraction, prediction.saving_interval)
        longer, interval = prediction.slowdown_factor - 1, prediction.slowdown_interval
        slowdown = _interval_text(longer, (interval[0] - 1, interval[1] - 1), sign="+")
        return (
            f"{setting_text(prediction.setting, self.unit)} would save {saving} of the energy of a step, for "
            f"{slowdown} time; not measured, but derived from GPUs that were"
        )

    def _cost_text(self) -> str:
        """Return what the search cost beyond as many steps at the original setting, and when that was earned back."""
        steps = f"{sum(self.searched_steps.values())} steps at {len(self.searched_steps)} settings"
        if self.outlier_steps:
            steps += f" ({self.outlier_steps} far too long, left out)"
        baseline = self.trials[self.original]
        if not self.is_comparable:
            return f"{steps}; its cost is not known, as the work or the machine may have changed"
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
        if abs(joules) <= uncertainty:
            return f"{steps}, {longer} than {at} for the same energy, within its error"
        return f"{steps}, {longer} and {more} than {at}{self._earned_back(joules)}"

    def _earned_back(self, joules: float) -> str:
        comparison, at = self.comparison, f"at {setting_text(self.chosen or 0, self.unit)}"
        if joules <= 0 or comparison is None:
            return ""
        saved = comparison.saving_fraction * comparison.before.joules_per_step
        if saved <= 0 or not comparison.is_certain:
            return "; not earned back"
        needed = math.ceil(joules / saved - _ROUNDING)
        if needed <= self.chosen_steps:
            return f"; earned back after {needed} steps {at}"
        return f"; earned back in {needed - self.chosen_steps} more steps {at}"


@dataclass(frozen=True)
class SearchRecord:
    """A search, for the file of its run.

    Attributes:
        result: Its facts; None before its first step.
        changes: The changes of the setting, the latest last.
    """

    result: SearchResult | None
    changes: tuple[SettingChange, ...]


def restored_text(unrestored: Mapping[str, str] | None, original: str, ranks: int = 1) -> str:
    """Return whether the original is in force again, to continue a sentence; empty while training goes on.

    Args:
        unrestored: See `SearchResult`.
        original: The original in words.
        ranks: The number of ranks. One knows nothing of the GPUs of the others.
    """
    if unrestored is None:
        return ""
    where = " on this rank" if ranks > 1 else ""
    if not unrestored:
        return f"; {original} was restored{where}"
    parts = []
    for why, text in _UNRESTORED.items():
        count = list(unrestored.values()).count(why)
        parts += [text.format(f"{count} GPU{'s' if count > 1 else ''}")] if count else []
    return f"; {original} {', and '.join(parts)}{where}"


def restoring_rows(unrestored: Mapping[str, str] | None) -> dict[str, str]:
    """Return the command for each GPU that is not known to have its original setting again, as labelled lines."""
    commands = list(unrestored or ())
    if len(commands) == 1:
        return {"to restore": commands[0]}
    return {f"to restore {number}": command for number, command in enumerate(commands, 1)}


def _joules_error(trial: Trial) -> float:
    """Return how far the energy of a step can be off, in joules."""
    return trial.joules_per_step * energy_error_fraction(trial)


def _per_step_text(comparison: Comparison) -> str:
    """Return the energy and the time of a step before and after, with their uncertainties."""
    texts = []
    for trial in (comparison.before, comparison.after):
        joules = energy_text(trial.joules_per_step, _joules_error(trial))
        texts.append(f"{joules} in {duration_text(trial.seconds_per_step)}")
    return " before; ".join(texts) + " after"


def _interval_text(fraction: float, interval: Sequence[float], sign: str = "") -> str:
    lowest, highest = interval
    return f"{fraction:{sign}.1%} ({lowest:{sign}.1%} to {highest:{sign}.1%})"
