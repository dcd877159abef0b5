"""A training loop of your own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from zeus_core.batches.micro_batch_search import divisors
from zeus_core.batches.pytorch.step_samples import BatchSamples
from zeus_core.batches.pytorch.training_loop import TrainingLoop
from zeus_core.errors import UsageError
from zeus_core.ports import World
from zeus_core.ports.world import checked_world
from zeus_core.pytorch.torch_world import torch_world

_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"
# Hooks of torch that do not average the gradients of all ranks in each step.
_NOT_AVERAGING = {"noop_hook", "post_localSGD_hook"}


class PlainLoop(TrainingLoop):
    """The `TrainingLoop` of a model that no framework trains.

    Args:
        model: The model, wrapped for training on several ranks if there are.
        world: The ranks; those of torch.distributed if None.
        loss_of: Returns the mean loss of a batch, for probes.
    """

    batch_size: int
    is_mixed: bool

    def __init__(
        self,
        model: torch.nn.Module,
        world: World | None = None,
        loss_of: Callable[[Any], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._world = world
        self._loss_of = loss_of
        self._batch: Any = None
        self._samples = 1

    def use_batch(self, batch: Any, samples: int, batch_size: int) -> None:
        """Use the whole batch of a step, of this many samples, for probes; `batch_size` is the original size."""
        self._batch, self._samples, self.batch_size = batch, samples, batch_size
        self.is_mixed = torch.is_autocast_enabled()

    @property
    def models(self) -> list[torch.nn.Module]:
        """The model."""
        return [self._model]

    @functools.cached_property
    def world(self) -> World:
        """The ranks."""
        return torch_world() if self._world is None else checked_world(self._world)

    @property
    def device(self) -> torch.device:
        """The device of the first parameter."""
        return next((parameter.device for parameter in self._model.parameters()), torch.device("cpu"))

    @property
    def samples_per_step(self) -> int:
        """The samples of the batch."""
        return self._samples

    @property
    def sizes(self) -> list[int]:
        """All divisors of the batch."""
        return divisors(self._samples)

    def obstacle(self, size: int | None) -> str | None:
        """Return that the original size is no divisor of the batch; None if it is one."""
        if self._samples % self.batch_size == 0:
            return None
        return f"original is {self.batch_size}, which does not divide the {self._samples} samples of the batch"

    def samples(self) -> BatchSamples:
        """Return the samples of the batch."""
        return BatchSamples(self._batch, self._samples)

    def loss_of(self, batch: Any, step: Sequence[Any]) -> torch.Tensor:
        """Return the mean loss of a batch over the batches of its step."""
        assert self._loss_of is not None
        return self._loss_of(batch) / len(step)

    def train_on(self, batch: Any, step: Sequence[Any]) -> None:
        """Run the passes of a batch."""
        with self.without_exchange():
            super().train_on(batch, step)

    def without_exchange(self) -> AbstractContextManager[object]:
        """Return a block in which gradients stay on this rank: that of DistributedDataParallel, if it is the model."""
        no_sync = getattr(self._model, "no_sync", None)
        return nullcontext() if no_sync is None else no_sync()

    def check_averaging(self) -> None:
        """Check that the gradients of the model are averaged over all ranks; see `TrainingLoop`."""
        ranks = self.world.size
        model = self._model
        model = getattr(model, "_orig_mod", model)  # the one inside a compiled model
        kinds = {kind.__name__ for kind in type(model).__mro__}
        if isinstance(model, DataParallel):
            raise UsageError(f"model is a DataParallel, which splits batches itself; use {_WRAP}")
        if "PipelineEngine" in kinds:
            raise UsageError(
                "model is a PipelineEngine, which computes its losses itself: they cannot be weighted by rank"
            )
        if ranks == 1:
            return
        if isinstance(model, DistributedDataParallel):
            _check_ddp(model, ranks)
        elif not (kinds & {"FullyShardedDataParallel", "DeepSpeedEngine"} or _fsdp_modules(model)):
            raise UsageError(
                f"model is a {type(model).__name__}, whose gradients nothing averages over the {ranks} ranks; "
                f"wrap it first: {_WRAP}"
            )
        for module in _fsdp_modules(model):
            _check_fsdp(module)

    def check_gradients(self) -> None:
        """Check that this rank can tell when it has computed its gradients; see `TrainingLoop`."""
        model = getattr(self._model, "_orig_mod", self._model)
        if self.world.size > 1 and not isinstance(model, DistributedDataParallel):
            raise UsageError(
                f"model is a {type(model).__name__}, of which it is not known when a rank has computed its gradients; "
                "use DistributedDataParallel, or give the batches"
            )


def _check_ddp(model: DistributedDataParallel, ranks: int) -> None:
    averaged = torch.distributed.get_world_size(model.process_group)
    if averaged != ranks:
        raise UsageError(f"model averages gradients over {averaged} ranks, and this job has {ranks}; use one group")
    for hook, _ in getattr(model, "_comm_hooks", ()):
        name = getattr(hook, "__name__", "")
        if name in _NOT_AVERAGING:
            raise UsageError(f"model has the communication hook {name}, which does not average gradients in each step")


def _fsdp_modules(model: torch.nn.Module) -> list[Any]:
    """Return the modules that `fully_shard` has sharded."""
    return [
        module
        for module in model.modules()
        if any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)  # its place differs by release of torch
    ]


def _check_fsdp(module: Any) -> None:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    if any(getattr(group, "gradient_divide_factor", None) is not None for group in groups):
        raise UsageError(
            "model has a gradient divide factor of its own (set_gradient_divide_factor); "
            "remove it: the gradients must be averages over the ranks"
        )
