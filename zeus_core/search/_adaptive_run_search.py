"""The adaptive search within a run of training: what it spends on its trials is a part of what it minimises."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zeus_core._validate import checked_number, checked_whole_number
from zeus_core.search._adaptive_search import AdaptiveSearch
from zeus_core.search._belief import Knob
from zeus_core.search._objectives import MaxSlowdownConstraint, OptimumSelector
from zeus_core.search._prior import CurvePrior
from zeus_core.search._run_plan import Prediction, RunProgress, SearchCost, search_cost
from zeus_core.search._run_search import Block
from zeus_core.search._settings import checked_settings
from zeus_core.search._trial import Trial

__all__ = ["AdaptiveRunSearch"]

_MIN_STEPS = 5
_STEPS_PER_SCATTER = 4.6  # times (N cv)^(2/3): the steps at the original setting


class AdaptiveRunSearch:
    """A `RunSearch` that keeps the whole run within a slowdown bound, and makes its cost least.

    Args:
        settings: The settings. The highest one is the original.
        selector: The rule for the best setting. The bound of a `MaxSlowdownConstraint` is for the whole run.
        knob: "power limit" if the settings are watts, "clock" if they are MHz.
        confidence: The probability with which a slowdown bound is to be kept, at least 0.5.
        max_steps: The steps of the whole run; None if nobody knows.
        settle_seconds: The time in which the device settles after a change, for the cost said in advance.
        prior: The curves of known GPUs; the file that ships with the package if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        settings: Sequence[int],
        selector: OptimumSelector,
        *,
        knob: Knob = "power limit",
        confidence: float = 0.975,
        max_steps: int | None = None,
        settle_seconds: float = 2.0,
        prior: CurvePrior | None = None,
    ) -> None:
        self._settings = checked_settings(settings)
        self._search = AdaptiveSearch(self._settings, selector, knob=knob, confidence=confidence, prior=prior)
        self._factor = selector.factor if type(selector) is MaxSlowdownConstraint else None
        self._max_steps = max_steps if max_steps is None else checked_whole_number("max_steps", max_steps, 1)
        self._settle_seconds = checked_number("settle_seconds", settle_seconds, 0.0, math.inf, "seconds, such as 2.0")
        self._run_steps, self._run_seconds = 0, 0.0
        self._original_trials: list[Trial] = []

    def ask(self) -> Block:
        """Return the next block."""
        original = self._settings[0]
        if not self._original_trials:
            return Block(original, _MIN_STEPS, is_choice=True)
        missing = self._original_steps - sum(trial.steps for trial in self._original_trials)
        if missing > 0:
            return Block(original, max(missing, _MIN_STEPS), is_choice=True)
        asked = self._search.ask()
        if asked is not None and self._affordable_steps(asked) >= _MIN_STEPS:
            return Block(asked, min(self._affordable_steps(asked), self._original_steps), is_choice=False)
        run = self._progress
        steps = min(max(run.steps // 2, _MIN_STEPS), max(run.horizon_steps // 8, _MIN_STEPS))
        return Block(original if self.choice is None else self.choice, steps, is_choice=True)

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the run can afford that the block goes on."""
        if self._factor is None or not self._original_trials or self.ask().setting == self._settings[0]:
            return True
        run = self._progress
        later = RunProgress(run.steps + steps, run.seconds + seconds, run.original_seconds, run.max_steps)
        return later.affordable_steps(self._factor, seconds / steps / run.original_seconds) > 0

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Take in a block. A time or energy that is not finite teaches nothing."""
        self._run_steps = max(self._run_steps + trial.steps, run_steps)
        self._run_seconds = max(self._run_seconds, run_seconds) if math.isfinite(run_seconds) else self._run_seconds
        if trial.setting == self._settings[0] and math.isfinite(trial.seconds_per_step):
            self._original_trials.append(trial)
        self._search.tell(trial)

    @property
    def is_done(self) -> bool:
        """Whether the block asked for is at the choice, and no other is planned."""
        return bool(self._original_trials) and self.ask().is_choice and self._search.ask() is None

    @property
    def choice(self) -> int | None:
        """The setting that training would continue at now."""
        return self._search.choice

    @property
    def cost(self) -> SearchCost | None:
        """The cost of the rest of the search."""
        prediction = self.prediction()
        if prediction is None:
            return None
        return search_cost(self._progress, prediction, 2, self._original_steps, self._factor)

    @property
    def stepped_aside(self) -> str | None:
        """The reason that the run stays at its original setting."""
        if not self._original_trials or self.ask().setting != self._settings[0] or not self.ask().is_choice:
            return None
        return "no lower setting is known to keep the bound"

    def prediction(self, setting: int | None = None) -> Prediction | None:
        """Predict what a setting would do; None before the original setting was measured."""
        return self._search.prediction(self.choice if setting is None else setting)

    @property
    def _progress(self) -> RunProgress:
        steps = sum(trial.steps for trial in self._original_trials)
        seconds = math.fsum(trial.measurement.time for trial in self._original_trials) / steps
        return RunProgress(self._run_steps, self._run_seconds, seconds, self._max_steps)

    @property
    def _original_steps(self) -> int:
        """The steps to measure at the original setting."""
        first = self._original_trials[0]
        scatter = first.step_seconds_deviation / first.seconds_per_step
        horizon = self._progress.horizon_steps
        wanted = _STEPS_PER_SCATTER * math.pow(horizon * scatter, 2 / 3)
        return max(round(min(wanted, horizon / 4)), _MIN_STEPS)

    def _affordable_steps(self, setting: int) -> int:
        prediction = self._search.prediction(setting)
        if self._factor is None or prediction is None:
            return self._progress.steps_left
        return self._progress.affordable_steps(self._factor, prediction.slowdown_factor)
