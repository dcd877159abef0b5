"""The search of rank 0, and what it has all ranks do next."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from zeus_core.errors import UsageError
from zeus_core.optimizer._global_setting._search_options import SearchOptions
from zeus_core.search import GridSearch, Trial
from zeus_core.search._comparison import Comparison
from zeus_core.search._objectives import OptimumSelector, PowerLimitMeasurement, longest_factor
from zeus_core.search.run.fixed_trials import FixedTrials
from zeus_core.search.run.run_plan import Prediction
from zeus_core.search.run.run_search import RunSearch
from zeus_core.settings.kinds import SM_CLOCK, Kind

if TYPE_CHECKING:
    from zeus_core.search._adaptive_search import AdaptiveSearch
    from zeus_core.search._belief import Knob as CurveKnob

__all__ = ["CHECKED_STEPS", "DEFAULT_STEPS", "Order", "Orders", "SearchArguments"]

DEFAULT_STEPS = 40
"""The measured steps of a trial, for searches that do not say how long they are; the published default."""

# In updates of the energy counter. Fewer tell little of the power; more lengthen the trials of quick steps.
_MIN_BLOCK_UPDATES = 5
_MIN_PIECE_UPDATES = 3
_SETTLE_UPDATES = 3  # a power limit changes the clock within tens of milliseconds; the pieces show what took longer
_PIECES = 8  # of a block: one that is left out costs so little, and they are enough to tell whether the GPU has settled
_UNKNOWN_SETTLE_STEPS = 2  # where nobody knows how long a step is

# Steps of a block after which the search is asked whether it may go on: seldom enough for exchanges of many ranks.
CHECKED_STEPS = frozenset(round(1.25**power) for power in range(3, 90))


@dataclass(frozen=True)
class Order:
    """The next block of steps of all ranks.

    Attributes:
        setting: The setting.
        steps: How many steps are measured at it; 0 for none any more.
        is_choice: Whether the search is over, and this is its choice.
        settle_steps: The steps before them, if the setting is changed.
        least_steps: The fewest steps of a block, as long as a number of updates of the energy counter.
        least_piece_steps: The same of a piece of it.
        is_fixed: Whether the search is over for good once its choice is confirmed.
        is_limited: Whether the search may end the block early.
        reason: The reason for this setting, for people.
        best: The best setting so far; None if nobody knows.
        announcement: The cost of the search, said once in advance.
        stepped_aside: The reason that training stays at the original setting; None if it need not.
        prediction: The expected effect of what the selector would choose, where no setting may be changed.
        expected: The expected effect of the choice; None if the search does not tell.
    """

    setting: int
    steps: int
    is_choice: bool
    settle_steps: int
    least_steps: int
    least_piece_steps: int
    is_fixed: bool
    is_limited: bool
    reason: str = ""
    best: int | None = None
    announcement: str | None = None
    stepped_aside: str | None = None
    prediction: Prediction | None = None
    expected: Prediction | None = None

    @property
    def piece_steps(self) -> int:
        """The steps of a piece of the block."""
        return max(math.ceil(self.steps / _PIECES), self.least_piece_steps)


@dataclass(frozen=True)
class SearchArguments:
    """The arguments of an optimizer that its search depends on.

    Attributes:
        options: As the user has passed them.
        kind: The kind of setting.
        selector: The rule for the best one.
        max_steps: The steps of the run; None if nobody knows.
        period_seconds: The time between two updates of the energy counters.
    """

    options: SearchOptions
    kind: Kind
    selector: OptimumSelector
    max_steps: int | None
    period_seconds: float

    def search(self, settings: tuple[int, ...]) -> RunSearch:
        """Make the search among some settings, the original one first."""
        steps = DEFAULT_STEPS if self.options.profile_steps is None else self.options.profile_steps
        if self.options.make is None and self.options.profile_steps is None and self.kind.has_curves:
            from zeus_core.search.run.adaptive_run_search import AdaptiveRunSearch  # needs numpy

            settle_seconds = _SETTLE_UPDATES * self.period_seconds
            adaptive = AdaptiveRunSearch(
                settings,
                self.selector,
                knob=cast("CurveKnob", self.kind.option),
                max_steps=self.max_steps,
                settle_seconds=settle_seconds,
            )
            if self.kind == SM_CLOCK and longest_factor(self.selector) is not None:
                from zeus_core.search.run.safe_clock import SafeClock

                bound, tolerance = self.selector.bound_factor, self.selector.time_tolerance
                return SafeClock(adaptive, settings, bound or 1.0, tolerance or 0.0)
            return adaptive
        make = self.options.make or (self.predictor if self.kind.has_curves else GridSearch)
        search = make(settings, self.selector)
        return FixedTrials(
            search,
            settings,
            lambda trials: _chosen_by(self.selector, trials, settings, steps, self.kind),
            steps,
            lambda trial, original: _keeps_bound(self.selector, trial, original),
            lambda trial, original: _breaks_bound(self.selector, trial, original),
        )

    def predictor(self, settings: tuple[int, ...], selector: OptimumSelector) -> AdaptiveSearch:
        """Make a search that predicts what was not measured."""
        from zeus_core.search._adaptive_search import AdaptiveSearch  # needs numpy

        return AdaptiveSearch(settings, selector, knob=cast("CurveKnob", self.kind.option))


class Orders:
    """Asks a search what to do next, and says it so that all ranks can do it.

    Args:
        arguments: Make the search.
        settings: The settings, the original one first.
    """

    def __init__(self, arguments: SearchArguments, settings: tuple[int, ...]) -> None:
        self._arguments = arguments
        self._settings = settings
        self._search = arguments.search(settings)
        self.is_directed = False
        """Whether an observer directs training: the search is over."""
        self._predictor: AdaptiveSearch | None = None
        self._has_announced = False
        self._latest: dict[int, Trial] = {}  # the latest block at each setting
        self._chosen: int | None = None
        self._cut_short: int | None = None  # the setting of a block that ended early: the next one there does not
        self._seconds_per_step: float | None = None

    def observe(self, trials: Sequence[Trial]) -> None:
        """Measure at the original setting alone from now on, and predict the rest. These trials were made before."""
        self._search, self.is_directed = self._arguments.search(self._settings[:1]), False
        if self._arguments.kind.has_curves:
            self._predictor = self._arguments.predictor(self._settings, self._arguments.selector)
        for trial in trials:
            self.tell(trial, 0, 0.0)

    def tell(self, trial: Trial, run_steps: int, run_seconds: float) -> None:
        """Take in a block; see `RunSearch.tell`."""
        self._seconds_per_step = trial.seconds_per_step
        self._latest[trial.setting] = trial
        if self._predictor is not None:
            self._predictor.tell(trial)
            if trial.setting != self._settings[0]:
                return
        if not self.is_directed:
            self._search.tell(trial, run_steps, run_seconds)

    def may_continue(self, steps: int, seconds: float) -> bool:
        """Return whether the block may go on; see `RunSearch.may_continue`."""
        may_continue = self._search.may_continue(steps, seconds)
        self._cut_short = None if may_continue else self._search.ask().setting
        return may_continue

    def next(self, run_steps: int, run_seconds: float) -> Order:
        """Return what to do next, so many steps into the run."""
        if self._seconds_per_step is None and run_steps > 0:
            self._seconds_per_step = run_seconds / run_steps
        search = self._search
        block, least_steps = search.ask(), self._steps_of(_MIN_BLOCK_UPDATES) or 1
        steps, is_fixed = max(block.steps, least_steps), False
        if isinstance(search, FixedTrials) and not self._arguments.options.is_followed:
            steps, is_fixed = 0 if search.is_confirmed else block.steps, True
        cut_short, self._cut_short = self._cut_short, None
        settle_steps = self._arguments.options.warmup_steps
        if settle_steps is None:
            settle_steps = self._steps_of(_SETTLE_UPDATES) or _UNKNOWN_SETTLE_STEPS
        return Order(
            block.setting,
            steps,
            search.is_done,
            settle_steps,
            least_steps,
            self._steps_of(_MIN_PIECE_UPDATES) or 1,
            is_fixed,
            not is_fixed and block.setting != cut_short,
            self._reason(block.setting, search.is_done, cut_short),
            search.choice,
            self._announcement(),
            search.stepped_aside,
            None if self._predictor is None else self._predictor.prediction(),
            search.prediction() if search.is_done else None,
        )

    def _reason(self, setting: int, is_choice: bool, cut_short: int | None) -> str:
        """Return the reason for a setting. `cut_short` is that of a block that was too slow to go on; None for none."""
        before, original = self._chosen, self._latest.get(self._settings[0])
        if not is_choice:
            is_known = setting == self._settings[0] and original is not None
            return "the search measures it once more" if is_known else "the search tries it"
        self._chosen = setting
        latest = None if before is None else self._latest.get(before)
        if before in (None, setting, self._settings[0]) or original is None or latest is None:
            return "the search has chosen it"
        time = latest.seconds_per_step / original.seconds_per_step - 1
        energy = latest.joules_per_step / original.joules_per_step - 1
        text = f"the choice moves: at {before} {self._arguments.kind.unit} a step took {time:+.1%} time and "
        return f"{text}{energy:+.1%} energy{', longer than expected' if cut_short == before else ''}"

    def prediction(self, setting: int) -> Prediction | None:
        """Predict what a setting would do; None if nobody knows."""
        return self._search.prediction(setting)

    def _steps_of(self, updates: int) -> int | None:
        """Return the steps that last so many updates of a counter; None if nobody knows how long a step is."""
        if not self._seconds_per_step:
            return None
        return math.ceil(updates * self._arguments.period_seconds / self._seconds_per_step)

    def _announcement(self) -> str | None:
        cost = None if self._has_announced else self._search.cost
        if cost is None:
            return None
        self._has_announced = True
        return str(cost)


def _chosen_by(
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


def _keeps_bound(selector: OptimumSelector, trial: Trial, original: Trial) -> bool:
    """Return whether a setting may be chosen by a trial at it, beside one at the original setting."""
    objective = selector.objective
    if objective is None:
        return True
    cost = objective.cost(PowerLimitMeasurement.from_trial(trial, 1), PowerLimitMeasurement.from_trial(original, 1))
    return not math.isinf(cost)


def _breaks_bound(selector: OptimumSelector, trial: Trial, original: Trial) -> bool:
    """Return whether a trial certainly breaks a bound of time, or costs more for it, beside one at the original."""
    from zeus_core.search._verdict import verdict_on  # for trials of a fixed length alone

    return longest_factor(selector) is not None and verdict_on(selector, Comparison(original, trial)).holds is False


def _highest_first(trial: Trial) -> int:
    return -trial.setting
