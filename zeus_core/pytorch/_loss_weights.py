"""The weight of a rank's loss in the gradient of the global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed

__all__ = ["LossWeights", "PendingWeight", "TokenCounter", "scaled"]

TokenCounter: TypeAlias = Callable[[Any], "int | torch.Tensor"]
PendingWeight: TypeAlias = Callable[[], "float | torch.Tensor"]


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
