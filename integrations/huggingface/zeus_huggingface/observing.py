"""The translation of what a `Trainer` reports into the events of the core."""

from __future__ import annotations

import logging
from typing import Any

from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from zeus_core.events import Activity, NoObserver, TrainingObserver
from zeus_core.harmless import harmless
from zeus_core.monitor import ZeusMonitor, warn_unless_measured
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.pytorch import torch_world
from zeus_huggingface.trainer_hooks import TrainerHooksCallback

__all__ = ["ObservingCallback"]

_logger = logging.getLogger(__name__)


class ObservingCallback(TrainerHooksCallback):
    """Tells an observer what happens in a `Trainer`. A step is an optimizer step.

    Args:
        observer: Who is told.
        monitor: What the observer measures with.
        optimizer: An optimizer that learns from what steps take, which depends on their batch size.
        roles: What only one callback of a trainer may do. Those with the most roles come first, then the first ones;
            the others step aside.
    """

    def __init__(
        self,
        observer: TrainingObserver,
        monitor: ZeusMonitor,
        optimizer: GlobalPowerLimitOptimizer | None,
        roles: frozenset[str],
    ) -> None:
        super().__init__()
        self.optimizer = optimizer
        self._told = self._observer = observer
        self._monitor = monitor
        self._roles = roles
        self._knows_world = False
        self._samples_per_step: int | None = None

    @harmless
    def on_train_enter(self, trainer: Trainer, resume_from_checkpoint: str | bool | None) -> None:
        """Training is about to begin: see who else is there."""
        if self._has_to_step_aside(trainer):
            self._observer = NoObserver()
            _logger.warning("%s does nothing here: another callback of this trainer does it", type(self).__name__)
        else:
            warn_unless_measured(self._monitor.gpu_indices, trainer.args.device)

    def _has_to_step_aside(self, trainer: Trainer) -> bool:
        callbacks = [it for it in trainer.callback_handler.callbacks if isinstance(it, ObservingCallback)]
        taken: set[str] = set()
        for callback in sorted(callbacks, key=lambda it: -len(it._roles)):
            if callback is self:
                break
            taken |= callback._roles
        return not taken.isdisjoint(self._roles)

    @harmless
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, or begins again where `auto_find_batch_size` has given up a larger batch."""
        if not self._knows_world:
            self._told.use_world(torch_world())  # only now can it be known, and all ranks are here
            self._knows_world = True
        samples_per_step = (state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps
        if self.optimizer is not None and self._samples_per_step not in {None, samples_per_step}:
            self.optimizer.forget()
        self._samples_per_step = samples_per_step
        self.begin(args, state)

    def begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Tell the observer that training begins."""
        self._observer.on_train_end()
        self._observer.on_train_begin()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """An epoch begins."""
        self._observer.on_epoch_begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """An optimizer step begins; its batches have been fetched already."""
        self._observer.on_step_begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step has ended."""
        self._observer.on_step_end()

    def on_pause(self, activity: Activity) -> None:
        """An evaluation, a prediction or a checkpoint begins."""
        self._observer.on_pause(activity, on_all_ranks=True)

    def on_resume(self) -> None:
        """It is over."""
        self._observer.on_resume()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """An evaluation is under way; a trainer with an evaluation of its own has not announced it."""
        self._observer.on_intrusion()

    def on_save(self, *_: Any, **__: Any) -> None:
        """A checkpoint was saved; a trainer that saves in its own way has not announced it."""
        self._observer.on_intrusion()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """An epoch has ended."""
        self._observer.on_epoch_end()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Training has ended in order."""
        self._observer.on_train_end()

    def on_train_exit(self, trainer: Trainer) -> None:
        """Training has ended in whatever way, also where a trainer's own `train` reported nothing."""
        self._observer.on_train_end()
        self._observer = self._told
