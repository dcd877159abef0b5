"""Optimizer steps, told from what a `Trainer` counts."""

from __future__ import annotations

from zeus_lightning._namespaces import Trainer

__all__ = ["Steps"]


class Steps:
    """The steps of a training.

    A trainer counts those of all its optimizers together, and tells callbacks of batches only. A step lasts from its
    first batch to the one in which an optimizer, or several, have stepped.

    Args:
        trainer: The trainer.
        done: Steps already done, in a resumed training.
    """

    def __init__(self, trainer: Trainer, done: int) -> None:
        self._trainer = trainer
        self._optimizer_steps = trainer.global_step
        self._logged = done
        self.done = done
        """Steps that have ended."""
        self.is_under_way = False
        """Whether a step has begun and not ended."""

    def begin(self) -> bool:
        """A batch begins. Returns whether a step begins with it."""
        was_under_way, self.is_under_way = self.is_under_way, True
        return not was_under_way

    def end(self) -> bool:
        """Returns whether a step has ended since this was asked last."""
        if self._trainer.global_step == self._optimizer_steps:
            return False
        self._optimizer_steps = self._trainer.global_step
        self.is_under_way = False
        self.done += 1
        return True

    def is_log_due(self) -> bool:
        """Whether it is time to log, by the trainer's `log_every_n_steps`; once each time."""
        every = self._trainer.log_every_n_steps
        if not every or self.done // every == self._logged // every:
            return False
        self._logged = self.done
        return True
