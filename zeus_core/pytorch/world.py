"""The ranks of torch.distributed, as a `World`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed

from zeus_core.errors import UsageError, WorldError

__all__ = ["TorchWorld"]


class TorchWorld:
    """The ranks of the default process group, on a gloo group of our own: measuring never queues behind training.

    Making it is a collective call: every rank must make one, at the same point.

    Args:
        timeout_seconds: How long to wait for the other ranks.

    Raises:
        UsageError: torch.distributed is not initialised.
    """

    def __init__(self, timeout_seconds: float = 60.0) -> None:
        if not torch.distributed.is_initialized():
            raise UsageError(
                "TorchWorld needs a process group; call torch.distributed.init_process_group() first, "
                "or use SoloWorld() in a job of one process"
            )
        self.rank: int = torch.distributed.get_rank()
        self.size: int = torch.distributed.get_world_size()
        self._group = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank.

        Raises:
            WorldError: A rank did not answer in time.
        """
        values: list[Any] = [None] * self.size
        try:
            torch.distributed.all_gather_object(values, value, group=self._group)
        except RuntimeError as error:
            raise WorldError(f"the ranks could not tell each other what they measured: {error}") from error
        return values
