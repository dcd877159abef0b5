"""The batches of the ranks: given, or chosen while training starts. Both are used in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from zeus_core.allocation import AllocationPlan
from zeus_core.errors import UsageError
from zeus_core.ports import World
from zeus_core.ports._exchange import Exchange
from zeus_core.pytorch._allocation_run import AllocationRun
from zeus_core.pytorch._batch_allocation import BatchAllocation
from zeus_core.pytorch._uneven_sampler import UnevenBatchSampler, checked_batches

__all__ = ["AnyBatches", "BatchChoice", "check_total", "checked_given", "choose_batches"]

AnyBatches = Sequence[int] | AllocationPlan | BatchAllocation


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


def choose_batches(
    world: World, given: AnyBatches, check: Callable[[], None], check_gradients: Callable[[], None]
) -> BatchChoice:
    """Return the batches of all ranks, once all have found them right: a collective call.

    Args:
        world: The ranks.
        given: Those of this rank's call, a plan with them, or how to choose them.
        check: Raises what else is wrong on this rank.
        check_gradients: Raises if nobody can tell when this rank has computed its gradients, as only choosing needs.

    Raises:
        UsageError: Something is wrong on this rank, or the ranks differ.
        WorldError: Something is wrong on another rank, or a rank did not answer in time.
    """
    if isinstance(given, BatchAllocation):

        def check_both() -> None:
            check()
            check_gradients()

        return AllocationRun(given, world, check_both)

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
