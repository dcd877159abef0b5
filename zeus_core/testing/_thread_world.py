"""The ranks of a job as threads of one process."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from zeus_core.errors import WorldError
from zeus_core.ports import World
from zeus_core.ports.world import WholeNumbers
from zeus_core.validate import checked_number, checked_whole_number

_Result = TypeVar("_Result")
_Sent = TypeVar("_Sent")

_MAX_THREADS = 10_000  # Python starts so many in about a second; more may be a typing error


@dataclass
class _Meeting:
    """The meeting point of the threads."""

    barrier: threading.Barrier
    sent: dict[int, tuple[str, Any]] = field(default_factory=dict)  # the call and value of each rank
    answer: Any = None  # what all of them make together
    errors: list[BaseException] = field(default_factory=list)  # that ended ranks, in this order


class ThreadWorld:
    """A `World` whose ranks are threads.

        def rank_main(world):
            return world.gather(world.rank)

        assert ThreadWorld.run(2, rank_main) == [[0, 1], [0, 1]]

    Values pass through JSON, so that a value of another type is an error. After one timeout, or the end of a rank by an
    error, every later gathering of any rank fails at once.

    Args:
        rank: The rank of the thread that uses it.
        meeting: Shared by the ranks; see `run`.
    """

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.size: int = meeting.barrier.parties
        self._meeting = meeting

    @classmethod
    def run(cls, size: int, rank_main: Callable[[World], _Result], timeout_seconds: float = 10.0) -> list[_Result]:
        """Call a function in several threads, with a world each. Returns the results, by rank.

        Args:
            size: The number of ranks.
            rank_main: The function.
            timeout_seconds: How long a rank waits for the others.

        Raises:
            UsageError: An argument is wrong, such as no rank; the message names it.
            Exception: The first error that a rank's function raised, once all ranks have ended. Those of other ranks
                may only follow from it.
        """
        wanted = f"the number of ranks, 1 to {_MAX_THREADS}"
        checked_whole_number("size", size, 1, wanted, _MAX_THREADS)
        checked_number("timeout_seconds", timeout_seconds, 0.0, threading.TIMEOUT_MAX, "seconds, at least 0")
        meeting = _Meeting(threading.Barrier(size, timeout=timeout_seconds))

        def run_rank(rank: int) -> _Result:
            try:
                return rank_main(cls(rank, meeting))
            except BaseException as error:
                meeting.errors.append(error)
                meeting.barrier.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            results = [pool.submit(run_rank, rank) for rank in range(size)]
        if meeting.errors:
            raise meeting.errors[0]
        return [result.result() for result in results]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank.

        Raises:
            WorldError: A rank did not answer in time, or makes another call.
            TypeError: `value` is not made of JSON's types.
        """
        return [json.loads(text) for text in self._exchange("gather", json.dumps(value), list)]

    def gather_to_first(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks, by rank, on rank 0; None on the others. Raises as `gather` does."""
        texts = self._exchange("gather_to_first", json.dumps(value), list)
        return [json.loads(text) for text in texts] if self.rank == 0 else None

    def reduce(self, own: WholeNumbers) -> WholeNumbers:
        """Combine the whole numbers of all ranks.

        Raises:
            WorldError: As in `gather`.
            OverflowError: A number has more than 64 bits.
        """
        total = self._exchange("reduce", own, WholeNumbers.of_all)
        array("q", [*total.sums, *total.largest])
        return total

    def _exchange(self, call: str, own: _Sent, combine: Callable[[list[_Sent]], _Result]) -> _Result:
        meeting = self._meeting
        meeting.sent[self.rank] = call, own
        if self._meet() == 0:  # one of the threads combines the values, for all of them
            calls, values = zip(*(meeting.sent[rank] for rank in range(self.size)), strict=True)
            meeting.answer = combine(list(values)) if len(set(calls)) == 1 else None
        self._meet()  # no rank reads the answer before it is there, nor sends its next value
        answer: _Result | None = meeting.answer
        if answer is None:
            raise WorldError("the ranks make different exchanges: report the same steps on every rank")
        return answer

    def _meet(self) -> int:
        try:
            return self._meeting.barrier.wait()
        except threading.BrokenBarrierError as error:
            raise WorldError("a rank did not answer in time") from error
