"""The micro-batch of a loop written with accelerate: chosen when all is prepared, before the loop begins.

The loader gets batches of another size, and the accelerator counts other batches to a step, so that the loop makes the
same steps on the same samples. In the last step of an epoch, which may be incomplete, `WindowBatches` says which
batches there are, and how much their losses count.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeAlias, cast

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.utils import send_to_device
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from zeus_core.adapters import Patches
from zeus_core.optimizer.micro_batch import MicroBatchOptimizer
from zeus_core.optimizer.micro_batch._optimizer import refuse_micro_batch
from zeus_core.optimizer.micro_batch._search import divisors, indivisible
from zeus_core.pytorch import torch_world
from zeus_core.pytorch._kept_state import kept_state
from zeus_core.pytorch._micro_batch import (
    StepPasses,
    coupling_of,
    is_out_of_memory,
    optimizer_ballast,
    warn_of_dropout,
)
from zeus_core.pytorch._window_batches import WindowBatches
from zeus_core.pytorch._work_facts import facts_of_models
from zeus_huggingface.accelerate._accelerator import trained_models

__all__ = ["AcceleratorMicroBatch", "ComputeLoss"]

ComputeLoss: TypeAlias = Callable[[Any], torch.Tensor]
"""Returns the loss of a batch, as the loop computes it."""

_logger = logging.getLogger(__name__)


class AcceleratorMicroBatch:
    """Chooses the micro-batch of a loop, and has the loop use it until `undo`. A collective call.

    Args:
        accelerator: The accelerator, which has prepared a model, an optimizer and a loader.
        setting: A size, or the optimizer that chooses one.
        compute_loss: Returns the loss of a batch; that of the model on it if None.
    """

    def __init__(
        self, accelerator: Accelerator, setting: int | MicroBatchOptimizer, compute_loss: ComputeLoss | None
    ) -> None:
        self._accelerator: Any = accelerator
        self._setting = setting
        self._compute_loss = compute_loss
        self._accumulation = int(accelerator.gradient_accumulation_steps)
        self._patches: list[Patches] = []
        self._windows: WindowBatches | None = None
        self._place = -1  # of the current batch in its epoch
        self._active: Any = None
        self._loader = _training_loader(accelerator)
        self._original = 0
        reason = self._obstacle()
        if reason is None:
            size = setting if isinstance(setting, int) else self._choose(setting)
            if size != self._original:
                self._use(size)
        else:
            size = max(self._original, 1)
            refuse_micro_batch(setting, size * self._accumulation, size, reason, _logger)

    def samples(self) -> int | None:
        """Return the samples in the current batch; None where the accelerator knows."""
        return None if self._windows is None else self._windows.samples_of(max(self._place, 0))

    def tell(self, error: BaseException) -> None:
        """Report the error that has ended the loop: a size that was out of memory is not chosen again."""
        if self._windows is not None and isinstance(self._setting, MicroBatchOptimizer) and is_out_of_memory(error):
            self._setting.tell_out_of_memory(self._windows.batch_size)

    def undo(self) -> None:
        """Leave the accelerator and the loader as they were."""
        if self._windows is not None:
            self._windows = None
            for patches in self._patches:
                patches.undo()
            _set_batches(self._loader, self._batches)
            self._accelerator.gradient_accumulation_steps = self._accumulation

    def _obstacle(self) -> str | None:
        """Return why no other micro-batch may be used; None if one may."""
        accelerator, loader = self._accelerator, self._loader
        if not isinstance(loader, DataLoaderShard) or isinstance(loader.dataset, IterableDataset):
            return "the accelerator has prepared no loader that reads samples by their index"
        batches = loader.batch_sampler
        self._batches = batches
        inner = batches.batch_sampler if isinstance(batches, BatchSamplerShard) else batches
        if type(inner) is not BatchSampler:
            return f"a {type(inner).__name__} makes the batches"
        self._original = int(inner.batch_size)
        if accelerator.distributed_type.value not in {"NO", "MULTI_GPU", "MULTI_CPU"}:
            return f"it is a part of the configuration of {accelerator.distributed_type.value}"
        if self._accumulation == 1:
            return "gradient_accumulation_steps is 1, and no larger one divides the batch"
        samples = self._original * self._accumulation
        reason = indivisible(self._setting, samples)
        if reason is not None:
            return reason
        if accelerator.num_processes > 1 and len(loader.dataset) % (samples * accelerator.num_processes):
            return "the last step of an epoch is incomplete, and would have other samples on its ranks; use drop_last"
        for model in trained_models(accelerator):
            reason = coupling_of(model)
            if reason is not None:
                return reason
        return None

    def _choose(self, optimizer: MicroBatchOptimizer) -> int:
        accelerator, loader = self._accelerator, self._loader
        models = trained_models(accelerator)
        inner = accelerator._optimizers[0].optimizer
        samples = self._original * self._accumulation
        with kept_state(torch.nn.ModuleList(models)):
            ballast = optimizer_ballast(inner, accelerator.device)
            is_mixed = accelerator.mixed_precision != "no"
            passes = StepPasses(
                loader.dataset, loader.collate_fn, samples, models, self._loss, self._backward, is_mixed
            )
            try:
                return optimizer.choose(
                    samples,
                    self._original,
                    lambda size: self._without_exchange(passes, size),
                    sizes=[size for size in divisors(samples) if size >= self._original],
                    check=passes.check,
                    work={**facts_of_models(models), "precision": str(accelerator.mixed_precision)},
                    world=torch_world(),
                    is_out_of_memory=is_out_of_memory,
                    release=passes.release,
                )
            finally:
                del ballast
                passes.release()

    def _without_exchange(self, passes: StepPasses, size: int) -> None:
        """Run passes that wait for no other rank, which may be out of memory."""
        with ExitStack() as stack:
            for model in self._accelerator._models:
                stack.enter_context(self._accelerator.no_sync(model))
            passes.run(size)

    def _loss(self, batch: Any) -> torch.Tensor:
        batch = send_to_device(batch, self._accelerator.device)
        if self._compute_loss is not None:
            return self._compute_loss(batch)
        outputs = self._accelerator._models[0](**batch) if isinstance(batch, Mapping) else None
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if loss is None:
            raise TypeError("the model returns no loss of a batch; pass compute_loss, a function of a batch")
        return cast(torch.Tensor, loss)

    def _backward(self, loss: torch.Tensor, batches: int) -> None:
        accelerator = self._accelerator
        scaled = loss * accelerator.gradient_accumulation_steps / batches  # the accelerator divides by the first
        accelerator.backward(scaled)

    def _use(self, size: int) -> None:
        accelerator, loader, batches = self._accelerator, self._loader, self._batches
        warn_of_dropout(trained_models(accelerator), self._original, size)
        inner = batches.batch_sampler if isinstance(batches, BatchSamplerShard) else batches
        self._windows = WindowBatches(inner, self._accumulation, size)
        if isinstance(batches, BatchSamplerShard):
            ranks, rank = batches.num_processes, batches.process_index
            _set_batches(loader, BatchSamplerShard(self._windows, ranks, rank, even_batches=batches.even_batches))
        else:
            _set_batches(loader, self._windows)
        accelerator.gradient_accumulation_steps = self._windows.accumulation
        self._patches = [Patches(accelerator), Patches(loader)]
        self._patches[0].wrap("accumulate", self._accumulate)
        self._patches[0].wrap("backward", self._weighted_backward)
        self._patches[1].wrap("begin", self._begin)

    def _begin(self, begin: Callable[[], Any]) -> Any:
        self._place = -1
        return begin()

    def _accumulate(self, accumulate: Callable[..., Any], *models: Any) -> Any:
        """Count a batch, and the batches of its step: those of an incomplete step are all that are left."""
        windows, accelerator = self._windows, self._accelerator
        assert windows is not None
        active = accelerator.gradient_state.active_dataloader
        if active is not self._active:
            self._active = active
            sampler = getattr(active, "batch_sampler", None)  # one made by `skip_first_batches` begins later
            self._place += getattr(sampler, "skip_batches", 0) or getattr(active, "skip_batches", 0)
        self._place += 1
        is_tail = self._place >= windows.whole_batches
        accelerator.gradient_accumulation_steps = (
            len(windows.tail) if is_tail and windows.tail else windows.accumulation
        )
        return accumulate(*models)

    def _weighted_backward(self, backward: Callable[..., Any], loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        windows = self._windows
        assert windows is not None
        weight = windows.weight_of(self._place) * self._accelerator.gradient_accumulation_steps / windows.accumulation
        return backward(loss if math.isclose(weight, 1.0) else loss * weight, *args, **kwargs)


def _training_loader(accelerator: Any) -> Any:
    """Return the first loader that shuffles, or else the first one; None without any."""
    loaders = list(accelerator._dataloaders)
    for loader in loaders:
        if not isinstance(getattr(loader, "sampler", None), SequentialSampler):
            return loader
    return loaders[0] if loaders else None


def _set_batches(loader: Any, batches: Any) -> None:
    """Set the batch sampler of a loader, which torch does not allow once it is made."""
    for one in (loader, getattr(loader, "base_dataloader", loader)):
        object.__setattr__(one, "batch_sampler", batches)
