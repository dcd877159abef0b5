"""Gives each GPU of a data-parallel training the setting at which it neither waits nor is waited for."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TypeVar, get_args

from zeus_core._validate import checked_flag, checked_function, checked_number, checked_one_of
from zeus_core.adapters import contained
from zeus_core.adapters._contained import log_fault
from zeus_core.adapters._result import show_result
from zeus_core.device import Gpu
from zeus_core.errors import DeviceError, UsageError
from zeus_core.events import NoObserver
from zeus_core.knobs._kinds import CommonClock, KnobKind
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._no_monitor import checked_monitor
from zeus_core.optimizer._global_setting._clock_sampler import ClockSampler
from zeus_core.optimizer._global_setting._limiter import Limiter
from zeus_core.optimizer._global_setting._preparation import kinds_of
from zeus_core.optimizer.levelling._leveller import Leveller
from zeus_core.ports import DeviceEvent, DeviceEvents, World
from zeus_core.ports._device_events import HostEvents
from zeus_core.ports._exchange import Exchange
from zeus_core.ports._world import checked_world

__all__ = ["LevellingOptimizer"]

LevelKnob = Literal["clock", "power limit"]

# The ranks exchange the times of their steps as often as takes at most this share of the time of training. Over gloo an
# exchange takes 0.2 to 1 ms, so that steps of 0.5 s are told one by one.
_EXCHANGE_FRACTION = 0.002
_MAX_STEPS_APART = 64
_COMPARED_STEPS = 8  # at the original settings, before the first change

_logger = logging.getLogger(__name__)
_Self = TypeVar("_Self", bound="LevellingOptimizer")


class LevellingOptimizer(NoObserver):
    """Lowers the clock, or the power limit, of GPUs that wait for slower ones, as far as it lengthens no step.

    A data-parallel step lasts as long as that of the slowest rank: of GPUs of one model, which differ by some percent,
    of different models, or of one with more work or less air. The others are early, and draw power for it. Tell it the
    end of the own work of a step, before the gradients of the other ranks are waited for:

        optimizer = LevellingOptimizer(ZeusMonitor(), world=torch_world())
        for batch in batches:
            optimizer.on_step_begin()
            forward_and_backward(batch)
            optimizer.on_work_end()  # `zeus_core.pytorch.report_work_end` calls it for `DistributedDataParallel`
            average_gradients_and_step()
            optimizer.on_step_end()

    Steps get longer by at most 0.2 % in the mean, however they scatter. If a rank becomes slow, the others follow
    within ten steps; once it has recovered, they return within five. Settings seldom change when nothing else does. The
    original settings are restored at `on_train_end`, `close`, and at the end of the process, however it ends.

    With a budget, the power limits of all ranks together are at most this, and are divided so that all are equally
    fast: steps are shorter than with equal limits of the same sum.

    The hooks never raise. After a fault on any rank, which is logged with its remedy, all ranks restore the original
    settings, and training continues without the optimizer; and also where a rank may not change its GPU.

    Args:
        monitor: The monitor of the one GPU of this rank.
        knob: "clock" for the SM clock, or "power limit"; if None "clock", and "power limit" with a budget.
        budget_watts: The power of all GPUs of the job together; None for none.
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
        if budget_watts is not None and name == "clock":
            raise UsageError('knob is "clock": a budget is kept by power limits; use knob="power limit", or none')
        (self._kind,) = kinds_of(name, None, original_clock_mhz, has_own_search=False)
        self._budget_watts = budget_watts
        self._events = (
            HostEvents(monitor.time_source) if events is None else checked_function("events", events, "a maker")
        )
        self._exchange = Exchange(checked_world(world), self._step_aside)
        self.quiet: bool = checked_flag("quiet", quiet)
        """Whether the end of training shows no result."""
        self._session: _Session | None = None
        self._is_off = False
        self._rows: dict[str, str] = {}
        self._begin: DeviceEvent | None = None
        self._end: DeviceEvent | None = None

    @property
    def settings(self) -> list[int]:
        """The setting of each rank, by rank; empty while nothing is levelled."""
        return [] if self._session is None else self._session.leveller.settings

    @property
    def changes(self) -> int:
        """How often settings were changed in this training; 0 while nothing is levelled."""
        return 0 if self._session is None else self._session.leveller.changes

    def use_world(self, world: World) -> None:
        """Level with these ranks from the next training on. Call it before training begins."""
        self._exchange.use_world(checked_world(world))

    def on_step_begin(self) -> None:
        """Report that a training step begins."""
        if not self._is_off:
            self._begin, self._end = self._event(), None

    def on_work_end(self) -> None:
        """Report that the own work of the step is over. The latest of several reports in a step counts."""
        if not self._is_off:
            self._end = self._event()

    @contained(on_fault=lambda self, error: self._fail(error))
    def on_step_end(self) -> None:
        """Report that the step has ended, on every rank."""
        if self._is_off:
            return
        if self._session is None:
            self._session = self._started()
            self._session.apply()
            return
        if self._session.take_step(self._begin, self._end):
            self._rows = self._session.rows()

    def on_train_end(self) -> None:
        """Training has ended: restore the original settings, and show the result."""
        if self._session is not None:
            self._session.close()
            self._session = None
            self._show_result()
        self._begin = self._end = None

    def close(self) -> None:
        """Restore the original settings."""
        self.on_train_end()

    def result(self) -> dict[str, str]:
        """Return the result for people, as labelled lines; empty before anything was levelled."""
        return dict(self._rows)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _event(self) -> DeviceEvent | None:
        try:
            return self._events()
        except Exception:  # of the device: the step is not counted
            return None

    @contained
    def _show_result(self) -> None:
        if not self.quiet and self._exchange.rank == 0 and self._rows:
            show_result(self._rows)

    def _started(self) -> _Session:
        """Begin to level, on all ranks. Raises what keeps one of them from it."""
        if self._exchange.size == 1:
            raise UsageError(
                "there is one rank, which waits for nobody: pass world=zeus_core.pytorch.torch_world() on each process"
            )
        return _Session(self.monitor, self._kind, self._budget_watts, self._exchange)

    def _fail(self, error: Exception) -> None:
        """Be off for good: all ranks have failed in the same exchange."""
        self._exchange.fail(error)
        self._is_off, self._session = True, None

    def _step_aside(self, error: Exception) -> None:
        if self._session is not None:
            self._session.close()
        self._rows = {"levelling": f"off: {error}"}
        if self.monitor.gpus:  # without one, the warning of its monitor has said so
            log_fault(self, f"the levelling of {self._kind.name}s is off for the rest of this run", error)


@dataclass
class _Step:
    begin: DeviceEvent | None
    end: DeviceEvent | None

    @property
    def seconds(self) -> float | None:
        begin = None if self.begin is None else self.begin.seconds()
        end = None if self.end is None else self.end.seconds()
        return None if begin is None or end is None else end - begin


class _Session:
    """The levelling of one training. Made by all ranks at the same time.

    Raises:
        WorldError: Another rank cannot take part; the message says why.
        DeviceError: This one cannot.
        UsageError: The ranks differ in their arguments, or share a GPU.
    """

    def __init__(self, monitor: ZeusMonitor, kind: KnobKind, budget_watts: float | None, exchange: Exchange) -> None:
        self._exchange = exchange
        self._time_source = monitor.time_source
        gpus = list(monitor.gpus.values())
        self._limiter = exchange.make(lambda: _limiter(gpus, kind))
        self._sampler = ClockSampler(gpus, monitor.time_source) if isinstance(kind, CommonClock) else None
        about = {**kind.arguments, "budget_watts": budget_watts}
        ranks = exchange.gather(lambda: [list(self._limiter.settings), gpus[0].uuid, about])
        settings, uuids, abouts = zip(*ranks, strict=True)
        _check_ranks(uuids, abouts)
        _check_budget(settings, budget_watts)
        self.leveller: Leveller = Leveller(settings, self._sampler is None, budget_watts)
        """Chooses the settings."""
        self._steps: list[_Step] = []
        self._steps_apart = self._proposed_steps_apart = 1
        self._exchange_seconds = math.inf
        self._began = self._time_source.now()
        self._before: list[float] = []  # the share of a step that ranks wait, at the original settings
        self._waiting = 0.0

    def apply(self) -> None:
        """Begin with the first settings. A failure is told at the next exchange."""
        self._exchange.attempt(self._set_own)
        if self._sampler is not None:
            self._sampler.start()

    def take_step(self, begin: DeviceEvent | None, end: DeviceEvent | None) -> bool:
        """Take in a step. Returns whether something was learned."""
        self._steps.append(_Step(begin, end))
        if len(self._steps) <= self._steps_apart:  # the device may still be at work at the latest one
            return False
        told, self._steps = self._steps[:-1], self._steps[-1:]
        before = self._time_source.now()
        ranks = self._exchange.gather(lambda: self._report(told))
        self._steps_apart = ranks[0]["steps_apart"]
        clocks = [rank["clock_mhz"] for rank in ranks]
        for own_seconds in zip(*(rank["seconds"] for rank in ranks), strict=True):
            if None not in own_seconds:
                self._note_waiting(own_seconds)
                if self.leveller.tell(own_seconds, None if None in clocks else clocks):
                    self._exchange.attempt(self._set_own)
                    break
        self._choose_steps_apart(before, len(told))
        return True

    def rows(self) -> dict[str, str]:
        """Return the result as labelled lines."""
        kind, settings = self._limiter.kind, self.leveller.settings
        before = sum(self._before) / max(len(self._before), 1)
        return {
            "levelling": f"{kind.name}s of {min(settings)} to {max(settings)} {kind.unit} on {len(settings)} ranks, "
            f"changed {self.leveller.changes} times",
            "waiting for other ranks": f"{self._waiting:.1%} of the time of a step, {before:.1%} before",
        }

    def close(self) -> None:
        """Restore the original settings."""
        if self._sampler is not None:
            self._sampler.stop()
        self._limiter.restore()

    def _report(self, told: Sequence[_Step]) -> dict[str, Any]:
        clocks_mhz = () if self._sampler is None else self._sampler.take_means_mhz()
        return {
            "seconds": [step.seconds for step in told],
            "clock_mhz": min(clocks_mhz, default=None),
            "steps_apart": self._proposed_steps_apart,
        }

    def _choose_steps_apart(self, before: float, steps: int) -> None:
        """Say how many steps exchanges should be apart, from what the quickest one took. The word of rank 0 counts."""
        now = self._time_source.now()
        self._exchange_seconds = min(self._exchange_seconds, now - before)
        step_seconds = (now - self._began) / steps
        self._began = now
        if step_seconds > 0:
            apart = math.ceil(self._exchange_seconds / (_EXCHANGE_FRACTION * step_seconds))
            self._proposed_steps_apart = min(max(apart, 1), _MAX_STEPS_APART)

    def _note_waiting(self, own_seconds: Sequence[float]) -> None:
        longest = max(own_seconds)
        waiting = 1 - sum(own_seconds) / len(own_seconds) / longest if longest > 0 else 0.0
        if self.leveller.changes == 0 and len(self._before) < _COMPARED_STEPS:
            self._before.append(waiting)
        self._waiting += (waiting - self._waiting) / _COMPARED_STEPS  # the latest steps count most

    def _set_own(self) -> None:
        denial = self._limiter.set(self.leveller.settings[self._exchange.rank])
        if denial is not None:
            raise DeviceError(denial)


def _limiter(gpus: Sequence[Gpu], kind: KnobKind) -> Limiter:
    if len(gpus) != 1:
        raise DeviceError(f"the monitor of this rank has {len(gpus)} GPUs: give each rank one of its own")
    return Limiter(gpus, kind)


def _check_ranks(uuids: Sequence[str], abouts: Sequence[Mapping[str, Any]]) -> None:
    for rank, about in enumerate(abouts):
        if about != abouts[0]:
            raise UsageError(f"rank {rank} levels by {about}, and rank 0 by {abouts[0]}: pass the same to all")
    if len(set(uuids)) < len(uuids):
        raise UsageError("two ranks have the same GPU: give each its own, by ZeusMonitor(gpu_indices=[local_rank])")


def _check_budget(settings: Sequence[Sequence[int]], budget_watts: float | None) -> None:
    lowest_watts = sum(own[-1] for own in settings)
    if budget_watts is not None and budget_watts < lowest_watts:
        raise UsageError(
            f"budget_watts is {budget_watts:g}: the lowest limits of these {len(settings)} GPUs are {lowest_watts:g} W "
            "together"
        )
