"""The training loop of a framework, for the features that change its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from zeus_core.ports import World

__all__ = ["StepSamples", "TrainingLoop"]


class StepSamples(Protocol):
    """The samples of one step, as batches of any size."""

    def batches(self, size: int) -> Sequence[Any]:
        """Return the samples of the step as batches."""

    def largest(self, size: int) -> Any:
        """Return a batch of the samples that need the most memory."""


class TrainingLoop(Protocol):
    """A training loop on this rank. There is one implementation for each framework, and one for a loop of your own.

    A *step* is one of the optimizer. It has one or several *passes*, forward and backward, each on a batch.
    """

    @property
    def models(self) -> Sequence[torch.nn.Module]:
        """The models that are trained."""

    @property
    def optimizers(self) -> Sequence[Any]:
        """Their optimizers; none where the loop does not know them."""

    @property
    def world(self) -> World:
        """The ranks. The first use is a collective call."""

    @property
    def device(self) -> torch.device:
        """The device of the models."""

    @property
    def is_mixed(self) -> bool:
        """Whether the models compute in half precision, also with parameters in another one."""

    @property
    def work(self) -> Mapping[str, int | str]:
        """Facts beside those of the models that tell this work from other work in a profile."""

    @property
    def batch_size(self) -> int:
        """The samples of a pass, as the user has set them; 1 where the loop has no such number."""

    @property
    def samples_per_step(self) -> int:
        """The samples of a step on this rank, which a micro-batch leaves as they are."""

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes of a pass with which every step has the same samples with the same weights, `batch_size` included.

        They are known once there is no `obstacle`.
        """

    def obstacle(self, size: int | None) -> str | None:
        """Return, for people, why passes cannot have another size; None if they can.

        Args:
            size: The size; None if it is to be found by probes.
        """

    def samples(self) -> StepSamples:
        """Return the samples of a step, for probes. Drawing them takes no random numbers of the training."""

    def probing(self) -> AbstractContextManager[object]:
        """Return a block for probes, after which all is as before but for the models, which the caller restores."""

    def loss_of(self, batch: Any, step: Sequence[Any]) -> torch.Tensor | float:
        """Return the loss of a batch as it counts in its step, without a backward pass.

        Args:
            batch: The batch.
            step: The batches of the step.
        """

    def train_on(self, batch: Any, step: Sequence[Any]) -> None:
        """Run the passes of a batch: no step of the optimizer, and no exchange with other ranks.

        Args:
            batch: The batch.
            step: The batches of its step, which say how much its loss counts.
        """

    def check_averaging(self) -> None:
        """Check that gradients are averaged over all ranks in each step, so that each rank's loss can be weighted.

        Raises:
            UsageError: They are not, or nobody can tell.
        """

    def check_gradients(self) -> None:
        """Check that a rank can tell when it has computed its gradients, before it waits for the others.

        Raises:
            UsageError: It cannot.
        """
