"""The training loop of a Lightning trainer: the batches of its loader, and the passes of its module."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from zeus_core.adapters import Patches
from zeus_core.batches import MicroBatchOptimizer
from zeus_core.batches.pytorch.kept_state import random_state
from zeus_core.batches.pytorch.micro_batch import MicroBatchLoop
from zeus_core.batches.pytorch.window_batches import WindowBatches
from zeus_core.errors import UsageError
from zeus_lightning._namespaces import Trainer

# They average gradients over the ranks in each step.
_AVERAGING = {"SingleDeviceStrategy", "DDPStrategy", "FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy"}


class LightningLoop(MicroBatchLoop):
    """The `TrainingLoop` of one `fit`. Make one in a callback's `setup`, before anything has read the data.

    With another micro-batch, the loader gets batches of that size, and the trainer accumulates over other numbers of
    them. In the last step of an epoch, which may be incomplete, `WindowBatches` says which batches there are, and how
    much their losses count.

    Args:
        trainer: The trainer.
        setting: The micro-batch, or the optimizer that chooses one; None where it stays.
    """

    def __init__(self, trainer: Trainer, setting: int | MicroBatchOptimizer | None = None) -> None:
        self._trainer = trainer
        self.setting = setting
        precision = str(trainer.precision)
        super().__init__(1, int(trainer.accumulate_grad_batches), "mixed" in precision, {"precision": precision})
        self.backward_owner = trainer.strategy
        self._batches: Any = None
        self._windows: WindowBatches | None = None
        self._restore_random_state: Callable[[], None] | None = None  # that with which the data were set up
        if setting is not None:  # the data are set up again for other batches
            self.patch(trainer.fit_loop, "setup_data", self._note_random_state)

    def use_best(self) -> None:
        """Train with the micro-batch of the setting until `undo`; in `on_fit_start`, when the strategy is set up."""
        self.find_loader()
        super().use_best()

    def find_loader(self) -> None:
        """Find the loader, when the strategy is set up."""
        loop = self._trainer.fit_loop
        restore = random_state()
        loader = loop._combined_loader or loop._data_source.dataloader()
        restore()
        self.loader = getattr(loader, "flattened", [loader])[0]
        self._batches = getattr(self.loader, "batch_sampler", None)
        if type(self._batches) is BatchSampler:
            self.batch_size = int(self._batches.batch_size)

    @property
    def models(self) -> list[torch.nn.Module]:
        """The module of the trainer."""
        return [self._trainer.lightning_module]

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of the trainer."""
        return list(self._trainer.optimizers)

    @property
    def device(self) -> torch.device:
        """The device of the module."""
        device: torch.device = self._trainer.strategy.root_device
        return device

    @property
    def sizes(self) -> list[int]:
        """The sizes, from the original one on, with which an epoch has as many steps as the trainer counts."""
        windows = {size: WindowBatches(self._batches, self.accumulation, size) for size in super().sizes}
        return [size for size, one in windows.items() if len(one.tail) <= one.accumulation]

    def obstacle(self, size: int | None) -> str | None:
        """Return why no such micro-batch may be used; None if it may."""
        loader = self.loader
        if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
            return "there is no loader that reads samples by their index"
        if type(self._batches) is not BatchSampler:
            return f"a {type(self._batches).__name__} makes the batches"
        reason = _obstacle_in(self._trainer)
        if reason is not None:
            return reason
        if size is not None and size not in self.sizes:
            own, samples, possible = self.batch_size, self.samples_per_step, ", ".join(map(str, self.sizes))
            return (
                f"batches of {own} do not join to {size} in steps of {samples} samples, or in the last; try {possible}"
            )
        if self._restore_random_state is not None and _has_generator(loader):
            return "the loader has drawn from its own generator already"
        return None

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Have the module log nothing."""
        silence = Patches(self._trainer.lightning_module)
        for name in ("log", "log_dict"):
            silence.wrap(name, lambda log, *_, **__: None)
        try:
            yield
        finally:
            silence.undo()

    def loss_of(self, batch: Any, step: Sequence[Any]) -> torch.Tensor:
        """Return the loss of the module over the batches of a step, as the trainer's own loop would compute it."""
        trainer, module = self._trainer, self._trainer.lightning_module
        batch = trainer.precision_plugin.convert_input(batch)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        arguments = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, 0)
        with trainer.precision_plugin.train_step_context():
            output = module.training_step(*arguments.values())
        loss: torch.Tensor = output["loss"] if isinstance(output, dict) else output
        return loss / len(step)

    def check_averaging(self) -> None:
        """Check that the strategy averages gradients over all ranks; see `TrainingLoop`."""
        trainer, ranks = self._trainer, self.world.size
        strategy = trainer.strategy
        if not {kind.__name__ for kind in type(strategy).__mro__} & _AVERAGING:
            raise UsageError(
                f"strategy is a {type(strategy).__name__}, whose losses cannot be weighted by rank; use ddp"
            )
        if getattr(strategy, "_tensor_parallel_size", 1) not in (1, "auto") or (
            getattr(strategy, "_data_parallel_size", ranks) not in (ranks, "auto")
        ):
            raise UsageError(f"strategy shares samples among ranks; all {ranks} ranks must be data-parallel")
        hook = getattr(getattr(strategy, "_ddp_comm_hook", None), "__name__", "")
        if hook in ("noop_hook", "post_localSGD_hook"):
            raise UsageError(
                f"strategy has the communication hook {hook}, which does not average gradients in each step"
            )

    def check_gradients(self) -> None:
        """Check that a rank knows when it has computed its gradients; see `TrainingLoop`."""
        trainer = self._trainer
        kinds = {kind.__name__ for kind in type(trainer.strategy).__mro__}
        if not kinds & {"SingleDeviceStrategy", "DDPStrategy"}:
            raise UsageError(
                f"strategy is a {type(trainer.strategy).__name__}, with which it is not known when a rank has computed "
                "its gradients; use ddp, or give the batches"
            )

    def use(self, size: int) -> None:
        """Train with this micro-batch until `undo`."""
        if size == self.batch_size:
            return
        trainer, loop = self._trainer, self._trainer.fit_loop
        windows = self._windows = WindowBatches(self._batches, self.accumulation, size)

        def with_windows(dataloader: Callable[[], Any]) -> Any:
            loader = dataloader()
            if type(loader.batch_sampler) is BatchSampler:
                self.give(loader, WindowBatches(loader.batch_sampler, self.accumulation, size))
            return loader

        self.patch(loop._data_source, "dataloader", with_windows)
        trainer.accumulate_grad_batches = windows.accumulation
        self.weigh(lambda: windows.weight_of(loop.epoch_loop.batch_idx))  # the trainer divides by those of a whole step
        if loop._combined_loader is not None:  # the length of an epoch was asked for: it is set up again, as it was
            restore_present = random_state()
            if self._restore_random_state is not None:
                self._restore_random_state()
            loop._combined_loader = None
            loop.setup_data()
            restore_present()

    def undo(self) -> None:
        """Leave the trainer and the loader as they were."""
        super().undo()
        if self._windows is not None:
            self._windows = None
            self._trainer.accumulate_grad_batches = self.accumulation

    def _note_random_state(self, setup_data: Callable[[], None]) -> None:
        if self._restore_random_state is None:
            self._restore_random_state = random_state()
        setup_data()


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
