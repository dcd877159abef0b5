"""The translation of what a `Trainer` reports into the events of the core."""

from __future__ import annotations

import logging
from typing import Any

from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

from zeus_core.adapters import contained
from zeus_core.events import Activity, NoObserver, TrainingObserver
from zeus_core.monitor import ZeusMonitor, warn_unless_measured
from zeus_core.optimizer import GlobalPowerLimitOptimizer
from zeus_core.pytorch import torch_world
from zeus_huggingface._trainer_hooks import TrainerHooksCallback

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
        self._observer = observer
        self._told: TrainingObserver = observer  # nobody, while this callback steps aside
        self._monitor = monitor
        self._roles = roles
        self._trainings: list[tuple[Trainer, TrainingObserver]] = []  # under way, with who was told before each
        self._knows_world = False
        self._samples_per_step: int | None = None

    def __getstate__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} holds devices of this process and cannot be copied: make one where training runs"
        )

    @property
    def steps_aside(self) -> bool:
        """Whether another callback does the work of this one at present."""
        return self._told is not self._observer

    @contained
    def on_train_enter(self, trainer: Trainer, resume_from_checkpoint: Any) -> None:
        """Training is about to begin: see who else is there."""
        self._trainings.append((trainer, self._told))
        if len(self._trainings) > 1 or self._has_a_double(trainer):
            self._told = NoObserver()
            _logger.warning("%s does nothing here: another callback or trainer has it do so", type(self).__name__)
        else:
            warn_unless_measured(self._monitor.gpu_indices, trainer.args.device)

    def _has_a_double(self, trainer: Trainer) -> bool:
        callbacks = [it for it in trainer.callback_handler.callbacks if isinstance(it, ObservingCallback)]
        taken: set[str] = set()
        for callback in sorted(callbacks, key=lambda it: -len(it._roles)):
            if callback is self:
                break
            taken |= callback._roles
        return not taken.isdisjoint(self._roles)

    def _meet_ranks(self) -> None:
        """Learn who the ranks are, as late as possible, and where all of them are: a collective call."""
        if not self._knows_world and not self.steps_aside:
            self._knows_world = True
            self._observer.use_world(torch_world())

    @contained
    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, or begins again where `auto_find_batch_size` has given up a larger batch."""
        if self.steps_aside:
            return
        self._meet_ranks()
        samples_per_step = (state.train_batch_size or args.train_batch_size) * args.gradient_accumulation_steps
        if self.optimizer is not None and self._samples_per_step not in {None, samples_per_step}:
            self.optimizer.forget()
        self._samples_per_step = samples_per_step
        self.begin(args, state)

    def begin(self, args: TrainingArguments, state: TrainerState) -> None:
        """Tell the observer that training begins."""
        self._told.on_train_end()
        self._told.on_train_begin()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """An epoch begins."""
        self._told.on_epoch_begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """An optimizer step begins; its batches have been fetched already."""
        self._told.on_step_begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step has ended."""
        self._told.on_step_end()

    @contained
    def on_pause(self, activity: Activity) -> None:
        """An evaluation, a prediction or a checkpoint begins."""
        self._meet_ranks()
        self._told.on_pause(activity, on_all_ranks=True)

    def on_resume(self) -> None:
        """It is over."""
        self._told.on_resume()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """An evaluation is under way; a trainer with an evaluation of its own has not announced it."""
        self._told.on_interference()

    def on_save(self, *_: Any, **__: Any) -> None:
        """A checkpoint was saved; a trainer that saves in its own way has not announced it."""
        self._told.on_interference()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """An epoch has ended."""
        self._told.on_epoch_end()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Training has ended in order."""
        self._told.on_train_end()

    @contained
    def on_train_exit(self, trainer: Trainer) -> None:
        """Training has ended in whatever way, also where a trainer's own `train` reported nothing."""
        self._told.on_train_end()
        _, self._told = self._trainings.pop()
