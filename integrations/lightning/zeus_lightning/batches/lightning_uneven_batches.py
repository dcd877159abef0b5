"""Training on batches that differ by rank, as a Lightning callback."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from zeus_core.batches.pytorch import BatchAllocation
from zeus_core.batches.pytorch.uneven_sampler import EpochOrder, IndexOrder, UnevenBatchSampler
from zeus_core.batches.pytorch.uneven_training import (
    AnyBatches,
    PendingWeight,
    UnevenTraining,
    check_total,
    checked_given,
)
from zeus_core.errors import UsageError
from zeus_core.validate import shown, wrong_argument
from zeus_lightning._namespaces import Callback, LightningModule, Trainer
from zeus_lightning.batches.lightning_loop import LightningLoop

_TRAINING = "train"  # the value of `RunningStage.TRAINING` in either namespace
_SEED = "PL_GLOBAL_SEED"  # set by `seed_everything`; Lightning shuffles by it on several ranks


class UnevenBatches(Callback):
    """Trains on batches that differ by rank, with the gradient of the whole batch: pass it in `callbacks=[...]`.

        trainer = Trainer(..., strategy="ddp", callbacks=[UnevenBatches([24, 8])])

    Each rank gets its own number of samples of each global batch of the training dataloader, and its losses are
    weighted, so that the gradients that are averaged over the ranks are those of the global batch. Samples are shuffled
    as Lightning does on several ranks: by the seed of `seed_everything` and the epoch. Other dataloaders stay as they
    are. A run that resumes within an epoch goes on with the next global batch, with as many ranks and such batches as
    there are then, as long as the global batch is as large.

    It works with the strategies for DistributedDataParallel, FSDP and DeepSpeed. A loss that `self.log` logs is that
    of each rank's own batch.

    Args:
        batches: The samples of each rank in a global batch, by rank; the batch size of the dataloader times the number
            of ranks in all. A rank with 0 computes one sample whose loss is weighted by 0. Or an `AllocationPlan`, or a
            `zeus_core.batches.pytorch.BatchAllocation`, which chooses them while training starts, with
            DistributedDataParallel.
        tokens: Returns how many tokens the loss of a batch is a mean over; None if it is a mean over samples.

    Raises:
        UsageError: An argument is wrong; the message names it. Also raised when a trainer begins to fit, on all ranks,
            if it cannot train on such batches.
    """

    def __init__(self, batches: AnyBatches, tokens: Callable[[Any], int | torch.Tensor] | None = None) -> None:
        super().__init__()
        self._given = checked_given(batches)
        self._batches = () if isinstance(self._given, BatchAllocation) else self._given
        if tokens is not None and not callable(tokens):
            raise wrong_argument("tokens", tokens, "a function that returns the tokens in a batch, or None")
        self._tokens = tokens
        self._training: UnevenTraining | None = None
        self._sampler: UnevenBatchSampler | None = None
        self._loader: DataLoader[Any] | None = None
        self._weight: PendingWeight | None = None
        # Lightning 2.4 counts the batches of an epoch that was resumed from one too few; None before the first batch.
        self._skew: int | None = None

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch; none before training if they are chosen while it starts."""
        return self._batches if self._training is None else self._training.batches

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Take the place of the sampler that Lightning gives each rank."""
        self._restore()
        if stage != "fit":
            return
        loop = LightningLoop(trainer)
        training = self._training = UnevenTraining(loop, self._given, self._tokens)
        loop.weigh(lambda: 1.0 if self._weight is None else self._weight())

        def prepare(prepare_dataloader: Callable[..., Any], dataloader: Any, shuffle: bool, mode: Any) -> Any:
            if getattr(mode, "value", mode) != _TRAINING:
                return prepare_dataloader(dataloader, shuffle=shuffle, mode=mode)
            return self._with_own_batches(trainer, dataloader, training)

        loop.patch(trainer._data_connector, "_prepare_dataloader", prepare)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Begin a batch."""
        assert self._training is not None
        assert self._sampler is not None
        if self._skew is None:
            self._skew = self._sampler.first_batch - batch_idx
        self._weight = self._training.on_batch(batch_idx + self._skew, batch)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin later epochs with their first batch."""
        assert self._sampler is not None
        self._sampler.first_batch = self._skew = 0

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the trainer and the dataloader as they were."""
        self._restore()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the trainer and the dataloader as they were."""
        self._restore()

    def _with_own_batches(self, trainer: Trainer, loader: Any, training: UnevenTraining) -> Any:
        """Return the training dataloader with the samples of this rank."""
        progress = trainer.fit_loop.epoch_loop.batch_progress.current
        if loader is not self._loader:
            _check_loader(loader)
            check_total(self._given, loader.batch_size * len(training.batches))
            self._sampler = training.sampler(_order(loader), loader.drop_last)
            self._sampler.set_epoch(trainer.fit_loop.epoch_progress.current.processed)
            self._sampler.first_batch = progress.ready if progress.ready < len(self._sampler) else 0
            self._loader = loader
            training.loop.give(loader, self._sampler)
        return loader

    def _restore(self) -> None:
        if self._training is not None:
            self._training.loop.undo()
            self._training.close()
            self._batches = self._training.batches
        self._training = self._weight = self._loader = self._sampler = self._skew = None


def _check_loader(loader: Any) -> None:
    """Raise `UsageError` if the samples of a dataloader cannot be chosen."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            f"the training dataloader is {shown(loader)}; it must be a DataLoader of a dataset with a length and an "
            "index: a rank must be able to choose its samples"
        )
    if type(loader.batch_sampler) is not BatchSampler:
        raise UsageError(
            f"the training dataloader has the batch sampler {shown(loader.batch_sampler)}; only batches that a "
            "DataLoader makes by itself can be split by rank"
        )


def _order(loader: DataLoader[Any]) -> IndexOrder:
    """Return the order of the samples, the same on all ranks."""
    sampler: Any = loader.sampler
    if isinstance(sampler, RandomSampler | SequentialSampler):
        seed = int(os.environ.get(_SEED, 0))
        return EpochOrder(len(sampler), seed, is_shuffled=isinstance(sampler, RandomSampler))
    order: IndexOrder = sampler
    return order
