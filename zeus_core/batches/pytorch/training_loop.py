"""The training loop of a framework, for the features that change its batches."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch

from zeus_core.adapters import Patches
from zeus_core.batches.micro_batch_search import divisors
from zeus_core.batches.pytorch.step_samples import LoaderSamples, StepSamples
from zeus_core.ports import World
from zeus_core.pytorch.torch_world import torch_world

Weight: TypeAlias = "float | torch.Tensor"


class TrainingLoop(ABC):
    """A training loop on this rank. There is one class for each framework, and one for a loop of your own.

    A *step* is one of the optimizer. It has one or several *passes*, forward and backward, each on a batch.

    Args:
        batch_size: The samples of a pass; 1 where the loop has no such number.
        accumulation: The passes of a step.
        is_mixed: Whether the models compute in half precision, also with parameters in another one.
        work: Facts beside those of the models that tell this work from other work in a profile.
    """

    loader: Any = None
    """The dataloader of the training; None where there is none."""
    backward_owner: Any = None
    """The object whose `backward` propagates losses; None where the loop calls that of the loss."""

    def __init__(
        self,
        batch_size: int = 1,
        accumulation: int = 1,
        is_mixed: bool = False,
        work: Mapping[str, int | str] | None = None,
    ) -> None:
        self.batch_size: int = batch_size
        self.accumulation = accumulation
        self.is_mixed: bool = is_mixed
        self.work: dict[str, int | str] = dict(work or {})
        self._patches: list[Patches] = []
        self._original_batches: list[tuple[Any, Any]] = []

    @functools.cached_property
    def world(self) -> World:
        """The ranks. The first use is a collective call."""
        return torch_world()

    @property
    def samples_per_step(self) -> int:
        """The samples of a step on this rank, which another micro-batch leaves as they are."""
        return self.batch_size * self.accumulation

    @property
    @abstractmethod
    def models(self) -> Sequence[torch.nn.Module]:
        """The models that are trained."""

    @property
    def optimizers(self) -> Sequence[Any]:
        """Their optimizers; none where the loop does not know them."""
        return ()

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the models."""

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes of a pass that leave the samples of each step, and their weights, as they are.

        They are known once there is no `obstacle`, and include `batch_size`.
        """
        return [size for size in divisors(self.samples_per_step) if size >= self.batch_size]

    @abstractmethod
    def obstacle(self, size: int | None) -> str | None:
        """Return, for people, why passes cannot have this size; for None, why none can be found by probes."""

    def samples(self) -> StepSamples:
        """Return samples of a step for probes. Drawing them takes no random numbers of the training."""
        return LoaderSamples(self.loader, self.samples_per_step, self.world.rank)

    def probing(self) -> AbstractContextManager[object]:
        """Return a block for probes, after which all is as before but for the models."""
        return nullcontext()

    @abstractmethod
    def loss_of(self, batch: Any, step: Sequence[Any]) -> torch.Tensor:
        """Return the loss of a batch as it counts in a step of these batches."""

    def train_on(self, batch: Any, step: Sequence[Any]) -> None:
        """Run the passes of a batch of a step, without a step of the optimizer or an exchange with other ranks."""
        self.loss_of(batch, step).backward()  # type: ignore[no-untyped-call]

    def weigh(self, weight: Callable[[], Weight]) -> None:
        """Multiply each loss that is propagated backward by the weight in force then, until `undo`."""

        def backward_weighted(backward: Callable[..., Any], loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return backward(scaled(loss, weight()), *args, **kwargs)

        self.patch(self.backward_owner, "backward", backward_weighted)

    def give(self, loader: Any, batches: Any) -> None:
        """Have a dataloader read other batches, in place of an earlier one, until `undo`."""
        self._restore_batches()
        for one in (loader, getattr(loader, "base_dataloader", loader)):  # accelerate has one around another
            self._original_batches.append((one, one.batch_sampler))
            object.__setattr__(one, "batch_sampler", batches)  # torch lets nobody exchange them

    def undo(self) -> None:
        """Leave the loop as it was."""
        self._restore_batches()
        while self._patches:
            self._patches.pop().undo()

    def _restore_batches(self) -> None:
        while self._original_batches:
            loader, batches = self._original_batches.pop()
            object.__setattr__(loader, "batch_sampler", batches)

    def patch(self, target: Any, name: str, around: Callable[..., Any]) -> None:
        """Have a method call `around` with the method and its arguments, until `undo`."""
        self._patches.append(Patches(target))
        self._patches[-1].wrap(name, around)

    @abstractmethod
    def check_averaging(self) -> None:
        """Raise `UsageError` unless each step averages gradients over all ranks, so that losses can be weighted."""

    @abstractmethod
    def check_gradients(self) -> None:
        """Raise `UsageError` if it is not known when a rank has its gradients, before it waits for the others."""


def scaled(loss: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Return a loss times its weight, in the precision of the loss."""
    return loss * (weight.to(loss.dtype) if isinstance(weight, torch.Tensor) else weight)
