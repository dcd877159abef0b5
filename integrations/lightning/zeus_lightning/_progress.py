"""How far a training has come: its optimizer steps and epochs, and the samples and tokens of its batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zeus_core.pytorch.work_facts import tensors_in
from zeus_core.validate import checked_whole_number
from zeus_lightning._namespaces import LightningModule, Trainer


class Steps:
    """Optimizer steps of a training, derived from the batches and from what the trainer counts.

    The trainer counts the steps of all its optimizers together, and reports only batches to callbacks. A step lasts
    from its first batch to the one in which an optimizer, or several, have stepped.

    Args:
        trainer: The trainer.
        done: Steps already done, in a resumed training.
    """

    def __init__(self, trainer: Trainer, done: int) -> None:
        self._trainer = trainer
        self._optimizer_steps = _optimizer_steps(trainer)
        self._logged = done
        self.done = done
        """Number of steps that have ended."""
        self.is_under_way = False
        """Whether a step has begun and not ended."""

    def begin(self) -> bool:
        """Begin a batch. Return whether a step begins with it."""
        was_under_way, self.is_under_way = self.is_under_way, True
        return not was_under_way

    def end(self) -> bool:
        """Return whether a step has ended since the previous call."""
        optimizer_steps = _optimizer_steps(self._trainer)
        if optimizer_steps == self._optimizer_steps:
            return False
        self._optimizer_steps = optimizer_steps
        self.is_under_way = False
        self.done += 1
        return True

    def is_log_due(self) -> bool:
        """Return whether it is time to log, by the trainer's `log_every_n_steps`; once each time."""
        every = self._trainer.log_every_n_steps
        if not every or self.done // every == self._logged // every:
            return False
        self._logged = self.done
        return True


class BatchCounts:
    """Counts what is in each batch. It can be pickled, as callbacks are.

    Args:
        samples: A number that all batches share, or a function of a batch. If None, the length of its first tensor, or
            for modules that draw windows from it (neuralforecast) the number of these, if it is fixed.
        tokens: The same of tokens, of which there are none if None.

    Raises:
        UsageError: One of them is something else; the message calls `samples` "batch_size".
    """

    def __init__(self, samples: int | Callable[[Any], int] | None, tokens: int | Callable[[Any], int] | None) -> None:
        for argument, given in (("batch_size", samples), ("tokens", tokens)):
            if given is not None and not callable(given):
                checked_whole_number(argument, given, 0, "a whole number or a function of a batch")
        self._samples = samples
        self._tokens = tokens

    def samples(self, module: LightningModule, batch: Any) -> int:
        """Return the samples of a batch for a module."""
        if self._samples is not None:
            return int(self._samples(batch) if callable(self._samples) else self._samples)
        if "windows_batch_size" in vars(module):
            # neuralforecast: of each batch of series it trains on so many windows; on all of them if None
            return module.windows_batch_size if isinstance(module.windows_batch_size, int) else 0
        return samples_in(batch)

    def tokens(self, batch: Any) -> int:
        """Return the tokens of a batch."""
        return int(self._tokens(batch) if callable(self._tokens) else self._tokens or 0)


def samples_in(batch: Any) -> int:
    """Return the length of the first tensor in a batch, as Lightning itself does; 0 without one."""
    for tensor in tensors_in(batch):
        return len(tensor) if tensor.ndim else 1
    return 0


def epochs_of(trainer: Trainer) -> float:
    """Return the epochs trained so far."""
    batches = trainer.num_training_batches
    if not 0 < batches < float("inf"):
        return float(trainer.current_epoch + 1)
    return float(trainer.current_epoch + trainer.fit_loop.epoch_loop.batch_progress.current.ready / batches)


def _optimizer_steps(trainer: Trainer) -> int:
    """Return `trainer.global_step`, or more by a constant: one count stands still. It asks half as many objects."""
    loop = trainer.fit_loop.epoch_loop
    manual = loop.manual_optimization.optim_step_progress.total.completed
    return int(loop.automatic_optimization.optim_progress.optimizer.step.total.completed + manual)
