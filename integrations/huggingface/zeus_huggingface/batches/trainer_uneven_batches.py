"""Training on batches that differ by rank, in a Hugging Face Trainer."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from transformers import Trainer

from zeus_core.batches.pytorch.training_loop import scaled
from zeus_core.batches.pytorch.uneven_training import (
    AnyBatches,
    PendingWeight,
    TokenCounter,
    UnevenTraining,
    check_total,
)
from zeus_huggingface.batches.trainer_loop import TrainerLoop
from zeus_huggingface.batches.uneven_shard import UnevenShard, check_loader, global_batch

_IGNORED_LABEL = -100  # of transformers: a token that no loss counts

_logger = logging.getLogger(__name__)


class UnevenBatches:
    """Trains on batches that differ by rank, with the gradient of the whole batch.

    Make one before training begins, on all processes:

        trainer = Trainer(...)
        UnevenBatches(trainer, [24, 8])
        trainer.train()

    Each rank gets its own number of samples of each global batch. The global batches and their order are those of the
    Trainer, also when it resumes, with as many ranks and such batches as there are then.

    A Trainer divides the losses of a language model by the tokens of all ranks; then nothing is left to weight, and
    `average_tokens_across_devices` is turned on. Other losses are weighted, as means over samples, or over `tokens`.

    Args:
        trainer: The Trainer, or one derived from it such as TRL's `SFTTrainer`.
        batches: The samples of each rank in a global batch, by rank; `per_device_train_batch_size` times the number of
            ranks in all. A rank with 0 computes one sample that does not count. Or an `AllocationPlan`, or a
            `zeus_core.batches.pytorch.BatchAllocation`, which chooses them while training starts; the power limits that
            it sets are restored when training ends.
        tokens: Returns how many tokens the loss of a batch is a mean over, where the Trainer does not count them; None
            if it is a mean over samples.

    Raises:
        UsageError: An argument is wrong, or the Trainer cannot train on such batches; the message says why. Also raised
            by `train`, where the dataloader cannot be split.
        WorldError: Something is wrong on another rank, or a rank did not answer in time.
    """

    def __init__(self, trainer: Trainer, batches: AnyBatches, *, tokens: TokenCounter | None = None) -> None:
        loop = TrainerLoop(trainer)
        self._training = UnevenTraining(loop, batches, tokens)
        self._trainer = trainer
        self._shard: UnevenShard | None = None
        # The Trainer takes the batches of a step before it trains on any.
        self._arrived: deque[tuple[int, PendingWeight]] = deque()
        self._weight: PendingWeight | None = None  # of the batch in `training_step`
        if not trainer.args.average_tokens_across_devices and len(self.batches) > 1:
            trainer.args.average_tokens_across_devices = True
            _logger.info("average_tokens_across_devices is turned on, as the ranks have different numbers of tokens")
        loop.patch(trainer, "train", self._train)
        loop.patch(trainer, "get_train_dataloader", self._get_train_dataloader)
        loop.patch(trainer, "training_step", self._training_step)
        loop.patch(trainer, "compute_loss", self._compute_loss)

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch."""
        return self._training.batches

    def close(self) -> None:
        """Leave the Trainer and the power limit as they were."""
        self._training.close()
        self._training.loop.undo()
        if self._shard is not None:
            self._shard.close()

    def _train(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return train(*args, **kwargs)
        finally:
            self._training.close()

    def _get_train_dataloader(self, get: Callable[[], Any]) -> Any:
        loader = get()
        check_loader(loader)
        check_total(self.batches, global_batch(loader))
        if self._shard is not None:
            self._shard.close()
        self._arrived.clear()
        self._shard = UnevenShard(loader, self._training, self._on_batch)
        return loader

    def _on_batch(self, place: int, batch: Any) -> PendingWeight:
        is_for_nothing = not self._training.sizes(place)[self._training.rank] and isinstance(batch, MutableMapping)
        if is_for_nothing and isinstance(batch.get("labels"), torch.Tensor):
            batch["labels"] = torch.full_like(batch["labels"], _IGNORED_LABEL)  # or the Trainer counts them
        weight = self._training.weight(place, batch)
        self._arrived.append((place, weight))
        return weight

    def _training_step(
        self, training_step: Callable[..., torch.Tensor], model: Any, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        place, weight = self._arrived.popleft()
        self._training.begin(place)
        self._weight = None if self._is_summed_up(num_items_in_batch) else weight
        try:
            return training_step(model, inputs, num_items_in_batch)
        finally:
            self._weight = None

    def _is_summed_up(self, num_items_in_batch: Any) -> bool:
        """Return whether the Trainer divides the sum of the losses by what all ranks have: no weight is needed."""
        trainer = self._trainer
        return num_items_in_batch is not None and bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func)

    def _compute_loss(self, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = compute(*args, **kwargs)
        if self._weight is None:
            return result
        if isinstance(result, tuple):
            return scaled(result[0], self._weight()), *result[1:]
        return scaled(result, self._weight())
