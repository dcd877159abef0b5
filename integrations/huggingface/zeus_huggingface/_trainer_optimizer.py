"""The power-limit search as a callback of the Hugging Face Trainer."""

from __future__ import annotations

import logging
from typing import Any, Unpack

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from zeus_core.adapters import contained
from zeus_core.events import EPOCH_BEGIN, EPOCH_END, INTERFERENCE, STEP_BEGIN, STEP_END, TRAIN_END
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.no_monitor import NoMonitor, training_monitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_core.optimizer.global_setting.search_options import OptimizerOptions
from zeus_huggingface._trainer_calls import POWER_LIMIT, TrainerCalls
from zeus_huggingface._trainer_patches import patch_trainer

_logger = logging.getLogger(__name__)


class HFGlobalPowerLimitOptimizer(TrainerCallback):
    """Chooses a GPU power limit while a `Trainer` trains: pass it in `callbacks=[...]`.

    A step is an optimizer step. Evaluations and checkpoints are excluded from the measurements. In a multi-process job
    all processes agree on one limit. The original limits are restored when `trainer.train` returns, or is left by an
    exception or Ctrl-C.

    All arguments that are not described here are those of `GlobalPowerLimitOptimizer`.

    Args:
        monitor: Measures the GPUs whose limit is searched; a new one if None.
        strict: Where there is no GPU, raise; otherwise one warning says so, and nothing is searched.
        quiet: Show no result at the end of training.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer` behind the callback, with its trials and its choice.

    Raises:
        UsageError: An argument is wrong; the message names it.
        DeviceError: No GPU can be measured, and `strict` is true.
    """

    def __init__(
        self,
        monitor: ZeusMonitor | None = None,
        optimum_selector: OptimumSelector | None = None,
        *,
        strict: bool = False,
        quiet: bool = False,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        monitor = training_monitor(monitor, strict)
        self.optimizer = GlobalPowerLimitOptimizer(monitor, optimum_selector, **options, quiet=True)
        self._calls = TrainerCalls(
            type(self).__name__,
            self.optimizer,
            monitor,
            frozenset({POWER_LIMIT}),
            quiet=quiet,
            splits_passes=self.optimizer.searches_each_activity,
        )
        patch_trainer(self)

    def __reduce__(self) -> Any:
        """Copy nothing: a copy sets no power limit, see `ZeusTrainerCallback`."""
        return _copied_search, (type(self),)

    @contained
    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Begin training, or begin again with a smaller batch: a collective call."""
        if not self._calls.steps_aside:
            self._calls.prepare(args, state)
            self.optimizer.receive(TRAIN_END)
            self._calls.begin(args, state)

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """Begin an epoch."""
        self._calls.observer.receive(EPOCH_BEGIN)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin an optimizer step."""
        self._calls.observer.receive(STEP_BEGIN)

    @contained
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End an optimizer step. If the process ends next, to go on later, the Trainer saves a checkpoint now."""
        self._calls.observer.receive(STEP_END)
        if self._calls.observer.is_end_due:
            control.should_save = True

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """Report a step of an evaluation: a Trainer with an evaluation of its own has not announced it."""
        self._calls.observer.receive(INTERFERENCE)

    def on_save(self, *_: Any, **__: Any) -> None:
        """Report a checkpoint: a Trainer that saves in its own way has not announced it."""
        self._calls.observer.receive(INTERFERENCE)

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """End an epoch."""
        self._calls.observer.receive(EPOCH_END)

    @contained
    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End training, which restores the limits."""
        self._calls.end(state)


def _copied_search(kind: type[HFGlobalPowerLimitOptimizer]) -> HFGlobalPowerLimitOptimizer:
    warn_of_copied_search(kind)
    return kind(NoMonitor("this is a copy, which sets no power limit"))


def warn_of_copied_search(kind: type[TrainerCallback]) -> None:
    """Warn that the copy of a callback does not search for a power limit."""
    _logger.warning(
        "a copy of a %s sets no power limit, as other processes may train on the same GPUs; to search, make one where "
        "training runs",
        kind.__name__,
    )
