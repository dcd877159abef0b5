"""The facts of a search that its users read: settings, trials, and the saving."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeus_core.events import TrainingOptimizer
from zeus_core.kinds import POWER_LIMIT, SM_CLOCK, Kind
from zeus_core.optimizer.global_setting._search_course import SearchCourse
from zeus_core.optimizer.global_setting.search_options import DEFAULT_STEPS, SearchOptions
from zeus_core.optimizer.global_setting.setting_search import SettingSearch
from zeus_core.optimizer.global_setting.trials import SearchBlocks
from zeus_core.search import Trial
from zeus_core.search.comparison import Comparison
from zeus_core.search.objectives import OptimumSelector, PowerLimitMeasurement

if TYPE_CHECKING:
    from zeus_core.optimizer.search_result import SearchResult


@dataclass(frozen=True)
class SearchView:
    """A search as its users see it. The defaults are those before a training begins.

    Attributes:
        original: The original setting; None if there is none of the kind asked for.
        chosen: The setting that the search ended with; None before its end.
        in_force: The setting in force as far as this rank knows, the highest of its GPUs; None while it rests.
        settings: The settings that may be chosen.
        measured: All that was measured.
    """

    original: int | None = None
    chosen: int | None = None
    in_force: int | None = None
    settings: tuple[int, ...] = (0,)
    measured: SearchBlocks = field(default_factory=lambda: SearchBlocks((), 0, POWER_LIMIT))

    @property
    def comparison(self) -> Comparison | None:
        """Steps at the original setting, and at the choices; None until one was measured, and if they are one."""
        return self.measured.comparison(self.chosen)

    @property
    def confirmation(self) -> Trial | None:
        """The steps at the choice; those at the choice before it, until it was measured itself."""
        return self.measured.at_choices.get(self.chosen or 0, self.measured.confirmation)


class SearchFacts(TrainingOptimizer):
    """The facts of the latest search of an optimizer. Where both limits and clocks are tried, those of the present one.

    Args:
        course: The course of the searches.
    """

    def __init__(self, course: SearchCourse) -> None:
        self._course = course

    @property
    def _search(self) -> SettingSearch | None:
        return self._course.search

    def _view(self, kind: Kind | None = None) -> SearchView:
        """Return the latest search, if it is one for this kind of setting."""
        search = self._search
        if search is None or (kind is not None and search.kind != kind):
            return SearchView()
        return SearchView(search.original, search.chosen, search.limiter.setting, search.settings, search.measured)

    @property
    def _options(self) -> SearchOptions:
        return self._course.preparation.options

    @property
    def optimum_selector(self) -> OptimumSelector:
        """The rule for the best limit."""
        return self._course.preparation.selector

    @property
    def baseline_limit_watts(self) -> int | None:
        """The original limit; None until training begins, and where clocks are searched."""
        return self._view(POWER_LIMIT).original

    @property
    def chosen_limit_watts(self) -> int | None:
        """The limit the search ended with; None before its end, and where clocks are searched."""
        return self._view(POWER_LIMIT).chosen

    @property
    def power_limit_watts(self) -> int | None:
        """The limit in force as far as the optimizer knows, the highest of this process's GPUs; None while it rests."""
        return self._view(POWER_LIMIT).in_force

    @property
    def baseline_clock_mhz(self) -> int | None:
        """The original SM clock, or the highest one of the GPUs if they were not locked; None until training begins."""
        return self._view(SM_CLOCK).original

    @property
    def chosen_clock_mhz(self) -> int | None:
        """The SM clock the search ended with; None before its end, and where limits are searched."""
        return self._view(SM_CLOCK).chosen

    @property
    def sm_clock_mhz(self) -> int | None:
        """The SM clock in force as far as the optimizer knows; None while it rests, and where limits are searched."""
        return self._view(SM_CLOCK).in_force

    @property
    def setting_text(self) -> str | None:
        """The setting in force, such as "power limit 300 W"; None while the optimizer rests."""
        search, in_force = self._search, self._view().in_force
        return None if search is None or in_force is None else f"{search.kind.words} {search.kind.text(in_force)}"

    @property
    def trials(self) -> list[Trial]:
        """The trials so far, the highest limit first."""
        return self._view().measured.sorted_trials()

    @property
    def measurements(self) -> list[PowerLimitMeasurement]:
        """The trials, and a choice that was none, as selectors see them, each scaled to `profile_steps` steps."""
        view = self._view()
        return view.measured.measurements(view.settings, view.chosen, self.profile_steps)

    @property
    def confirmation(self) -> Trial | None:
        """The steps measured at the choice since training continues at it; None until then."""
        return self._view().confirmation

    @property
    def comparison(self) -> Comparison | None:
        """Steps at the original setting, and at the choice; None until that was measured, or if they are one.

        A search that moves its choice a little while training continues is compared by its steps at all choices.
        """
        return self._view().comparison

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step that the confirmed choice saves, over that at the original limit.

        None until the choice is confirmed, if it is the original limit, and if the saving is smaller than its
        uncertainty.
        """
        saving = self._certain_saving
        return None if saving is None else saving[0]

    @property
    def saving_uncertainty(self) -> float | None:
        """How far `saving_fraction` can be off; None if that is."""
        saving = self._certain_saving
        return None if saving is None else saving[1]

    @property
    def _certain_saving(self) -> tuple[float, float] | None:
        saving = None if self._search is None else self._search.saving
        return saving if saving is not None and abs(saving[0]) > saving[1] else None

    @property
    def profile_steps(self) -> int:
        """Steps measured at each setting, as passed; otherwise those that `measurements` are scaled to."""
        return self._options.profile_steps or DEFAULT_STEPS

    def _search_result(self) -> SearchResult | None:
        """Return the facts of the latest search; None before its first step."""
        from zeus_core.optimizer.search_result import SearchResult  # at the end of training alone
        from zeus_core.search.verdict import Verdict, is_worth_keeping, verdict_on

        search, course = self._search, self._course
        if search is None or search.run.steps == 0:
            return None
        prediction = search.order.prediction
        selector, comparison, directive = self.optimum_selector, self.comparison, self._options.directive
        rule = repr(selector)
        is_alone = len(course.searches) == 1  # rivals share the steps of the run
        is_bound = selector.bound_factor is not None and directive is None
        run_slowdown = None
        has_doubt = comparison is not None and comparison.doubt is not None
        is_for_run = is_bound and not search.order.is_fixed  # trials of a fixed length bound each step
        if is_for_run and is_alone and not has_doubt:
            run_slowdown = search.run_slowdown()
        verdict = verdict_on(selector, comparison, run_slowdown)
        if directive is not None and search.max_steps is not None:  # without its length, no training is directed
            rule, verdict = directive.rule, Verdict(None, "")
        return SearchResult(
            name=search.kind.words,
            unit=search.unit,
            original=search.original,
            chosen=search.chosen,
            best=search.best,
            settings=len(search.settings),
            rule=rule,
            not_changed_because=search.not_changed_because,
            stepped_aside=search.order.stepped_aside,
            prediction=prediction,
            command=None
            if prediction is None
            else search.kind.command((gpu.uuid for gpu in course.gpus), prediction.setting),
            trials=search.measured.trials,
            comparison=comparison,
            searched_steps=search.searched_steps,
            chosen_steps=search.chosen_steps,
            outlier_steps=search.run.outlier_steps,
            original_text=search.kind.state_text(search.original, is_original=True),
            is_held=search.is_held,
            waits=search.waits,
            ended_because=course.ended_because,
            verdict=verdict,
            run_slowdown=run_slowdown,
            choices=search.measured.at_choices,
            unrestored=course.unrestored,
            ranks=course.exchange.size,
            refused=search.refused,
            temperatures_celsius=tuple(search.temperatures_celsius),
            activities=search.activity_facts(),
            is_kept=directive is not None
            or self._options.is_extended
            or search.order.is_fixed
            or (comparison is not None and is_worth_keeping(selector, comparison)),
        )
