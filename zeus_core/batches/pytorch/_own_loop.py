"""Training on batches that differ by rank, in a loop of your own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from zeus_core.batches.pytorch.plain_loop import PlainLoop
from zeus_core.batches.pytorch.training_loop import scaled
from zeus_core.batches.pytorch.uneven_sampler import EpochOrder, UnevenBatchSampler
from zeus_core.batches.pytorch.uneven_training import AnyBatches, PendingWeight, TokenCounter, UnevenTraining
from zeus_core.errors import UsageError
from zeus_core.ports import World
from zeus_core.validate import (
    checked_whole_number,
    shown,
)

_MAX_SEED = 2**62  # a seed plus an epoch must still be one


class UnevenBatches:
    """Trains on batches that differ by rank, with the gradient of the whole batch.

    Each rank gets its own number of samples of each global batch, and weights its losses, so that the gradients that
    are averaged over the ranks are those of the global batch:

        uneven = UnevenBatches(model, [24, 8])  # on all ranks; the model is a DistributedDataParallel, for example
        batches = uneven.loader(dataset)
        for inputs, targets in batches:
            loss = loss_function(model(inputs), targets)
            uneven.weighted(loss).backward()

    It works where gradients are averaged over the ranks: DistributedDataParallel, FSDP, and ZeRO of DeepSpeed. A loss
    is a mean over samples; give `tokens` if it is a mean over tokens. With gradient accumulation, weight each loss.

    Making one is a collective call: every rank must make it, at the same point.

    Args:
        model: The model, wrapped for training on several ranks.
        batches: The samples of each rank in a global batch, by rank; or an `AllocationPlan`, of which the batches are
            used; or a `BatchAllocation`, which chooses them while training starts. A rank with 0 computes one sample
            whose loss is weighted by 0.
        tokens: Returns how many tokens the loss of a batch is a mean over; None if it is a mean over samples.
        world: The ranks; those of torch.distributed if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
        WorldError: An argument is wrong on another rank, or a rank did not answer in time.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        batches: AnyBatches,
        *,
        tokens: TokenCounter | None = None,
        world: World | None = None,
    ) -> None:
        self._training = UnevenTraining(PlainLoop(model, world), batches, tokens)
        self._weight: PendingWeight | None = None

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch."""
        return self._training.batches

    def close(self) -> None:
        """Restore the power limit that a `BatchAllocation` has set, if any."""
        self._training.close()

    def loader(
        self,
        dataset: Any,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        **arguments: Any,
    ) -> UnevenLoader:
        """Return the batches of this rank.

        Args:
            dataset: The source of the samples, with a length and an index.
            shuffle: Whether each epoch has an order of its own, which follows from the seed and the epoch.
            seed: A whole number, the same on all ranks.
            drop_last: Drop the last global batch if it is incomplete; else it is split in proportion.
            **arguments: Those of `torch.utils.data.DataLoader`, such as `num_workers` and `collate_fn`.

        Raises:
            UsageError: An argument is wrong; the message names it.
        """
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise UsageError(
                f"dataset is {shown(dataset)}, of which no rank can choose its samples; it must have a length"
            )
        refused = {"batch_size", "sampler", "batch_sampler"} & arguments.keys()
        if refused:
            raise UsageError(f"{min(refused)} is set by the batches of the ranks; leave it out")
        wanted = "a whole number, at least 0, such as 42"
        order = EpochOrder(len(dataset), checked_whole_number("seed", seed, 0, wanted, _MAX_SEED), shuffle)
        sampler = self._training.sampler(order, drop_last)
        return UnevenLoader(DataLoader(dataset, batch_sampler=sampler, **arguments), sampler, order, self._on_batch)

    def weighted(self, loss: torch.Tensor) -> torch.Tensor:
        """Return a loss of the current batch with its weight, to call `backward` on.

        Raises:
            UsageError: It is no tensor, or no batch of a loader of `loader` has begun.
        """
        if self._weight is None:
            raise UsageError("no batch has begun: go through the batches of loader(...), and weight each loss there")
        return scaled(loss, self._weight())

    def _on_batch(self, number: int, batch: Any) -> None:
        self._weight = self._training.on_batch(number, batch)


class UnevenLoader:
    """The batches of one rank, as `UnevenBatches.loader` makes it.

    Each time it is gone through to its end, the next time gives the next epoch.
    """

    def __init__(
        self,
        _loader: DataLoader[Any],
        _sampler: UnevenBatchSampler,
        _order: EpochOrder,
        _on_batch: Callable[[int, Any], None],
    ) -> None:
        self._loader = _loader
        self._sampler = _sampler
        self._order = _order
        self._on_batch = _on_batch
        self._trained = 0  # global batches of this epoch, since it began or was resumed

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with the next iteration.

        Raises:
            UsageError: It is no whole number.
        """
        self._order.set_epoch(checked_whole_number("epoch", epoch, 0))
        self._sampler.skipped_samples = self._trained = 0

    def __len__(self) -> int:
        """Return the number of batches, the same on all ranks; in a resumed epoch, of those left."""
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            self._trained = number + 1
            self._on_batch(number, batch)
            yield batch
        self.set_epoch(self._order.epoch + 1)

    def state_dict(self) -> dict[str, int]:
        """Return what a checkpoint needs, after the optimizer's step: small, and of JSON types."""
        done = self._sampler.skipped_samples + self._trained * self._sampler.batch_size
        samples = len(self._order)
        return {"epoch": self._order.epoch, "samples": min(done, samples), "seed": self._order.seed, "of": samples}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after the samples of a checkpoint, with as many ranks and such batches as there are now.

        Raises:
            UsageError: It is not the state of a loader, or of another dataset.
        """
        names = ("epoch", "samples", "seed", "of")
        epoch, samples, seed, of = (checked_whole_number(f"state[{name!r}]", state.get(name, -1), 0) for name in names)
        if of != len(self._order):
            raise UsageError(f"state is that of a dataset of {of} samples; this one has {len(self._order)}")
        self._order.seed = seed
        self.set_epoch(epoch)
        self._sampler.skipped_samples = samples
