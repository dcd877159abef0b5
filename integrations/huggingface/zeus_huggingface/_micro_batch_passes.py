"""The passes of a Trainer with a micro-batch that is not the user's own: probed before training, or cut in it."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from zeus_core.adapters import Patches
from zeus_core.pytorch._batch_parts import part_of, samples_in
from zeus_core.pytorch._micro_batch import ProbeSamples, dependence, is_out_of_memory, release_memory

__all__ = ["Passes", "Retries", "is_token_weighted"]

Trainer: TypeAlias = Any  # most of what is used of it here is private, or differs between versions

_logger = logging.getLogger(__name__)


class Passes:
    """The passes of the Trainer, as its training step makes them.

    Args:
        trainer: The Trainer, prepared.
        loader: Its loader, whose samples are probed with.
        batch_size: The samples of a step on this rank.
    """

    def __init__(self, trainer: Trainer, loader: Any, batch_size: int) -> None:
        self._trainer = trainer
        # The reducer of DistributedDataParallel would wait for the other ranks, one of which may be out of memory.
        self._model = trainer.model_wrapped if trainer.args.world_size == 1 else trainer.model
        self._is_mixed = trainer.accelerator.mixed_precision != "no"
        self._samples = ProbeSamples(loader.dataset, loader.collate_fn, batch_size, trainer.args.process_index)
        self._size = 0
        self._next: Iterator[Any] = iter(())
        self._items: Any = None

    def run(self, size: int) -> None:
        """Run the passes of a micro-batch of this size; first, of one of the largest samples."""
        if size != self._size:
            self.release()
            self._use(size)
            self._step(self._samples.largest(size))
        else:
            self._step(next(self._next))

    def check(self, sizes: tuple[int, int]) -> str | None:
        """Return, for people, how the loss depends on the micro-batch; None if it is the same but for rounding."""
        return dependence(sizes, [self._loss(size) for size in sizes], [self._trainer.model], self._is_mixed)

    def release(self) -> None:
        """Forget the batches, and release the memory of a failed pass."""
        self._size, self._next = 0, iter(())
        for parameter in self._trainer.model.parameters():
            parameter.grad = None
        release_memory()

    def _use(self, size: int) -> list[Any]:
        batches = self._samples.batches(size)
        self._size, self._next = size, itertools.cycle(batches)
        self._items = _items_in(self._trainer, batches)
        _divide_by(self._trainer, len(batches))
        return batches

    def _step(self, inputs: Any) -> None:
        inputs = dict(inputs) if isinstance(inputs, dict) else inputs  # some losses take labels out of it
        self._trainer.training_step(self._model, inputs, self._items)

    def _loss(self, size: int) -> float:
        """Return the loss of a step, as it would be propagated backward, without dropout."""
        losses: list[float] = []
        self._model.eval()
        with (
            _patched(self._trainer.accelerator, "backward", lambda _, loss, **__: losses.append(float(loss))),
            _patched(self._model, "train", lambda _, mode=True: self._model),
            torch.no_grad(),
        ):
            for inputs in self._use(size):
                self._step(inputs)
        self.release()
        return math.fsum(losses)


class Retries:
    """Runs a step that is out of memory again in parts of the original size, and all passes from then on.

    The gradients of the step are dropped, as nobody knows how far the failed pass has got, and those of its earlier
    micro-batches are computed again.

    Args:
        trainer: The Trainer.
        size: The original size.
        tell: Called when memory has been used up.
    """

    def __init__(self, trainer: Trainer, size: int, tell: Callable[[], None]) -> None:
        self._trainer = trainer
        self._size = size
        self._tell = tell
        self._is_cutting = False
        self._step = -1
        self._micro_batches: list[tuple[Any, Any]] = []  # of this step
        self._patches = Patches(trainer)
        self._patches.wrap("training_step", self._training_step)

    def leave(self) -> None:
        """Leave the Trainer as it was."""
        self._patches.undo()
        self._micro_batches.clear()

    def _training_step(self, step: Callable[..., Any], model: Any, inputs: Any, items: Any = None) -> Any:
        if self._is_cutting:
            return self._in_parts(step, model, inputs, items)
        if self._trainer.state.global_step != self._step:
            self._step = self._trainer.state.global_step
            self._micro_batches.clear()
        self._micro_batches.append((inputs, items))
        try:
            return step(model, dict(inputs) if isinstance(inputs, dict) else inputs, items)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._is_cutting = True
        for parameter in self._trainer.model.parameters():
            parameter.grad = None
        release_memory()
        self._tell()
        _logger.warning("the micro-batch is out of memory: training goes on with parts of %d samples", self._size)
        return [self._in_parts(step, model, *micro_batch) for micro_batch in self._micro_batches][-1]

    def _in_parts(self, step: Callable[..., Any], model: Any, inputs: Any, items: Any) -> Any:
        """Run the passes of a micro-batch in parts. Return its loss, as the Trainer adds it up."""
        trainer, samples, losses = self._trainer, samples_in(inputs), []
        accumulation = trainer.args.gradient_accumulation_steps
        current = getattr(trainer, "current_gradient_accumulation_steps", accumulation)
        for begin in range(0, samples, self._size):
            end = min(begin + self._size, samples)
            _divide_by(trainer, current * samples / (end - begin))
            losses.append(step(model, part_of(inputs, begin, end, samples), items))
        _divide_by(trainer, current)
        trainer.args.gradient_accumulation_steps = accumulation
        return torch.stack(losses).sum()


@contextmanager
def _patched(target: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    patches = Patches(target)
    patches.wrap(name, around)
    try:
        yield
    finally:
        patches.undo()


def _divide_by(trainer: Trainer, batches: float) -> None:
    """Have the Trainer divide a loss that is a mean by this; older ones go by their arguments."""
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps = batches


def _items_in(trainer: Trainer, batches: list[Any]) -> Any:
    """Return the labels of a step that count, as the Trainer passes them to losses; None where it passes none."""
    if not is_token_weighted(trainer):
        return None
    try:
        return sum(int((batch["labels"] != -100).sum()) for batch in batches) or None
    except (KeyError, TypeError):
        return None


def is_token_weighted(trainer: Trainer) -> bool:
    """Return whether the Trainer passes to the loss how many tokens of a step count."""
    return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func)
