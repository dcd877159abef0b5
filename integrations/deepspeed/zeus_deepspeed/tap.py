"""What a `PipelineEngine` is doing, told as it does it. The hooks are on names that DeepSpeed does not publish.

This file and `engine_facts.py` are all that touches such names; `check_engine` says which of them has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zeus_core.errors import ZeusError
from zeus_core.events import Activity, PipelineObserver
from zeus_core.method_wraps import MethodWraps
from zeus_deepspeed.engine_facts import release

__all__ = ["PipelineTap", "check_engine"]

_MAP = "_INSTRUCTION_MAP"
_METHODS = ("_exec_schedule", "train_batch", "eval_batch", "save_checkpoint", "load_checkpoint", "destroy")

# DeepSpeed's classes of instructions, and what a `PipelineObserver` calls them. Others, such as the loading of a
# microbatch, are told nobody.
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
    """Check that this DeepSpeed has all that the tap relies on.

    Raises:
        ZeusError: It has not; the message names its release and what is missing.
    """
    engine_class = type(engine)
    missing = [name for name in _METHODS if not callable(getattr(engine_class, name, None))]
    known = {command.__name__ for command in getattr(engine_class, _MAP, {})}
    missing += [f"{_MAP}[{name}]" for name in _NAMES if name not in known]
    if missing:
        raise ZeusError(
            f"the {engine_class.__name__} of DeepSpeed {release()} lacks {', '.join(missing)}, which Perseus hooks "
            "into; use another release of DeepSpeed, or a newer zeus-core"
        )


class PipelineTap:
    """Tells an observer what an engine does, from now until `detach`.

    A step is a `train_batch` in which a training schedule was run to its end. An exception passes through, and leaves
    its step and its instruction without an end.

    Args:
        engine: A `PipelineEngine`, which alone is changed: its class and other engines stay as they are.
        observer: Is told.

    Raises:
        ZeusError: This DeepSpeed is not one the tap fits.
    """

    def __init__(self, engine: Any, observer: PipelineObserver) -> None:
        check_engine(engine)
        self._engine = engine
        self._observer = observer
        self._has_trained = False
        # The second phase of DualPipeV is another stage of the same rank.
        self._stages = {0: engine.stage_id, 1: 2 * engine.num_stages - 1 - engine.stage_id}
        self._wraps = MethodWraps(engine)
        self._wraps.wrap("_exec_schedule", self._run_schedule)
        self._wraps.wrap("train_batch", self._train)
        self._wraps.wrap("eval_batch", self._pausing_for(Activity.EVALUATION))
        self._wraps.wrap("save_checkpoint", self._pausing_for(Activity.CHECKPOINT))

    def detach(self) -> None:
        """Leave the engine as it was."""
        self._wraps.undo()
        vars(self._engine).pop("_exec_instr", None)  # the latest instruction, which the engine keeps for no use

    def _train(self, train_batch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._has_trained = False
        self._observer.on_step_begin()
        loss = train_batch(*args, **kwargs)
        if self._has_trained:
            self._observer.on_step_end()
        return loss

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
        """The engine looks instructions up in a map of its class, which one of its own hides for a while."""
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

        def tapped(engine: Any, *args: Any, **kwargs: Any) -> Any:
            begin(name, stages[kwargs["phase"]] if "phase" in kwargs else None)
            result = method(engine, *args, **kwargs)
            end(name)
            return result

        return tapped


def _is_of_training(schedule: Any) -> bool:
    is_inference = any(it.__name__ == "InferenceSchedule" for it in type(schedule).__mro__)
    return not is_inference and not getattr(schedule, "forward_only", False)
