"""Training on batches that differ by rank, in any training loop: which batches there are, and how much they count."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from zeus_core._validate import checked_function
from zeus_core.allocation import AllocationPlan
from zeus_core.errors import UsageError
from zeus_core.ports import World
from zeus_core.ports._exchange import Exchange
from zeus_core.pytorch._allocation_run import AllocationRun
from zeus_core.pytorch._batch_allocation import BatchAllocation
from zeus_core.pytorch._training_loop import TrainingLoop
from zeus_core.pytorch._uneven_sampler import IndexOrder, UnevenBatchSampler, checked_batches

__all__ = [
    "AnyBatches",
    "LossWeights",
    "PendingWeight",
    "TokenCounter",
    "UnevenTraining",
    "check_total",
    "checked_given",
    "scaled",
    "warn_of_batch_norms",
]

AnyBatches = Sequence[int] | AllocationPlan | BatchAllocation
TokenCounter: TypeAlias = Callable[[Any], "int | torch.Tensor"]
PendingWeight: TypeAlias = Callable[[], "float | torch.Tensor"]

_SHOWN_LAYERS = 5

_logger = logging.getLogger(__name__)


class BatchChoice(Protocol):
    """Says which batches the ranks get."""

    batches: tuple[int, ...]
    """The samples of each rank in a global batch."""

    def watch(self, model: torch.nn.Module) -> None:
        """See when gradients are computed; to be called before the model is trained."""

    def use_sampler(self, sampler: UnevenBatchSampler) -> None:
        """Use the sampler of a loader."""

    def on_batch(self, number: int, sizes: Sequence[int]) -> None:
        """Begin to train on a global batch; may be a collective call. Never raises."""

    def close(self) -> None:
        """Restore what was changed."""


class _GivenBatches:
    def __init__(self, batches: tuple[int, ...]) -> None:
        self.batches: tuple[int, ...] = batches

    def watch(self, model: torch.nn.Module) -> None: ...

    def use_sampler(self, sampler: UnevenBatchSampler) -> None: ...

    def on_batch(self, number: int, sizes: Sequence[int]) -> None: ...

    def close(self) -> None: ...


class UnevenTraining:
    """Batches that differ by rank in one training, with the gradient of the whole batch. Making one is collective.

    Args:
        loop: The training loop.
        batches: The samples of each rank, a plan with them, or how to choose them.
        tokens: Returns how many tokens the loss of a batch is a mean over; None if it is a mean over samples.
        check: Raises what else is wrong on this rank.

    Raises:
        UsageError: Something is wrong on this rank, or the ranks differ.
        WorldError: Something is wrong on another rank, or a rank did not answer in time.
    """

    def __init__(
        self,
        loop: TrainingLoop,
        batches: AnyBatches,
        tokens: TokenCounter | None,
        check: Callable[[], object] = lambda: None,
    ) -> None:
        world = loop.world

        def check_all() -> None:
            if tokens is not None:
                checked_function("tokens", tokens, "a function that returns the tokens in a batch, or None")
            loop.check_averaging()
            check()
            if isinstance(batches, BatchAllocation):
                loop.check_gradients()

        self.rank: int = world.rank
        self._loop = loop
        self._choice = _choice_of(world, batches, check_all)
        self._weights = LossWeights(world.rank, world.size, tokens, loop.device)
        self._sampler: UnevenBatchSampler | None = None
        if world.rank == 0:
            for model in loop.models:
                warn_of_batch_norms(model, self.batches)

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch."""
        return self._choice.batches

    def sampler(self, order: IndexOrder, drop_last: bool) -> UnevenBatchSampler:
        """Return the batches of this rank for a loader, in place of those of an earlier one.

        Args:
            order: A sampler of single samples, with the same order on all ranks.
            drop_last: Whether an incomplete last global batch is dropped.
        """
        self._sampler = UnevenBatchSampler(order, self.batches, self.rank, drop_last)
        self._choice.use_sampler(self._sampler)
        return self._sampler

    def sizes(self, place: int) -> tuple[int, ...]:
        """Return the samples of each rank in a global batch, by its place in the epoch."""
        assert self._sampler is not None
        return self._sampler.sizes(place)

    def weight(self, place: int, batch: Any) -> PendingWeight:
        """Return the weight of the loss of a batch that has been loaded; with tokens, a collective call.

        Args:
            place: Its place in the epoch.
            batch: The batch of this rank.
        """
        return self._weights.of_batch(self.sizes(place), batch)

    def begin(self, place: int) -> None:
        """Begin to train on a batch, by its place in the epoch; may be a collective call. Never raises."""
        for model in self._loop.models:
            self._choice.watch(model)
        self._choice.on_batch(place, self.sizes(place))

    def close(self) -> None:
        """Restore the power limit that a `BatchAllocation` has set, if any."""
        self._choice.close()


def _choice_of(world: World, given: AnyBatches, check: Callable[[], None]) -> BatchChoice:
    """Return the batches of all ranks, once all have found them right: a collective call."""
    if isinstance(given, BatchAllocation):
        return AllocationRun(given, world, check)

    def tell() -> list[int]:
        check()
        return list(checked_batches(_batches_in(given), ranks=world.size))

    told = Exchange(world).gather(tell)
    for rank, others in enumerate(told):
        if others != told[0]:
            raise UsageError(f"batches is {told[0]} on rank 0 and {others} on rank {rank}; all ranks need the same")
    return _GivenBatches(tuple(told[0]))


def check_total(given: AnyBatches, total: int) -> None:
    """Check that batches have as many samples in all as the global batch of a framework.

    Raises:
        UsageError: They do not, or are none.
    """
    if not isinstance(given, BatchAllocation):
        checked_batches(_batches_in(given), total=total)
    elif given.global_batch != total:
        raise UsageError(
            f"global_batch is {given.global_batch}; the global batch of the dataloader has {total} samples"
        )


def checked_given(given: AnyBatches) -> tuple[int, ...] | BatchAllocation:
    """Return the batches that a user has given, or how they are chosen.

    Raises:
        UsageError: They are neither.
    """
    return given if isinstance(given, BatchAllocation) else checked_batches(_batches_in(given))


def _batches_in(given: Sequence[int] | AllocationPlan) -> Sequence[int]:
    return given.batches if isinstance(given, AllocationPlan) else given


class LossWeights:
    """Weights of this rank's losses, for gradients that are averaged over the ranks.

    The average over W ranks of the gradients of (W b_i / B x mean loss over b_i samples) is the gradient of the mean
    loss over all B samples. Where a loss is a mean over tokens, tokens take the place of samples: they are counted on
    each rank, and added up while the forward pass runs.

    Args:
        rank: This rank.
        ranks: How many there are.
        tokens: Returns what a loss is a mean over, in a batch; None if that is its samples.
        device: Where tensors are exchanged between ranks.
    """

    def __init__(self, rank: int, ranks: int, tokens: TokenCounter | None, device: torch.device) -> None:
        self._rank = rank
        self._ranks = ranks
        self._tokens = tokens
        self._device = device

    def of_batch(self, sizes: Sequence[int], batch: Any) -> PendingWeight:
        """Begin a batch. Return a function that returns its weight; with tokens, a collective call.

        Args:
            sizes: The samples of each rank in it.
            batch: The batch of this rank.
        """
        if self._tokens is None:
            weight = self._ranks * sizes[self._rank] / sum(sizes)
            return lambda: weight
        own = torch.as_tensor(self._tokens(batch) if sizes[self._rank] else 0).to(self._device, torch.float64)
        if self._ranks == 1:
            return lambda: 1.0
        total = own.clone()
        adding = torch.distributed.all_reduce(total, async_op=True)

        def weight_by_tokens() -> torch.Tensor:
            adding.wait()
            return self._ranks * own / total.clamp(min=1.0)  # without any token, each loss is 0 or not a number

        return weight_by_tokens


def scaled(loss: torch.Tensor, weight: float | torch.Tensor) -> torch.Tensor:
    """Return a loss times its weight, in the precision of the loss."""
    return loss * (weight.to(loss.dtype) if isinstance(weight, torch.Tensor) else weight)


def warn_of_batch_norms(model: torch.nn.Module, batches: Sequence[int]) -> None:
    """Warn of layers that make a difference of how a global batch is split."""
    local = [name for name, layer in _batch_norms(model) if not isinstance(layer, SyncBatchNorm)]
    if local:
        _logger.warning(
            "%s normalise each rank's own batch, so the result depends on how batches are split; convert them before "
            "the model is wrapped: torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",
            _listed(local),
        )
    synced = [name for name, layer in _batch_norms(model) if isinstance(layer, SyncBatchNorm)]
    if synced and 0 in batches:
        _logger.warning(
            "%s count one sample of each rank without samples too, twice in all; give each rank at least one sample",
            _listed(synced),
        )


def _batch_norms(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, layer in model.named_modules():
        if isinstance(layer, _BatchNorm):
            yield name.removeprefix("module.") or type(layer).__name__, layer


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN_LAYERS
    return ", ".join(names[:_SHOWN_LAYERS]) + (f" and {rest} more layers" if rest > 0 else "")
