"""The micro-batch of a Trainer: chosen before training begins, for the global batch of its arguments.

The training loop of a `Trainer` fixes its sizes before it calls a callback. So it is entered, probed once all
is prepared, just before the first callback hears of the training, and left and entered again if another size is better.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from zeus_core.adapters import Patches
from zeus_core.batches import MicroBatchOptimizer
from zeus_core.batches.pytorch.kept_state import random_state
from zeus_core.batches.pytorch.micro_batch import (
    drop_gradients,
    is_out_of_memory,
    is_refused,
    probe_micro_batch,
    warn_of_dropout,
)
from zeus_core.batches.pytorch.step_samples import part_of, samples_in
from zeus_core.batches.pytorch.window_batches import JoinedBatches
from zeus_huggingface.batches.trainer_loop import Trainer, TrainerLoop, divide_by

_logger = logging.getLogger(__name__)


class _RestartError(BaseException):
    """Leaves the training loop, to enter it with another micro-batch. No `except Exception` may hold it."""


class MicroBatchTraining:
    """One training with the micro-batch that was chosen for it. The arguments of the Trainer are restored at its end.

    Args:
        trainer: The Trainer.
        setting: A size, or the optimizer that chooses one.
    """

    def __init__(self, trainer: Trainer, setting: int | MicroBatchOptimizer) -> None:
        self._trainer = trainer
        self._setting = setting
        self._loop = TrainerLoop(trainer)
        self._original = self._loop.batch_size

    def run(self, loop: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the training loop of the Trainer."""
        trainer, setting = self._trainer, self._setting
        if is_refused(self._loop, setting):
            return loop(trainer, *args, **kwargs)
        if isinstance(setting, int):
            return self._run_with(setting, loop, *args, **kwargs)
        restore_random_state = random_state()
        chosen = self._original
        probes = Patches(trainer.callback_handler)

        def probe_first(on_train_begin: Callable[..., Any], *event: Any) -> Any:
            nonlocal chosen
            probes.undo()
            chosen = probe_micro_batch(self._loop, setting)  # every rank is here
            if chosen != self._original:
                raise _RestartError
            return on_train_begin(*event)

        probes.wrap("on_train_begin", probe_first)
        try:
            return loop(trainer, *args, **kwargs)
        except _RestartError:
            pass
        finally:
            probes.undo()
        self._unprepare()
        restore_random_state()
        return self._run_with(chosen, loop, *args, **kwargs)

    def _run_with(self, size: int, loop: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the loop with a size, which is in the arguments of the Trainer until its end."""
        trainer, training = self._trainer, self._trainer.args
        names = ("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation")
        original = {name: getattr(training, name) for name in names if hasattr(training, name)}
        original_size = trainer._train_batch_size
        training.per_device_train_batch_size = size
        training.gradient_accumulation_steps = self._loop.samples_per_step // size
        if original.get("steps_per_generation"):  # else GRPO would generate for other steps
            training.steps_per_generation = original["steps_per_generation"] * self._original // size
        trainer._train_batch_size = size
        if "batch_size" in kwargs:
            kwargs["batch_size"] = size
        if training.world_size > 1 and size != self._original:
            self._loop.patch(trainer, "get_train_dataloader", self._joined_loader)
        warn_of_dropout([trainer.model], self._original, size)
        retries = None
        if size > self._original and training.world_size == 1:  # else the other ranks would wait for this one
            retries = Retries(trainer, self._original, lambda: self._note_out_of_memory(size))
        try:
            return loop(trainer, *args, **kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                self._note_out_of_memory(size)
            raise
        finally:
            self._loop.undo()
            if retries is not None:
                retries.leave()
            vars(training).update(original)
            trainer._train_batch_size = original_size

    def _joined_loader(self, get_train_dataloader: Callable[[], Any]) -> Any:
        """Return the loader of one of several ranks, whose samples stay those that it has with the original size."""
        trainer, size = self._trainer, self._trainer._train_batch_size
        trainer._train_batch_size = self._original
        try:
            loader = get_train_dataloader()
        finally:
            trainer._train_batch_size = size
        self._loop.give(loader, JoinedBatches(loader.batch_sampler, size // self._original))
        return loader

    def _note_out_of_memory(self, size: int) -> None:
        if isinstance(self._setting, MicroBatchOptimizer):
            self._setting.tell_out_of_memory(size)
        if self._trainer.args.world_size > 1:
            _logger.error(
                "a micro-batch of %d samples is out of memory, and the other ranks wait for this one, so that training "
                "ends: start it again from its checkpoint, with a smaller size if you gave one",
                size,
            )

    def _unprepare(self) -> None:
        """Let the Trainer prepare its model again, as for a first training."""
        trainer = self._trainer
        trainer.model = trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
        trainer.model_wrapped = trainer.model
        drop_gradients([trainer.model])


class Retries:
    """Runs a step that is out of memory again in parts of the original size, and all passes from then on.

    The gradients of the step are dropped, as nobody knows how far the failed pass has got, and those of its earlier
    micro-batches are computed again.

    Args:
        trainer: The Trainer.
        size: The original size.
        report: Called when memory has been used up.
    """

    def __init__(self, trainer: Trainer, size: int, report: Callable[[], None]) -> None:
        self._trainer = trainer
        self._size = size
        self._report = report
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
        drop_gradients([self._trainer.model])
        self._report()
        _logger.warning("the micro-batch is out of memory: training goes on with parts of %d samples", self._size)
        return [self._in_parts(step, model, *micro_batch) for micro_batch in self._micro_batches][-1]

    def _in_parts(self, step: Callable[..., Any], model: Any, inputs: Any, items: Any) -> Any:
        """Run the passes of a micro-batch in parts. Return its loss, as the Trainer adds it up."""
        trainer, samples, losses = self._trainer, samples_in(inputs), []
        accumulation = trainer.args.gradient_accumulation_steps
        current = getattr(trainer, "current_gradient_accumulation_steps", accumulation)
        for begin in range(0, samples, self._size):
            end = min(begin + self._size, samples)
            divide_by(trainer, current * samples / (end - begin))
            losses.append(step(model, part_of(inputs, begin, end, samples), items))
        divide_by(trainer, current)
        trainer.args.gradient_accumulation_steps = accumulation
        return torch.stack(losses).sum()
