"""Training on batches that differ by rank, in any training loop: which batches there are, and how much they count."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from zeus_core.batches.pytorch._allocation_run import AllocationRun
from zeus_core.batches.pytorch._batch_allocation import BatchAllocation
from zeus_core.batches.pytorch.training_loop import TrainingLoop, Weight
from zeus_core.batches.pytorch.uneven_sampler import IndexOrder, UnevenBatchSampler, checked_batches
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.ports import World
from zeus_core.ports.exchange import Exchange
from zeus_core.validate import wrong_argument

AnyBatches = Sequence[int] | AllocationPlan | BatchAllocation
TokenCounter: TypeAlias = Callable[[Any], "int | torch.Tensor"]
PendingWeight: TypeAlias = Callable[[], Weight]

_SHOWN_LAYERS = 5

_logger = logging.getLogger(__name__)


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
            if tokens is not None and not callable(tokens):
                raise wrong_argument("tokens", tokens, "a function that returns the tokens in a batch, or None")
            loop.check_averaging()
            check()
            if isinstance(batches, BatchAllocation):
                loop.check_gradients()

        self.rank: int = world.rank
        self.loop: TrainingLoop = loop
        self._tokens = tokens
        self._sampler: UnevenBatchSampler | None = None
        self._run: AllocationRun | None = None
        self._given: tuple[int, ...] = ()
        if isinstance(batches, BatchAllocation):
            self._run = AllocationRun(batches, world, check_all)
        else:
            self._given = _agreed(world, batches, check_all)
        if world.rank == 0:
            for model in loop.models:
                _warn_of_batch_norms(model, self.batches)

    @property
    def batches(self) -> tuple[int, ...]:
        """The samples of each rank in a global batch."""
        return self._given if self._run is None else self._run.batches

    def sampler(self, order: IndexOrder, drop_last: bool) -> UnevenBatchSampler:
        """Return the batches of this rank for a loader, in place of those of an earlier one.

        Args:
            order: A sampler of single samples, with the same order on all ranks.
            drop_last: Whether an incomplete last global batch is dropped.
        """
        self._sampler = UnevenBatchSampler(order, self.batches, self.rank, drop_last)
        if self._run is not None:
            self._run.use_sampler(self._sampler)
        return self._sampler

    def sizes(self, place: int) -> tuple[int, ...]:
        """Return the samples of each rank in a global batch, by its place in the epoch."""
        assert self._sampler is not None
        return self._sampler.sizes(place)

    def begin(self, place: int) -> None:
        """Begin to train on a batch, by its place in the epoch; may be a collective call. Never raises."""
        if self._run is not None:
            for model in self.loop.models:
                self._run.watch(model)
            self._run.on_batch(place, self.sizes(place))

    def on_batch(self, place: int, batch: Any) -> PendingWeight:
        """Begin to train on a batch that has arrived, and return its weight; see `begin` and `weight`."""
        self.begin(place)
        return self.weight(place, batch)

    def weight(self, place: int, batch: Any) -> PendingWeight:
        """Return a function that returns the weight of this rank's loss; with tokens, both are collective calls.

        The average over W ranks of the gradients of (W b_i / B x mean loss over b_i samples) is the gradient of the
        mean loss over all B samples. Where a loss is a mean over tokens, tokens take the place of samples: they are
        counted on each rank, and added up while the forward pass runs.

        Args:
            place: The place of the batch in its epoch.
            batch: The batch of this rank.
        """
        sizes = self.sizes(place)
        ranks, samples = len(sizes), sizes[self.rank]
        if self._tokens is None:
            weight = ranks * samples / sum(sizes)
            return lambda: weight
        own = torch.as_tensor(self._tokens(batch) if samples else 0).to(self.loop.device, torch.float64)
        if ranks == 1:
            return lambda: 1.0
        total = own.clone()
        adding = torch.distributed.all_reduce(total, async_op=True)

        def weight_by_tokens() -> torch.Tensor:
            adding.wait()
            return ranks * own / total.clamp(min=1.0)  # without any token, each loss is 0 or not a number

        return weight_by_tokens

    def close(self) -> None:
        """Restore the power limit that a `BatchAllocation` has set, if any."""
        if self._run is not None:
            self._run.close()


def _agreed(world: World, given: Sequence[int] | AllocationPlan, check: Callable[[], None]) -> tuple[int, ...]:
    """Return the batches of all ranks, once all have found them right: a collective call."""

    def report() -> list[int]:
        check()
        return list(checked_batches(_batches_in(given), ranks=world.size))

    reports = Exchange(world).gather(report)
    for rank, others in enumerate(reports):
        if others != reports[0]:
            raise UsageError(f"batches is {reports[0]} on rank 0 and {others} on rank {rank}; all ranks need the same")
    return tuple(reports[0])


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


def _warn_of_batch_norms(model: torch.nn.Module, batches: Sequence[int]) -> None:
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
