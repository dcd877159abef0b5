"""The search for one setting of the GPUs of a job, during training: what every knob has in common."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from zeus_core._codec import decode, encode
from zeus_core._validate import (
    checked_flag,
    checked_function,
    checked_object,
    checked_one_of,
    checked_path,
    checked_whole_number,
)
from zeus_core.adapters import contained
from zeus_core.adapters._contained import log_fault
from zeus_core.adapters._result import show_result
from zeus_core.errors import DeviceError, DeviceHeldError, NoDeviceError, UsageError
from zeus_core.events import Activity, Event
from zeus_core.knobs._kinds import KnobKind
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._no_monitor import checked_monitor
from zeus_core.optimizer._phase_table import follow
from zeus_core.optimizer._trial_store import (
    Conditions,
    JsonTrialStore,
    NoTrialStore,
    TrialStore,
    checked_facts,
    trials_from_state,
    trials_to_state,
)
from zeus_core.optimizer.power_limit._limit_search import LimitSearch
from zeus_core.optimizer.power_limit._limiter import Limiter, obstacle_to
from zeus_core.optimizer.power_limit._orders import DEFAULT_STEPS, MakeSearch, Mode, SearchArguments
from zeus_core.optimizer.power_limit._phases import (
    MEASURED,
    STEP_BOUNDARIES,
    Outcome,
    Phase,
    State,
    StepCounts,
    Window,
    advance,
)
from zeus_core.optimizer.power_limit._recorder import TrialRecorder
from zeus_core.optimizer.power_limit._search_group import RankInformation, SearchGroup
from zeus_core.optimizer.power_limit._search_result import SearchResult
from zeus_core.ports import World
from zeus_core.ports._exchange import Exchange
from zeus_core.ports._world import checked_world
from zeus_core.search import Trial
from zeus_core.search._comparison import Comparison
from zeus_core.search._objectives import Objective, OptimumSelector, PowerLimitMeasurement, ZeusCost

__all__ = ["SearchOptimizer"]

_FAULT = "a fault, which was logged, has ended the search; the original setting was restored"
_logger = logging.getLogger(__name__)
_Self = TypeVar("_Self", bound="SearchOptimizer")


class SearchOptimizer:
    """Searches for one setting during training. See `GlobalPowerLimitOptimizer` for the arguments."""

    def __init__(
        self,
        kind: KnobKind,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None,
        wait_steps: int,
        warmup_steps: int | None,
        profile_steps: int | None,
        profile_path: str | Path | None,
        search: MakeSearch | None,
        max_steps: int | None,
        mode: Mode,
        world: World | None,
        quiet: bool,
        other_kind: KnobKind | None = None,
    ) -> None:
        self._kind = kind
        self._other_kind = other_kind  # searched where the first one cannot be changed
        self._wait_steps = checked_whole_number("wait_steps", wait_steps, 0)
        self._warmup_steps = None if warmup_steps is None else checked_whole_number("warmup_steps", warmup_steps, 0)
        self._profile_steps = None if profile_steps is None else checked_whole_number("profile_steps", profile_steps, 1)
        self._own_search: MakeSearch | None = checked_search(search)
        self._max_steps = None if max_steps is None else checked_whole_number("max_steps", max_steps, 1)
        self._told_max_steps: int | None = None
        self._mode: Mode = checked_one_of("mode", mode, ("search", "observe"))
        self.monitor: ZeusMonitor = checked_monitor(monitor)
        """The monitor that measures."""
        self._gpus = list(monitor.gpus.values())
        self._has_own_selector = optimum_selector is not None
        wanted = "an OptimumSelector object, such as ZeusCost(eta_knob=0.5)"
        selector = ZeusCost(world_size=max(len(self._gpus), 1)) if optimum_selector is None else optimum_selector
        self._selector: OptimumSelector = checked_object("optimum_selector", selector, "select", wanted)
        self._store: TrialStore = (
            NoTrialStore()
            if profile_path is None
            else JsonTrialStore(Path(checked_path("profile_path", profile_path, "profile.json")))
        )
        self._work: dict[str, int | str] = {}
        self._conditions: Conditions | None = None  # of the trials of the latest training
        self._resumed: Any = None  # the state of a checkpoint, until a training begins
        self._has_forgotten = False  # what is kept of this work is that of other work
        self._recorder = TrialRecorder(monitor, samples_clocks=kind.unit == "MHz")
        self._limiter: Limiter | None = None  # of the latest training
        self._search: LimitSearch | None = None  # of the latest training
        self._state = State()
        self._ended_state = State()  # in which the latest training ended
        self._is_result_due = False
        self._ended_because = _FAULT
        self.quiet: bool = checked_flag("quiet", quiet)
        """Whether the end of training shows no result."""
        self._is_in_step = False
        self._expects_interference = False
        this = weakref.ref(self)  # a reference cycle would delay restoring the limits when the optimizer is dropped

        def step_aside(error: Exception) -> None:
            optimizer = this()
            if optimizer is not None:
                optimizer._step_aside(error)

        self._exchange = Exchange(checked_world(world), step_aside)

    def use_world(self, world: World) -> None:
        """Search together with these ranks from the next training on. Call it before training begins.

        Raises:
            UsageError: A search is under way.
        """
        if self.phase not in {Phase.REST, Phase.OFF}:
            raise UsageError("use_world was called during a search; call it before training begins, or after its end")
        self._exchange.use_world(checked_world(world))

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Tell the work of a step from other work: only trials of the same work are taken from the profile.

        The number of ranks is always told. Call it before training begins.

        Args:
            work: Facts by name, such as {"parameters": 124439808, "samples_per_step": 32}.

        Raises:
            UsageError: It is no mapping of names to whole numbers or text.
        """
        facts = checked_facts("work", work)
        if facts != self._work:
            self._work, self._has_forgotten = facts, False

    @property
    def phase(self) -> Phase:
        """The current phase of the search."""
        return self._state.phase

    @property
    def optimum_selector(self) -> OptimumSelector:
        """The rule for the best limit."""
        return self._selector

    @property
    def baseline_limit_watts(self) -> int | None:
        """The original limit; None until training begins, and where clocks are searched."""
        return None if self._search is None else self._in("W", self._search.original)

    @property
    def chosen_limit_watts(self) -> int | None:
        """The limit the search ended with; None before its end, and where clocks are searched."""
        return None if self._search is None else self._in("W", self._search.chosen)

    @property
    def power_limit_watts(self) -> int | None:
        """The limit in force as far as the optimizer knows, the highest of this process's GPUs; None while it rests."""
        return None if self._limiter is None else self._in("W", self._limiter.setting)

    @property
    def baseline_clock_mhz(self) -> int | None:
        """The original SM clock, or the highest one of the GPUs if they were not locked; None until training begins."""
        return None if self._search is None else self._in("MHz", self._search.original)

    @property
    def chosen_clock_mhz(self) -> int | None:
        """The SM clock the search ended with; None before its end, and where limits are searched."""
        return None if self._search is None else self._in("MHz", self._search.chosen)

    @property
    def sm_clock_mhz(self) -> int | None:
        """The SM clock in force as far as the optimizer knows; None while it rests, and where limits are searched."""
        return None if self._limiter is None else self._in("MHz", self._limiter.setting)

    def _in(self, unit: str, setting: int | None) -> int | None:
        return setting if self._kind.unit == unit else None

    @property
    def trials(self) -> list[Trial]:
        """The trials so far, the highest limit first."""
        return [] if self._search is None else self._search.sorted_trials()

    @property
    def measurements(self) -> list[PowerLimitMeasurement]:
        """The trials as selectors see them, each scaled to `profile_steps` steps."""
        return [] if self._search is None else self._search.measurements(self.profile_steps)

    @property
    def confirmation(self) -> Trial | None:
        """The steps measured at the choice since training continues at it; None until then."""
        return None if self._search is None else self._search.confirmation

    @property
    def comparison(self) -> Comparison | None:
        """Steps at the original setting, and at the choice; None until that was measured, or if they are one.

        A search that moves its choice a little while training continues is compared by its steps at all choices.
        """
        return None if self._search is None else self._search.comparison

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step that the confirmed choice saves, over that at the original limit.

        None until the choice is confirmed, if it is the original limit, and if the saving is smaller than its
        uncertainty.
        """
        comparison = self.comparison
        return comparison.saving_fraction if comparison is not None and comparison.is_certain else None

    @property
    def saving_uncertainty(self) -> float | None:
        """How far `saving_fraction` can be off; None if that is."""
        comparison = self.comparison
        return comparison.saving_uncertainty if comparison is not None and comparison.is_certain else None

    @property
    def profile_steps(self) -> int:
        """Steps measured at each setting, as passed; otherwise those that `measurements` are scaled to."""
        return DEFAULT_STEPS if self._profile_steps is None else self._profile_steps

    def state_dict(self) -> dict[str, Any]:
        """Return the search so far for the checkpoint of a training, in JSON types; empty before its first trial."""
        search = self._search
        if search is None or self._conditions is None or not search.blocks:
            return {}
        return trials_to_state(self._conditions, search.blocks)

    def load_state_dict(self, state: Any) -> None:
        """Continue the search of a checkpoint in the next training, if it was made under the same conditions."""
        self._resumed = state or None

    def forget(self) -> None:
        """Drop all trials, also those in the profile: from now on a step is another amount of work."""
        self.on_train_end()
        if self._search is not None:
            self._search.forget()
        self._has_forgotten = True

    def on_train_begin(self, *, max_steps: int | None = None) -> None:
        """Training begins. Loops that do not report it begin with their first epoch or step.

        Args:
            max_steps: The steps it will take, if the loop knows; those passed to the constructor come first.
        """
        self._told_max_steps = max_steps
        self._report(Event.TRAIN_BEGIN)

    def on_epoch_begin(self) -> None:
        """Report that an epoch begins."""
        self._report(Event.EPOCH_BEGIN)

    def on_step_begin(self) -> None:
        """Report that a training step begins. A step whose end was not reported ends here."""
        self._end_step()
        self._is_in_step = True
        self._report(Event.STEP_BEGIN)

    def on_step_end(self) -> None:
        """Report that the training step has ended."""
        self._end_step()

    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Something other than training (evaluation, saving) is about to happen, until the next step begins.

        Args:
            activity: The kind of work.
            on_all_ranks: Whether every rank reports it. The next step, in which the faster ranks wait for the slower
                ones, is then not measured.
        """
        self._end_step()
        self._report(Event.PAUSE)
        self._recorder.skips_next_step = on_all_ranks and self._exchange.size > 1

    def on_resume(self) -> None:
        """Report that the work of the latest `on_pause` is over. Nothing is measured before the next step begins."""

    def on_interference(self) -> None:
        """Something other than training has already happened since the last step ended.

        If it spoils a measurement, the steps since the last pause (of several processes: those of the whole trial) are
        measured again; and from then on every step is measured by itself, so that the next interference spoils nothing.
        """
        is_measuring = self._state.window is Window.OPEN
        self._expects_interference = self._expects_interference or is_measuring
        if self._exchange.size == 1:
            self._report(Event.INTERFERENCE)
        elif is_measuring:  # no rank may count other steps than the others do
            self._recorder.spoil_trial()

    def on_evaluate(self, metric: float) -> None:
        """Report an evaluation of the model, as loops written for the `zeus` package do."""
        self.on_interference()

    def on_epoch_end(self) -> None:
        """Report that the epoch has ended. No work counts as training until the next step begins."""
        self._end_step()
        self._report(Event.EPOCH_END)

    def on_train_end(self) -> None:
        """Training has ended, however it ended: restore the original limits, and show the result."""
        self._is_in_step = False
        if self.phase is not Phase.REST:
            self._ended_state = self._state
        self._report(Event.TRAIN_END)
        self._restore()  # again, if it failed before
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
        search, state = self._search, self._ended_state if self.phase is Phase.REST else self._state
        if state.phase is Phase.OFF:
            return {self._kind.name: self._ended_because}
        if search is None or search.steps == 0:
            return {}
        rule = repr(self._selector) if isinstance(self._selector, Objective) else type(self._selector).__name__
        return SearchResult(
            name=self._kind.name,
            unit=self._kind.unit,
            original=search.original,
            chosen=search.chosen,
            best=search.best,
            settings=len(search.settings),
            rule=rule,
            not_changed_because=search.not_changed_because,
            stepped_aside=search.stepped_aside,
            prediction=search.prediction,
            command=None if search.prediction is None else self._command(search.prediction.setting),
            trials=search.trials,
            comparison=self.comparison,
            searched_steps=search.searched_steps,
            chosen_steps=search.chosen_steps,
            outlier_steps=search.outlier_steps,
        ).rows()

    def _command(self, setting: int) -> str:
        """Return the command by which an administrator applies a setting."""
        argument = f"-pl {setting}" if self._kind.unit == "W" else f"-lgc {setting},{setting}"
        return f"sudo nvidia-smi -i {','.join(gpu.uuid for gpu in self._gpus)} {argument}"

    def close(self) -> None:
        """Restore the original limits. Training that continues, or begins again, resumes the search."""
        self.on_train_end()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _end_step(self) -> None:
        if self._is_in_step:
            self._is_in_step = False
            self._is_result_due = True
            self._report(Event.STEP_END)
            self._recorder.skips_next_step = False
            if self._expects_interference:
                self._report(Event.PAUSE)

    @contained(on_fault=lambda self, error: self._fail(error))
    def _report(self, event: Event) -> None:
        """Follow an event: the one entrance of all hooks."""
        self._time(event)
        is_measured = self._state.window is Window.OPEN
        if event is Event.STEP_END and is_measured:
            self._exchange.attempt(self._recorder.mark_step)
        if event is Event.STEP_END and self._search is not None:
            self._search.count_step(is_original=self.phase is Phase.WAIT)
        self._follow(event)
        if event is Event.STEP_END and is_measured and self._is_to_end_early():
            self._follow(Outcome.SPENT)

    def _time(self, event: Event) -> None:
        match event:
            case Event.STEP_BEGIN:
                self._recorder.begin_step()
            case Event.STEP_END:
                self._recorder.end_step()
            case _:
                self._recorder.pause()

    def _is_to_end_early(self) -> bool:
        search, steps = self._search, self._state.steps_left
        if search is None or steps == 0 or self.phase not in MEASURED:
            return False
        return search.is_to_end_early(self.phase, search.counts.profile_steps - steps)

    @contained
    def _show_result(self) -> None:
        if not self.quiet and self._exchange.rank == 0:
            show_result(self.result())

    def _fail(self, error: Exception) -> None:
        self._exchange.fail(error)
        if self._search is not None:
            self._search.chosen = None
        self._follow(Outcome.FAULT)

    def _step_aside(self, error: Exception) -> None:
        self._ended_because = f"the search has ended: {error}" if isinstance(error, DeviceHeldError) else _FAULT
        self._restore()
        if self._gpus:  # without one, the warning of its monitor has said so
            log_fault(self, f"the search for a {self._kind.name} is off for the rest of this run", error)

    def _follow(self, event: Event | Outcome) -> None:
        before = self._state

        def advanced(happening: Event | Outcome) -> bool:
            nonlocal before
            before, self._state = self._state, advance(self._state, happening, self._counts)
            return (self._state.phase, self._state.window) != (before.phase, before.window)

        def enter() -> Outcome | None:
            outcome = self._enter(is_new=self.phase is not before.phase)
            return outcome or (Outcome.SPENT if event in STEP_BOUNDARIES and self._state.is_spent else None)

        follow(event, advanced, enter)

    @property
    def _counts(self) -> StepCounts:
        return StepCounts(self._wait_steps, 0, 1) if self._search is None else self._search.counts

    def _enter(self, is_new: bool) -> Outcome | None:
        """Have the effects of entering the current phase, or the state of its window.

        Returns:
            Their outcome; None if there is none yet.
        """
        if self.phase is Phase.PREPARE:
            return self._prepare()
        if self.phase in {Phase.REST, Phase.OFF}:
            self._restore()
            self._recorder.drop_trial()
            return None
        return None if self._search is None else self._search.enter(self.phase, self._state.window, is_new)

    def _prepare(self) -> Outcome:
        exchange = self._exchange
        if self._other_kind is not None and self._mode == "search":
            self._kind, self._other_kind = self._possible_kind(self._other_kind), None
        # No rank changes a limit before all ranks have read theirs: some may share a GPU.
        told = exchange.gather(lambda: encode(self._information(self._read_limits())), self.phase)
        ranks, limiter = decode(list[RankInformation], told), self._limiter
        assert limiter is not None, "it was made to read the limits"
        group = SearchGroup.from_ranks(ranks, self._kind)
        exchange.attempt(lambda: limiter.leave({uuid for rank in ranks[: exchange.rank] for uuid in rank.gpus}))
        if not self._has_own_selector:
            self._selector = ZeusCost(world_size=len(group.gpus))
        if self._kind.unit != "W":
            self._selector = _with_power(self._selector, group.original_limit_watts)
        conditions = group.conditions(self._kind, self._work)
        known = exchange.decide(lambda: encode(self._known_blocks(conditions)), self.phase)
        self._conditions = conditions
        self._recorder.begin_run()
        self._search = LimitSearch(
            group,
            conditions,
            decode(list[Trial], known),
            limiter,
            exchange,
            self._recorder,
            self._store,
            self._search_arguments(),
            self._wait_steps,
            self._mode == "observe",
        )
        return self._search.begin()

    def _possible_kind(self, other: KnobKind) -> KnobKind:
        """Return the kind of setting that all ranks can change; the other one if a rank cannot."""
        obstacles = self._exchange.gather(lambda: obstacle_to(self._kind, self._gpus), self.phase)
        if not any(obstacles):
            return self._kind
        _logger.warning(
            "%ss cannot be changed, and %ss are searched instead: %s",
            self._kind.name,
            other.name,
            self._exchange.complaint(obstacles),
        )
        return other

    def _known_blocks(self, conditions: Conditions) -> Sequence[Trial]:
        """Return the blocks of an earlier training, or those in the profile, if the conditions are the same."""
        own = self._search.blocks if self._search is not None and self._conditions == conditions else []
        resumed, self._resumed = self._resumed, None
        if own or self._has_forgotten:
            return own
        # A profile is as new as the latest block.
        kept = self._store.load(conditions)
        return kept or ([] if resumed is None else trials_from_state(conditions, resumed))

    def _search_arguments(self) -> SearchArguments:
        return SearchArguments(
            self._kind,
            self._selector,
            self._own_search,
            self._profile_steps,
            self._warmup_steps,
            self._max_steps or self._told_max_steps,
            max(gpu.energy_counter_period_seconds for gpu in self._gpus),
        )

    def _information(self, limiter: Limiter) -> RankInformation:
        return RankInformation(
            {
                "wait_steps": self._wait_steps,
                "warmup_steps": str(self._warmup_steps),
                "profile_steps": str(self._profile_steps),
                "mode": self._mode,
                **self._kind.arguments,
            },
            limiter.settings,
            limiter.gpus,
        )

    def _read_limits(self) -> Limiter:
        if not self._gpus:
            raise NoDeviceError("this rank has no GPU")
        if not self._restore():
            raise DeviceError("the original settings of an earlier training have not been restored yet")
        self._limiter = Limiter(self._gpus, self._kind)
        return self._limiter

    def _restore(self) -> bool:
        """Restore the original limits. Never raises; False if a GPU refuses."""
        return self._limiter is None or self._limiter.restore()


def _with_power(selector: OptimumSelector, original_watts: float | None) -> OptimumSelector:
    """Return a selector that knows the highest power of a GPU, where the settings are none.

    Raises:
        UsageError: Nobody knows it.
    """
    if not isinstance(selector, ZeusCost) or selector.max_power_watts is not None:
        return selector
    if original_watts is None:
        raise UsageError("the GPUs report no power limit: pass ZeusCost(max_power_watts=...), the highest power of one")
    known = copy(selector)
    known.max_power_watts = original_watts
    return known


def checked_search(search: MakeSearch | None) -> MakeSearch | None:
    """Return a function that makes searches; None for the default one.

    Raises:
        UsageError: It is something else, such as a search that was made already.
    """
    wanted = "a function of settings and a selector that makes a Search, such as GridSearch"
    return None if search is None else checked_function("search", search, wanted)
