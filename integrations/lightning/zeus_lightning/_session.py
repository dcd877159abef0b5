"""One thing a trainer does: what its energy is told of it, and what is logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zeus_core.adapters import Patches, contained
from zeus_core.events import Activity
from zeus_core.training import TrainingEnergy
from zeus_lightning._namespaces import Logger, Trainer
from zeus_lightning._steps import Steps

__all__ = ["Session"]


class Session:
    """A `fit`, `validate`, `test` or `predict` of a trainer, from its setup to its end.

    Args:
        trainer: The trainer.
        energy: Is told what happens.
        state: What is known of an earlier training, from which this one may go on.

    Attributes:
        energy: The same.
        state: What the next training may go on from.
    """

    def __init__(self, trainer: Trainer, energy: TrainingEnergy, state: Any) -> None:
        self.energy = energy
        self.state = state
        self._trainer = trainer
        self._steps: Steps | None = None  # of the present training
        self._wraps = Patches(trainer)
        self._wraps.wrap("save_checkpoint", self._save)  # which the trainer tells no callback

    def leave(self) -> None:
        """It is over, in whatever way."""
        self.end_training()
        self._wraps.undo()

    def begin_training(self) -> None:
        """Training begins, if it has not begun before: a collective call."""
        if self._steps is None:
            global_step = self._trainer.global_step
            done, energy_state = _read(self.state) if global_step > 0 else (0, {})
            self._steps = Steps(self._trainer, done or global_step)
            self.energy.load_state_dict(energy_state)
            self.energy.on_train_begin(self._steps.done)

    def end_training(self) -> None:
        """Training has ended, in whatever way."""
        self.state = self.current_state()
        self._steps = None
        self.energy.on_train_end()

    def current_state(self) -> Any:
        """What a training may go on from that is resumed at this moment; empty where none has begun."""
        return self.state if self._steps is None else {"step": self._steps.done, "energy": self.energy.state_dict()}

    def begin_batch(self) -> None:
        """A batch of training begins."""
        if self._training.begin():
            self.energy.on_step_begin()

    def end_batch(self) -> None:
        """A batch of training has ended."""
        if self._training.end():
            self.energy.on_step_end()

    def interrupt_step(self) -> None:
        """Half a step is no step: where one is under way, the power-limit trial that it is part of is spoilt."""
        self.end_batch()
        if self._training.is_under_way:
            self.energy.on_interference()

    @contained
    def pause(self, activity: Activity) -> None:
        """Something else than training begins."""
        if self._steps is not None:
            self.interrupt_step()
        self.energy.on_pause(activity, on_all_ranks=True)

    def values_to_log(self) -> dict[str, float]:
        """What to log of the training steps, where it is time to: a collective call."""
        return self.energy.log() if self._training.is_log_due() else {}

    def publish(self, values: Mapping[str, float]) -> None:
        """Log values, all of which every rank knows."""
        if self._trainer.is_global_zero:
            # No public name tells where on their axis the trainer's own metrics of this moment go.
            step = self._trainer.fit_loop.epoch_loop._batches_that_stepped
            for logger in self._trainer.loggers:
                self._tell(logger, dict(values), step)

    @contained
    def _tell(self, logger: Logger, values: dict[str, float], step: int) -> None:
        logger.log_metrics(values, step)

    def _save(self, save_checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A checkpoint is saved, in training or outside of it."""
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
    """The steps done and the energy of a state; nothing where it says nothing, or is damaged."""
    try:
        return int(state["step"]), state["energy"]
    except (KeyError, TypeError, ValueError):
        return 0, {}
