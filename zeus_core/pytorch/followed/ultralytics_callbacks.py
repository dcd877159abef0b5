"""Validations and saves of trainings by ultralytics, whose trainer calls callbacks by the names of its events."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zeus_core.adapters import contained
from zeus_core.events import Activity
from zeus_core.pytorch.followed.followed_optimizers import end_loop, follow_optimizers, followed_energy

if TYPE_CHECKING:
    from zeus_core.events import TrainingOptimizer
    from zeus_core.monitor import ZeusMonitor


def follow_ultralytics(optimizer: Callable[[ZeusMonitor], TrainingOptimizer | None] | None = None) -> None:
    """Measure each training of the models of ultralytics that are made from now on, and show its result at its end.

    A step is one of the optimizer. Validations, also the one of the best weights at the end, are *evaluation*; what
    the trainer does between a validation and the next epoch, which is to save, is *checkpoint*.

    Trainings on several GPUs are processes of their own, which call no function of the program:
    `zeus-core run --trainer` reaches them.

    Args:
        optimizer: See `follow_optimizers`.

    Raises:
        ImportError: ultralytics is not installed.
        UsageError: `optimizer` is no function.
    """
    from ultralytics.utils.callbacks.base import default_callbacks

    follow_optimizers(optimizer)
    for event, callback in _CALLBACKS.items():
        if callback not in default_callbacks[event]:
            default_callbacks[event].append(callback)


class _Loop:
    """The loop under way, if there is one."""

    def __init__(self) -> None:
        self._is_paused = False

    @contained
    def pause(self, activity: Activity) -> None:
        """Begin other work than training, after the work that interrupts it already."""
        self._resume()
        energy = followed_energy()
        if energy is not None:
            self._is_paused = True
            energy.on_interference()  # a trial cannot use half a step
            energy.on_pause(activity)

    @contained
    def go_on(self, trainer: Any) -> None:
        """Go on training, unless this was the last epoch: then the weights are saved, and the best ones validated."""
        if trainer.stop:
            self.pause(Activity.CHECKPOINT)
        else:
            self._resume()

    @contained
    def end(self) -> None:
        """End the loop; after an exception it ends with the process, as other ranks may not come here."""
        self._resume()
        if sys.exc_info()[0] is None:
            end_loop()

    def _resume(self) -> None:
        energy = followed_energy()
        if self._is_paused and energy is not None:
            energy.on_resume()
        self._is_paused = False


_loop = _Loop()
# Functions, as ultralytics copies and compares its callbacks.
_CALLBACKS: dict[str, Callable[[Any], None]] = {
    "on_train_epoch_end": lambda trainer: _loop.pause(Activity.CHECKPOINT),
    "on_val_start": lambda validator: _loop.pause(Activity.EVALUATION),
    "on_val_end": lambda validator: _loop.pause(Activity.CHECKPOINT),
    "on_fit_epoch_end": lambda trainer: _loop.go_on(trainer),
    "teardown": lambda trainer: _loop.end(),
}
