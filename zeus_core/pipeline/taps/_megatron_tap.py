"""A tap of the pipeline schedules of Megatron-core, for Megatron-LM, NeMo and loops of your own on them.

Megatron-core is imported when it is attached to. The tap uses names of `megatron.core.pipeline_parallel.schedules` that
are not documented: `forward_step`, `backward_step` and the functions of the schedules, which call each other by name.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from zeus_core.adapters import Patches, contained
from zeus_core.errors import UsageError, ZeusError
from zeus_core.events import Activity
from zeus_core.pipeline.pipeline_observer import PipelineObserver
from zeus_core.pipeline.taps.step_shapes import StepShapes

_SCHEDULES = ("forward_backward_pipelining_without_interleaving", "forward_backward_pipelining_with_interleaving")
_NO_PIPELINE = "forward_backward_no_pipelining"
_PASSES = ("forward_step", "backward_step")
_INPUT = 4  # the place of `input_tensor` among the arguments of `forward_step`
# Of Megatron-LM, which is no part of Megatron-core.
_TRAINING = "megatron.training"
_PAUSES = {"evaluate": Activity.EVALUATION, "save_checkpoint_and_time": Activity.CHECKPOINT}

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MegatronRun:
    """The known facts of a run when its first training step begins.

    Attributes:
        models: The chunks of the model on this rank: one, or those of an interleaved schedule.
        config: Megatron's configuration of them.
        rank: This rank's position in its pipeline, from 0.
        ranks: The number of ranks of a pipeline.
        microbatch_shape: Sequence length and microbatch size.
    """

    models: tuple[torch.nn.Module, ...]
    config: Any
    rank: int
    ranks: int
    microbatch_shape: tuple[int, int]

    @classmethod
    def _from_arguments(cls, arguments: Mapping[str, Any]) -> MegatronRun:
        """Return the run of a call of a schedule.

        Raises:
            ZeusError: Its passes cannot be followed.
        """
        given = arguments["model"]
        models = tuple(given) if isinstance(given, list) else (given,)
        config = megatron_core("utils").get_model_config(models[0])
        if getattr(config, "overlap_moe_expert_parallel_comm", False):
            raise ZeusError("overlap_moe_expert_parallel_comm runs forward and backward passes together; turn it off")
        scopes = getattr(config, "cuda_graph_scope", None) or ()
        if any("full_iteration" in str(scope) for scope in ([scopes] if isinstance(scopes, str) else scopes)):
            raise ZeusError("a CUDA graph of the full iteration hides its passes; use another cuda_graph_scope")
        groups = arguments.get("pg_collection")
        group = megatron_core("parallel_state").get_pipeline_model_parallel_group() if groups is None else groups.pp
        shape = int(arguments["seq_length"]), int(arguments["micro_batch_size"])
        return cls(models, config, group.rank(), group.size(), shape)


class MegatronTap:
    """Reports what the pipeline schedules of Megatron-core do in this process to an observer, until `detach`.

    A step begins with a training schedule. It ends with Megatron-LM's `train_step`, and what that does after the
    schedule is the optimizer's step; without Megatron-LM it ends with the schedule. Evaluations and checkpoints are
    pauses. Exceptions pass through; a step that one leaves ends in a pause.

    Args:
        start: Called once, as the first training step begins. Returns the observer; None to follow nothing.

    Raises:
        UsageError: Megatron-core is not installed, or this release of it lacks what the tap relies on.
    """

    def __init__(self, start: Callable[[MegatronRun], PipelineObserver | None]) -> None:
        self._start = start
        schedules = megatron_core("pipeline_parallel.schedules")
        missing = [name for name in (*_SCHEDULES, *_PASSES) if not callable(getattr(schedules, name, None))]
        if missing:
            raise UsageError(
                f"megatron.core.pipeline_parallel.schedules lacks {', '.join(missing)}, which are needed to follow its "
                "instructions; use another release of Megatron-core (0.16 has all)"
            )
        self._has_started = False
        self._observer: PipelineObserver | None = None
        self._run: MegatronRun | None = None
        self._is_in_step = self._is_in_train_step = self._is_in_schedule = self._is_paused = False
        self._running: str | None = None
        self._passes: dict[int, tuple[int, int | None]] = {}
        self._shapes = StepShapes()
        self._wraps = [self._wrap_schedules(schedules), *self._wrap_training()]

    def detach(self) -> None:
        """Leave Megatron as it was."""
        for wraps in self._wraps:
            wraps.undo()

    def _wrap_schedules(self, schedules: ModuleType) -> Patches:
        wraps = Patches(schedules)
        for name in _SCHEDULES:
            wraps.wrap(name, self._run_schedule)
        if hasattr(schedules, _NO_PIPELINE):
            wraps.wrap(_NO_PIPELINE, self._run_without_pipeline)
        wraps.wrap("forward_step", self._forward)
        wraps.wrap("backward_step", self._backward)
        return wraps

    def _wrap_training(self) -> list[Patches]:
        training = _training_module()
        if training is None:
            return []
        wraps = Patches(training)
        wraps.wrap("train_step", self._train)
        for name, activity in _PAUSES.items():
            if hasattr(training, name):
                wraps.wrap(name, self._pausing_for(activity))
        return [wraps]

    def _train(self, train_step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._is_in_train_step = True
        try:
            with self._pause_after_error():
                result = train_step(*args, **kwargs)
        finally:
            self._is_in_train_step = False
        self._end_step()
        return result

    def _run_schedule(self, schedule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("forward_only", False):
            return self._pausing_for(Activity.EVALUATION)(schedule, *args, **kwargs)
        self._begin_run(kwargs)
        if self._observer is None or self._run is None:
            return schedule(*args, **kwargs)
        self._end()  # of an optimizer's step: Megatron-LM repeats a step that it distrusts
        self._passes.clear()
        self._observer.on_step_begin()
        self._is_in_step = self._is_in_schedule = True
        try:
            with self._pause_after_error(), self._all_reduce_tapped(self._run.config):
                result = schedule(*args, **kwargs)
        finally:
            self._is_in_schedule = False
        if self._is_in_train_step:
            self._begin("optimizer-step", None, None)
        else:
            self._end_step()
        return result

    def _begin_run(self, arguments: Mapping[str, Any]) -> None:
        if not self._has_started:
            self._has_started = True
            self._observer = self._started(arguments)

    @contained
    def _started(self, arguments: Mapping[str, Any]) -> PipelineObserver | None:
        run = MegatronRun._from_arguments(arguments)  # the configuration is the same on all ranks, and so is its fault
        observer = self._start(run)
        self._run = run
        return observer

    def _run_without_pipeline(self, schedule: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._has_started:
            self._has_started = True
            _logger.warning("Perseus is off: it needs pipelines, and pipeline_model_parallel_size is 1")
        return schedule(*args, **kwargs)

    def _forward(self, forward_step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._is_in_schedule or self._run is None:
            return forward_step(*args, **kwargs)
        chunk, microbatch = _chunk_of(kwargs), kwargs.get("current_microbatch")
        self._begin("forward", chunk * self._run.ranks + self._run.rank, microbatch)
        result = forward_step(*args, **kwargs)
        self._end()
        output = _first(result[0] if isinstance(result, tuple) else result)
        self._passes[id(output)] = chunk * self._run.ranks + self._run.rank, microbatch
        self._shapes.note(output, *args[_INPUT : _INPUT + 1])  # of the last stage the output is a loss
        return result

    def _backward(
        self, backward_step: Callable[..., Any], input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._is_in_schedule:
            return backward_step(input_tensor, output_tensor, *args, **kwargs)
        # Its chunk is not among its arguments. The schedule keeps what the forward pass returned, so its identity is.
        self._begin("backward", *self._passes.pop(id(_first(output_tensor)), (None, None)))
        result = backward_step(input_tensor, output_tensor, *args, **kwargs)
        self._end()
        return result

    @contextmanager
    def _all_reduce_tapped(self, config: Any) -> Iterator[None]:
        """Report `finalize_model_grads_func`, which the schedule calls at its end."""
        if getattr(config, "finalize_model_grads_func", None) is None:
            yield
            return

        def reduce(finalize: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._begin("all-reduce", None, None)
            result = finalize(*args, **kwargs)
            self._end()
            return result

        wraps = Patches(config)
        wraps.wrap("finalize_model_grads_func", reduce)
        try:
            yield
        finally:
            wraps.undo()

    def _pausing_for(self, activity: Activity) -> Callable[..., Any]:
        def pausing(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._observer is None or self._is_paused:  # the schedules of an evaluation are part of it
                return function(*args, **kwargs)
            self._is_paused = True
            self._observer.on_pause(activity)
            try:
                return function(*args, **kwargs)
            finally:
                self._is_paused = False
                self._observer.on_resume()

        return pausing

    @contextmanager
    def _pause_after_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._is_in_step and self._observer is not None:
                self._is_in_step, self._running = False, None
                self._observer.on_pause(Activity.IDLE)  # the program may survive it, and train no more
            raise

    def _begin(self, name: str, stage: int | None, microbatch: int | None) -> None:
        if self._observer is not None:
            self._running = name
            self._observer.on_instruction_begin(name, stage, microbatch)

    def _end(self) -> None:
        if self._observer is not None and (name := self._running) is not None:
            self._running = None
            self._observer.on_instruction_end(name)

    def _end_step(self) -> None:
        if self._observer is None or not self._is_in_step:
            return
        self._end()
        self._is_in_step = False
        shapes, use_work = self._shapes.end_step(), getattr(self._observer, "use_work", None)
        if shapes is not None and use_work is not None:
            use_work(shapes)
        self._observer.on_step_end()


def megatron_core(module: str) -> ModuleType:
    """Import a module of Megatron-core."""
    try:
        return importlib.import_module(f"megatron.core.{module}")
    except ImportError as error:
        raise UsageError(
            f"Megatron-core cannot be imported ({error}); install it: pip install megatron-core"
        ) from error


def _training_module() -> ModuleType | None:
    """Return Megatron-LM's module of its training loop, if it is installed."""
    if importlib.util.find_spec(_TRAINING) is None:
        return None
    training = importlib.import_module(f"{_TRAINING}.training")
    return training if hasattr(training, "train_step") else None


def _chunk_of(arguments: Mapping[str, Any]) -> int:
    """Return the chunk of a forward pass; releases before April 2025 keep it elsewhere."""
    chunk = arguments.get("vp_stage")
    if chunk is None:
        chunk = getattr(megatron_core("parallel_state"), "get_virtual_pipeline_model_parallel_rank", lambda: None)()
    return chunk or 0


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, list) and output else output
