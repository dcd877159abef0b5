"""The micro-batch of a plain loop, which has the whole batch of a step at hand."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import torch

from zeus_core.adapters import contained
from zeus_core.batches import MicroBatchOptimizer
from zeus_core.batches.micro_batch_optimizer import checked_micro_batch
from zeus_core.batches.pytorch.kept_state import random_state
from zeus_core.batches.pytorch.micro_batch import choose_micro_batch, drop_gradients, is_out_of_memory
from zeus_core.batches.pytorch.plain_loop import PlainLoop
from zeus_core.batches.pytorch.step_samples import part_of, samples_in
from zeus_core.monitor import ZeusMonitor
from zeus_core.validate import checked_object, checked_whole_number

_logger = logging.getLogger(__name__)


class MicroBatches:
    """Runs the passes of each step on micro-batches of the size that takes the least joules per sample.

        micro_batches = MicroBatches(model, loss_of, micro_batch="auto")
        for batch in batches:                      # the whole batch of a step
            loss = micro_batches.backward(batch)   # in place of loss_of(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    `backward` leaves the gradients of the mean over all samples of the batch, in any micro-batch. The first one probes,
    at most six sizes for some seconds, on its own batch. A batch of another length, such as the last of an epoch, has
    micro-batches of the same size, and one of what is left.

    Where the loss depends on the micro-batch, the original one stays, and a warning says why.

    Args:
        model: The model that is trained.
        loss_of: Returns the loss of a batch, the mean over its samples.
        micro_batch: "auto", a number of samples, or a `MicroBatchOptimizer`; the whole batch if None.
        original: The micro-batch that would be used otherwise, which the others are compared with; the whole batch if
            None.
        monitor: Measures the probes; that of the optimizer, or a new one if None.

    Attributes:
        micro_batch: The `MicroBatchOptimizer`, or the number, if any.

    Raises:
        UsageError: An argument is wrong; the message names it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_of: Callable[[Any], torch.Tensor],
        micro_batch: Literal["auto"] | int | MicroBatchOptimizer | None = "auto",
        *,
        original: int | None = None,
        monitor: ZeusMonitor | None = None,
    ) -> None:
        self._model = model
        self._loss_of = loss_of
        self._loop = PlainLoop(model, loss_of=loss_of)
        if monitor is not None:
            checked_object("monitor", monitor, "begin_window", "a ZeusMonitor(gpu_indices=[0])")
        self.micro_batch: int | MicroBatchOptimizer | None = None
        if micro_batch is not None:
            self.micro_batch = checked_micro_batch(micro_batch, monitor)
        self._original = None if original is None else checked_whole_number("original", original, 1)
        self._size: int | None = self.micro_batch if isinstance(self.micro_batch, int) else None
        self._is_open = isinstance(self.micro_batch, MicroBatchOptimizer)

    @property
    def size(self) -> int | None:
        """The samples of a micro-batch; None for the whole batch, and before the probes."""
        return self._size

    def backward(self, batch: Any) -> torch.Tensor:
        """Add the gradients of a batch, and return its loss, detached.

        A batch that is out of memory with the chosen size runs again with half of it, if the gradients were empty
        before. It is kept in the profile, and stays so.

        Raises:
            UsageError: The batch has no tensor with samples.
        """
        samples = samples_in(batch)
        if self._is_open:
            self._is_open = False
            self._choose(batch, samples)
        has_gradients = any(parameter.grad is not None for parameter in self._model.parameters())
        while True:
            size = min(self._size or samples, samples)
            restore = random_state()
            try:
                return self._run(batch, samples, size)
            except Exception as error:
                if not is_out_of_memory(error) or has_gradients or size == 1 or self._has_ranks:
                    raise
            self._shrink(size)
            restore()

    @property
    def _has_ranks(self) -> bool:
        """Whether other ranks wait for this one's gradients, so that it cannot begin a step again."""
        distributed = torch.distributed
        return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1

    def _run(self, batch: Any, samples: int, size: int) -> torch.Tensor:
        """Run the passes of each micro-batch; only the last one exchanges gradients with other ranks."""
        losses = []
        for begin in range(0, samples, size):
            end = min(begin + size, samples)
            with self._loop.without_exchange() if end < samples else nullcontext():
                loss = self._loss_of(batch if size >= samples else part_of(batch, begin, end, samples))
                weighted = loss if size >= samples else loss * ((end - begin) / samples)
                weighted.backward()  # type: ignore[no-untyped-call]
            losses.append(weighted.detach())
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

    def _shrink(self, size: int) -> None:
        """Go on with half the size, after its gradients and memory are gone."""
        drop_gradients([self._model])
        if isinstance(self.micro_batch, MicroBatchOptimizer):
            self.micro_batch.tell_out_of_memory(size)
        self._size = max(size // 2, 1)
        _logger.warning("a micro-batch of %d samples is out of memory: training goes on with %d", size, self._size)

    @contained
    def _choose(self, batch: Any, samples: int) -> None:
        assert isinstance(self.micro_batch, MicroBatchOptimizer)
        original = self._original or samples
        self._loop.use_batch(batch, samples, original)
        chosen = choose_micro_batch(self._loop, self.micro_batch)
        self._loop.use_batch(None, 1, 1)
        self._size = None if chosen == samples else chosen
