"""Reports what a `PipelineEngine` does, as it does it. The hooks use private DeepSpeed names.

Only this module and `_engine_facts` use such names; `check_engine` reports which of them are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from zeus_core.adapters import Patches
from zeus_core.errors import ZeusError
from zeus_core.events import Activity
from zeus_core.pipeline.pipeline_observer import PipelineObserver
from zeus_core.pipeline.taps.step_shapes import StepShapes
from zeus_deepspeed._engine_facts import release, stages_by_phase

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
