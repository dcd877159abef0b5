"""The training loop of a Trainer: the passes of its training step, and the sizes that it may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.utils.data import IterableDataset

from zeus_core.adapters import Patches
from zeus_core.batches.micro_batch_search import divisors
from zeus_core.batches.pytorch.kept_state import kept_state
from zeus_core.batches.pytorch.training_loop import TrainingLoop
from zeus_core.errors import UsageError
from zeus_core.validate import shown
from zeus_huggingface.batches.uneven_shard import check_averaging, check_gradients

Trainer: TypeAlias = Any  # most of what is used of it here is private, or differs between versions

# Trainers whose loss has a term that is estimated over the micro-batch.
_COUPLED_TRAINERS = {"KTOTrainer": "estimates its KL term", "BCOTrainer": "keeps a running mean of its rewards"}


class TrainerLoop(TrainingLoop):
    """The `TrainingLoop` of a Trainer, as its arguments say when this is made.

    Args:
        trainer: The Trainer; prepared, before it is probed.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        args, precision = trainer.args, trainer.accelerator.mixed_precision
        super().__init__(
            int(args.per_device_train_batch_size),
            int(args.gradient_accumulation_steps),
            is_mixed=precision != "no",
            work={"precision": str(precision), "checkpointing": str(bool(args.gradient_checkpointing))},
        )
        self._step: Sequence[Any] | None = None
        self._items: Any = None  # the labels in it that count

    @property
    def models(self) -> list[torch.nn.Module]:
        """The model of the Trainer, unwrapped; none before a Trainer has made it."""
        return [self._trainer.model] if isinstance(self._trainer.model, torch.nn.Module) else []

    @property
    def optimizers(self) -> list[Any]:
        """The optimizer of the Trainer, unwrapped."""
        return [getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer)]

    @property
    def device(self) -> torch.device:
        """The device of the Trainer."""
        device: torch.device = self._trainer.args.device
        return device

    @property
    def loader(self) -> Any:
        """The dataloader of the training that has begun."""
        return self._trainer.callback_handler.train_dataloader

    @property
    def sizes(self) -> list[int]:
        """The sizes with which the last step of an epoch is the same: on the same samples, weighted as they were."""
        args, loader, batch_size, original = self._trainer.args, self.loader, self.samples_per_step, self.batch_size
        samples, sizes = len(loader.dataset), divisors(batch_size)
        ranks = int(args.world_size)
        if ranks > 1:
            sizes = [size for size in sizes if size % original == 0]
        rest = samples % (batch_size * ranks)
        if rest == 0 or 0 < args.max_steps <= samples // (batch_size * ranks):
            return sizes
        is_weighted = self._is_token_weighted
        if ranks > 1:  # each rank joins batches of its own
            batches = len(loader.batch_sampler) % (batch_size // original)
            return [size for size in sizes if is_weighted or batches % (size // original) == 0]
        if args.dataloader_drop_last:
            return [size for size in sizes if rest // size * size == rest // original * original]
        # Without weights each batch counts the same: in the last step too, if all of its batches are whole.
        return [size for size in sizes if size == original or is_weighted or rest % size == rest % original == 0]

    def obstacle(self, size: int | None) -> str | None:
        """Return why no such micro-batch may be used; None if it may."""
        trainer, args = self._trainer, self._trainer.args
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
        if size is None:
            return self._obstacle_to_probes()
        if args.world_size > 1 and size % self.batch_size:
            return f"ranks join their batches of {self.batch_size}, and {size} is no multiple of it"
        return None

    @contextmanager
    def probing(self) -> Iterator[None]:
        """Keep the state of the Trainer."""
        trainer = self._trainer
        with kept_state(torch.nn.Identity(), trainer, trainer.state):
            try:
                yield
            finally:
                self._step = self._items = None
                trainer.args.gradient_accumulation_steps = self.accumulation

    def loss_of(self, batch: Any, step: Sequence[Any]) -> torch.Tensor:
        """Return the loss of a batch, as it would be propagated backward."""
        losses: list[torch.Tensor] = []
        with (
            _patched(self._trainer.accelerator, "backward", lambda _, loss, **__: losses.append(loss.detach())),
            _patched(self._wrapped, "train", lambda _, mode=True: self._wrapped),
        ):
            self.train_on(batch, step)
        return torch.stack(losses).sum()

    def train_on(self, batch: Any, step: Sequence[Any]) -> None:
        """Run the passes of a batch, as the training step of the Trainer makes them."""
        if step is not self._step:
            self._step, self._items = step, self._items_in(step)
            divide_by(self._trainer, len(step))
        inputs = dict(batch) if isinstance(batch, dict) else batch  # some losses take labels out of it
        self._trainer.training_step(self._wrapped, inputs, self._items)

    def check_averaging(self) -> None:
        """Check that the ranks can have batches of their own; see `TrainingLoop`."""
        trainer = self._trainer
        check_averaging(trainer.accelerator)
        if isinstance(trainer.train_dataset, IterableDataset):
            raise UsageError(
                f"train_dataset is {shown(trainer.train_dataset)}, of which no rank can choose its samples; it must "
                "have a length and an index"
            )
        if trainer.args.n_gpu > 1:
            raise UsageError("the Trainer splits batches over the GPUs of one process; start one process for each GPU")
        if hasattr(trainer, "num_generations"):
            raise UsageError(
                f"a {type(trainer).__name__} generates its batches in groups, which cannot be split by rank"
            )
        if trainer.args.auto_find_batch_size:
            raise UsageError("auto_find_batch_size is true, which changes the batches of all ranks; turn it off")

    def check_gradients(self) -> None:
        """Check that a rank knows when it has computed its gradients; see `TrainingLoop`."""
        check_gradients(self._trainer.accelerator)

    def _obstacle_to_probes(self) -> str | None:
        args, dataset = self._trainer.args, self._trainer.train_dataset
        if getattr(args, "num_generations", None) or getattr(args, "steps_per_generation", None):
            return f'{type(self._trainer).__name__} generates within its steps; pass a size in place of "auto"'
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            return 'the training data are a stream, which probes would use up; pass a size in place of "auto"'
        return None if len(dataset) else "there are no training data"

    @property
    def _wrapped(self) -> torch.nn.Module:
        """The model that passes run through.

        The reducer of DistributedDataParallel would wait for the other ranks, one of which may be out of memory.
        """
        trainer = self._trainer
        model: torch.nn.Module = trainer.model_wrapped if trainer.args.world_size == 1 else trainer.model
        return model

    @property
    def _is_token_weighted(self) -> bool:
        """Whether the Trainer passes to the loss how many tokens of a step count."""
        return bool(self._trainer.model_accepts_loss_kwargs or self._trainer.compute_loss_func)

    def _items_in(self, batches: Sequence[Any]) -> Any:
        """Return the labels of a step that count, as the Trainer passes them to losses; None where it passes none."""
        if not self._is_token_weighted:
            return None
        try:
            return sum(int((batch["labels"] != -100).sum()) for batch in batches) or None
        except (KeyError, TypeError):
            return None


@contextmanager
def _patched(target: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    patches = Patches(target)
    patches.wrap(name, around)
    try:
        yield
    finally:
        patches.undo()


def divide_by(trainer: Trainer, batches: float) -> None:
    """Have the Trainer divide a loss that is a mean by this; older ones go by their arguments."""
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps = batches
