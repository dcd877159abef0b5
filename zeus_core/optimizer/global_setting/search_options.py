"""The arguments of an optimizer of a setting, checked, and the search that they make."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, cast, get_args

from zeus_core.errors import UsageError
from zeus_core.kinds import KINDS, Kind, KnobName
from zeus_core.optimizer.global_setting.director import Directive
from zeus_core.search import GridSearch, Search, Trial
from zeus_core.search.comparison import Comparison
from zeus_core.search.objectives import (
    EnergyWithin,
    OptimumSelector,
    PowerLimitMeasurement,
    checked_selector,
    longest_factor,
)
from zeus_core.search.run.fixed_trials import FixedTrials
from zeus_core.search.run.run_search import RunSearch
from zeus_core.validate import (
    checked_object,
    checked_one_of,
    checked_whole_number,
    wrong_argument,
)

if TYPE_CHECKING:
    from zeus_core.search.adaptive_search import AdaptiveSearch
    from zeus_core.search.belief import Knob as CurveKnob

DEFAULT_STEPS = 40
"""The measured steps of a trial, for searches that do not say how long they are; the published default."""

SETTLE_UPDATES = 3
"""The time in which a GPU settles, in updates of its energy counter: a power limit changes the clock within tens of
milliseconds; the pieces of a block show what took longer."""

MakeSearch = Callable[[Sequence[int], OptimumSelector], Search]
"""Makes a search from the settings, the original one first, and the selector."""

Mode = Literal["search", "observe"]
"""Whether settings are changed."""

COMMON = "common"
"""The value of `activities` by which all activities of a training have one setting: nothing extends the search."""

CHANGES_PER_HOUR = 120
"""The most changes of the setting of a device in an hour: NCCL suffers from clocks that change often (nccl #1551)."""


@dataclass(frozen=True)
class SearchOptions:
    """The arguments of an optimizer, checked.

    Attributes:
        kinds: The kinds of settings to search.
        selector: The rule for the best one; the default one, for the GPUs of the job, if None.
        wait_steps: The steps before the search.
        warmup_steps: The steps in which a GPU settles; as many as it takes if None.
        profile_steps: The measured steps of a trial; as many as it needs if None.
        make: Makes the search; the default one if None.
        max_steps: The steps of the whole training; None if nobody knows.
        mode: Whether settings are changed.
        directive: The rule that training follows once the search is over, such as a signal; None for none.
        activities: The name of the extension of the search; `COMMON` for none.
        changes_per_hour: The most changes of the setting in an hour, where each has its own.
        takes_first: Whether one kind alone is searched, the first that the boards have.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    kinds: tuple[Kind, ...]
    selector: OptimumSelector | None
    wait_steps: int
    warmup_steps: int | None
    profile_steps: int | None
    make: MakeSearch | None
    max_steps: int | None
    mode: Mode
    directive: Directive | None = None
    activities: str = COMMON
    changes_per_hour: int = CHANGES_PER_HOUR
    takes_first: bool = False

    def __post_init__(self) -> None:
        """Check the arguments."""
        for argument, minimum in (("wait_steps", 0), ("warmup_steps", 0), ("profile_steps", 1), ("max_steps", 1)):
            value = getattr(self, argument)
            if value is not None or argument == "wait_steps":
                object.__setattr__(self, argument, checked_whole_number(argument, value, minimum))
        checked_one_of("mode", self.mode, get_args(Mode))
        if self.directive is not None:
            checked_object("carbon_aware", self.directive, "director", "a CarbonAware(signal, deadline=...)")
            if len(self.kinds) > 1 or not self.kinds[0].has_curves:
                knob = "auto" if len(self.kinds) > 1 else self.kinds[0].option
                raise UsageError(f'carbon_aware follows one knob, and knob is "{knob}"; pass "power limit" or "clock"')
        if self.selector is not None:
            checked_selector(self.selector, "optimum_selector")
        checked_whole_number("changes_per_hour", self.changes_per_hour, 0)
        if self.make is not None and not callable(self.make):  # such as a search that is made already
            wanted = "a function of settings and a selector that makes a Search, such as GridSearch"
            raise wrong_argument("search", self.make, wanted)

    @property
    def is_extended(self) -> bool:
        """Whether activities may have settings of their own."""
        return self.activities != COMMON

    def is_adaptive(self, kind: Kind) -> bool:
        """Whether settings of a kind are searched by what is known of the curves of GPUs."""
        return self.make is None and self.profile_steps is None and kind.has_curves

    @property
    def observes(self) -> bool:
        """Whether no setting is changed."""
        return self.mode == "observe"

    @property
    def is_followed(self) -> bool:
        """Whether an observer directs training once the search is over."""
        return self.directive is not None


def checked_knob(knob: KnobName) -> KnobName:
    """Return the argument `knob`. Raises `UsageError` if there is no such kind of setting."""
    return cast("KnobName", checked_one_of("knob", knob, [*_by_option(), "auto"]))


def kinds_of(
    knob: KnobName, pl_step: int | None, original_clock_mhz: int | None, has_own_search: bool
) -> tuple[Kind, ...]:
    """Return the kinds of settings that an optimizer searches.

    Raises:
        UsageError: A number cannot be.
    """
    if pl_step is not None:
        pl_step = checked_whole_number("pl_step", pl_step, 1)
    if original_clock_mhz is not None:
        original_clock_mhz = checked_whole_number("original_clock_mhz", original_clock_mhz, 1)
    wanted = [kind for kind in KINDS.values() if kind.joins_auto] if knob == "auto" else [_by_option()[knob]]
    return tuple(
        kind.with_arguments(pl_step or (kind.coarse_step if has_own_search else kind.fine_step), original_clock_mhz)
        for kind in wanted
    )


def _by_option() -> dict[str, Kind]:
    return {kind.option: kind for kind in KINDS.values()}


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
        if self.options.is_adaptive(self.kind):
            from zeus_core.search.run.adaptive_run_search import AdaptiveRunSearch  # needs numpy

            adaptive = AdaptiveRunSearch(
                settings,
                self.selector,
                knob=cast("CurveKnob", self.kind.option),
                max_steps=self.max_steps,
                settle_seconds=SETTLE_UPDATES * self.period_seconds,
            )
            if self.safe_bound is not None:
                from zeus_core.search.run.safe_clock import SafeClock

                return SafeClock(adaptive, settings, *self.safe_bound)
            return adaptive
        factor = longest_factor(self.selector)
        is_fixed = self.options.make is not None or self.options.profile_steps is not None
        if not self.kind.has_curves and not is_fixed and factor is not None:
            from zeus_core.search.run.each_setting import EachSetting  # needs numpy

            settle_seconds = SETTLE_UPDATES * self.period_seconds
            return EachSetting(settings, factor, max_steps=self.max_steps, settle_seconds=settle_seconds)
        make = self.options.make or (self.predictor if self.kind.has_curves else GridSearch)
        return FixedTrials(
            make(settings, self.selector),
            settings,
            lambda trials: self._choice(trials, settings, steps),
            steps,
            self._keeps_bound,
            self._breaks_bound,
        )

    @property
    def safe_bound(self) -> tuple[float, float] | None:
        """The bound of a search of clocks that they keep without a measurement of time, with its tolerance."""
        if not self.kind.locks_sm_clock or longest_factor(self.selector) is None:
            return None
        return self.selector.bound_factor or 1.0, self.selector.time_tolerance or 0.0

    def predictor(self, settings: tuple[int, ...], selector: OptimumSelector) -> AdaptiveSearch:
        """Make a search that predicts what was not measured."""
        from zeus_core.search.adaptive_search import AdaptiveSearch  # needs numpy

        return AdaptiveSearch(settings, selector, knob=cast("CurveKnob", self.kind.option))

    def _choice(self, trials: Sequence[Trial], settings: Sequence[int], steps: int) -> int:
        """Return the setting that the selector chooses among the trials within the settings, for so many steps.

        Raises:
            UsageError: It returned something that is no possible setting.
            Exception: It raised it.
        """
        shown = sorted(
            (trial for trial in trials if settings[-1] <= trial.setting <= settings[0]),
            key=lambda trial: -trial.setting,
        )
        selector, factor = self.selector, self.selector.bound_factor
        if selector.prefers_lowest and not self.kind.is_ordered and factor is not None:
            selector = EnergyWithin(factor)  # none is the lowest
        measured = [PowerLimitMeasurement.from_trial(trial, steps) for trial in shown]
        if selector.prefers_lowest:
            measured = [one for one in measured if not any(_beats(other, one) for other in measured)]
        choice: object = selector.select(measured)
        try:
            setting = operator.index(choice)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(
                f"{type(self.selector).__name__}.select returned {choice!r}; it must return a {self.kind.words} in "
                f"whole {self.kind.unit}, such as measurements[0].power_limit"
            ) from None
        self.kind.check(setting, settings)
        return setting

    def _keeps_bound(self, trial: Trial, original: Trial) -> bool:
        """Return whether a setting may be chosen by a trial at it, beside one at the original setting."""
        objective = self.selector.objective
        if objective is None:
            return True
        at, before = PowerLimitMeasurement.from_trial(trial, 1), PowerLimitMeasurement.from_trial(original, 1)
        return not math.isinf(objective.cost(at, before))

    def _breaks_bound(self, trial: Trial, original: Trial) -> bool:
        """Return whether a trial certainly breaks a bound of time, or costs more for it, beside one at the original."""
        from zeus_core.search.verdict import verdict_on  # for trials of a fixed length alone

        is_bound = longest_factor(self.selector) is not None
        return is_bound and verdict_on(self.selector, Comparison(original, trial)).holds is False


def _beats(other: PowerLimitMeasurement, one: PowerLimitMeasurement) -> bool:
    return other.time < one.time and other.energy < one.energy


class OptimizerOptions(TypedDict, total=False):
    """The options that an adapter passes on to its `GlobalPowerLimitOptimizer`, whose they are: it has the defaults."""

    wait_steps: int
    warmup_steps: int | None
    profile_steps: int | None
    pl_step: int | None
    profile_path: str | Path | None
    knob: KnobName | None
    original_clock_mhz: int | None
    search: MakeSearch | None
    max_steps: int | None
    mode: Mode
    carbon_aware: Directive | None
    activities: str
    changes_per_hour: int
