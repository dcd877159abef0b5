"""Training on batches that differ by rank, in a loop written with accelerate."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard, SkipBatchSampler
from accelerate.utils import DistributedType, recursively_apply
from torch.utils.data import BatchSampler, IterableDataset

from zeus_core._validate import checked_function, checked_instance, shown
from zeus_core.adapters import Patches
from zeus_core.errors import UsageError
from zeus_core.pytorch import torch_world
from zeus_core.pytorch._loss_weights import LossWeights, PendingWeight, TokenCounter, scaled
from zeus_core.pytorch._uneven_batches import agree_on_batches
from zeus_core.pytorch._uneven_models import warn_of_batch_norms
from zeus_core.pytorch._uneven_sampler import UnevenBatchSampler, checked_batches

__all__ = ["UnevenBatches", "UnevenShard"]

_NOT_AVERAGING = (DistributedType.MEGATRON_LM, DistributedType.XLA)


class UnevenBatches:
    """Trains on batches that differ by rank, with the gradient of the whole batch.

    Make one after `accelerator.prepare`, on all processes; the loop stays as it is:

        model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
        UnevenBatches(accelerator, [24, 8])

    Each rank gets its own number of samples of each global batch, and `accelerator.backward` weights its losses, so
    that the gradients that are averaged over the ranks are those of the global batch. The global batches and their
    order are those of the prepared dataloader, also across `accelerator.skip_first_batches`.
    `accelerator.gather_for_metrics` returns each sample of a global batch once.

    It works where accelerate averages gradients in each step: DistributedDataParallel, FSDP and ZeRO of DeepSpeed. It
    does not with Megatron-LM and XLA, which are refused, and within `LocalSGD`.

    Args:
        accelerator: The accelerator of the loop.
        batches: The samples of each rank in a global batch, by rank; as many in all as the prepared dataloader gives.
            A rank with 0 computes one sample whose loss is weighted by 0.
        tokens: Returns how many tokens the loss of a batch is a mean over; None if it is a mean over samples.
        dataloader: The prepared dataloader of the training; the first that was prepared if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
        WorldError: An argument is wrong on another rank, or a rank did not answer in time.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        batches: Sequence[int],
        *,
        tokens: TokenCounter | None = None,
        dataloader: Any = None,
    ) -> None:
        checked_instance("accelerator", accelerator, Accelerator, "accelerate.Accelerator()")
        world = torch_world()

        def check() -> None:
            if tokens is not None:
                checked_function("tokens", tokens, "a function that returns the tokens in a batch, or None")
            _check_averaging(accelerator)
            checked_batches(batches, total=_global_batch(_training_loader(accelerator, dataloader)))

        agreed = agree_on_batches(world, batches, check)
        weights = LossWeights(world.rank, world.size, tokens, accelerator.device)
        self._shard = UnevenShard(_training_loader(accelerator, dataloader), agreed, world.rank, weights.of_batch)
        self._accelerator = accelerator
        if accelerator.is_main_process:
            for model in accelerator._models:
                warn_of_batch_norms(model, agreed)
        self._patches = Patches(accelerator)
        self._patches.wrap("backward", self._backward)
        self._patches.wrap("gather_for_metrics", self._gather_for_metrics)

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch."""
        return self._shard.sampler.batches

    def close(self) -> None:
        """Leave the accelerator and its dataloader as they were."""
        self._patches.undo()
        self._shard.close()

    def _backward(self, backward: Callable[..., Any], loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        weight = self._shard.weight
        return backward(loss if weight is None else scaled(loss, weight()), *args, **kwargs)

    def _gather_for_metrics(self, gather: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
        sizes = self._shard.sizes
        loader = self._accelerator.gradient_state.active_dataloader
        if sizes is None or not self._shard.gives(loader):
            return gather(data, *args, **kwargs)
        if isinstance(data, list) and not any(isinstance(value, torch.Tensor) for value in data):
            own = data if sizes[self._accelerator.process_index] else []
            return gather(own, use_gather_object=True)  # an empty list says nothing of its kind
        return recursively_apply(lambda tensor: self._gathered(tensor, sizes), data)

    def _gathered(self, tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Gather a tensor with a row for each sample of this rank; one without rows as ever."""
        padded = self._accelerator.pad_across_processes(tensor.contiguous()) if tensor.ndim else tensor
        gathered: torch.Tensor = self._accelerator.gather(padded)
        if tensor.ndim == 0:
            return gathered
        rows = max(1, *sizes)
        return torch.cat([gathered[rank * rows : rank * rows + size] for rank, size in enumerate(sizes)])


class UnevenShard:
    """Lets a prepared dataloader give this rank its own number of samples of each global batch.

    Args:
        loader: The prepared dataloader.
        batches: The samples of each rank.
        rank: This rank.
        weigh: Called with the sizes and the batch when a batch begins; returns the weight of its loss.
    """

    def __init__(
        self,
        loader: Any,
        batches: Sequence[int],
        rank: int,
        weigh: Callable[[Sequence[int], Any], PendingWeight],
    ) -> None:
        self._loader = loader.base_dataloader
        self._original = self._loader.batch_sampler
        inner = _inner_sampler(loader)
        self.sampler = UnevenBatchSampler(inner.sampler, batches, rank, inner.drop_last)
        self._weigh = weigh
        self.weight: PendingWeight | None = None
        """The weight of the current batch; None outside of training."""
        self.sizes: tuple[int, ...] | None = None
        """The samples of each rank in the current batch; None outside of training."""
        # Torch lets nobody exchange the sampler of a loader. Accelerate makes other loaders around this sampler, too.
        object.__setattr__(self._loader, "batch_sampler", self.sampler)
        self._patches = Patches(DataLoaderShard)  # Python looks up `__iter__` in the class alone
        self._patches.wrap("__iter__", functools.partial(_iterate, weakref.ref(self)))
        weakref.finalize(self, self._patches.undo).atexit = False

    def close(self) -> None:
        """Leave the dataloader as it was."""
        self._patches.undo()
        object.__setattr__(self._loader, "batch_sampler", self._original)
        self.weight = self.sizes = None

    def gives(self, loader: Any) -> bool:
        """Return whether the batches of a dataloader are those of this sampler."""
        return self._skipped(loader) is not None

    def _skipped(self, loader: Any) -> int | None:
        """Return how many batches a dataloader skips of this sampler's; None if it has another."""
        sampler, skipped = getattr(loader, "batch_sampler", None), 0
        while isinstance(sampler, SkipBatchSampler):
            sampler, skipped = sampler.batch_sampler, skipped + sampler.skip_batches
        return skipped if sampler is self.sampler else None

    def follow(self, batches: Iterator[Any], loader: Any) -> Iterator[Any]:
        """Return the batches of a dataloader; if they are this sampler's, note which one is trained on."""
        skipped = self._skipped(loader)
        return batches if skipped is None else self._follow(batches, loader, skipped)

    def _follow(self, batches: Iterator[Any], loader: Any, skipped: int) -> Iterator[Any]:
        self.sampler.set_epoch(loader.iteration)  # accelerate forgets it where batches are skipped
        try:
            for number, batch in enumerate(batches, start=skipped):
                self.sizes = self.sampler.sizes(number)
                self.weight = self._weigh(self.sizes, batch)
                yield batch
        finally:
            self.weight = self.sizes = None


def _iterate(shard: weakref.ref[UnevenShard], iterate: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
    alive = shard()
    return iterate(loader) if alive is None else alive.follow(iterate(loader), loader)


def _training_loader(accelerator: Accelerator, dataloader: Any) -> Any:
    """Return the prepared dataloader of the training, once it is known to be one whose samples can be chosen.

    Raises:
        UsageError: It is not.
    """
    if dataloader is None:
        if not accelerator._dataloaders:
            raise UsageError("accelerator has no dataloader yet; call accelerator.prepare(batches, ...) first")
        dataloader = accelerator._dataloaders[0]
    if type(dataloader) is not DataLoaderShard:
        raise UsageError(
            f"dataloader is {shown(dataloader)}; it must be one that accelerator.prepare has made, without "
            "dispatch_batches: a rank must be able to choose its samples"
        )
    _inner_sampler(dataloader)
    return dataloader


def _inner_sampler(loader: Any) -> Any:
    """Return the sampler of batches that the user's dataloader had.

    Raises:
        UsageError: The dataloader had one of the user's own, or none.
    """
    sampler = loader.batch_sampler
    inner = sampler.batch_sampler if isinstance(sampler, BatchSamplerShard) else sampler
    if type(inner) is not BatchSampler or isinstance(loader.dataset, IterableDataset):
        raise UsageError(
            f"the dataloader has the dataset {shown(loader.dataset)} and the batch sampler {shown(inner)}; only "
            "batches that a DataLoader makes by itself, of a dataset with a length, can be split by rank"
        )
    return inner


def _global_batch(loader: Any) -> int:
    """Return the samples of a batch on all ranks together."""
    sampler = loader.batch_sampler
    processes = sampler.num_processes if isinstance(sampler, BatchSamplerShard) and not sampler.split_batches else 1
    return int(_inner_sampler(loader).batch_size * processes)


def _check_averaging(accelerator: Accelerator) -> None:
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
