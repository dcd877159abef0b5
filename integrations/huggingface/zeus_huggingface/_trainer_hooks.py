"""Callbacks that take part in what a `Trainer` does, where its own events do not reach.

The Trainer fires nothing when training is left by an exception or Ctrl-C, nothing when an evaluation or a checkpoint
begins, and shows callbacks a copy of what has been logged already. So some methods of `Trainer` are wrapped, once, when
the first such callback is made. Trainers without such a callback behave as before; trainers derived from `Trainer` are
covered, as they reach these methods through `super`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import Trainer, TrainerCallback

from zeus_core.events import Activity

__all__ = ["TrainerHooksCallback"]


class TrainerHooksCallback(TrainerCallback):
    """A `TrainerCallback` with more events, none of which may raise."""

    def __init__(self) -> None:
        if not hasattr(Trainer, _MARK):
            setattr(Trainer, _MARK, True)
            for name, wrap in _WRAPS.items():
                setattr(Trainer, name, wrap(getattr(Trainer, name)))

    def on_train_enter(self, trainer: Trainer, resume_from_checkpoint: str | bool | None) -> None:
        """`Trainer.train` is called."""

    def on_train_exit(self, trainer: Trainer) -> None:
        """`Trainer.train` is returning, or is being left by an exception."""

    def on_pause(self, activity: Activity) -> None:
        """The Trainer begins an evaluation, a prediction or a checkpoint."""

    def on_resume(self) -> None:
        """That is over, in whatever way."""

    def values_to_log(self, trainer: Trainer, logs: dict[str, float]) -> dict[str, float] | None:
        """What to add to something that is about to be logged."""
        return None

    def evaluation_metrics(self, prefix: str) -> dict[str, float] | None:
        """What to add to the metrics of the evaluation that is going on, or is just over."""
        return None

    def training_metrics(self) -> dict[str, float] | None:
        """What to add to the metrics of the training that is just over."""
        return None


_Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]

_MARK = "__has_hooks_for_callbacks__"


def _callbacks_of(trainer: Trainer) -> list[TrainerHooksCallback]:
    return [it for it in trainer.callback_handler.callbacks if isinstance(it, TrainerHooksCallback)]


@contextmanager
def _paused(trainer: Trainer, activity: Activity) -> Iterator[list[TrainerHooksCallback]]:
    callbacks = _callbacks_of(trainer)
    for callback in callbacks:
        callback.on_pause(activity)
    with ExitStack() as resuming:
        for callback in callbacks:
            resuming.callback(callback.on_resume)
        yield callbacks


def _wrap_train(train: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(train)
    def train_with_hooks(self: Trainer, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        for callback in _callbacks_of(self):
            callback.on_train_enter(self, resume_from_checkpoint)
        try:
            output = train(self, resume_from_checkpoint, *args, **kwargs)
            for callback in _callbacks_of(self):
                output.metrics.update(callback.training_metrics() or {})
            return output
        finally:
            for callback in _callbacks_of(self):
                callback.on_train_exit(self)

    return train_with_hooks


def _pausing(activity: Activity) -> _Wrap:
    """Wraps a method in which the Trainer does something else than train."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def method_with_hooks(self: Trainer, *args: Any, **kwargs: Any) -> Any:
            with _paused(self, activity):
                return method(self, *args, **kwargs)

        return method_with_hooks

    return wrap


def _evaluating(default_prefix: str, metrics_of: Callable[[Any], dict[str, float]]) -> _Wrap:
    """Wraps a method whose result holds the metrics of an evaluation, and whose third argument is their prefix."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def method_with_hooks(self: Trainer, *args: Any, **kwargs: Any) -> Any:
            prefix = args[2] if len(args) > 2 else kwargs.get("metric_key_prefix", default_prefix)
            with _paused(self, Activity.EVALUATION) as callbacks:
                result = method(self, *args, **kwargs)
                for callback in callbacks:
                    metrics_of(result).update(callback.evaluation_metrics(prefix) or {})
                return result

        return method_with_hooks

    return wrap


def _wrap_log(log: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(log)
    def log_with_hooks(self: Trainer, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
        for callback in _callbacks_of(self):
            logs.update(callback.values_to_log(self, logs) or {})  # in place, as the Trainer itself adds the epoch
        return log(self, logs, *args, **kwargs)

    return log_with_hooks


_WRAPS: dict[str, _Wrap] = {
    "train": _wrap_train,
    "evaluate": _evaluating("eval", lambda metrics: metrics),
    "_evaluate": _pausing(Activity.EVALUATION),  # for trainers whose `evaluate` is all their own
    "predict": _evaluating("test", lambda output: output.metrics),
    "_save_checkpoint": _pausing(Activity.CHECKPOINT),
    "log": _wrap_log,
}
