"""Gives each GPU of a data-parallel training the setting at which it neither waits nor is waited for."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from zeus_core.adapters import contained
from zeus_core.adapters.contained import log_fault
from zeus_core.adapters.result import show_result
from zeus_core.errors import UsageError
from zeus_core.events import (
    EpochBegin,
    Event,
    Forget,
    Interference,
    Pause,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
    TrainingOptimizer,
)
from zeus_core.mixed.levelling._hold import CommonLevel, common_level
from zeus_core.mixed.levelling._levelled_training import LevelledTraining
from zeus_core.mixed.levelling._rank_times import OwnWork
from zeus_core.mixed.levelling._work_end import WorkReports, report_prepared
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import checked_monitor
from zeus_core.optimizer.global_setting.search_optimizer import SearchOptimizer
from zeus_core.optimizer.global_setting.search_options import kinds_of
from zeus_core.ports import DeviceEvent, DeviceEvents, World
from zeus_core.ports.device_events import HostEvents
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import checked_world
from zeus_core.settings.holders import user_of
from zeus_core.validate import checked_number, checked_one_of, wrong_argument

LevelKnob = Literal["clock", "power limit"]
LevelMode = Literal["level", "observe"]

_logger = logging.getLogger(__name__)


class LevellingOptimizer(TrainingOptimizer):
    """Lowers the clock, or the power limit, of GPUs that wait for slower ones, as far as it lengthens no step.

    A data-parallel step lasts as long as that of the slowest rank: of GPUs of one model, which differ by some percent,
    of different models, or of one with more work or less air. The others are early, and draw power for it. Report the
    end of the own work of a step, before the gradients of the other ranks are waited for:

        optimizer = LevellingOptimizer(ZeusMonitor(), world=torch_world())
        for batch in batches:
            optimizer.on_step_begin()
            forward_and_backward(batch)
            optimizer.on_work_end()  # `report_work_end` calls it under DDP
            average_gradients_and_step()
            optimizer.on_step_end()

    Steps get longer by at most 0.2 % in the mean, however they scatter. If a rank becomes slow, the others follow
    within ten steps; once it has recovered, they return within five. Settings seldom change when nothing else does. The
    original settings are restored at `on_train_end`, `close`, and at the end of the process, however it ends.

    With a budget, the power limits of all ranks together are at most this, and are divided so that all are equally
    fast: steps are shorter than with equal limits of the same sum.

    The hooks never raise. After a fault on any rank, which is logged with its remedy, all ranks restore the original
    settings, and training continues without the optimizer. Where a rank may not change its GPU, none is changed: who
    waits is measured, and what levelling would save is predicted, with an interval.

    Args:
        monitor: The monitor of the one GPU of this rank.
        knob: "clock" for the SM clock, or "power limit"; if None "clock", and "power limit" with a budget.
        budget_watts: The power of all GPUs of the job together; None for none.
        after: A search for a common setting, such as a `GlobalPowerLimitOptimizer` with the same monitor, which this
            object then sends all events to. Levelling begins below the setting that it chooses. None for none.
        mode: "level", or "observe" to change nothing, measure who waits, and predict what levelling would save.
        original_clock_mhz: The clock that the GPUs were locked at before; None if they were not locked.
        world: The ranks, such as `zeus_core.pytorch.torch_world()`.
        events: Makes events of the device, such as `zeus_core.pytorch.device_events_for(...)`, which the host
            runs ahead of; None where the work of a step is over once the host is at its end.
        quiet: Show no result at the end of training.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        *,
        knob: LevelKnob | None = None,
        budget_watts: float | None = None,
        after: SearchOptimizer | None = None,
        mode: LevelMode = "level",
        original_clock_mhz: int | None = None,
        world: World | None = None,
        events: DeviceEvents | None = None,
        quiet: bool = False,
    ) -> None:
        self.monitor: ZeusMonitor = checked_monitor(monitor)
        """The monitor of the GPUs."""
        if budget_watts is not None:
            budget_watts = checked_number("budget_watts", budget_watts, 0.0, math.inf, "watts, above 0", is_open=True)
        usual: LevelKnob = "clock" if budget_watts is None else "power limit"
        name: LevelKnob = checked_one_of("knob", usual if knob is None else knob, get_args(LevelKnob))
        (self._kind,) = kinds_of(name, None, original_clock_mhz, has_own_search=False)
        if budget_watts is not None and not self._kind.binds_power:
            raise UsageError(f'knob is "{name}": a budget is kept by power limits; use knob="power limit", or none')
        self._budget_watts = budget_watts
        self._observes = checked_one_of("mode", mode, get_args(LevelMode)) == "observe"
        self._after = _checked_after(after, monitor, budget_watts)
        self._search: TrainingOptimizer = self._after or TrainingOptimizer()
        self._has_own_events = events is not None
        self._events = HostEvents(monitor.time_source) if events is None else events
        self._exchange = Exchange(checked_world(world), self._step_aside)
        if world is not None:
            self._search.use_world(world)
        self.quiet: bool = quiet
        """Whether the end of training shows no result."""
        self._session: LevelledTraining | None = None
        self._level: CommonLevel | None = None
        self._earlier_changes = 0
        self._is_off = False
        self._is_result_due = False
        self._rows: dict[str, str] = {}
        self._work: OwnWork | None = None
        self._latest_end: DeviceEvent | None = None  # of a step, if nothing but loading follows it
        self._reports: WorkReports | None = None  # of the models of a framework

    @property
    def settings(self) -> list[int]:
        """The setting of each rank, by rank; empty while nothing is levelled."""
        return [] if self._session is None or self._session.observes else self._session.settings

    @property
    def changes(self) -> int:
        """How often settings were changed in this training."""
        return self._earlier_changes + (0 if self._session is None else self._session.changes)

    @property
    def saving_fraction(self) -> float | None:
        """Energy per step that the search before it saves, with levelling; None without one, or if it is not known."""
        return self._search.saving_fraction

    @property
    def saving_uncertainty(self) -> float | None:
        """How far `saving_fraction` can be off; None if that is."""
        return self._search.saving_uncertainty

    @property
    def power_limit_watts(self) -> int | None:
        """The power limit that the search before it has set; None without one."""
        return self._search.power_limit_watts

    @property
    def setting_text(self) -> str | None:
        """The setting of the search before it, in words; None without one."""
        return self._search.setting_text

    def use_world(self, world: World) -> None:
        """Level with these ranks from the next training on. Call it before training begins."""
        self._exchange.use_world(checked_world(world))
        self._search.use_world(world)

    def use_work(self, work: Mapping[str, int | str]) -> None:
        """Distinguish the work of a step from other work; see `GlobalPowerLimitOptimizer.use_work`."""
        self._search.use_work({**work, "levelled": 1})  # trials take less energy than they would without

    @contained(on_fault=lambda self, error: self._exchange.fail(error))  # all ranks hear of it in the next exchange
    def on_prepared(self, models: Sequence[Any], optimizers: Sequence[Any], device: Any) -> None:
        """Have the own work of each step reported, and timed on the device, until training ends.

        Where that is not possible, levelling is off, and says why. The models are those of torch.
        """
        from zeus_core.pytorch.torch_events import device_events_for  # the only need of torch

        self._stop_reports()
        if not self._has_own_events:
            self._events = device_events_for(device, self.monitor.time_source)
        self._reports = report_prepared(models, optimizers, self)

    def _stop_reports(self) -> None:
        if self._reports is not None:
            self._reports.remove()
            self._reports = None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the search before it, for a checkpoint; empty without one."""
        return self._search.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Continue the search of a checkpoint in the next training."""
        self._search.load_state_dict(state)

    def receive(self, event: Event) -> None:
        """Receive an event of training, which the search before it receives too.

        A step that is interrupted is not counted. `TrainEnd` restores the original settings, and shows the result.
        """
        if isinstance(event, TrainEnd):
            self._stop_reports()
        if isinstance(event, TrainEnd | Forget):
            self._end_session()  # first, as the search restores its own settings
        self._search.receive(event)
        match event:
            case StepBegin() if not self._is_off:
                self._work = OwnWork(self._event() if self._latest_end is None else self._latest_end)
                self._latest_end = None
            case StepEnd():
                self._end_step()
            case Pause() | Interference():
                self._work = self._latest_end = None
            case TrainBegin():
                self._earlier_changes = 0
            case EpochBegin():
                self._latest_end = None
            case TrainEnd():
                self._work = self._latest_end = None
                if self._is_result_due:
                    self._is_result_due = False
                    self._show_result()

    def on_work_begin(self) -> None:
        """Report that the own work of the step goes on, after a wait for other ranks within the step."""
        if self._work is not None:
            self._work.begin(self._event())

    def on_work_end(self) -> None:
        """Report that the own work of the step is over, or its part. The latest of several reports counts."""
        if self._work is not None:
            self._work.end(self._event())

    def _end_step(self) -> None:
        work, self._work = self._work, None
        self._is_result_due = True
        if not self._is_off:
            self._take_step(work)
        self._latest_end = None if self._is_off else self._event()

    def result(self) -> dict[str, str]:
        """Return the result for people, as labelled lines; empty before anything was levelled."""
        return {**self._search.result(), **self._rows}

    def _event(self) -> DeviceEvent | None:
        try:
            return self._events()
        except Exception:  # of the device: the step is not counted
            return None

    @contained(on_fault=lambda self, error: self._fail(error))
    def _take_step(self, work: OwnWork | None) -> None:
        level = None if self._after is None else common_level(self._after)
        if level != self._level or (level is None and self._after is not None):
            self._end_session()
            self._level = level
        if level is None and self._after is not None:
            return  # the search is under way
        if self._session is None:
            self._session = self._started(level)
        elif self._session.add_step(work):
            self._rows = self._session.rows()

    @contained
    def _show_result(self) -> None:
        if not self.quiet and self._exchange.rank == 0 and self.result():
            show_result(self.result())

    def _started(self, level: CommonLevel | None) -> LevelledTraining:
        """Begin to level, on all ranks. Raises what keeps one of them from it."""
        if self._exchange.size == 1:
            raise UsageError(
                "there is one rank, which waits for nobody: pass world=zeus_core.pytorch.torch_world() on each process"
            )
        observes = self._observes or (level is not None and level.observes)
        return LevelledTraining(
            self.monitor,
            self._kind,
            self._budget_watts,
            level,
            observes,
            self._exchange,
            self._report_denial,
            user_of(self),
        )

    def _end_session(self) -> None:
        session, self._session, self._level = self._session, None, None
        if session is not None:
            self._earlier_changes += session.changes
            session.close()

    def _report_denial(self, denial: str) -> None:
        _logger.warning(
            "%ss are not changed: %s. Training continues as it is, and what levelling would save is predicted",
            self._kind.words,
            denial,
        )

    def _fail(self, error: Exception) -> None:
        """Be off for good: all ranks have failed in the same exchange."""
        self._exchange.fail(error)
        self._is_off, self._session = True, None

    def _step_aside(self, error: Exception) -> None:
        if self._session is not None:
            self._session.close()
        self._rows = {"levelling": f"off: {error}"}
        if self.monitor.gpus:  # without one, the warning of its monitor has said so
            log_fault(self, f"the levelling of {self._kind.words}s is off for the rest of this run", error)


def _checked_after(
    after: SearchOptimizer | None, monitor: ZeusMonitor, budget_watts: float | None
) -> SearchOptimizer | None:
    if after is None:
        return None
    if not isinstance(after, SearchOptimizer):  # such as another levelling
        wanted = "a search for the common level, such as GlobalPowerLimitOptimizer(monitor)"
        raise wrong_argument("after", after, wanted)
    if after.monitor is not monitor:
        raise UsageError("after has another monitor than the one given; give both the same")
    if budget_watts is not None:
        raise UsageError("after is passed with budget_watts: a budget sets limits of its own; pass one of them")
    if after.follows_signal:
        raise UsageError("after has carbon_aware=..., which moves the common level all the time; pass one without")
    if after.searches_each_activity:
        # Tried: its trials, compared with levelled ones, let 2 of 4 runs within 1.02 take 1.022 to 1.023 (2026-11-27).
        raise UsageError('after has activities="each", whose trials levelled ranks would change; pass one without')
    after.quiet = True  # its result is part of that of levelling
    return after
