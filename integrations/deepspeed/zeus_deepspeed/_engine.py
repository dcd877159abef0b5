"""A `PipelineEngine`: facts about it, and reports of what it does. Only this module uses private DeepSpeed names.

`check_engine` reports which of those that the reports need are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any

from zeus_core.adapters import Patches
from zeus_core.errors import ZeusError
from zeus_core.events import Activity
from zeus_core.pipeline.optimizer import PipelineRank
from zeus_core.pipeline.pipeline_observer import PipelineObserver
from zeus_core.pipeline.taps.step_shapes import StepShapes

_MAP = "_INSTRUCTION_MAP"
_METHODS = ("_exec_schedule", "train_batch", "eval_batch", "save_checkpoint", "load_checkpoint", "destroy")

# DeepSpeed's classes of instructions, and what a `PipelineObserver` calls them. Others, such as the loading of a
# microbatch, are not reported.
_NAMES = {
    "ForwardPass": "forward",
    "BackwardPass": "backward",
    "SendActivation": "send-activation",
    "RecvActivation": "receive-activation",
    "SendGrad": "send-gradient",
    "RecvGrad": "receive-gradient",
    "ReduceTiedGrads": "all-reduce",
    "ReduceGrads": "all-reduce",
    "OptimizerStep": "optimizer-step",
}


def release() -> str:
    """Return the installed release of DeepSpeed."""
    return metadata.version("deepspeed")


def config_of(engine: Any) -> Mapping[str, Any]:
    """Return the DeepSpeed configuration of an engine, as its user wrote it.

    Raises:
        ZeusError: This release of DeepSpeed keeps it elsewhere.
    """
    try:
        config: Mapping[str, Any] = engine._config._param_dict
    except AttributeError as error:
        raise ZeusError(
            f"DeepSpeed {release()} has no engine._config._param_dict, where Perseus reads its configuration; "
            "use another release of DeepSpeed, or a newer zeus-core"
        ) from error
    return config


def is_pipeline(engine: Any) -> bool:
    """Return whether an engine runs a pipeline."""
    from deepspeed.runtime.pipe.engine import PipelineEngine

    return isinstance(engine, PipelineEngine)


def pipeline_rank_of(engine: Any) -> PipelineRank:
    """Read the position of this rank among the pipelines of its job."""
    return PipelineRank(rank=engine.stage_id, pipeline=engine.grid.get_data_parallel_id())


def stages_by_phase(engine: Any) -> dict[int, int]:
    """Return the stage of this rank for each `phase` of its instructions.

    Only DualPipeV has two: its pipeline runs down the ranks and up again, so this rank has a second stage, counted from
    the end.
    """
    return {0: engine.stage_id, 1: 2 * engine.num_stages - 1 - engine.stage_id}


def identity_of(engine: Any) -> dict[str, str | int | float]:
    """Return the known facts that the times and energies of this rank's instructions depend on."""
    module = engine.module
    parameters = list(module.parameters())
    bounds = getattr(module, "phase_bounds", [(module._local_start, module._local_stop)])  # DualPipeV has two
    return {
        "deepspeed": release(),
        "torch": metadata.version("torch"),
        "stages": engine.num_stages,
        "stage": engine.stage_id,
        "layers": ", ".join(f"{start}-{stop}" for start, stop in bounds),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "dtype": ", ".join(sorted({str(parameter.dtype) for parameter in parameters})),
        "micro_batch_size": engine.train_micro_batch_size_per_gpu(),
        "activation_checkpoint_interval": module.activation_checkpoint_interval,
        "zero_stage": int(engine.zero_optimization_stage()),
    }


def check_engine(engine: Any) -> None:
    """Check that this release of DeepSpeed has the private names that the tap uses.

    Raises:
        ZeusError: Something is missing; the message names it, and the release.
    """
    engine_class = type(engine)
    missing = [name for name in _METHODS if not callable(getattr(engine_class, name, None))]
    known = {command.__name__ for command in getattr(engine_class, _MAP, {})}
    missing += [f"{_MAP}[{name}]" for name in _NAMES if name not in known]
    if missing:
        raise ZeusError(
            f"the {engine_class.__name__} of DeepSpeed {release()} lacks {', '.join(missing)}, which Perseus "
            "needs; use another release of DeepSpeed, or a newer zeus-core"
        )


class PipelineTap:
    """Reports what an engine does to an observer, from now until `detach`.

    A step is a `train_batch` in which a training schedule ran to its end. Exceptions pass through; instead of the end
    of the step and of the instruction they interrupt, a pause is reported.

    Args:
        engine: A `PipelineEngine`. Only this instance is changed: its class and other engines stay as they are.
        observer: Receives the reports.

    Raises:
        ZeusError: This release of DeepSpeed lacks a private name that the tap uses.
    """

    def __init__(self, engine: Any, observer: PipelineObserver) -> None:
        check_engine(engine)
        self._engine = engine
        self._observer = observer
        self._has_trained = False
        self._stages = stages_by_phase(engine)
        self._shapes = StepShapes()
        self._has_shapes = False
        self._wraps = Patches(engine)
        self._wraps.wrap("_exec_schedule", self._run_schedule)
        self._wraps.wrap("train_batch", self._train)
        self._wraps.wrap("eval_batch", self._pausing_for(Activity.EVALUATION))
        self._wraps.wrap("save_checkpoint", self._pausing_for(Activity.CHECKPOINT))

    def detach(self) -> None:
        """Leave the engine as it was."""
        self._wraps.undo()
        vars(self._engine).pop("_exec_instr", None)  # the latest instruction, which the engine keeps without using it

    def _train(self, train_batch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._has_trained = self._has_shapes = False
        self._observer.on_step_begin()
        try:
            loss = train_batch(*args, **kwargs)
        except BaseException:
            self._observer.on_pause(Activity.IDLE)  # the program may survive it, and train no more
            raise
        if self._has_trained:
            self._use_shapes()
            self._observer.on_step_end()
        return loss

    def _use_shapes(self) -> None:
        shapes, use_work = self._shapes.end_step(), getattr(self._observer, "use_work", None)
        if shapes is not None and use_work is not None:
            use_work(shapes)

    def _note_shapes(self, engine: Any, buffer_id: Any = None, **kwargs: Any) -> None:
        """Note the shapes of the inputs of a step's first forward pass, if DeepSpeed keeps them where it did."""
        self._has_shapes = True
        with suppress(AttributeError, LookupError, TypeError):
            self._shapes.note(engine.pipe_buffers["inputs"][buffer_id])

    def _run_schedule(self, run: Callable[..., Any], schedule: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_of_training(schedule):
            return run(schedule, *args, **kwargs)
        with self._instructions_tapped():
            result = run(schedule, *args, **kwargs)
        self._has_trained = True
        return result

    def _pausing_for(self, activity: Activity) -> Callable[..., Any]:
        def pausing(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._observer.on_pause(activity)
            try:
                return method(*args, **kwargs)
            finally:
                self._observer.on_resume()

        return pausing

    @contextmanager
    def _instructions_tapped(self) -> Iterator[None]:
        """Hide the map of the engine's class, in which it looks up instructions, by a map of the instance."""
        attributes, methods = vars(self._engine), getattr(self._engine, _MAP)
        earlier = attributes.get(_MAP)
        attributes[_MAP] = {command: self._tapped(command, method) for command, method in methods.items()}
        try:
            yield
        finally:
            del attributes[_MAP]
            if earlier is not None:
                attributes[_MAP] = earlier

    def _tapped(self, command: type, method: Callable[..., Any]) -> Callable[..., Any]:
        name, stages = _NAMES.get(command.__name__), self._stages
        if name is None:
            return method
        begin, end = self._observer.on_instruction_begin, self._observer.on_instruction_end
        is_forward = name == "forward"

        def tapped(engine: Any, *args: Any, **kwargs: Any) -> Any:
            begin(name, stages[kwargs["phase"]] if "phase" in kwargs else None)
            result = method(engine, *args, **kwargs)
            end(name)
            if is_forward and not self._has_shapes:
                self._note_shapes(engine, *args, **kwargs)
            return result

        return tapped


def _is_of_training(schedule: Any) -> bool:
    is_inference = any(kind.__name__ == "InferenceSchedule" for kind in type(schedule).__mro__)
    return not is_inference and not getattr(schedule, "forward_only", False)
