"""One `fit`, `validate`, `test` or `predict`: forwards its events to `TrainingEnergy`, and publishes the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from zeus_core.adapters import Patches, contained
from zeus_core.events import STEP_BEGIN, STEP_END, TRAIN_END, Activity, TrainBegin, TrainingHooks, TrainingOptimizer
from zeus_core.process.restore_registry import restore_registry
from zeus_core.pytorch.work_facts import facts_of_models
from zeus_core.training import TrainingEnergy
from zeus_lightning._namespaces import Logger, Trainer
from zeus_lightning._progress import Steps


class Session:
    """A `fit`, `validate`, `test` or `predict` of a trainer, from its setup to its end.

    Args:
        trainer: The trainer.
        energy: Receives the events.
        state: The state of an earlier training, which this one may continue.

    Attributes:
        energy: As passed.
        state: The state that the next training may continue.
    """

    def __init__(self, trainer: Trainer, energy: TrainingEnergy, state: Any) -> None:
        self.energy = energy
        self.state = state
        self._trainer = trainer
        self._steps: Steps | None = None  # of the current training
        self._lacks_data = False
        self._wraps = Patches(trainer)
        self._wraps.wrap("save_checkpoint", self._save)  # the trainer reports its beginning to no callback
        self._shown: dict[str, float] = {}
        bar = trainer.progress_bar_callback
        self._bar_wraps = None if bar is None else Patches(bar)
        if self._bar_wraps is not None:
            self._bar_wraps.wrap("get_metrics", self._add_to_bar)  # what the module logs is in `callback_metrics` too

    def leave(self) -> None:
        """End the session, however the trainer ended it."""
        self.end_training()
        self._wraps.undo()
        if self._bar_wraps is not None:
            self._bar_wraps.undo()

    @property
    def is_first_rank(self) -> bool:
        """Whether this is the first of all ranks."""
        return bool(self._trainer.is_global_zero)

    def is_within(self, trainer: Trainer) -> bool:
        """Return whether another trainer is at its training, within which this one begins."""
        return self._steps is not None and self._trainer is not trainer and self._trainer.state.status == "running"

    def begin_training(self) -> None:
        """Begin training, if it has not begun before: a collective call.

        A sanity check is part of the account. But before it the trainer has no data, and the work and the number of
        steps are not known: the optimizer begins anew after it.
        """
        lacked_data, self._lacks_data = self._lacks_data, self._trainer.train_dataloader is None
        if self._steps is None:
            restore_registry.catch_signals(wraps_later_handlers=True)  # those that Lightning has installed meanwhile
            global_step = self._trainer.global_step
            done, energy_state = _read(self.state) if global_step > 0 else (0, {})
            self._steps = Steps(self._trainer, done or global_step)
            self.energy.load_state_dict(energy_state)
            self._use_work()
            self.energy.on_train_begin(self._steps.done, max_steps=self._max_steps())
            self._report_prepared(self.energy)
        elif lacked_data:
            optimizer = self.energy.optimizer or TrainingOptimizer()  # which ignores events
            optimizer.receive(TRAIN_END)
            self._use_work()
            optimizer.receive(TrainBegin(self._max_steps(), self._steps.done))
            self._report_prepared(optimizer)

    def _report_prepared(self, observer: TrainingHooks) -> None:
        trainer = self._trainer
        observer.on_prepared([trainer.model], trainer.optimizers, trainer.strategy.root_device)

    @contained
    def _use_work(self) -> None:
        trainer = self._trainer
        if self._lacks_data:
            return
        facts = {
            "batch_size": getattr(trainer.train_dataloader, "batch_size", None),
            "accumulation": trainer.accumulate_grad_batches,
            "precision": trainer.precision,
        }
        numbers_or_words = {name: fact if isinstance(fact, int) else str(fact) for name, fact in facts.items()}
        self.energy.use_work({**facts_of_models([trainer.lightning_module]), **numbers_or_words})

    @contained
    def _max_steps(self) -> int | None:
        """Return the optimizer steps of the whole training; None if the trainer does not know them yet."""
        trainer = self._trainer
        # Before the sanity check there is no loader yet. The estimate would make it, and draw the random numbers that
        # it is made with earlier than without this callback: another training.
        is_loaded = trainer.train_dataloader is not None
        steps = trainer.estimated_stepping_batches if is_loaded else trainer.max_steps
        return int(steps) if 0 < steps < math.inf else None

    def end_training(self) -> None:
        """End training, normally or by an error."""
        self.state = self.current_state()
        self._steps = None
        self.energy.on_train_end()

    def current_state(self) -> Any:
        """Return the state that a training resumed at this moment continues; empty if none has begun."""
        return self.state if self._steps is None else {"step": self._steps.done, "energy": self.energy.state_dict()}

    def begin_batch(self) -> None:
        """Begin a batch of training."""
        if self._training.begin():
            self.energy.receive(STEP_BEGIN)

    def end_batch(self) -> None:
        """End a batch of training."""
        if self._training.end():
            self.energy.receive(STEP_END)

    def interrupt_step(self) -> None:
        """Report a step that is under way as interference: its power-limit trial cannot use half a step."""
        self.end_batch()
        if self._training.is_under_way:
            self.energy.on_interference()

    @contained
    def pause(self, activity: Activity) -> None:
        """Report that work other than training begins."""
        if self._steps is not None:
            self.interrupt_step()
        self.energy.on_pause(activity, on_all_ranks=True)

    def values_to_log(self) -> dict[str, float]:
        """Return the values to log, if it is time to: a collective call."""
        return self.energy.log() if self._training.is_log_due() else {}

    def publish(self, values: Mapping[str, float]) -> None:
        """Log values that every rank knows; nothing if there are none."""
        if values and self._trainer.is_global_zero:
            # No public attribute holds the position on the axis at which the trainer logs its own metrics now.
            step = self._trainer.fit_loop.epoch_loop._batches_that_stepped
            for logger in self._trainer.loggers:
                self._log(logger, dict(values), step)

    def show(self, values: Mapping[str, float]) -> None:
        """Show values in the progress bar from now on."""
        shown = {"power_w": values.get("power_w"), "energy_kj": values.get("total_energy_j", 0.0) / 1000}
        self._shown = {name: value for name, value in shown.items() if value}

    def _add_to_bar(self, get_metrics: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        metrics = get_metrics(*args, **kwargs)
        return {**self._shown, **metrics} if isinstance(metrics, dict) else metrics

    @contained
    def _log(self, logger: Logger, values: dict[str, float], step: int) -> None:
        logger.log_metrics(values, step)

    def _save(self, save_checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Save a checkpoint, in training or outside of it."""
        if self._steps is None:
            return save_checkpoint(*args, **kwargs)
        self.pause(Activity.CHECKPOINT)
        try:
            return save_checkpoint(*args, **kwargs)
        finally:
            self.energy.on_resume()

    @property
    def _training(self) -> Steps:
        assert self._steps is not None
        return self._steps


def _read(state: Any) -> tuple[int, Any]:
    """Return the steps done and the energy in a state; nothing if it is empty or damaged."""
    try:
        return int(state["step"]), state["energy"]
    except (KeyError, TypeError, ValueError):
        return 0, {}
