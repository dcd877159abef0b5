"""The power-limit search as a callback of the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from zeus_core.monitor import ZeusMonitor
from zeus_core.optimizer import GlobalPowerLimitOptimizer, OptimumSelector
from zeus_huggingface.train_exit import TrainExitCallback

__all__ = ["HFGlobalPowerLimitOptimizer"]


class HFGlobalPowerLimitOptimizer(TrainExitCallback):
    """Finds a GPU power limit while a `Trainer` trains: pass it in `callbacks=[...]`.

    A step is an optimizer step. Evaluation and saving are kept out of what is measured. The limits found are put back
    when `trainer.train` returns or is left by an exception or Ctrl-C.

    Args:
        monitor: See `GlobalPowerLimitOptimizer` for this and all other arguments.
        optimum_selector: What "best" means.
        wait_steps: Steps at the beginning that nothing is done in.
        warmup_steps: Steps after each change of the limit that are not measured.
        profile_steps: Steps measured at each limit.
        pl_step: Distance between two limits, in watts.
        profile_path: JSON file in which trials are kept.

    Attributes:
        optimizer: The `GlobalPowerLimitOptimizer` behind the callback, with its trials and its choice.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        optimum_selector: OptimumSelector | None = None,
        wait_steps: int = 1,
        warmup_steps: int = 10,
        profile_steps: int = 40,
        pl_step: int = 25,
        profile_path: str | Path | None = None,
    ) -> None:
        super().__init__()
        self._samples_per_step: int | None = None
        self.optimizer = GlobalPowerLimitOptimizer(
            monitor, optimum_selector, wait_steps, warmup_steps, profile_steps, pl_step, profile_path
        )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training begins, or begins again where `auto_find_batch_size` has given up a larger batch."""
        batch_size = state.train_batch_size or args.train_batch_size
        samples_per_step = batch_size * args.gradient_accumulation_steps
        if self._samples_per_step not in {None, samples_per_step}:
            self.optimizer.forget()
        self._samples_per_step = samples_per_step
        self.optimizer.on_train_end()
        self.optimizer.on_train_begin()

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        """An epoch begins."""
        self.optimizer.on_epoch_begin()

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """An optimizer step begins; its batches have been fetched already."""
        self.optimizer.on_step_begin()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """An optimizer step has ended. The Trainer says here, and only here, that it will evaluate or save next."""
        self.optimizer.on_step_end()
        if control.should_evaluate or control.should_save:
            self.optimizer.on_pause()

    def on_prediction_step(self, *_: Any, **__: Any) -> None:
        """An evaluation is under way, which another callback may have asked for after `on_step_end`."""
        self.optimizer.on_intrusion()

    def on_save(self, *_: Any, **__: Any) -> None:
        """A checkpoint was saved, which another callback may have asked for after `on_step_end`."""
        self.optimizer.on_intrusion()

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """An epoch has ended."""
        self.optimizer.on_epoch_end()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Training has ended in order."""
        self.optimizer.on_train_end()

    def on_train_exit(self) -> None:
        """Training has ended in whatever way, also where a trainer's own `train` reported nothing."""
        self.optimizer.on_train_end()
