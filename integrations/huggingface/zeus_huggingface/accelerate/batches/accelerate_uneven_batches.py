"""Training on batches that differ by rank, in a loop written with accelerate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import recursively_apply

from zeus_core.batches.pytorch.uneven_training import (
    AnyBatches,
    TokenCounter,
    UnevenTraining,
    check_total,
)
from zeus_core.errors import UsageError
from zeus_huggingface.accelerate.batches.accelerate_loop import AccelerateLoop
from zeus_huggingface.batches.uneven_shard import UnevenShard, check_loader, global_batch


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
            A rank with 0 computes one sample whose loss is weighted by 0. Or an `AllocationPlan`, or a
            `zeus_core.batches.pytorch.BatchAllocation`, which chooses them while training starts.
        tokens: Returns how many tokens the loss of a batch is a mean over; None if it is a mean over samples.
        dataloader: The prepared dataloader of the training; the first that was prepared if None.

    Raises:
        UsageError: An argument is wrong; the message names it.
        WorldError: An argument is wrong on another rank, or a rank did not answer in time.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        batches: AnyBatches,
        *,
        tokens: TokenCounter | None = None,
        dataloader: Any = None,
    ) -> None:
        loop = AccelerateLoop(accelerator)

        def check() -> None:
            check_total(batches, global_batch(_training_loader(accelerator, dataloader)))

        self._training = UnevenTraining(loop, batches, tokens, check)
        self._shard = UnevenShard(_training_loader(accelerator, dataloader), self._training, self._training.on_batch)
        loop.weigh(lambda: 1.0 if self._shard.weight is None else self._shard.weight())
        self._accelerator = accelerator
        loop.patch(accelerator, "gather_for_metrics", self._gather_for_metrics)

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch."""
        return self._training.batches

    def close(self) -> None:
        """Leave the accelerator, its dataloader and the power limit as they were."""
        self._training.close()
        self._training.loop.undo()
        self._shard.close()

    def _gather_for_metrics(self, gather: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
        place = self._shard.place
        if place is None or not self._shard.gives(self._accelerator.gradient_state.active_dataloader):
            return gather(data, *args, **kwargs)
        sizes = self._training.sizes(place)
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


def _training_loader(accelerator: Accelerator, dataloader: Any) -> Any:
    """Return the prepared dataloader of the training.

    Raises:
        UsageError: There is none, or its samples cannot be chosen.
    """
    if dataloader is None:
        if not accelerator._dataloaders:
            raise UsageError("accelerator has no dataloader yet; call accelerator.prepare(batches, ...) first")
        dataloader = accelerator._dataloaders[0]
    check_loader(dataloader)
    return dataloader
