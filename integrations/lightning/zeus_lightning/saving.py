"""Learning when a `Trainer` saves a checkpoint, which it tells no callback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from zeus_lightning.namespaces import Trainer

__all__ = ["SavingHook"]

_METHOD = "save_checkpoint"


class SavingHook:
    """Has a trainer save its checkpoints within a context, until it is removed.

    Args:
        trainer: The trainer; no other is touched.
        context: Makes the context.
    """

    def __init__(self, trainer: Trainer, context: Callable[[], AbstractContextManager[object]]) -> None:
        self._trainer = trainer
        self._context = context
        self._previous = vars(trainer).get(_METHOD)  # set where somebody else has wrapped it before
        save = trainer.save_checkpoint

        @functools.wraps(save)
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            with self._context():
                return save(*args, **kwargs)

        self._wrapper = save_checkpoint
        setattr(trainer, _METHOD, save_checkpoint)

    def remove(self) -> None:
        """Leave the trainer as it was. Where somebody else has wrapped the method since, what stays does nothing."""
        self._context = nullcontext
        if vars(self._trainer).get(_METHOD) is not self._wrapper:
            return
        if self._previous is None:
            delattr(self._trainer, _METHOD)
        else:
            setattr(self._trainer, _METHOD, self._previous)
