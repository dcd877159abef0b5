"""The micro-batch of a Lightning trainer: chosen when all is prepared, before its loop reads the data.

The loader gets batches of another size, and the trainer accumulates over other numbers of them. In the last step of an
epoch, which may be incomplete, `WindowBatches` says which batches there are, and how much their losses count.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from zeus_core.adapters import Patches
from zeus_core.optimizer.micro_batch import MicroBatchOptimizer
from zeus_core.optimizer.micro_batch._optimizer import refuse_micro_batch
from zeus_core.optimizer.micro_batch._search import divisors
from zeus_core.pytorch import torch_world
from zeus_core.pytorch._kept_state import kept_state, random_state
from zeus_core.pytorch._micro_batch import StepPasses, coupling_of, is_out_of_memory, optimizer_ballast, warn_of_dropout
from zeus_core.pytorch._window_batches import WindowBatches
from zeus_core.pytorch._work_facts import facts_of_models
from zeus_lightning._namespaces import Callback, LightningModule, Trainer

__all__ = ["TrainerMicroBatch"]

_logger = logging.getLogger(__name__)


class TrainerMicroBatch:
    """Chooses the micro-batch of one `fit`, and has the trainer use it until `undo`.

    Make one in the callback's `setup`, before anything has read the data.

    Args:
        trainer: The trainer.
        setting: A size, or the optimizer that chooses one.
    """

    def __init__(self, trainer: Trainer, setting: int | MicroBatchOptimizer) -> None:
        self._trainer = trainer
        self._setting = setting
        self._accumulation = int(trainer.accumulate_grad_batches)
        self._original = 0
        self._windows: WindowBatches | None = None
        self._loader: Any = None
        self._batches: Any = None
        self._restore_random_state: Callable[[], None] | None = None  # that with which the data were set up
        self._patches = [Patches(trainer.fit_loop)]
        self._patches[0].wrap("setup_data", self._note_random_state)

    def choose(self) -> None:
        """Choose and use the micro-batch: a collective call in `on_fit_start`, when the strategy is set up."""
        trainer, setting = self._trainer, self._setting
        restore = random_state()
        loader = trainer.fit_loop._combined_loader or trainer.fit_loop._data_source.dataloader()
        self._loader = getattr(loader, "flattened", [loader])[0]
        restore()
        reason = self._obstacle()
        if reason is None:
            size = setting if isinstance(setting, int) else self._probe(setting)
            if size != self._original:
                self._use(size)
        else:
            size = max(self._original, 1)
            refuse_micro_batch(setting, size * self._accumulation, size, reason, _logger)

    def undo(self, error: BaseException | None = None) -> None:
        """Leave the trainer and the loader as they were, at the end of training or after an error."""
        setting = self._setting
        if isinstance(setting, MicroBatchOptimizer) and setting.chosen and error and is_out_of_memory(error):
            setting.tell_out_of_memory(setting.chosen)
        for patches in self._patches:
            patches.undo()
        if self._windows is not None:
            self._windows = None
            trainer = self._trainer
            trainer.callbacks = [one for one in trainer.callbacks if not isinstance(one, _Weights)]
            trainer.accumulate_grad_batches = self._accumulation
            object.__setattr__(self._loader, "batch_sampler", self._batches)

    def _note_random_state(self, setup_data: Callable[[], None]) -> None:
        if self._restore_random_state is None:
            self._restore_random_state = random_state()
        setup_data()

    def _obstacle(self) -> str | None:
        """Return why no other micro-batch may be used; None if one may."""
        loader, module = self._loader, self._trainer.lightning_module
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return "there is no loader that reads samples by their index"
        self._batches = loader.batch_sampler
        if type(self._batches) is not BatchSampler:
            return f"a {type(self._batches).__name__} makes the batches"
        self._original = int(self._batches.batch_size)
        reason = _obstacle_in(self._trainer)
        if reason is not None:
            return reason
        if isinstance(self._setting, int) and self._setting not in self._sizes():
            samples, possible = self._original * self._accumulation, ", ".join(map(str, self._sizes()))
            return f"{self._setting} does not divide the {samples} samples of a step, or the last one; try {possible}"
        if self._restore_random_state is not None and _has_generator(loader):
            return "the loader has drawn from its own generator already"
        return coupling_of(module)

    def _sizes(self) -> list[int]:
        """Return the sizes, from the original one on, with which an epoch has as many steps as the trainer counts."""
        samples = self._original * self._accumulation
        sizes = [size for size in divisors(samples) if size >= self._original]
        windows = {size: WindowBatches(self._batches, self._accumulation, size) for size in sizes}
        return [size for size, one in windows.items() if len(one.tail) <= one.accumulation]

    def _probe(self, optimizer: MicroBatchOptimizer) -> int:
        trainer, loader, module = self._trainer, self._loader, self._trainer.lightning_module
        samples = self._original * self._accumulation
        silence = Patches(module)
        for name in ("log", "log_dict"):
            silence.wrap(name, lambda log, *_, **__: None)
        is_mixed = "mixed" in str(trainer.precision)
        with kept_state(module):
            ballast = [tensor for one in trainer.optimizers for tensor in optimizer_ballast(one, module.device)]
            passes = StepPasses(loader.dataset, loader.collate_fn, samples, [module], self._loss, _backward, is_mixed)
            try:
                return optimizer.choose(
                    samples,
                    self._original,
                    passes.run,
                    sizes=self._sizes(),
                    check=passes.check,
                    work={**facts_of_models([module]), "precision": str(trainer.precision)},
                    world=torch_world(),
                    is_out_of_memory=is_out_of_memory,
                    release=passes.release,
                )
            finally:
                del ballast
                passes.release()
                silence.undo()

    def _loss(self, batch: Any) -> torch.Tensor:
        """Return the loss of the module, as the trainer's own loop would compute it."""
        trainer, module = self._trainer, self._trainer.lightning_module
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        arguments = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, 0)
        with trainer.precision_plugin.train_step_context():
            output = module.training_step(*arguments.values())
        loss: torch.Tensor = output["loss"] if isinstance(output, dict) else output
        return loss

    def _use(self, size: int) -> None:
        trainer, loop = self._trainer, self._trainer.fit_loop
        warn_of_dropout([trainer.lightning_module], self._original, size)
        windows = self._windows = WindowBatches(self._batches, self._accumulation, size)

        def with_windows(dataloader: Callable[[], Any]) -> Any:
            loader = dataloader()
            if type(loader.batch_sampler) is BatchSampler:
                made = WindowBatches(loader.batch_sampler, self._accumulation, size)
                object.__setattr__(loader, "batch_sampler", made)
            return loader

        self._patches.append(Patches(loop._data_source))
        self._patches[-1].wrap("dataloader", with_windows)
        trainer.accumulate_grad_batches = windows.accumulation
        trainer.callbacks = [*trainer.callbacks, _Weights(windows)]
        if loop._combined_loader is not None:  # the length of an epoch was asked for: it is set up again, as it was
            restore_present = random_state()
            if self._restore_random_state is not None:
                self._restore_random_state()
            loop._combined_loader = None
            loop.setup_data()
            restore_present()


class _Weights(Callback):
    """Weights the losses of the last, incomplete step of an epoch, which the trainer ends with the epoch.

    Args:
        windows: The batches.
    """

    def __init__(self, windows: WindowBatches) -> None:
        super().__init__()
        self._windows = windows
        self._weight = 1.0

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Look up what the loss of a batch counts."""
        self._weight = self._windows.weight_of(batch_idx)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor) -> None:
        """Weight a loss, which the trainer has divided by the batches of a whole step."""
        if self._weight != 1.0:
            loss.mul_(self._weight)


def _backward(loss: torch.Tensor, batches: int) -> None:
    (loss / batches).backward()  # type: ignore[no-untyped-call]


def _has_generator(loader: Any) -> bool:
    return loader.generator is not None or getattr(loader.sampler, "generator", None) is not None


def _obstacle_in(trainer: Trainer) -> str | None:
    """Return why no trainer with such settings can have another micro-batch; None if it can."""
    if not trainer.lightning_module.automatic_optimization:
        return "the module optimizes by itself (automatic_optimization is False)"
    if trainer.strategy.handles_gradient_accumulation or trainer.world_size > 1:
        return f"several processes, or a {type(trainer.strategy).__name__}, are not supported"
    if any(type(one).__name__ == "GradientAccumulationScheduler" for one in trainer.callbacks):
        return "a GradientAccumulationScheduler changes the global batch"
    for name, usual in (("val_check_interval", 1.0), ("limit_train_batches", 1.0), ("overfit_batches", 0.0)):
        if getattr(trainer, name) != usual:
            return f"{name}={getattr(trainer, name)} counts batches"
    if trainer.accumulate_grad_batches == 1:
        return "accumulate_grad_batches is 1, and no larger micro-batch divides the batch"
    return None
