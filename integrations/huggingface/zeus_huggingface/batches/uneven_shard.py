"""Prepared dataloaders of accelerate that give each rank its own number of samples, for accelerate and the Trainer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SkipBatchSampler
from accelerate.utils import DistributedType
from torch.utils.data import BatchSampler, IterableDataset

from zeus_core.adapters import Patches
from zeus_core.batches.pytorch.uneven_sampler import UnevenBatchSampler
from zeus_core.batches.pytorch.uneven_training import PendingWeight, UnevenTraining
from zeus_core.errors import UsageError
from zeus_core.validate import shown

_NOT_AVERAGING = (DistributedType.MEGATRON_LM, DistributedType.XLA)


class UnevenShard:
    """Lets a prepared dataloader give this rank its own number of samples of each global batch.

    Args:
        loader: The prepared dataloader.
        training: The batches.
        on_batch: Called with the place of a global batch in its epoch and the batch of this rank, when the loop gets
            that; returns the weight of its loss.
    """

    def __init__(self, loader: Any, training: UnevenTraining, on_batch: Callable[[int, Any], PendingWeight]) -> None:
        inner = _inner_sampler(loader)
        self._sampler = training.sampler(inner.sampler, inner.drop_last)
        self._loader = loader
        self._on_batch = on_batch
        self.weight: PendingWeight | None = None
        """The weight of the current batch; None outside of training."""
        self.place: int | None = None
        """The place of the current batch in its epoch; None outside of training."""
        training.loop.give(loader, self._sampler)  # accelerate makes other loaders around this sampler, too
        self._patches = Patches(DataLoaderShard)  # Python looks up `__iter__` in the class alone
        self._patches.wrap("__iter__", functools.partial(_iterate, weakref.ref(self)))
        weakref.finalize(self, self._patches.undo).atexit = False

    def close(self) -> None:
        """Follow the dataloader no more."""
        self._patches.undo()
        self.weight = self.place = None

    def gives(self, loader: Any) -> bool:
        """Return whether the batches of a dataloader are those of this sampler."""
        return skipped_batches(loader, self._sampler) is not None

    def follow(self, batches: Iterator[Any], loader: Any) -> Iterator[Any]:
        """Return the batches of a dataloader; if they are this sampler's, note which one is trained on."""
        skipped = skipped_batches(loader, self._sampler)
        return batches if skipped is None else self._follow(batches, loader, skipped)

    def _follow(self, batches: Iterator[Any], loader: Any, skipped: int) -> Iterator[Any]:
        # accelerate forgets the epoch where batches are skipped, in release 1.3 even that of such a dataloader.
        self._sampler.set_epoch((self._loader if skipped else loader).iteration)
        self._sampler.dropped_batches = skipped
        try:
            for place, batch in enumerate(batches, start=skipped):
                self.place, self.weight = place, self._on_batch(place, batch)
                yield batch
        finally:
            self.weight = self.place = None


def _iterate(shard: weakref.ref[UnevenShard], iterate: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
    alive = shard()
    return iterate(loader) if alive is None else alive.follow(iterate(loader), loader)


def skipped_batches(loader: Any, batches: Any) -> int | None:
    """Return how many batches of a sampler a dataloader skips; None if it has another one."""
    sampler, skipped = getattr(loader, "batch_sampler", None), 0
    while isinstance(sampler, SkipBatchSampler):
        sampler, skipped = sampler.batch_sampler, skipped + sampler.skip_batches
    return skipped if sampler is batches else None


def check_loader(dataloader: Any) -> None:
    """Check that the samples of a prepared dataloader can be chosen.

    Raises:
        UsageError: They cannot.
    """
    if type(dataloader) is not DataLoaderShard:
        raise UsageError(
            f"dataloader is {shown(dataloader)}; it must be one that accelerator.prepare has made, without "
            "dispatch_batches: a rank must be able to choose its samples"
        )
    _inner_sampler(dataloader)


def _inner_sampler(loader: Any) -> Any:
    """Return the sampler of batches that the user's dataloader had.

    Raises:
        UsageError: The dataloader had one of the user's own, or none.
    """
    sampler = loader.batch_sampler
    inner = sampler.batch_sampler if isinstance(sampler, BatchSamplerShard) else sampler
    if isinstance(inner, UnevenBatchSampler):
        raise UsageError("the dataloader gives each rank batches of its own already; close() that UnevenBatches first")
    if type(inner) is not BatchSampler or isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            f"the dataloader has a {type(loader.dataset).__name__} and the batch sampler {shown(inner)}; only batches "
            "that a DataLoader makes by itself, of a dataset with a length, can be split by rank"
        )
    return inner


def global_batch(loader: Any) -> int:
    """Return the samples of a batch on all ranks together."""
    sampler = loader.batch_sampler
    processes = sampler.num_processes if isinstance(sampler, BatchSamplerShard) and not sampler.split_batches else 1
    return int(_inner_sampler(loader).batch_size * processes)


def check_averaging(accelerator: Accelerator) -> None:
    """Raise `UsageError` if the gradients are not averaged over all ranks in each step."""
    kind = accelerator.distributed_type
    if kind in _NOT_AVERAGING:
        raise UsageError(f"accelerator uses {kind.value}, whose losses cannot be weighted by rank")
    parallelism = getattr(accelerator, "parallelism_config", None)
    for name in ("tp", "cp", "sp"):
        if getattr(parallelism, f"{name}_size", 1) > 1:
            raise UsageError(
                f"accelerator uses {name}_size={getattr(parallelism, f'{name}_size')}: ranks that share their samples "
                "cannot have batches of their own"
            )


def check_gradients(accelerator: Accelerator) -> None:
    """Raise `UsageError` if it is not known when a rank has computed its gradients, before it waits for the others."""
    kind = accelerator.distributed_type
    if kind in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        raise UsageError(
            f"accelerator uses {kind.value}, with which it is not known when a rank has computed its gradients; use "
            "DistributedDataParallel, or give the batches"
        )
