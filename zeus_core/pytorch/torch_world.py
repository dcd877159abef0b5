"""The ranks of torch.distributed, as a `World`."""

from __future__ import annotations

import atexit
import functools
import time
from datetime import timedelta
from typing import Any

import torch.distributed

from zeus_core.errors import UsageError, WorldError
from zeus_core.ports import World
from zeus_core.ports.world import SoloWorld
from zeus_core.validate import checked_number

# How long the end of a process is delayed, so that gloo can release its tensors. Users feel a longer delay; a shorter
# one risks that a busy machine does not run gloo's thread in time.
_GLOO_RELEASE_SECONDS = 0.05
_MAX_TIMEOUT_SECONDS = 1e9  # 31 years, and less than a timedelta can hold


class TorchWorld:
    """The ranks of the default process group, on a gloo group of their own: measuring never queues behind training.

    Creating it is a collective call: every rank must create one, at the same point.

    Args:
        timeout_seconds: How long to wait for the other ranks, in seconds.

    Raises:
        UsageError: torch.distributed is not initialised.
    """

    def __init__(self, timeout_seconds: float = 60.0) -> None:
        if not torch.distributed.is_initialized():
            raise UsageError(
                "TorchWorld needs a process group; call torch.distributed.init_process_group() first, "
                "or use torch_world(), which needs none in a job of one process"
            )
        self.rank: int = torch.distributed.get_rank()
        self.size: int = torch.distributed.get_world_size()
        self._lost_because: str | None = None
        _outlive_gloo()
        try:
            self._group = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
        except RuntimeError as error:
            self._lost_because = (
                f"not all ranks joined the group for measuring; does every rank have its callback? {error}"
            )

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank.

        Raises:
            WorldError: A rank did not answer in time, now or earlier: after one timeout, no call waits again.
        """
        if self._lost_because is not None:
            raise WorldError(self._lost_because)
        values: list[Any] = [None] * self.size
        try:
            torch.distributed.all_gather_object(values, value, group=self._group)
        except RuntimeError as error:
            self._lost_because = f"the ranks of this job did not reach each other: {error}"
            raise WorldError(self._lost_because) from error
        return values


@functools.cache
def _outlive_gloo() -> None:
    """Delay the end of the process until gloo has released its tensors.

    A thread of gloo releases the tensors of an exchange shortly after all ranks have them. It needs the interpreter for
    that, and aborts the process if the interpreter is already shutting down.
    """
    atexit.register(time.sleep, _GLOO_RELEASE_SECONDS)


def torch_world(timeout_seconds: float = 60.0) -> World:
    """Return the ranks of torch.distributed if it is initialised and has several; else this process alone.

    A collective call if there are several: every rank must make it, at the same point.

    Args:
        timeout_seconds: How long to wait for the other ranks, in seconds.

    Raises:
        UsageError: It is no number above 0.
    """
    wanted = "a number of seconds above 0, such as 60"
    checked_number("timeout_seconds", timeout_seconds, 0.0, _MAX_TIMEOUT_SECONDS, wanted, is_open=True)
    is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    if is_initialized and torch.distributed.get_world_size() > 1:
        return TorchWorld(timeout_seconds)
    return SoloWorld()
