"""`GlobalPowerLimitOptimizer`: one power limit for the GPUs of a job, searched during training."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from zeus_core._codec import decode, encode
from zeus_core._validate import checked_flag, checked_object, checked_path, checked_whole_number
from zeus_core.adapters import contained
from zeus_core.adapters._contained import log_fault
from zeus_core.adapters._result import show_result
from zeus_core.errors import DeviceError, DeviceHeldError, NoDeviceError, UsageError
from zeus_core.events import Activity, Event
from zeus_core.knobs._kinds import KnobKind, PowerLimit
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._no_monitor import checked_monitor
from zeus_core.optimizer._phase_table import follow
from zeus_core.optimizer._trial_store import Conditions, JsonTrialStore, NoTrialStore, TrialStore, checked_facts
from zeus_core.optimizer.power_limit._limit_search import LimitSearch
from zeus_core.optimizer.power_limit._limiter import Limiter
from zeus_core.optimizer.power_limit._phases import (
    MEASURING,
    STEP_BOUNDARIES,
    Outcome,
    Phase,
    State,
    StepCounts,
    advance,
    remaining_steps,
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

__all__ = ["GlobalPowerLimitOptimizer"]

_FAULT = "a fault, which was logged, has ended the search; the original limit was restored"


class GlobalPowerLimitOptimizer:
    """Profiles training at several power limits, and keeps the best one for the rest of the training.

    Tell it what happens in the training loop:

        optimizer = GlobalPowerLimitOptimizer(ZeusMonitor(), MaxSlowdownConstraint(factor=1.1))
        for epoch in range(epochs):
            optimizer.on_epoch_begin()
            for batch in batches:
                optimizer.on_step_begin()
                train(batch)
                optimizer.on_step_end()
            optimizer.on_epoch_end()
            evaluate()

    The original limit, in force when training begins, is the ceiling: the search goes from it down to the lowest limit
    of the boards. The original limits are restored at `on_train_end`, `close`, the end of the `with` block if it is
    used as one, and at the end of the process, however it ends. Nothing is changed before training begins. A limit that
    somebody else sets meanwhile stays, and ends the search.

    The hooks never raise. After a fault, which is logged with its remedy, the original limits are restored and training
    continues without the optimizer. Without permission to set limits, it measures at the original limit and logs what
    is missing.

    In a job of several processes, create one optimizer per process: all agree on one limit. A step lasts as long as on
    the slowest process, and takes the energy of all GPUs. A fault or a lack of permission on one process applies to
    all. All processes must report the same steps. The selector and the profile are those of rank 0.

    Args:
        monitor: Measures the GPUs whose limit is searched.
        optimum_selector: The rule for the best limit; `ZeusCost(eta_knob=0.5)` over the GPUs of the job if None.
        wait_steps: Initial steps to skip before profiling.
        warmup_steps: Steps after each change of the limit that are not measured.
        profile_steps: Steps measured at each limit.
        pl_step: Distance between two limits, in watts.
        profile_path: JSON file that keeps the trials. Trials of an earlier run are not measured again.
        world: The processes that search together, such as `zeus_core.pytorch.torch_world()`; this one alone if None.
        quiet: Show no result at the end of training. A `TrainingEnergy` with this optimizer shows it instead.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | Path | None = None,
        *,
        world: World | None = None,
        quiet: bool = False,
    ) -> None:
        self._counts = StepCounts(wait_steps, warmup_steps, profile_steps)
        self._kind: KnobKind = PowerLimit(checked_whole_number("pl_step", pl_step, 1))
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
        self._has_forgotten = False  # what is kept of this work is that of other work
        self._recorder = TrialRecorder(monitor)
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
    def trials(self) -> list[Trial]:
        """The trials so far, the highest limit first."""
        return [] if self._search is None else self._search.sorted_trials()

    @property
    def measurements(self) -> list[PowerLimitMeasurement]:
        """The trials as selectors see them, each scaled to `profile_steps` steps."""
        return [] if self._search is None else self._search.measurements()

    @property
    def baseline_limit_watts(self) -> int | None:
        """The original limit; None until training begins."""
        return None if self._search is None else self._search.original_watts

    @property
    def chosen_limit_watts(self) -> int | None:
        """The limit the search ended with; None before its end."""
        return None if self._search is None else self._search.chosen_watts

    @property
    def confirmation(self) -> Trial | None:
        """The chosen limit, measured once more while training continues at it; None until then."""
        return None if self._search is None else self._search.confirmation

    @property
    def power_limit_watts(self) -> int | None:
        """The limit in force as far as the optimizer knows, the highest of this process's GPUs; None while it rests."""
        return None if self._limiter is None else self._limiter.setting

    @property
    def comparison(self) -> Comparison | None:
        """Steps at the original limit, and at the confirmed choice; None until it is confirmed, or if they are one."""
        search, after = self._search, self.confirmation
        if search is None or after is None or after.setting == search.original_watts:
            return None
        before = search.trials.get(search.original_watts)
        return None if before is None else Comparison(before, after, search.trials.get(after.setting))

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
        """Steps measured at each limit."""
        return self._counts.profile_steps

    def forget(self) -> None:
        """Drop all trials, also those in the profile: from now on a step is another amount of work."""
        self.on_train_end()
        if self._search is not None:
            self._search.trials = {}
            self._search.save()
        self._has_forgotten = True

    def on_train_begin(self) -> None:
        """Training begins. Loops that do not report it begin with their first epoch or step."""
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
        is_measuring = self.phase in MEASURING
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
            return {"power limit": self._ended_because}
        if search is None or search.steps == 0:
            return {}
        untried = len(set(search.settings) - search.trials.keys())
        rule = repr(self._selector) if isinstance(self._selector, Objective) else type(self._selector).__name__
        return SearchResult(
            original_watts=search.original_watts,
            chosen_watts=search.chosen_watts,
            is_denied=search.is_denied,
            settings=len(search.settings),
            untried=untried,
            rule=rule,
            trials=search.trials,
            comparison=self.comparison,
            searched_steps=search.searched_steps,
            chosen_steps=search.chosen_steps,
            steps_left=remaining_steps(state, self._counts, untried),
        ).rows()

    def close(self) -> None:
        """Restore the original limits. Training that continues, or begins again, resumes the search."""
        self.on_train_end()

    def __enter__(self) -> GlobalPowerLimitOptimizer:
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
        if event is Event.STEP_END and self.phase in MEASURING:
            self._exchange.attempt(self._recorder.mark_step)
        if event is Event.STEP_END and self._search is not None:
            self._search.count_step(is_original=self.phase is Phase.WAIT)
        self._follow(event)

    @contained
    def _show_result(self) -> None:
        if not self.quiet and self._exchange.rank == 0:
            show_result(self.result())

    def _fail(self, error: Exception) -> None:
        self._exchange.fail(error)
        if self._search is not None:
            self._search.chosen_watts = None
        self._follow(Outcome.FAULT)

    def _step_aside(self, error: Exception) -> None:
        self._ended_because = f"the search has ended: {error}" if isinstance(error, DeviceHeldError) else _FAULT
        self._restore()
        if self._gpus:  # without one, the warning of its monitor has said so
            log_fault(self, "the search for a power limit is off for the rest of this run", error)

    def _follow(self, event: Event | Outcome) -> None:
        def advanced(happening: Event | Outcome) -> bool:
            before, self._state = self.phase, advance(self._state, happening, self._counts)
            return self.phase is not before

        def enter() -> Outcome | None:
            is_at_boundary = event in STEP_BOUNDARIES
            return self._enter() or (Outcome.SPENT if is_at_boundary and self._state.is_spent else None)

        follow(event, advanced, enter)

    def _enter(self) -> Outcome | None:
        """Have the effects of entering the current phase. Returns their outcome; None if there is none yet."""
        if self.phase is Phase.PREPARE:
            return self._prepare()
        if self.phase in {Phase.REST, Phase.OFF}:
            self._restore()
            self._recorder.drop_trial()
            return None
        return None if self._search is None else self._search.enter(self.phase)

    def _prepare(self) -> Outcome:
        exchange = self._exchange
        # No rank changes a limit before all ranks have read theirs: some may share a GPU.
        told = exchange.gather(lambda: encode(self._information(self._read_limits())), self.phase)
        ranks, limiter = decode(list[RankInformation], told), self._limiter
        assert limiter is not None, "it was made to read the limits"
        group = SearchGroup.from_ranks(ranks, self._kind)
        exchange.attempt(lambda: limiter.leave({uuid for rank in ranks[: exchange.rank] for uuid in rank.gpus}))
        if not self._has_own_selector:
            self._selector = ZeusCost(world_size=len(group.gpus))
        conditions = group.conditions(self._kind, self._work)
        known = exchange.decide(lambda: encode(self._known_trials(conditions)), self.phase)
        self._conditions = conditions
        trials = {trial.setting: trial for trial in decode(list[Trial], known)}
        self._search = LimitSearch(
            group,
            conditions,
            trials,
            limiter,
            exchange,
            self._recorder,
            self._store,
            self._selector,
            self.profile_steps,
        )
        return self._search.ask()

    def _known_trials(self, conditions: Conditions) -> list[Trial]:
        """Return the trials of an earlier training, or those in the profile, if the conditions are the same."""
        own = self.trials if self._conditions == conditions else []
        return own or ([] if self._has_forgotten else self._store.load(conditions))

    def _information(self, limiter: Limiter) -> RankInformation:
        return RankInformation(
            {**asdict(self._counts), **self._kind.arguments},
            limiter.settings,
            limiter.gpus,
        )

    def _read_limits(self) -> Limiter:
        if not self._gpus:
            raise NoDeviceError("this rank has no GPU")
        if not self._restore():
            raise DeviceError("the original power limits of an earlier training have not been restored yet")
        self._limiter = Limiter(self._gpus, self._kind)
        return self._limiter

    def _restore(self) -> bool:
        """Restore the original limits. Never raises; False if a GPU refuses."""
        return self._limiter is None or self._limiter.restore()
