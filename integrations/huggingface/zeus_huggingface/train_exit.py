"""Callbacks that learn when `Trainer.train` is left: the Trainer itself fires nothing on an exception or Ctrl-C."""

from __future__ import annotations

import functools
from typing import Any

from transformers import Trainer, TrainerCallback

__all__ = ["TrainExitCallback"]


class TrainExitCallback(TrainerCallback):
    """A `TrainerCallback` with one more event.

    When the first such callback is made, `Trainer.train` is wrapped, once. Trainers without such a callback behave as
    before; trainers derived from `Trainer` are covered, as they reach `train` through `super`.
    """

    def __init__(self) -> None:
        if not hasattr(Trainer.train, _MARK):
            _wrap_train()

    def on_train_exit(self) -> None:
        """`Trainer.train` is returning, or is being left by an exception."""


_MARK = "__tells_train_exit_callbacks__"


def _wrap_train() -> None:
    train = Trainer.train

    @functools.wraps(train)
    def train_and_tell(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        try:
            return train(self, *args, **kwargs)
        finally:
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, TrainExitCallback):
                    callback.on_train_exit()

    setattr(train_and_tell, _MARK, True)
    Trainer.train = train_and_tell  # type: ignore[method-assign]
