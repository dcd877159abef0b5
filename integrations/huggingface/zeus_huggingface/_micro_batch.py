"""The micro-batch of a Trainer: chosen before training begins, for the global batch of its arguments.

The training loop of a `Trainer` fixes its sizes before it tells a callback anything. So it is entered, probed once all
is prepared, just before the first callback hears of the training, and left and entered again if another size is better.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from torch.utils.data import IterableDataset

from zeus_core.adapters import Patches
from zeus_core.optimizer.micro_batch import MicroBatchOptimizer
from zeus_core.optimizer.micro_batch._optimizer import refuse_micro_batch
from zeus_core.optimizer.micro_batch._search import divisors, indivisible
from zeus_core.pytorch import torch_world
from zeus_core.pytorch._kept_state import kept_state, random_state
from zeus_core.pytorch._micro_batch import (
    coupling_of,
    is_out_of_memory,
    optimizer_ballast,
    release_memory,
    warn_of_dropout,
)
from zeus_core.pytorch._window_batches import JoinedBatches
from zeus_core.pytorch._work_facts import facts_of_models
from zeus_huggingface._micro_batch_passes import Passes, Retries, is_token_weighted

__all__ = ["MicroBatchTraining"]

Trainer: TypeAlias = Any  # most of what is used of it here is private, or differs between versions

# Trainers whose loss has a term that is estimated over the micro-batch.
_COUPLED_TRAINERS = {"KTOTrainer": "estimates its KL term", "BCOTrainer": "keeps a running mean of its rewards"}

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
        self._original = int(trainer.args.per_device_train_batch_size)
        self._batch_size = self._original * int(trainer.args.gradient_accumulation_steps)

    def run(self, loop: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run the training loop of the Trainer."""
        trainer, setting = self._trainer, self._setting
        reason = _obstacle(trainer)
        if reason is None and isinstance(setting, MicroBatchOptimizer):
            reason = _obstacle_to_probes(trainer)
        if trainer.args.world_size > 1 and isinstance(setting, int) and setting % self._original:
            reason = reason or f"ranks join their batches of {self._original}, and {setting} is no multiple of it"
        reason = reason or indivisible(setting, self._batch_size)
        if reason is not None:
            refuse_micro_batch(setting, self._batch_size, self._original, reason, _logger)
            return loop(trainer, *args, **kwargs)
        if isinstance(setting, int):
            return self._run_with(setting, loop, *args, **kwargs)
        restore_random_state = random_state()
        chosen = self._original
        probes = Patches(trainer.callback_handler)

        def probe_first(on_train_begin: Callable[..., Any], *event: Any) -> Any:
            nonlocal chosen
            probes.undo()
            chosen = self._choose(setting)
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
        training.gradient_accumulation_steps = self._batch_size // size
        if original.get("steps_per_generation"):  # else GRPO would generate for other steps
            training.steps_per_generation = original["steps_per_generation"] * self._original // size
        trainer._train_batch_size = size
        if "batch_size" in kwargs:
            kwargs["batch_size"] = size
        loaders = Patches(trainer)
        if training.world_size > 1 and size != self._original:
            loaders.wrap("get_train_dataloader", self._joined_loader)
        warn_of_dropout([trainer.model], self._original, size)
        retries = None
        if size > self._original and training.world_size == 1:  # else the other ranks would wait for this one
            retries = Retries(trainer, self._original, lambda: self._tell_out_of_memory(size))
        try:
            return loop(trainer, *args, **kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                self._tell_out_of_memory(size)
            raise
        finally:
            loaders.undo()
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
        batches = JoinedBatches(loader.batch_sampler, size // self._original)
        for one in (loader, getattr(loader, "base_dataloader", loader)):
            object.__setattr__(one, "batch_sampler", batches)
        return loader

    def _tell_out_of_memory(self, size: int) -> None:
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
        release_memory()

    def _choose(self, optimizer: MicroBatchOptimizer) -> int:
        """Return the best size. Every rank is here, with all prepared, before any callback hears of the training."""
        trainer = self._trainer
        loader = trainer.callback_handler.train_dataloader
        with kept_state(trainer.model, trainer, trainer.state):
            ballast = optimizer_ballast(getattr(trainer.optimizer, "optimizer", trainer.optimizer), trainer.args.device)
            passes = Passes(trainer, loader, self._batch_size)
            try:
                return optimizer.choose(
                    self._batch_size,
                    self._original,
                    passes.run,
                    sizes=_sizes_with_same_tail(trainer, loader, self._batch_size, self._original),
                    check=passes.check,
                    work={
                        **facts_of_models([trainer.model]),
                        "precision": str(trainer.accelerator.mixed_precision),
                        "checkpointing": str(bool(trainer.args.gradient_checkpointing)),
                    },
                    world=torch_world(),
                    is_out_of_memory=is_out_of_memory,
                    release=passes.release,
                )
            finally:
                del ballast
                passes.release()
                trainer.args.gradient_accumulation_steps = self._batch_size // self._original


def _obstacle(trainer: Trainer) -> str | None:
    """Return why no other micro-batch may be used; None if one may."""
    args = trainer.args
    for kind, what in _COUPLED_TRAINERS.items():
        if any(base.__name__ == kind for base in type(trainer).__mro__):
            return f"{kind} {what} over the micro-batch"
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        return "it is a part of the configuration of DeepSpeed and FSDP"
    if args.auto_find_batch_size:
        return "auto_find_batch_size changes the global batch"
    if args.n_gpu > 1:
        return "DataParallel divides it over the GPUs; start with torchrun instead"
    if getattr(args, "train_sampling_strategy", None) == "batch_rebalance":
        return "the sampler balances its batches"
    if args.accelerator_config.split_batches:
        return "split_batches divides it over the ranks"
    return coupling_of(trainer.model)


def _obstacle_to_probes(trainer: Trainer) -> str | None:
    """Return why a micro-batch cannot be probed; None if it can."""
    if getattr(trainer.args, "num_generations", None) or getattr(trainer.args, "steps_per_generation", None):
        return f'{type(trainer).__name__} generates within its steps; pass a size in place of "auto"'
    dataset = trainer.train_dataset
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return 'the training data are a stream, which probes would use up; pass a size in place of "auto"'
    if len(dataset) == 0:
        return "there are no training data"
    return None


def _sizes_with_same_tail(trainer: Trainer, loader: Any, batch_size: int, original: int) -> list[int]:
    """Return the sizes with which the last step of an epoch is the same: on the same samples, weighted as they were."""
    args, samples, sizes = trainer.args, len(loader.dataset), divisors(batch_size)
    ranks = int(args.world_size)
    if ranks > 1:
        sizes = [size for size in sizes if size % original == 0]
    rest = samples % (batch_size * ranks)
    if rest == 0 or 0 < args.max_steps <= samples // (batch_size * ranks):
        return sizes
    is_weighted = is_token_weighted(trainer)
    if ranks > 1:  # each rank joins batches of its own
        batches = len(loader.batch_sampler) % (batch_size // original)
        return [size for size in sizes if is_weighted or batches % (size // original) == 0]
    if args.dataloader_drop_last:
        return [size for size in sizes if rest // size * size == rest // original * original]
    # Without weights each batch counts the same: in the last step too, if all of its batches are whole.
    return [size for size in sizes if size == original or is_weighted or rest % size == rest % original == 0]
