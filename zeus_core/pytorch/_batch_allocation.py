"""Batches chosen while training starts, from what each rank measures."""

from __future__ import annotations

import itertools
import logging
import statistics
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.parallel import DistributedDataParallel

from zeus_core._codec import decode, encode
from zeus_core._validate import (
    checked_instance,
    checked_list,
    checked_number,
    checked_object,
    checked_path,
    checked_text,
    checked_whole_number,
)
from zeus_core.allocation import AllocationPlan, DeviceProfile, allocate, keep_profile, kept_profile
from zeus_core.allocation._allocate import checked_global_batch
from zeus_core.allocation._trial_windows import (
    MeasuredWindow,
    profile_of_windows,
    trial_splits,
)
from zeus_core.device import Gpu, SimulatedGpu
from zeus_core.errors import DeviceError, DriverFaultError, UsageError
from zeus_core.knobs import PowerLimitKnob
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports import DeviceEvent, DeviceEvents, World
from zeus_core.ports._device_events import HostEvents
from zeus_core.ports._exchange import Exchange
from zeus_core.pytorch._device_events import device_events_for
from zeus_core.pytorch._uneven_sampler import UnevenBatchSampler
from zeus_core.search._objectives import Objective

__all__ = ["AllocationRun", "BatchAllocation"]

_WINDOW = "zeus_core.batch_allocation"
# The first steps of a training are slow: memory is allocated, and kernels are chosen or compiled.
_WARM_UP_STEPS = 5
_SETTLING_STEPS = 1  # after a change of the split: the ranks have not yet waited for each other as they will
# How long every other rank is kept waiting, to learn what its GPU takes meanwhile: 20 times the updates of a counter.
_BLOCKED_SECONDS = 2.0
_STEP_WATTS = 5  # of the knob: limits are rounded to it, which moves no optimum that anybody could measure

_logger = logging.getLogger(__name__)


class BatchAllocation:
    """Chooses the batch of each rank while training starts: pass it in place of the batches.

        uneven = UnevenBatches(model, BatchAllocation(64, ZeusMonitor(gpu_indices=[local_rank])))

    In the first steps each rank tries three batch sizes, at each of some power limits if it may set them, and measures
    how long it computes and what its GPU takes. Then all ranks agree on the plan of `zeus_core.allocation.allocate`,
    train on its batches, and set its limits. The original limits are restored at the end. Meanwhile each sample is
    trained on once, and with the right weight.

    With a folder, profiles are kept there for each GPU model and work. A later run, also with other ranks, begins with
    the plan that they give, if there is one of each of its GPU models.

    If something fails on any rank, all continue with equal batches, and say why once.

    Args:
        global_batch: Samples of a step on all ranks together.
        monitor: Measures the GPU of this rank, and no other.
        objective: The goal, as in `zeus_core.allocation.allocate`; `ZeusCost(eta_knob=0.5)` if None.
        limit_fractions: The power limits to try, as fractions of the original one. A rank without the right to set
            limits keeps its own.
        max_batch: The largest batch that the memory of this rank's GPU holds. If None, no rank gets more than the
            largest it has tried, which is one and a half times an equal share.
        multiple_of: Each batch is a multiple of this number of samples.
        folder: Where rank 0 keeps profiles; nowhere if None.
        work: A name that tells this training from others, such as "gpt2/owt"; needed where they share a folder.
        steps: Steps that are measured for each of the sizes and limits.

    Attributes:
        plan: The plan that all ranks follow; None until they have agreed on it.
        profile: The measurements of this rank; None until then, and where kept profiles were used.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        global_batch: int,
        monitor: ZeusMonitor,
        objective: Objective | None = None,
        *,
        limit_fractions: Sequence[float] = (1.0,),
        max_batch: int | None = None,
        multiple_of: int = 1,
        folder: str | Path | None = None,
        work: str = "",
        steps: int = 10,
    ) -> None:
        checked_global_batch(global_batch, multiple_of)
        self.global_batch: int = int(global_batch)
        self.multiple_of: int = int(multiple_of)
        self.monitor: ZeusMonitor = checked_object("monitor", monitor, "begin_window", "ZeusMonitor(gpu_indices=[0])")
        if objective is not None:
            checked_instance("objective", objective, Objective, "Time()")  # type: ignore[type-abstract]
        self.objective: Objective | None = objective
        wanted = "a fraction of the original limit, above 0 and at most 1, such as 0.8"
        self.limit_fractions: list[float] = checked_list(
            "limit_fractions",
            limit_fractions,
            lambda name, value: checked_number(name, value, 0.0, 1.0, wanted, is_open=True),
            "a list of fractions of the original limit, such as [1.0, 0.8]",
            minimum=1,
        )
        self.max_batch: int | None = None if max_batch is None else checked_whole_number("max_batch", max_batch, 1)
        self.folder: str | None = None if folder is None else checked_path("folder", folder, "profiles", "folder")
        self.work: str = checked_text("work", work)
        self.steps: int = checked_whole_number("steps", steps, 1)
        self.plan: AllocationPlan | None = None
        self.profile: DeviceProfile | None = None


class AllocationRun:
    """Carries out a `BatchAllocation` on one rank.

    Making one, and `on_batch` after the last trial, are collective calls.

    Args:
        allocation: The same on all ranks, but for the monitor and `max_batch`.
        model: The model, in a `DistributedDataParallel` if there are several ranks.
        world: The ranks.

    Raises:
        UsageError: The ranks cannot be measured, or have different arguments.
        WorldError: An argument is wrong on another rank, or a rank did not answer in time.
    """

    def __init__(self, allocation: BatchAllocation, model: torch.nn.Module, world: World) -> None:
        self._allocation = allocation
        self._exchange = Exchange(world)
        told = self._exchange.gather(lambda: self._tell(model))
        if any(rank["same"] != told[0]["same"] for rank in told):
            raise UsageError(
                "the ranks have different arguments for BatchAllocation; all but max_batch must be the same"
            )
        self._caps = [rank["max_batch"] for rank in told]
        self._models = [rank["gpu_model"] for rank in told]
        self._splits = trial_splits(allocation.global_batch, self._caps, allocation.multiple_of)
        self.batches: tuple[int, ...] = self._splits[0]
        """The batches to begin with."""
        self._knob: PowerLimitKnob | None = None
        self._settings = self._usable_settings() if all(self._models) else [1]
        self._trials: list[_Trial] = []
        self._done: list[MeasuredWindow] = []
        self._length = _SETTLING_STEPS + allocation.steps
        self._origin = 0  # the first global batch of the trials in this epoch
        self._made = 0  # trials that have been made, also by ranks on which something failed
        self._starts: dict[int, int] = {}  # by the number of its first global batch, the place of a trial
        self._now: _Window | None = None
        self._model = model
        self._hooks: list[Any] = []
        self.sampler: UnevenBatchSampler | None = None
        """That of the loader, once there is one."""
        self._begin(world)

    def _tell(self, model: torch.nn.Module) -> dict[str, Any]:
        allocation = self._allocation
        model = getattr(model, "_orig_mod", model)
        if self._exchange.size > 1 and not isinstance(model, DistributedDataParallel):
            raise UsageError(
                f"model is a {type(model).__name__}, of which nobody can tell when a rank has computed its gradients; "
                "use DistributedDataParallel, or give the batches"
            )
        if len(allocation.monitor.gpus) > 1:
            raise UsageError(
                "monitor measures several GPUs; it must measure that of this rank: gpu_indices=[local_rank]"
            )
        same = [allocation.global_batch, allocation.multiple_of, allocation.limit_fractions, allocation.steps]
        return {
            "same": [*same, allocation.work, repr(allocation.objective)],
            "max_batch": allocation.max_batch,
            "gpu_model": next((gpu.name for gpu in allocation.monitor.gpus.values()), None),
        }

    def _usable_settings(self) -> list[int]:
        """Return the limits that this rank tries, in watts: the one in force where it may set none."""
        (gpu,) = self._allocation.monitor.gpus.values()
        try:
            original = gpu.read_power_limit_watts()
            self._knob = PowerLimitKnob([gpu], _STEP_WATTS)
            self._knob.apply(self._knob.settings[0])
        except DeviceError as error:
            if self._knob is not None:
                self._knob.restore()
            self._knob = None
            if len(self._allocation.limit_fractions) > 1:
                _logger.warning("this rank cannot set power limits, and gets a batch alone: %s", error)
            return [self._limit_in_force(gpu)] * len(self._allocation.limit_fractions)
        lowest = self._knob.settings[-1]
        return [max(lowest, round(original * fraction)) for fraction in self._allocation.limit_fractions]

    @staticmethod
    def _limit_in_force(gpu: Gpu) -> int:
        try:
            return max(1, round(gpu.read_power_limit_watts()))
        except DeviceError:
            return 1  # one setting, whatever it is called

    def _begin(self, world: World) -> None:
        if world.size == 1:
            return
        if not all(self._models):
            _logger.warning("no GPU can be measured on a rank of this job: all ranks get equal batches")
            return
        plan = self._exchange.decide(self._kept_plan)
        if plan is not None:
            self._follow(decode(AllocationPlan, plan, "the plan"))
            return
        allocation = self._allocation
        splits = self._splits
        if len(splits) == 1:
            _logger.warning(
                "the global batch has %d samples, too few to measure two batch sizes on each of %d ranks: "
                "all ranks get equal batches",
                allocation.global_batch,
                world.size,
            )
            return
        for number, setting in enumerate(self._settings):
            self._trials += [_Trial(setting, split) for split in (splits if number == 0 else splits[1:])]
        self._trials += [_Trial(self._settings[0], splits[0], late) for late in (0, 1)]
        self._events = _events_for(self._model, allocation.monitor)
        parameters = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for parameter in parameters
        ]

    def _kept_plan(self) -> Any:
        allocation = self._allocation
        if allocation.folder is None:
            return None
        kept = [kept_profile(allocation.folder, str(model), allocation.work) for model in self._models]
        profiles = [profile for profile in kept if profile is not None]
        try:
            return encode(self._plan(profiles, 0.0)) if len(profiles) == len(kept) else None
        except UsageError as error:
            _logger.warning("the profiles in %s are of no use, and measured again: %s", allocation.folder, error)
            return None

    def _plan(self, profiles: Sequence[DeviceProfile], reduce_seconds: float) -> AllocationPlan:
        allocation = self._allocation
        return allocate(
            [profile.options(most) for profile, most in zip(profiles, self._caps, strict=True)],
            allocation.global_batch,
            allocation.objective,
            multiple_of=allocation.multiple_of,
            reduce_seconds=reduce_seconds,
        )

    def use_sampler(self, sampler: UnevenBatchSampler) -> None:
        """Try batch sizes on the samples of a loader; not if an epoch is too short for one."""
        self.sampler = sampler
        if self._hooks and len(sampler) <= _WARM_UP_STEPS + self._length:
            _logger.warning(
                "an epoch has %d steps, too few to measure a batch size: all ranks get equal batches", len(sampler)
            )
            self.close()
            return
        sampler.lay_out = self._lay_out

    def _lay_out(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the splits that are left to try, from the beginning of an epoch on."""
        self._cancel()
        left = self._trials[self._made :] if self._hooks else []
        self._origin = 0 if self._made else _WARM_UP_STEPS
        starts = range(self._origin, self._origin + len(left) * self._length, self._length)
        self._starts = {start: self._made + place for place, start in enumerate(starts)}
        splits = [(start, trial.split) for start, trial in zip(starts, left, strict=True)]
        return [*splits, (self._origin + len(left) * self._length, self.batches)] if left else []

    def on_batch(self, number: int, sizes: Sequence[int]) -> None:
        """Begin a global batch. A collective call for the one that follows the last trial. Never raises."""
        if not self._hooks:
            return
        is_end = number > self._origin and (number - self._origin) % self._length == 0
        with suppress(Exception):  # the next exchange says which
            self._exchange.attempt(lambda: self._measure(number, sizes, is_end))
        self._made += is_end
        if self._made == len(self._trials):
            self._conclude()

    def _measure(self, number: int, sizes: Sequence[int], is_end: bool) -> None:
        if self._now is not None and is_end:
            self._done.append(self._now.close())
            self._now = None
        elif self._now is not None:
            self._now.begin_step()
        if number - _SETTLING_STEPS in self._starts:
            trial = self._trials[self._starts[number - _SETTLING_STEPS]]
            if trial.late == self._exchange.rank % 2:  # its GPU is idle meanwhile, and so nothing is measured
                self._allocation.monitor.time_source.wait(threading.Event(), _BLOCKED_SECONDS)
            else:
                self._now = _Window(self._allocation, self._events, trial, sizes[self._exchange.rank])
        elif number in self._starts and self._knob is not None:
            self._knob.apply(self._trials[self._starts[number]].setting)

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._now is not None:
            self._now.note_gradient()

    def _cancel(self) -> None:
        if self._now is not None:
            self._now.cancel()
            self._now = None

    def _conclude(self) -> None:
        """Agree on a plan, and follow it from the first global batch that no rank has begun to load."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        assert self.sampler is not None
        try:
            told = self._exchange.gather(self._report)
            plan = decode(AllocationPlan, self._exchange.decide(lambda: encode(self._choose(told))), "the plan")
            self._follow(plan)
            self.sampler.use(plan.batches, max(rank["drawn"] for rank in told))
        except Exception as error:
            self.close()
            _logger.warning("the batches could not be measured, and all ranks get equal ones: %s", error)
            return
        if self._exchange.rank == 0:
            _logger.warning("%s", _summary(plan))

    def _report(self) -> dict[str, Any]:
        assert self.sampler is not None
        model = next(iter(self._allocation.monitor.gpus.values())).name
        self._allocation.profile = profile_of_windows(model, self._done, self._allocation.work)
        windows = [asdict(window) for window in self._done if not window.is_blocked]
        return {"profile": encode(self._allocation.profile), "windows": windows, "drawn": self.sampler.drawn}

    def _choose(self, told: Sequence[dict[str, Any]]) -> AllocationPlan:
        profiles = [decode(DeviceProfile, rank["profile"], "the profile") for rank in told]
        if self._allocation.folder is not None:
            for profile in {profile.gpu_model: profile for profile in profiles}.values():
                keep_profile(profile, self._allocation.folder)
        by_trial = zip(*(rank["windows"] for rank in told), strict=True)
        rest = [min(w["interval_seconds"] for w in ranks) - max(w["step_seconds"] for w in ranks) for ranks in by_trial]
        return self._plan(profiles, max(0.0, statistics.median(rest)))

    def _follow(self, plan: AllocationPlan) -> None:
        self._allocation.plan = plan
        self.batches = plan.batches
        knob, setting = self._knob, plan.ranks[self._exchange.rank].setting
        if knob is not None:
            self._exchange.attempt(lambda: knob.apply(min(setting, knob.settings[0])))

    def close(self) -> None:
        """Restore the original limit."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._cancel()
        if self._knob is not None:
            self._knob.restore()


class _Trial(NamedTuple):
    """The setting and the split that one window is measured with."""

    setting: int
    split: tuple[int, ...]
    late: int | None = None  # if 0 or 1, ranks with this remainder by 2 keep the others waiting


class _Window:
    """Some steps of this rank that are being measured."""

    def __init__(self, allocation: BatchAllocation, events: DeviceEvents, trial: _Trial, batch: int) -> None:
        self._allocation = allocation
        self._events = events
        self._trial, self._batch = trial, batch
        self._ready: DeviceEvent | None = None
        self._spans: list[tuple[DeviceEvent, DeviceEvent]] = []
        allocation.monitor.begin_window(_WINDOW)
        self._begun = events()

    def note_gradient(self) -> None:
        self._ready = self._events()

    def begin_step(self) -> None:
        self._end_step()
        self._begun = self._events()

    def _end_step(self) -> None:
        if self._ready is None:
            raise UsageError("no gradient was computed in a step: batches cannot be measured")
        self._spans.append((self._begun, self._ready))
        self._ready = None

    def close(self) -> MeasuredWindow:
        self._end_step()
        measurement = self._allocation.monitor.end_window(_WINDOW)
        if measurement.total_energy is None:
            raise DriverFaultError("the energy of some steps could not be measured")
        end = self._events()
        end.wait()
        seconds = [(begun.seconds() or 0.0, ready.seconds() or 0.0) for begun, ready in self._spans]
        busy = [ready - begun for begun, ready in seconds]
        begins = [*(begun for begun, _ in seconds), end.seconds() or 0.0]
        return MeasuredWindow(
            self._trial.setting,
            self._batch,
            len(busy),
            statistics.median(busy),
            statistics.median(after - before for before, after in itertools.pairwise(begins)),
            sum(busy),
            measurement.time,
            measurement.total_energy,
            self._trial.late is not None,
        )

    def cancel(self) -> None:
        self._allocation.monitor.end_window(_WINDOW, cancel=True)


def _events_for(model: torch.nn.Module, monitor: ZeusMonitor) -> DeviceEvents:
    """Return the events of the device that computes: of a simulated GPU, if that determines the time."""
    (gpu,) = monitor.gpus.values()
    if isinstance(gpu, SimulatedGpu):
        simulated, host = gpu, HostEvents(monitor.time_source)

        def reached() -> DeviceEvent:
            simulated.synchronize()
            return host()

        return reached
    return device_events_for(next(model.parameters()).device, monitor.time_source)


def _summary(plan: AllocationPlan) -> str:
    shares = ", ".join(f"{share.batch} on a {share.device} at {share.setting}" for share in plan.ranks)
    beyond = [str(rank) for rank, share in enumerate(plan.ranks) if share.is_extrapolated]
    note = f"; the batch of rank {', '.join(beyond)} is beyond those measured" if beyond else ""
    expected = f"a step is to take {plan.step_seconds:.3g} s and {plan.energy_joules:.3g} J"
    return f"batches of the ranks: {shares}; {expected}{note}"
