"""Patches of `Trainer`, for what its own events do not report.

The Trainer fires nothing when training is left by an exception or Ctrl-C, and nothing when an evaluation or a
checkpoint begins; and it shows callbacks a copy of what was logged already. So some methods of `Trainer` are wrapped,
for as long as a callback of this package exists. A Trainer without such a callback behaves as before. Classes derived
from `Trainer` are covered, as they reach these methods through `super`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from transformers import Trainer, TrainerCallback

from zeus_core.adapters import Patches
from zeus_core.events import Activity
from zeus_huggingface._listener import TrainerListener, Training, listeners_of

__all__ = ["patch_trainer"]

_callbacks: set[int] = set()  # identities of those that exist
_patches: list[Patches] = []  # at most one, as the class is one for all


def patch_trainer(callback: TrainerCallback) -> None:
    """Patch `Trainer` until this callback, and all others this was called with, are deleted."""
    weakref.finalize(callback, _release, id(callback)).atexit = False
    _callbacks.add(id(callback))
    if not _patches:
        patches = Patches(Trainer)
        for name, around in _WRAPS.items():
            patches.wrap(name, around)
        _patches.append(patches)


def _release(callback_id: int) -> None:
    _callbacks.discard(callback_id)
    while _patches and not _callbacks:
        _patches.pop().undo()


def _train(
    train: Callable[..., Any], trainer: Trainer, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
) -> Any:
    listeners = listeners_of(trainer)
    for listener in listeners:
        listener.enter_training(Training(trainer, resume_from_checkpoint))
    try:
        output = train(trainer, resume_from_checkpoint, *args, **kwargs)
        for listener in listeners:
            output.metrics.update(listener.reporter.training_metrics())
        return output
    finally:
        for listener in listeners:
            listener.leave_training()


@contextmanager
def _paused(trainer: Trainer, activity: Activity) -> Iterator[list[TrainerListener]]:
    listeners = listeners_of(trainer)
    for listener in listeners:
        listener.pause(activity)
    with ExitStack() as resuming:
        for listener in listeners:
            resuming.callback(listener.resume)
        yield listeners


def _pausing(activity: Activity) -> Callable[..., Any]:
    """Return a wrap for a method in which the Trainer does something other than train."""

    def pause(method: Callable[..., Any], trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        with _paused(trainer, activity):
            return method(trainer, *args, **kwargs)

    return pause


def _evaluating(default_prefix: str, metrics_in: Callable[[Any], dict[str, float]]) -> Callable[..., Any]:
    """Return a wrap for a method whose third argument is the prefix of the metrics in its result."""

    def evaluate(method: Callable[..., Any], trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        prefix = args[2] if len(args) > 2 else kwargs.get("metric_key_prefix", default_prefix)
        with _paused(trainer, Activity.EVALUATION) as listeners:
            result = method(trainer, *args, **kwargs)
            for listener in listeners:
                metrics_in(result).update(listener.reporter.evaluation_metrics(prefix))
            return result

    return evaluate


def _log(log: Callable[..., Any], trainer: Trainer, logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
    for listener in listeners_of(trainer):
        logs.update(listener.reporter.values_to_log(trainer, logs))  # in place, as the Trainer itself adds the epoch
    return log(trainer, logs, *args, **kwargs)


_WRAPS: dict[str, Callable[..., Any]] = {
    "train": _train,
    "evaluate": _evaluating("eval", lambda metrics: metrics),
    "_evaluate": _pausing(Activity.EVALUATION),  # for trainers with an `evaluate` of their own
    "predict": _evaluating("test", lambda output: output.metrics),
    "_save_checkpoint": _pausing(Activity.CHECKPOINT),
    "log": _log,
}
