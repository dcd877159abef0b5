"""Taps of the schedules of torch.distributed.pipelining: report their instructions to an observer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from zeus_core.adapters import Patches
from zeus_core.errors import UsageError
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import checked_monitor
from zeus_core.pipeline import PipelineFrequencyOptimizer, PipelineFrequencySettings, PipelineRank
from zeus_core.pipeline.pipeline_observer import PipelineObserver
from zeus_core.pipeline.taps._custom_functions import CustomFunctionTap
from zeus_core.pipeline.taps.step_shapes import StepShapes
from zeus_core.ports import World
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import checked_world
from zeus_core.pytorch.torch_events import device_events_for
from zeus_core.pytorch.torch_world import torch_world
from zeus_core.validate import shown

__all__ = ["attach"]

_SCHEDULE_ATTRIBUTES = ("_has_backward", "_maybe_compute_loss")
_STAGE_ATTRIBUTES = (
    *("stage_index", "is_last", "group_rank", "device"),
    *("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"),
)


class PipelineScheduleTap:
    """Reports each instruction a schedule runs to an observer. The results of the schedule stay the same.

    A step is a call of `schedule.step`. The program's own work after it (the optimizer's step) is between two steps.
    The loss is part of the last stage's forward pass. `schedule.eval`, and every step of a schedule without a loss, is
    a pause for evaluation. A step that an exception leaves ends in a pause.

    Passes that custom functions run (`register_custom_function`) are reported too, without their wait for a neighbour.
    A custom function for overlapped actions must run its two passes one after the other, by the methods of the stages.

    Args:
        schedule: Any schedule of torch.distributed.pipelining.
        observer: Receives the reports.

    Raises:
        UsageError: `schedule` is not a schedule, or this release of torch lacks what the tap relies on.
    """

    def __init__(self, schedule: Any, observer: PipelineObserver) -> None:
        check_schedule(schedule)
        self._schedule = schedule
        self._observer = observer
        self._is_in_step = False
        self._running: str | None = None
        self._shapes = StepShapes()
        self._wraps = [self._wrap_schedule(), *map(self._wrap_stage, _stages_of(schedule))]
        self._custom = CustomFunctionTap(schedule, self._begin, self._end, self._shapes.note)

    def detach(self) -> None:
        """Restore the schedule and its stages."""
        for wraps in self._wraps:
            wraps.undo()
        self._custom.detach()

    def _wrap_schedule(self) -> Patches:
        wraps = Patches(self._schedule)
        wraps.wrap("step", self._step)
        wraps.wrap("_maybe_compute_loss", self._compute_loss)
        return wraps

    def _wrap_stage(self, stage: Any) -> Patches:
        wraps = Patches(stage)
        wraps.wrap("forward_one_chunk", partial(self._forward, stage))
        wraps.wrap("backward_one_chunk", partial(self._backward, stage))
        wraps.wrap("backward_weight_one_chunk", partial(self._backward_weight, stage))
        return wraps

    def _step(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._schedule._has_backward:
            return self._evaluate(method, *args, **kwargs)
        self._observer.on_step_begin()
        self._is_in_step = True
        try:
            output = method(*args, **kwargs)
            self._end()
        except BaseException:
            self._observer.on_pause(Activity.IDLE)  # the program may survive it, and train no more
            raise
        finally:
            self._is_in_step, self._running = False, None
        shapes, use_work = self._shapes.end_step(), getattr(self._observer, "use_work", None)
        if shapes is not None and use_work is not None:
            use_work(shapes)
        self._observer.on_step_end()
        return output

    def _evaluate(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        self._observer.on_pause(Activity.EVALUATION)
        try:
            return method(*args, **kwargs)
        finally:
            self._observer.on_resume()

    def _forward(self, stage: Any, method: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._begin_pass("forward", stage, fwd_chunk_id)
        output = method(fwd_chunk_id, *args, **kwargs)
        self._shapes.note(*args, output)
        if not stage.is_last:
            self._end_pass()
        return output

    def _compute_loss(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        output = method(*args, **kwargs)
        self._end_pass()  # of the last stage's forward pass
        return output

    def _backward(
        self,
        stage: Any,
        method: Any,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        self._begin_pass("backward" if full_backward else "backward-input", stage, bwd_chunk_id)
        output = method(bwd_chunk_id, loss, full_backward, *args, **kwargs)
        self._end_pass()
        return output

    def _backward_weight(self, stage: Any, method: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self._begin_pass("backward-weight", stage, bwd_chunk_id)
        output = method(bwd_chunk_id, *args, **kwargs)
        self._end_pass()
        return output

    def _begin_pass(self, name: str, stage: Any, microbatch: int) -> None:
        if not self._custom.is_running:
            self._begin(name, stage.stage_index, microbatch)

    def _end_pass(self) -> None:
        if not self._custom.is_running:
            self._end()

    def _begin(self, name: str, stage: int, microbatch: int) -> None:
        self._end()
        if self._is_in_step:
            self._running = name
            self._observer.on_instruction_begin(name, stage, microbatch)

    def _end(self) -> None:
        if (name := self._running) is not None:
            self._running = None
            self._observer.on_instruction_end(name)


def check_schedule(schedule: Any) -> None:
    """Check that a schedule has all that `PipelineScheduleTap` relies on, much of which is private to torch.

    Raises:
        UsageError: It is not a schedule, or this release of torch lacks something; the message names what.
    """
    if not callable(getattr(schedule, "step", None)):
        raise UsageError(
            f"schedule is {shown(schedule)}; pass one of torch.distributed.pipelining, such as Schedule1F1B"
        )
    missing = [name for name in _SCHEDULE_ATTRIBUTES if not hasattr(schedule, name)]
    stages = _stages_of(schedule)
    missing += [f"stage.{name}" for name in _STAGE_ATTRIBUTES if not all(hasattr(stage, name) for stage in stages)]
    missing += [] if stages else ["_stage", "_stages"]
    if not missing and any(not _takes_full_backward(stage) for stage in stages):
        missing.append("full_backward of stage.backward_one_chunk")
    if missing:
        raise UsageError(
            f"{type(schedule).__name__} of torch {torch.__version__} lacks {', '.join(missing)}, which are "
            "needed to follow its instructions; use another release of torch (2.13 has all)"
        )


def _stages_of(schedule: Any) -> list[Any]:
    """Return the stages of this rank."""
    stage = getattr(schedule, "_stage", None)
    return list(getattr(schedule, "_stages", ())) or ([] if stage is None else [stage])


def _takes_full_backward(stage: Any) -> bool:
    return "full_backward" in inspect.signature(stage.backward_one_chunk).parameters


@dataclass(frozen=True)
class AttachedOptimizer:
    """An optimizer that follows a schedule.

    Attributes:
        optimizer: The optimizer.
        tap: Reports the schedule's instructions to it.
    """

    optimizer: PipelineFrequencyOptimizer
    tap: PipelineScheduleTap

    def detach(self) -> None:
        """Restore the schedule, and close the optimizer, which restores the clocks."""
        self.tap.detach()
        self.optimizer.close()


def attach(
    schedule: Any,
    monitor: ZeusMonitor,
    settings: PipelineFrequencySettings | None = None,
    *,
    pipeline: int = 0,
    rank: int | None = None,
    world: World | None = None,
    identity: Mapping[str, Any] | None = None,
) -> AttachedOptimizer:
    """Plan the clocks of a schedule. A collective call: every rank makes it, and it succeeds on all ranks or on none.

    Args:
        schedule: Any schedule of torch.distributed.pipelining.
        monitor: Measures the one GPU of this rank.
        settings: The goal and its limits; no slowdown if None.
        pipeline: Which of the data-parallel pipelines this is, from 0.
        rank: The rank's position in its pipeline, from 0; its rank in the process group of its stages if None.
        world: The ranks of the job; those of torch.distributed if None.
        identity: Properties that the profile depends on besides the GPU; see `PipelineFrequencyOptimizer`.

    Raises:
        UsageError: An argument is wrong, or torch lacks what this relies on; the message names it.
        WorldError: The call failed on another rank, or a rank did not answer in time.
    """
    ranks = torch_world() if world is None else checked_world(world)  # first, as all ranks must take part

    def make() -> AttachedOptimizer:
        checked_monitor(monitor)
        check_schedule(schedule)
        stage = _stages_of(schedule)[0]
        optimizer = PipelineFrequencyOptimizer(
            monitor,
            PipelineRank(stage.group_rank if rank is None else rank, pipeline),
            settings,
            world=ranks,
            identity=identity,
            device_events=device_events_for(stage.device, monitor.time_source),
        )
        return AttachedOptimizer(optimizer, PipelineScheduleTap(schedule, optimizer))

    return Exchange(ranks).make(make, unmake=AttachedOptimizer.detach)
