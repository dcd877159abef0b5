"""The samples and tokens of the batches of a training, and its epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zeus_core.pytorch.work_facts import tensors_in
from zeus_core.validate import checked_whole_number
from zeus_lightning._namespaces import LightningModule, Trainer


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
