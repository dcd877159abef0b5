"""Translates what happens in a loop written with accelerate into the events of an observer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import torch
from accelerate import Accelerator

from zeus_core._validate import checked_flag
from zeus_core.adapters import Patches, contained
from zeus_core.adapters._forward_taps import ForwardTaps
from zeus_core.adapters._result import show_result
from zeus_core.events import Activity, TrainingHooks
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._selection import warn_unless_measured
from zeus_core.pytorch import torch_world
from zeus_core.pytorch._work_facts import facts_of_models
from zeus_core.training._account import TRAINING
from zeus_core.training._evaluation_detector import Evaluated
from zeus_huggingface.accelerate._accelerator import checked_accelerator, is_compiling, trained_models
from zeus_huggingface.accelerate._pass_rules import PassKind, PassRules

__all__ = ["AcceleratorLoop"]

_RESULT = "_zeus_result"  # the attribute of an accelerator with the lines to show, while its loops end

_Loop = TypeVar("_Loop", bound="AcceleratorLoop")


class AcceleratorLoop:
    """Reports to an observer: steps, evaluations, checkpoints and the end.

    A step begins with the first forward pass for training, and ends when the first of the prepared optimizers has
    really stepped: once for all the batches of an `accelerator.accumulate`. The constructor begins training, and is a
    collective call.

    An evaluation that the loop does not announce is detected by the forward passes of the trained models; `PassRules`
    tells them from those of a step. It ends with the next pass for training, when the model is in training mode again,
    and when the loop logs, saves or announces something.

    Args:
        accelerator: Its `prepare` must have been called.
        observer: Receives the events.
        monitor: The monitor of the observer.
        quiet: Whether no result is shown at the end.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self, accelerator: Accelerator, observer: TrainingHooks, monitor: ZeusMonitor, quiet: bool = False
    ) -> None:
        self._accelerator = checked_accelerator(accelerator)
        self._observer = observer
        self._is_quiet = checked_flag("quiet", quiet)
        self._is_open = True
        self._world = torch_world()
        self.steps = 0
        """Optimizer steps of the run so far."""
        self.detected_evaluations = 0
        """Evaluations so far that were not announced."""
        self._is_in_step = False
        self._activities = 0  # announced ones that have not ended
        self._evaluated: Evaluated | None = None  # while a detected evaluation is under way
        self._pass_rules = PassRules()
        warn_unless_measured(monitor.gpus, accelerator.device)
        observer.use_world(self._world)
        self._hooks = [accelerator._optimizers[0].optimizer.register_step_post_hook(self._on_optimizer_step)]
        self._passes = _Passes(self)
        self._taps = ForwardTaps(self._passes)
        self._models = trained_models(accelerator)
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # those whose mode was switched
        if not is_compiling(accelerator):  # then the passes are those of a wrapper, known once its mode is switched
            for model in self._models:
                self._taps.add(model)
        self._wraps = Patches(accelerator)
        self._wraps.wrap("backward", self._backward)
        for name in ("save_state", "load_state", "save_model"):
            self._wraps.wrap(name, self._checkpoint)
        self._wraps.wrap("end_training", self._end_training)
        self._tell_work(accelerator)
        observer.on_train_begin()

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Announce the activity of a `with` block, such as an evaluation or generation. Not collective."""
        self._end_detected_evaluation()
        self.on_activity_begin(activity)
        self._activities += 1
        try:
            yield
        finally:
            self._activities -= 1
            self.on_activity_end(activity)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """Announce an evaluation as a `with` block, on all processes or on some."""
        with self.during(Activity.EVALUATION):
            yield

    def close(self) -> None:
        """End training, normally or by an error, and leave the accelerator as it was. Not collective."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._taps.remove()
        self._wraps.undo()
        self._end_detected_evaluation()
        self._observer.on_train_end()
        if self._is_open:
            self._is_open = False
            self._show_result()

    def result(self) -> dict[str, str]:
        """Return the result for people, as labelled lines."""
        return self._observer.result()

    def __enter__(self: _Loop) -> _Loop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(is_success=error is None)

    @contained
    def _tell_work(self, accelerator: Accelerator) -> None:
        sizes = [getattr(loader, "total_batch_size", None) for loader in accelerator._dataloaders[:1]]
        self._observer.use_work(
            {
                **facts_of_models(self._models),
                "batch_size": ", ".join(map(str, sizes)),
                "accumulation": accelerator.gradient_accumulation_steps,
                "precision": str(accelerator.mixed_precision),
            }
        )

    @contained
    def on_backward(self) -> None:
        """Begin a backward pass for training."""
        if self._pass_rules.on_backward():
            self.detected_evaluations -= self._evaluated is not None
        self._end_detected_evaluation()
        self._begin_step()

    @contained
    def on_step_end(self) -> None:
        """End a step, on all processes."""
        self._pass_rules.on_step_end()
        self._observer.on_step_end()

    def on_activity_begin(self, activity: Activity) -> None:
        """Begin an announced activity, within a step or between two."""
        if activity not in TRAINING:
            if self._is_in_step:
                self._observer.on_interference()  # a trial cannot use half a step
            self._observer.on_pause(activity)
        elif not self._activities:
            self._begin_step()

    def on_activity_end(self, activity: Activity) -> None:
        """End the activity."""
        if activity not in TRAINING:
            self._observer.on_resume()

    def on_end(self) -> None:
        """Prepare for the end of training, without an exception and on all processes."""

    @contained
    def _on_pass(self, module: torch.nn.Module, has_gradients: bool) -> None:
        """Begin a forward pass of a trained model."""
        if self._activities:
            return
        kind = self._pass_rules.kind_of(module.training, has_gradients)
        if kind is PassKind.TRAINING:
            self._end_detected_evaluation()
            self._begin_step()
        elif kind is PassKind.EVALUATION and self._evaluated is None:
            self._evaluated = Evaluated(weakref.ref(module), module.training)
            self.detected_evaluations += 1
            self.on_activity_begin(Activity.EVALUATION)

    @contained
    def _on_mode(self, module: torch.nn.Module) -> None:
        """Switch the mode of a module."""
        if self._evaluated is not None and self._evaluated.has_switched:
            self._end_detected_evaluation()
        if module not in self._known:
            self._known.add(module)
            parts = set(module.modules())
            if any(model in parts for model in self._models):  # it is one, or a wrapper of one
                self._taps.add(module)

    def _end_detected_evaluation(self) -> None:
        """End the evaluation that is under way, if it was detected."""
        if self._evaluated is not None:
            self._evaluated = None
            self.on_activity_end(Activity.EVALUATION)

    def _backward(self, backward: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._activities:
            self.on_backward()
        return backward(*args, **kwargs)

    def _on_optimizer_step(self, *_: Any) -> None:
        if not self._activities:  # FSDP makes an optimizer step to save or load it
            self._end_detected_evaluation()
            self._begin_step()
            self._is_in_step = False
            self.steps += 1
            self.on_step_end()

    def _begin_step(self) -> None:
        if not self._is_in_step:
            self._is_in_step = True
            self._observer.on_step_begin()

    def _checkpoint(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        with self.during(Activity.CHECKPOINT):
            return method(*args, **kwargs)

    def _end_training(self, end_training: Any, *args: Any, **kwargs: Any) -> Any:
        with self._one_result():  # `end_training` may end another loop on this accelerator
            self._end(is_success=True)
            return end_training(*args, **kwargs)

    @contextmanager
    def _one_result(self) -> Iterator[None]:
        """Show the results of all loops that end in a `with` block in one."""
        if _RESULT in vars(self._accelerator):
            yield
            return
        setattr(self._accelerator, _RESULT, {})
        try:
            yield
        finally:
            show_result(vars(self._accelerator).pop(_RESULT))

    @contained
    def _show_result(self) -> None:
        if self._is_quiet or self.steps == 0 or not self._accelerator.is_main_process:
            return
        rows, shared = self.result(), vars(self._accelerator).get(_RESULT)
        if shared is None:
            show_result(rows)
        else:
            setattr(self._accelerator, _RESULT, {**rows, **shared} if "energy" in rows else {**shared, **rows})

    def _end(self, is_success: bool) -> None:
        if is_success and self._hooks:
            self.on_end()
        self.close()


class _Passes:
    """Tells a loop what its models do.

    Args:
        loop: The loop; it is not kept alive.
    """

    def __init__(self, loop: AcceleratorLoop) -> None:
        self._loop = weakref.ref(loop)

    def on_any_pass(self, module: torch.nn.Module) -> None:
        """Do nothing: the models are known."""

    def on_pass(self, module: torch.nn.Module, has_gradients: bool) -> None:
        """Report that a forward pass of a trained model begins."""
        loop = self._loop()
        if loop is not None:
            loop._on_pass(module, has_gradients)

    def on_mode(self, module: torch.nn.Module) -> None:
        """Report that a module has switched its mode."""
        loop = self._loop()
        if loop is not None:
            loop._on_mode(module)
