"""The search for one setting of the GPUs of a job, during training: what every knob has in common."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from zeus_core.adapters import contained
from zeus_core.adapters.result import show_result
from zeus_core.device.gpu import StepLoads
from zeus_core.errors import UsageError
from zeus_core.events import (
    INTERFERENCE,
    STEP_END,
    TRAIN_END,
    EpochBegin,
    EpochEnd,
    Event,
    Forget,
    Interference,
    Pause,
    Resume,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from zeus_core.kinds import KnobName
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import checked_monitor
from zeus_core.optimizer.global_setting._search_course import SearchCourse
from zeus_core.optimizer.global_setting._search_facts import SearchFacts
from zeus_core.optimizer.global_setting.director import Directive, Director, DuePause
from zeus_core.optimizer.global_setting.measuring import TrialRecorder
from zeus_core.optimizer.global_setting.phases import (
    Phase,
    WindowState,
)
from zeus_core.optimizer.global_setting.search_options import (
    CHANGES_PER_HOUR,
    COMMON,
    MakeSearch,
    Mode,
    SearchOptions,
    checked_knob,
    kinds_of,
)
from zeus_core.optimizer.limiter import Limiter
from zeus_core.optimizer.setting_history import SettingHistory
from zeus_core.optimizer.trial_store import JsonTrialStore, TrialStore
from zeus_core.ports import World
from zeus_core.ports.world import checked_world
from zeus_core.search.objectives import OptimumSelector
from zeus_core.settings.holders import user_of
from zeus_core.validate import checked_path

if TYPE_CHECKING:
    from zeus_core.optimizer.search_result import SearchRecord


class SearchOptimizer(SearchFacts):
    """Searches for one setting during training. See `GlobalPowerLimitOptimizer` for the arguments."""

    _usual_knob: ClassVar[KnobName] = "power limit"
    _substitute: ClassVar[KnobName | None] = None  # searched where the boards have nothing else to set

    def __init__(
        self,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int | None = None,
        profile_steps: int | None = None,
        pl_step: int | None = None,
        profile_path: str | Path | None = None,
        *,
        knob: KnobName | None = None,
        original_clock_mhz: int | None = None,
        search: MakeSearch | None = None,
        max_steps: int | None = None,
        mode: Mode = "search",
        carbon_aware: Directive | None = None,
        activities: str = COMMON,
        changes_per_hour: int = CHANGES_PER_HOUR,
        world: World | None = None,
        quiet: bool = False,
    ) -> None:
        name: KnobName = checked_knob(self._usual_knob if knob is None else knob)
        names = [name] if self._substitute is None else [name, self._substitute]
        options = SearchOptions(
            tuple(k for one in names for k in kinds_of(one, pl_step, original_clock_mhz, search is not None)),
            optimum_selector,
            wait_steps,
            warmup_steps,
            profile_steps,
            search,
            max_steps,
            mode,
            carbon_aware,
            activities,
            changes_per_hour,
            takes_first=len(names) > 1,
        )
        if any(map(options.is_adaptive, options.kinds)):
            import zeus_core.optimizer.search_result
            import zeus_core.search.run.adaptive_run_search  # noqa: F401
        monitor = checked_monitor(monitor)
        self.monitor: ZeusMonitor = monitor
        """The monitor that measures."""
        self._gpus = list(monitor.gpus.values())
        self._loads = StepLoads(self._gpus)
        store: TrialStore = (
            TrialStore()
            if profile_path is None
            else JsonTrialStore(Path(checked_path("profile_path", profile_path, "profile.json")), profile_steps)
        )
        self.trial_store: TrialStore = store
        """Keeps the trials."""
        sets_clocks = any(kind.locks_sm_clock for kind in options.kinds) and not options.takes_first
        self._recorder = TrialRecorder(monitor, sets_clocks)
        self._history = SettingHistory(monitor.time_source)
        self.quiet: bool = quiet
        """Whether the end of training shows no result."""
        self._is_result_due = False
        self._under_way: set[type[Event]] = set()  # what has begun: TrainBegin, EpochBegin, StepBegin
        self._expects_interference = False
        this = weakref.ref(self)  # as a reference cycle would delay restoring the limits when this is dropped
        user = user_of(self, lambda: (optimizer := this()) is None or optimizer._is_at_rest, compares=True)
        course = SearchCourse(options, self._gpus, checked_world(world), self._recorder, store, self._history, user)
        self._extension = course.preparation.extension
        self._exchange = course.exchange
        self._directive = carbon_aware
        self._director: Director | None = None  # of the latest training, from its first decision on
        self._is_directed = False  # whether it is of the training under way
        self._resumed: Mapping[str, Any] = {}  # the checkpoint that the next training continues from
        self._due: DuePause | None = None  # before the next step, the same on all ranks
        super().__init__(course)

    def use_world(self, world: World) -> None:
        """Search together with these ranks from the next training on. Call it before training begins.

        Raises:
            UsageError: A search is under way.
        """
        if self.phase not in {Phase.REST, Phase.OFF}:
            raise UsageError("use_world was called during a search; call it before training begins, or after its end")
        self._exchange.use_world(checked_world(world))

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """State the work of a step: only trials of the same work are taken from the profile.

        The number of ranks always counts. Call it before training begins.

        Args:
            work: Facts by name, such as {"parameters": 124439808, "samples_per_step": 32}.

        Raises:
            UsageError: It is no mapping of names to whole numbers or text.
        """
        self._course.preparation.use_work(work)

    @property
    def phase(self) -> Phase:
        """The current phase of the search."""
        return self._course.state.phase

    @property
    def chosen_level(self) -> tuple[Limiter, int] | None:
        """The limiter of this rank, with the setting that is chosen for all ranks; None while settings are tried."""
        search = self._search
        return None if search is None or self.phase is not Phase.DONE else (search.limiter, search.choice)

    @property
    def follows_signal(self) -> bool:
        """Whether the setting follows the carbon intensity or the price of electricity."""
        return self._directive is not None

    @property
    def searches_each_activity(self) -> bool:
        """Whether each activity has a setting of its own."""
        return self._extension is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the search so far for the checkpoint of a training, in JSON types; empty before its first trial."""
        return self._course.preparation.state({} if self._director is None else self._director.state())

    def load_state_dict(self, state: Any) -> None:
        """Continue the search of a checkpoint in the next training, if it was made under the same conditions."""
        self._course.preparation.load_state(state)
        self._resumed = state if isinstance(state, Mapping) else {}

    def receive(self, event: Event) -> None:
        """Receive an event of training.

        `Interference` that spoils a measurement has the steps since the last pause (of several processes: those of the
        whole trial) measured again; and from then on every step is measured by itself, so that the next one spoils
        nothing. The step after a `Pause` on all ranks, in which the faster ones wait for the slower ones, is not
        measured. `TrainEnd` restores the original limits, and shows the result. `Forget` drops all trials, also those
        in the profile.
        """
        kind = type(event)
        if kind is StepEnd:
            self._loads.end()
        if self._extension is not None and kind is not Pause:
            self._extend(event)
        if isinstance(event, StepBegin):
            self._begin_step(event)
        elif not (self._takes_step_end() if kind is StepEnd else self._takes(event)):
            return
        self._course.receive(event)
        if self._extension is not None and kind is Pause:
            self._extend(event)
        if self._directive is not None:
            self._direct(self._directive, event)
        if kind is StepBegin:
            self._loads.begin()
        elif kind is StepEnd:
            self._recorder.skips_next_step = False
            if self._expects_interference:
                self._course.receive(Pause())

    @contained(on_fault=lambda self, error: self._course.fail(error))
    def _extend(self, event: Event) -> None:
        if self._extension is not None:
            self._extension.receive(event)

    def _begin_step(self, event: StepBegin) -> None:
        if StepBegin in self._under_way:
            self.receive(STEP_END)
        seconds = event.gap_seconds
        if self._recorder.is_after_unusual_gap(begins_step=True) if seconds is None else seconds > 0:
            self.receive(INTERFERENCE)
        if self._due is not None:
            self.pause()
        self._under_way.add(StepBegin)

    def _takes_step_end(self) -> bool:
        """Note the end of a step. Returns whether one was under way."""
        if StepBegin not in self._under_way:
            return False
        self._under_way.remove(StepBegin)
        self._is_result_due = True
        self._recorder.resume()
        return True

    def _takes(self, event: Event) -> bool:
        """Note an event that is none of a step. Returns whether the search follows it."""
        match event:
            case TrainBegin() | EpochBegin():
                self._under_way.add(type(event))
            case EpochEnd():
                self._leave_step()
                self._under_way.discard(EpochBegin)
            case Resume() if self._extension is None:
                self._recorder.resume()
                return False
            case Pause() if self._is_within_step(event):
                self._extend(event)
                return False
            case Pause():
                self._leave_step()
                self._recorder.skips_next_step = event.on_all_ranks and self._exchange.size > 1
            case Interference():
                return self._takes_interference()
            case TrainEnd():
                self._end_training()
                return False
            case Forget():
                self._end_training()
                self._course.preparation.forget()
                return False
            case _:
                return False
        return True

    def _takes_interference(self) -> bool:
        is_measuring = self._course.state.window is WindowState.OPEN
        self._expects_interference = self._expects_interference or is_measuring
        if self._exchange.size == 1:
            return True
        self._recorder.pause()
        if is_measuring:  # no rank may count other steps than the others do
            self._recorder.spoil_trial()
        return False

    def _is_within_step(self, event: Pause) -> bool:
        """Leave work within a step out of it. Returns whether the step goes on after it.

        A step ends with an exchange of all ranks. So no work ends it that the others may not have.
        """
        if event.on_all_ranks or StepBegin not in self._under_way:
            return False
        if self._extension is None and self._exchange.size > 1:
            self._recorder.interrupt()
        return self._extension is not None or self._exchange.size > 1

    def _leave_step(self) -> None:
        if StepBegin in self._under_way:
            self.receive(STEP_END)
        elif self._recorder.is_after_unusual_gap(begins_step=False):
            self.receive(INTERFERENCE)

    def on_evaluate(self, metric: float) -> None:
        """Report an evaluation of the model, as loops written for the `zeus` package do."""
        self.on_interference()

    def _end_training(self) -> None:
        self._under_way.clear()
        self._course.receive(TRAIN_END)
        self._due, self._is_directed = None, False
        self._course.restore()  # again, if it failed before
        if self._is_result_due:
            self._is_result_due = False
            self._show_result()

    @contained(default=dict[str, str])
    def result(self) -> dict[str, str]:
        """Return the result of the latest training for people, as labelled lines; empty before its first step.

        They say which limit was chosen, what it saves, what the search cost, or how far an unfinished one has come.
        """
        if not self._gpus:
            return {}  # a warning has said so
        result, because = self._search_result(), self._course.ended_because
        if result is None and because is not None:
            from zeus_core.optimizer.search_result import restored_text, restoring_rows

            unrestored = self._course.unrestored
            has_begun = unrestored or self._search is not None
            text = because + (restored_text(unrestored, "the original setting") if has_begun else "")
            return {self._course.preparation.name: text, **restoring_rows(unrestored)}
        if result is None:
            return {}
        if because is not None:
            return result.rows()
        own = {} if self._search is None else self._search.rows()
        directed = {} if self._director is None else self._director.rows()
        return {**self._loads.rows(), **result.rows(), **own, **self._course.rival_rows, **directed}

    @property
    def _is_at_rest(self) -> bool:
        """Whether nothing is under way that needs a setting: loops may report steps alone, and no end of training."""
        return not self._under_way

    @contained(on_fault=lambda self, error: self._course.fail(error))
    def _direct(self, directive: Directive, cause: Event) -> None:
        search = self._course.waiting
        if search is not None:
            if self._director is None or not self._is_directed:
                self._director = directive.director(self.monitor, self._exchange, self._resumed)
                self._is_directed = True
            decision = self._director.direct(search)
            self._due = decision.pause
            self._course.go_on(cause, decision.setting, decision.steps, decision.reason)

    @property
    def is_pause_due(self) -> bool:
        """Whether training pauses before its next step, on all ranks, as `carbon_aware` allows it."""
        return self._due is not None

    @property
    def is_end_due(self) -> bool:
        """Whether the process ends before the next step, to go on later: now a checkpoint is to be saved."""
        return self._due is not None and self._due.ends_process

    @contained(on_fault=lambda self, error: self._course.fail(error))
    def pause(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Pause training if that is due: wait with all ranks, or end the process. `StepBegin` does it otherwise.

        Args:
            meanwhile: Called each minute of a pause; a `TrainingEnergy` with this optimizer keeps its journal then.

        Raises:
            SystemExit: The process ends, to go on later, with exit code 75.
        """
        due, self._due = self._due, None
        if due is not None and self._director is not None:
            self._course.receive(Pause())
            self._director.pause(due, meanwhile)

    @contained
    def _show_result(self) -> None:
        if not self.quiet and self._exchange.rank == 0:
            show_result(self.result())


def search_record(optimizer: object) -> SearchRecord | None:
    """Return the latest search of an optimizer; None of optimizers of other kinds."""
    if not isinstance(optimizer, SearchOptimizer):
        return None
    from zeus_core.optimizer.search_result import SearchRecord  # at the end of training alone

    return SearchRecord(optimizer._search_result(), optimizer._history.changes)
