"""The training loop of an accelerator: the batches of its prepared loader, and the losses of its `backward`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias, cast

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard
from accelerate.utils import send_to_device
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from zeus_core.batches import MicroBatchOptimizer
from zeus_core.batches.pytorch.micro_batch import MicroBatchLoop
from zeus_core.batches.pytorch.window_batches import WindowBatches
from zeus_huggingface.accelerate._accelerator_checks import trained_models
from zeus_huggingface.batches.uneven_shard import check_averaging, check_gradients, skipped_batches

ComputeLoss: TypeAlias = Callable[[Any], torch.Tensor]
"""Returns the loss of a batch, as the loop computes it."""


class AccelerateLoop(MicroBatchLoop):
    """The `TrainingLoop` of an accelerator, which has prepared what is trained.

    With another micro-batch, the loader gets batches of that size, and the accelerator counts other batches to a step,
    so that the loop makes the same steps on the same samples. In the last step of an epoch, which may be incomplete,
    `WindowBatches` says which batches there are, and how much their losses count.

    Args:
        accelerator: The accelerator.
        compute_loss: Returns the loss of a batch; that of the model on it if None.
        setting: The micro-batch, or the optimizer that chooses one; None where it stays.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        compute_loss: ComputeLoss | None = None,
        setting: int | MicroBatchOptimizer | None = None,
    ) -> None:
        self._accelerator: Any = accelerator
        self.setting = setting
        self.backward_owner = accelerator
        self._compute_loss = compute_loss
        self._models = trained_models(accelerator)
        self.loader = _training_loader(accelerator)
        batches = self._batches = getattr(self.loader, "batch_sampler", None)
        self._inner: Any = batches.batch_sampler if isinstance(batches, BatchSamplerShard) else batches
        super().__init__(
            int(self._inner.batch_size) if type(self._inner) is BatchSampler else 1,
            int(accelerator.gradient_accumulation_steps),
            is_mixed=accelerator.mixed_precision != "no",
            work={"precision": str(accelerator.mixed_precision)},
        )
        self._windows: WindowBatches | None = None
        self._place = -1  # of the current batch in its epoch
        self._active: Any = None

    @property
    def models(self) -> list[torch.nn.Module]:
        """The prepared models that are trained."""
        return self._models

    @property
    def optimizers(self) -> list[Any]:
        """The prepared optimizers, unwrapped."""
        return [prepared.optimizer for prepared in self._accelerator._optimizers]

    @property
    def device(self) -> torch.device:
        """The device of the accelerator."""
        return cast(torch.device, self._accelerator.device)

    def obstacle(self, size: int | None) -> str | None:
        """Return why no other micro-batch may be used; None if one may."""
        accelerator, loader = self._accelerator, self.loader
        if not isinstance(loader, DataLoaderShard) or isinstance(loader.dataset, IterableDataset):
            return "the accelerator has prepared no loader that reads samples by their index"
        if type(self._inner) is not BatchSampler:
            return f"a {type(self._inner).__name__} makes the batches"
        if accelerator.distributed_type.value not in {"NO", "MULTI_GPU", "MULTI_CPU"}:
            return f"it is a part of the configuration of {accelerator.distributed_type.value}"
        if self.accumulation == 1:
            return "gradient_accumulation_steps is 1, and no larger one divides the batch"
        ranks = accelerator.num_processes
        if ranks > 1 and len(loader.dataset) % (self.samples_per_step * ranks):
            return "the last step of an epoch is incomplete, and would have other samples on its ranks; use drop_last"
        return None

    def loss_of(self, batch: Any, step: Sequence[Any]) -> torch.Tensor:
        """Return the loss of a batch over the batches of its step."""
        batch = send_to_device(batch, self.device)
        if self._compute_loss is not None:
            return self._compute_loss(batch) / len(step)
        outputs = self._accelerator._models[0](**batch) if isinstance(batch, Mapping) else None
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
        if loss is None:
            raise TypeError("the model returns no loss of a batch; pass compute_loss, a function of a batch")
        return cast(torch.Tensor, loss) / len(step)

    def train_on(self, batch: Any, step: Sequence[Any]) -> None:
        """Run the passes of a batch, which wait for no other rank: that may be out of memory."""
        accelerator = self._accelerator
        with ExitStack() as stack:
            for model in accelerator._models:
                stack.enter_context(accelerator.no_sync(model))
            # The accelerator divides a loss by this number.
            accelerator.backward(self.loss_of(batch, step) * accelerator.gradient_accumulation_steps)

    def check_averaging(self) -> None:
        """Check that gradients are averaged over all ranks; see `TrainingLoop`."""
        check_averaging(self._accelerator)

    def check_gradients(self) -> None:
        """Check that a rank knows when it has computed its gradients; see `TrainingLoop`."""
        check_gradients(self._accelerator)

    @property
    def samples_of_batch(self) -> int | None:
        """The samples in the current batch; None where the accelerator knows."""
        return None if self._windows is None else self._windows.samples_of(max(self._place, 0))

    def use(self, size: int) -> None:
        """Train with this micro-batch until `undo`."""
        accelerator, loader, batches = self._accelerator, self.loader, self._batches
        if size == self.batch_size:
            return
        self._windows = WindowBatches(self._inner, self.accumulation, size)
        if isinstance(batches, BatchSamplerShard):
            ranks, rank = batches.num_processes, batches.process_index
            self.give(loader, BatchSamplerShard(self._windows, ranks, rank, even_batches=batches.even_batches))
        else:
            self.give(loader, self._windows)
        accelerator.gradient_accumulation_steps = self._windows.accumulation
        self.patch(accelerator, "accumulate", self._accumulate)
        self.patch(loader, "begin", self._begin)
        self.weigh(self._weight)

    def undo(self) -> None:
        """Leave the accelerator and the loader as they were."""
        super().undo()
        if self._windows is not None:
            self._windows = None
            self._accelerator.gradient_accumulation_steps = self.accumulation

    def _begin(self, begin: Callable[[], Any]) -> Any:
        self._place = -1
        return begin()

    def _accumulate(self, accumulate: Callable[..., Any], *models: Any) -> Any:
        """Count a batch, and the batches of its step: those of an incomplete step are all that are left."""
        windows, accelerator = self._windows, self._accelerator
        assert windows is not None
        active = accelerator.gradient_state.active_dataloader
        if active is not self._active:
            skipped = skipped_batches(active, self.loader.batch_sampler)  # one of `skip_first_batches` begins later
            if skipped is not None:
                self._active, self._place = active, skipped - 1
        self._place += 1
        is_tail = self._place >= windows.whole_batches
        accelerator.gradient_accumulation_steps = (
            len(windows.tail) if is_tail and windows.tail else windows.accumulation
        )
        return accumulate(*models)

    def _weight(self) -> float:
        """Return how much the current batch counts: the accelerator divides its loss by the batches of its step."""
        windows = self._windows
        assert windows is not None
        batches: int = self._accelerator.gradient_accumulation_steps
        return windows.weight_of(self._place) * batches / windows.accumulation


def _training_loader(accelerator: Any) -> Any:
    """Return the first loader that shuffles, or else the first one; None without any."""
    loaders = list(accelerator._dataloaders)
    for loader in loaders:
        if not isinstance(getattr(loader, "sampler", None), SequentialSampler):
            return loader
    return loaders[0] if loaders else None
