"""Translates what happens in a loop written with accelerate into the events of an observer, such as a search."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Self, Unpack

import torch
from accelerate import Accelerator

from zeus_core.adapters import Patches, contained
from zeus_core.adapters.result import show_result
from zeus_core.events import Activity, TrainingHooks
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.selection import warn_unless_measured
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_core.optimizer.global_setting.search_options import OptimizerOptions
from zeus_core.pytorch import torch_world
from zeus_core.pytorch.work_facts import facts_of_models
from zeus_core.training.account import TRAINING
from zeus_huggingface.accelerate._accelerator_checks import (
    checked_accelerator,
    is_compiling,
    monitor_for,
    trained_models,
)
from zeus_huggingface.accelerate._pass_rules import PassHook, PassKind, PassRules

_RESULT = "_zeus_result"  # the attribute of an accelerator with the lines to show, while its loops end


class AcceleratorLoop:
    """Reports to an observer: steps, evaluations, checkpoints and the end.

    A step begins with the first forward pass for training, and ends when the first of the prepared optimizers has
    really stepped: once for all the batches of an `accelerator.accumulate`. The constructor begins training, and is a
    collective call.

    An evaluation that the loop does not announce is detected by the forward passes of the trained models; `PassRules`
    separates them from those of a step. It ends with the next pass for training, and when the loop logs, saves or
    announces something. The models have a hook for it until the end.

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
        self._is_quiet = quiet
        self._is_open = True
        self._world = torch_world()
        self.steps = 0
        """Optimizer steps of the run so far."""
        self.detected_evaluations = 0
        """Evaluations so far that were not announced."""
        self._is_in_step = False
        self._activities = 0  # announced ones that have not ended
        self._is_evaluating = False  # in a detected evaluation
        self._pass_rules = PassRules()
        warn_unless_measured(monitor.gpus, accelerator.device)
        observer.use_world(self._world)
        self._hooks = [accelerator._optimizers[0].optimizer.register_step_post_hook(self._on_optimizer_step)]
        self._models = trained_models(accelerator)
        self._watched: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._wraps = Patches(accelerator)
        if is_compiling(accelerator):  # then the passes are those of a wrapper
            self._wraps.wrap("accumulate", self._accumulate)
        else:
            self._watch(self._models)
        self._wraps.wrap("backward", self._backward)
        for name in ("save_state", "load_state", "save_model"):
            self._wraps.wrap(name, self._checkpoint)
        self._wraps.wrap("end_training", self._end_training)
        self._use_work(accelerator)
        observer.on_train_begin()
        self._report_prepared()

    @contextmanager
    def during(self, activity: Activity | str) -> Iterator[None]:
        """Announce the activity of a `with` block, such as an evaluation or generation. Not collective.

        Args:
            activity: A kind of work, or a name of your own, such as "rollout".

        Raises:
            UsageError: It is no such name.
        """
        activity = Activity(activity)
        self._end_detected_evaluation()
        self.on_activity_begin(activity)
        self._activities += 1
        try:
            yield
        finally:
            self._activities -= 1
            self.on_activity_end(activity)

    def evaluation(self) -> AbstractContextManager[None]:
        """Announce an evaluation as a `with` block, on all processes or on some."""
        return self.during(Activity.EVALUATION)

    def close(self) -> None:
        """End training, normally or by an error, and leave the accelerator as it was. Not collective."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._wraps.undo()
        self._end_detected_evaluation()
        self._observer.on_train_end()
        if self._is_open:
            self._is_open = False
            self._show_result()

    def result(self) -> dict[str, str]:
        """Return the result for people, as labelled lines."""
        return self._observer.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(is_success=error is None)

    @contained
    def _use_work(self, accelerator: Accelerator) -> None:
        sizes = [getattr(loader, "total_batch_size", None) for loader in accelerator._dataloaders[:1]]
        self._observer.use_work(
            {
                **facts_of_models(self._models),
                "batch_size": ", ".join(map(str, sizes)),
                "accumulation": accelerator.gradient_accumulation_steps,
                "precision": str(accelerator.mixed_precision),
            }
        )

    def _report_prepared(self) -> None:
        self._observer.on_prepared(self._models, self._accelerator._optimizers, self._accelerator.device)

    @contained
    def on_backward(self) -> None:
        """Begin a backward pass for training."""
        if self._pass_rules.on_backward():
            self.detected_evaluations -= self._is_evaluating
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

    def _watch(self, models: Sequence[torch.nn.Module]) -> None:
        """Have the forward passes of these models reported from now on."""
        for model in models:
            if model not in self._watched:
                self._watched.add(model)
                with suppress(RuntimeError):  # a `torch.jit.ScriptModule` takes no hook
                    self._hooks.append(model.register_forward_pre_hook(PassHook(self._on_pass)))

    @contained
    def _on_pass(self, module: torch.nn.Module) -> None:
        """Begin a forward pass of a trained model."""
        if self._activities:
            return
        kind = self._pass_rules.kind_of(module.training, torch.is_grad_enabled())
        if kind is PassKind.TRAINING:
            self._end_detected_evaluation()
            self._begin_step()
        elif kind is PassKind.EVALUATION and not self._is_evaluating:
            self._is_evaluating = True
            self.detected_evaluations += 1
            self.on_activity_begin(Activity.EVALUATION)

    def _end_detected_evaluation(self) -> None:
        """End the evaluation that is under way, if it was detected."""
        if self._is_evaluating:
            self._is_evaluating = False
            self.on_activity_end(Activity.EVALUATION)

    def _accumulate(self, accumulate: Any, *models: torch.nn.Module) -> Any:
        self._watch_wrappers(models)
        return accumulate(*models)

    @contained
    def _watch_wrappers(self, models: Sequence[torch.nn.Module]) -> None:
        self._watch([model for model in models if not set(self._models).isdisjoint(model.modules())])

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


class PowerLimitOptimizer(AcceleratorLoop):
    """Chooses a GPU power limit while a loop trains: make one after `accelerator.prepare`, on all processes.

        with PowerLimitOptimizer(accelerator) as search:
            for batch in batches:
                ...  # as before
            with search.evaluation():
                evaluate()

    A step is an optimizer step. Checkpoints and evaluations, announced or detected, are excluded from the measurements.
    The original limits are restored at `accelerator.end_training()` or the end of the `with` block, whichever comes
    first.

    All arguments that are not described here are those of `GlobalPowerLimitOptimizer`.

    Args:
        accelerator: The accelerator of the loop.
        monitor: Measures the GPUs whose limit is searched; a new one for the GPU this process trains on if None.
        strict: Where no GPU can be measured, raise; otherwise one warning says so, and nothing is searched.
        quiet: Show no result at the end.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer` behind it, with its trials and its choice.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        monitor: ZeusMonitor | None = None,
        optimum_selector: OptimumSelector | None = None,
        *,
        strict: bool = False,
        quiet: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        monitor = monitor_for(accelerator, monitor, strict)
        self.optimizer = GlobalPowerLimitOptimizer(monitor, optimum_selector, **options, quiet=True)
        super().__init__(accelerator, self.optimizer, monitor, quiet)
