"""`GlobalPowerLimitOptimizer`: finding one power limit for the GPUs of a job, while it trains."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from zeus_core._validate import checked_whole_number
from zeus_core.adapters import contained, log_fault
from zeus_core.errors import DeviceError, UsageError
from zeus_core.events import Activity, Event
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._windows import checked_monitor
from zeus_core.optimizer._phase_table import follow
from zeus_core.optimizer._trial_store import JsonTrialStore, NoTrialStore, TrialStore
from zeus_core.optimizer.power_limit._arguments import (
    checked_choice,
    checked_selector,
)
from zeus_core.optimizer.power_limit._limiter import Limiter
from zeus_core.optimizer.power_limit._phases import STEP_BOUNDARIES, Outcome, Phase, State, StepCounts, advance
from zeus_core.optimizer.power_limit._recorder import TrialRecorder, trial_of
from zeus_core.optimizer.power_limit._search_group import job_of, rank_information, trials_from_json, trials_to_json
from zeus_core.ports import Exchange, World
from zeus_core.ports._world import checked_world
from zeus_core.search import OptimumSelector, PowerLimitMeasurement, Search, Sweep, Trial, ZeusCost

__all__ = ["GlobalPowerLimitOptimizer"]

_TRIES_PER_LIMIT = 3

_logger = logging.getLogger(__name__)


class GlobalPowerLimitOptimizer:
    """Measures training at several power limits, chooses one, and trains on at it.

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

    Limits run from the one found when training begins down to the lowest the boards accept. The limits found are put
    back at `on_train_end`, `close`, the end of the `with` block if it is used as one, and at the end of the process by
    whatever but SIGKILL. Nothing is changed before training begins.

    The hooks never raise: after a fault, which is logged with its remedy, the limits are put back and training goes on
    without the optimizer. Without the right to set limits it measures at the limit found, and says what is missing.

    Of several processes each has an optimizer, and all of them find one limit together: a step lasts as long as on the
    slowest, takes the energy of all their GPUs, and what happens to one of them (a fault, a lack of rights) happens to
    all. They must report the same steps. The selector and the profile are those of rank 0.

    Args:
        monitor: Measures the GPUs whose limit is to be found.
        optimum_selector: What "best" means; `ZeusCost(eta_knob=0.5)` over the GPUs of the job if None.
        wait_steps: Steps at the beginning of training that nothing is done in.
        warmup_steps: Steps after each change of the limit that are not measured.
        profile_steps: Steps measured at each limit.
        pl_step: Distance between two limits, in watts.
        profile_path: JSON file in which trials are kept. Those of an earlier run are not measured again.
        world: The processes that search together, such as `zeus_core.pytorch.torch_world()`; this one alone if None.

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
    ) -> None:
        self._counts = StepCounts(wait_steps, warmup_steps, profile_steps)
        self._step_watts = checked_whole_number("pl_step", pl_step, minimum=1)
        self.monitor = checked_monitor(monitor)
        """What measures."""
        self._gpus = list(monitor.gpus.values())
        self.optimum_selector = checked_selector(optimum_selector) or ZeusCost(world_size=len(self._gpus))
        """What "best" means."""
        self._has_own_selector = optimum_selector is not None
        self._store: TrialStore = NoTrialStore() if profile_path is None else JsonTrialStore(Path(profile_path))
        self._limiter = Limiter(self._gpus, self._step_watts)
        self._exchange = Exchange(checked_world(world), partial(_step_aside, self._limiter))
        self._recorder = TrialRecorder(monitor)
        self._state = State()
        self._is_in_step = False
        self._catches_up = False
        self._expects_interference = False
        self._trials: dict[int, Trial] = {}
        self._tries = 0
        self._settings: tuple[int, ...] = (0,)
        self._gpu_names = [gpu.name for gpu in self._gpus]
        self._limit_watts = 0
        self._baseline_watts: int | None = None
        self._chosen_watts: int | None = None
        self._confirmation: Trial | None = None
        self._search: Search = Sweep([])

    def use_world(self, world: World) -> None:
        """From the next training on, search together with these ranks; for those who learn late who they are.

        Raises:
            UsageError: A search is under way.
        """
        if self.phase not in {Phase.REST, Phase.OFF}:
            raise UsageError("use_world was called during a search; call it before training begins, or after its end")
        self._exchange.world = checked_world(world)

    @property
    def phase(self) -> Phase:
        """Where the search stands."""
        return self._state.phase

    @property
    def trials(self) -> list[Trial]:
        """What has been measured so far, at the highest limit first."""
        return sorted(self._trials.values(), key=lambda trial: -trial.setting)

    @property
    def measurements(self) -> list[PowerLimitMeasurement]:
        """What selectors are shown: the trials, each scaled to `profile_steps` steps."""
        steps = self._counts.profile_steps
        return [
            PowerLimitMeasurement(
                power_limit=trial.setting,
                energy=trial.joules_per_step * steps,
                time=trial.seconds_per_step * steps,
                time_error=trial.seconds_per_step_error * steps,
            )
            for trial in self.trials
            if self._settings[-1] <= trial.setting <= self._settings[0]
        ]

    @property
    def baseline_limit_watts(self) -> int | None:
        """The limit found before training; None until training begins."""
        return self._baseline_watts

    @property
    def chosen_limit_watts(self) -> int | None:
        """The limit the search ended with; None while it goes on."""
        return self._chosen_watts

    @property
    def confirmation(self) -> Trial | None:
        """The chosen limit, measured once more while training goes on at it; None until then."""
        return self._confirmation

    @property
    def power_limit_watts(self) -> int | None:
        """The limit in force as far as the optimizer knows, the highest of this process's GPUs; None while it rests."""
        return self._limiter.limit_watts

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step saved by the confirmed choice, over that at the limit found; None until it is confirmed."""
        baseline = self._trials.get(self._settings[0])
        if self._confirmation is None or baseline is None or baseline.joules_per_step == 0:
            return None
        return 1 - self._confirmation.joules_per_step / baseline.joules_per_step

    @property
    def profile_steps(self) -> int:
        """Steps measured at each limit."""
        return self._counts.profile_steps

    def forget(self) -> None:
        """Begin the search anew, also in the profile: from now on a step is another amount of work."""
        self.on_train_end()
        self._trials = {}
        self._save()

    def on_train_begin(self) -> None:
        """Training begins. Loops that do not report it begin with their first epoch or step."""
        self._report(Event.TRAIN_BEGIN)

    def on_epoch_begin(self) -> None:
        """An epoch begins."""
        self._report(Event.EPOCH_BEGIN)

    def on_step_begin(self) -> None:
        """A training step begins. A step whose end was not reported ends here."""
        self._end_step()
        self._is_in_step = True
        self._report(Event.STEP_BEGIN)

    def on_step_end(self) -> None:
        """The training step has ended."""
        self._end_step()

    def on_pause(self, activity: Activity = Activity.IDLE, on_all_ranks: bool = False) -> None:
        """Something else than training (evaluation, saving) is about to happen, until the next step begins.

        Args:
            activity: What it is.
            on_all_ranks: Whether every rank reports it. The next step, in which the quicker ranks wait for the slower
                ones, is then not measured.
        """
        self._end_step()
        self._report(Event.PAUSE)
        self._catches_up = on_all_ranks and self._exchange.size > 1

    def on_resume(self) -> None:
        """What the latest `on_pause` announced is over. Nothing is measured before the next step begins."""

    def on_interference(self) -> None:
        """Something else than training has already happened since the last step ended.

        If it spoils a measurement, the steps since the last pause (of several processes: those of the whole trial) are
        measured again; and from then on every step is measured by itself, so that the next interference spoils nothing.
        """
        is_measuring = self.phase is Phase.MEASURE
        self._expects_interference = self._expects_interference or is_measuring
        if self._exchange.size == 1:
            self._report(Event.INTERFERENCE)
        elif is_measuring:  # no rank may count other steps than the others do
            self._recorder.spoil_trial()

    def on_evaluate(self, metric: float) -> None:
        """The model has been evaluated, as loops written for the `zeus` package report it."""
        self.on_interference()

    def on_epoch_end(self) -> None:
        """The epoch has ended; what follows is not training until the next step begins."""
        self._end_step()
        self._report(Event.EPOCH_END)

    def on_train_end(self) -> None:
        """Training has ended, in whatever way: the limits are put back."""
        self._is_in_step = False
        self._report(Event.TRAIN_END)
        self._limiter.put_back()  # again, where it failed before

    def close(self) -> None:
        """Put the limits back. Training that goes on, or begins again, takes up the search where it was."""
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
            self._report(Event.STEP_END)
            self._catches_up = False
            if self._expects_interference:
                self._report(Event.PAUSE)

    @contained(on_fault=lambda self, error: self._fail(error))
    def _report(self, event: Event) -> None:
        """Follow an event: the one entrance of all hooks."""
        if event is Event.STEP_END and self.phase is Phase.MEASURE:
            self._exchange.attempt(self._recorder.mark_step)
        self._follow(event)

    def _fail(self, error: Exception) -> None:
        self._exchange.fail(error)
        self._chosen_watts = None
        self._follow(Outcome.FAULT)

    def _follow(self, event: Event | Outcome) -> None:
        """Advance by what happened, and by what happens on entering each phase that leads to."""

        def advanced(happening: Event | Outcome) -> bool:
            before, self._state = self.phase, advance(self._state, happening, self._counts)
            return self.phase is not before

        def enter() -> Outcome | None:
            is_at_boundary = event in STEP_BOUNDARIES
            return self._enter() or (Outcome.SPENT if is_at_boundary and self._state.is_spent else None)

        follow(event, advanced, enter)

    def _enter(self) -> Outcome | None:
        """The effects of entering the present phase, and what comes of them."""
        match self.phase:
            case Phase.PREPARE:
                return self._prepare()
            case Phase.WARM_UP:
                self._limit_watts = self._apply(self._limit_watts)
            case Phase.MEASURE:
                self._exchange.attempt(lambda: self._recorder.open_segment(self._catches_up))
            case Phase.SUSPEND:
                self._exchange.attempt(self._recorder.close_segment)
            case Phase.SPOIL:
                self._exchange.attempt(self._recorder.drop_segment)
            case Phase.CONCLUDE:
                return self._conclude()
            case Phase.SETTLE:
                self._settle()
            case Phase.REST | Phase.OFF:
                self._limiter.put_back()
                self._recorder.drop_trial()
        return None

    def _prepare(self) -> Outcome:
        job = job_of(self._exchange.gather(self._introduce, self.phase))
        self._settings, self._gpu_names = job.settings, list(job.gpu_names)
        if not self._has_own_selector:
            self.optimum_selector = ZeusCost(world_size=len(job.gpu_names))
        self._baseline_watts = self._settings[0]
        self._chosen_watts = self._confirmation = None
        self._trials = trials_from_json(self._exchange.decide(self._known_trials, self.phase))
        self._search = Sweep(self._settings)
        for trial in self._trials.values():
            self._search.tell(trial)
        return self._ask()

    def _introduce(self) -> dict[str, Any]:
        """Find this rank's limits, which no rank changes before all have found theirs: some may share a GPU."""
        return rank_information(self._counts, self._step_watts, self._limiter.find(), self._gpus)

    def _known_trials(self) -> list[dict[str, Any]]:
        return trials_to_json(self.trials or self._store.load(self._gpu_names))

    def _ask(self) -> Outcome:
        asked = self._search.ask()
        if asked is None:
            return Outcome.CHOSEN
        self._limit_watts, self._tries = asked, 0
        return Outcome.ASKED

    def _conclude(self) -> Outcome:
        parts = self._exchange.gather(self._finish_trial, self.phase)
        if any(part["is_spoiled"] for part in parts):
            return Outcome.LOST
        trial = trial_of(self._limit_watts, parts)
        if trial is None:
            return self._repeat()
        _logger.info("%d W: %.4g s, %.4g J per step", trial.setting, trial.seconds_per_step, trial.joules_per_step)
        if self._chosen_watts is not None:
            self._confirmation = trial
            return Outcome.CONFIRMED
        self._trials[trial.setting] = trial
        self._exchange.attempt(self._save)
        self._search.tell(trial)
        return self._ask()

    def _save(self) -> None:
        if self._exchange.rank == 0:
            self._store.save(self._gpu_names, self.trials)

    def _finish_trial(self) -> dict[str, Any]:
        """This rank's part."""
        self._recorder.close_segment()
        return self._recorder.finish_trial()

    def _repeat(self) -> Outcome:
        self._tries += 1
        if self._tries == _TRIES_PER_LIMIT:
            if self._chosen_watts is not None:
                return Outcome.CONFIRMED  # what was gained stays unknown, what was chosen is not in doubt
            raise DeviceError(f"the energy at {self._limit_watts} W was lost {_TRIES_PER_LIMIT} times in a row")
        return Outcome.LOST

    def _settle(self) -> None:
        choice = self._exchange.decide(self._select, self.phase)
        self._limit_watts = self._chosen_watts = self._apply(choice)
        self._tries = 0
        _logger.info("training goes on at a power limit of %d W", self._chosen_watts)

    def _select(self) -> int:
        selector = self.optimum_selector
        return checked_choice(selector, selector.select(self.measurements), self._settings)

    def _apply(self, limit_watts: int) -> int:
        """Set a limit on all ranks; or, if one may not do that, observe at the baseline. Returns the limit in force."""
        denials = self._exchange.gather(lambda: self._limiter.set(limit_watts), self.phase)
        if not any(denials):
            return limit_watts
        denial = self._exchange.complaint(denials)
        self._exchange.attempt(lambda: self._limiter.stay(denial))
        self._settings = self._settings[:1]
        self._search = Sweep(self._settings)
        _logger.warning(
            "power limits are not changed: %s. Training goes on at the %d W found, where it is measured",
            denial,
            self._settings[0],
        )
        return self._settings[0]


def _step_aside(limiter: Limiter, error: Exception) -> None:
    """Not a method: the exchange keeps it, and the limits are restored as soon as nobody keeps the optimizer."""
    limiter.put_back()
    log_fault(limiter, "the search for a power limit is off for the rest of this run", error)
