"""The ranks of torch.distributed, as a `World`."""

from __future__ import annotations

import atexit
import functools
import pickle
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed

from zeus_core.errors import UsageError, WorldError
from zeus_core.ports import World
from zeus_core.ports.world import LEAST_NUMBER, SoloWorld, WholeNumbers
from zeus_core.validate import checked_number

# How long the end of a process is delayed, so that gloo can release its tensors. Users feel a longer delay; a shorter
# one risks that a busy machine does not run gloo's thread in time.
_GLOO_RELEASE_SECONDS = 0.05
_MAX_TIMEOUT_SECONDS = 1e9  # 31 years, and less than a timedelta can hold

# Every exchange begins with a message of this many numbers, so that gloo never sees two lengths in one exchange: that
# would end the process. The first of them are combined by their maximum; the others by their sum.
_NUMBERS = 128
_MAXIMA = 32
_HEAD = 4  # the kind of call and its opposite, the count of maxima, and that of sums, or bytes

_GATHER, _GATHER_TO_FIRST, _REDUCE = range(3)

_NONE = WholeNumbers()

_Result = TypeVar("_Result")


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
            WorldError: A rank did not answer in time, or made another call, now or earlier: after one timeout, no call
                waits again.
        """

        def exchange() -> list[Any]:
            own = self._padded(_GATHER, value)
            parts = [torch.empty_like(own) for _ in range(self.size)]
            torch.distributed.all_gather(parts, own, group=self._group)
            return [pickle.loads(part.numpy().tobytes()) for part in parts]

        return self._call(exchange)

    def gather_to_first(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks, by rank, on rank 0; None on the others. Raises as `gather` does."""

        def exchange() -> list[Any] | None:
            own = self._padded(_GATHER_TO_FIRST, value)
            parts = [torch.empty_like(own) for _ in range(self.size)] if self.rank == 0 else None
            torch.distributed.gather(own, parts, dst=0, group=self._group)
            return None if parts is None else [pickle.loads(part.numpy().tobytes()) for part in parts]

        return self._call(exchange)

    def reduce(self, own: WholeNumbers) -> WholeNumbers:
        """Combine the whole numbers of all ranks. Raises as `gather` does."""
        return self._call(lambda: self._reduced(own))

    def _reduced(self, own: WholeNumbers) -> WholeNumbers:
        largest, sums = self._begin(_REDUCE, len(own.sums), own)
        maxima, count, *largest = largest
        more_maxima, more_sums = (max(more, 0) for more in (maxima - len(largest), count - len(sums)))
        if more_maxima + more_sums > 0:  # such as a decision: the rest in a message of its own
            rest = torch.tensor([LEAST_NUMBER] * more_maxima + [0] * more_sums, dtype=torch.int64, device="cpu")
            for begin, numbers in ((0, own.largest[len(largest) :]), (more_maxima, own.sums[len(sums) :])):
                rest[begin : begin + len(numbers)] = torch.tensor(numbers, dtype=torch.int64, device="cpu")
            self._combine(rest, more_maxima)
            largest += rest[:more_maxima].tolist()
            sums += rest[more_maxima:].tolist()
        return WholeNumbers(sums[:count], largest[:maxima])

    def _padded(self, call: int, value: Any) -> torch.Tensor:
        """Return a value as bytes, as many as the longest one of all ranks; those after its own mean nothing."""
        content = pickle.dumps(value)
        length = self._begin(call, len(content))[0][1]
        return torch.frombuffer(bytearray(content.ljust(length, b"\0")), dtype=torch.uint8)

    def _begin(self, call: int, count: int, own: WholeNumbers = _NONE) -> tuple[list[int], list[int]]:
        """Begin an exchange: combine as many numbers as go into one message, and check that all ranks make this call.

        Returns:
            The largest count of maxima of a rank, the largest `count`, and the maxima; and the first sums.
        """
        numbers = [call, -call, len(own.largest), count, *own.largest[: _MAXIMA - _HEAD]]
        numbers += [LEAST_NUMBER] * (_MAXIMA - len(numbers)) + list(own.sums[: _NUMBERS - _MAXIMA])
        message = torch.tensor(numbers + [0] * (_NUMBERS - len(numbers)), dtype=torch.int64, device="cpu")
        self._combine(message, _MAXIMA)
        last, first, *rest = message.tolist()
        if last != -first:
            raise RuntimeError("they make different exchanges; report the same steps on every rank")
        return rest[: _MAXIMA - 2], rest[_MAXIMA - 2 :]

    def _combine(self, message: torch.Tensor, maxima: int) -> None:
        """Combine the messages of all ranks, in place: the first numbers by their maximum, the others by their sum.

        Messages go up a tree to rank 0, in which 2 r + 1 and 2 r + 2 are below rank r, and down again. So a rank sends
        and receives three messages at most, and two in the mean, in a job of any size. In gloo's all-reduce, 2 (n - 1)
        follow each other: at 16 ranks it took 3 ms of CPU and 55 ms; this, 0.4 and 5 (100 rounds, 2026-11-26).
        """
        below = [rank for rank in (2 * self.rank + 1, 2 * self.rank + 2) if rank < self.size]
        other = torch.empty_like(message)
        for rank in below:
            torch.distributed.recv(other, rank, group=self._group)
            torch.maximum(message[:maxima], other[:maxima], out=message[:maxima])
            message[maxima:] += other[maxima:]
        if self.rank > 0:
            above = (self.rank - 1) // 2
            torch.distributed.send(message, above, group=self._group)
            torch.distributed.recv(message, above, group=self._group)
        for rank in below:
            torch.distributed.send(message, rank, group=self._group)

    def _call(self, exchange: Callable[[], _Result]) -> _Result:
        if self._lost_because is not None:
            raise WorldError(self._lost_because)
        try:
            return exchange()
        except (RuntimeError, ValueError) as error:  # the latter after `destroy_process_group`
            self._lost_because = f"the ranks of this job did not reach each other: {error}"
            raise WorldError(self._lost_because) from error


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
