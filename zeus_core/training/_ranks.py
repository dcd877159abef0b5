"""What the ranks of a run tell each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zeus_core.errors import WorldError
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports import World
from zeus_core.training._account import Account

__all__ = ["Ranks"]


class Ranks:
    """The ranks of a run, every one of which makes the same calls in the same order.

    A rank that has failed says so in place of what it was to tell, and all ranks then raise. Once a rank has not
    answered in time, no other is waited for again.

    Args:
        world: The ranks.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_cut_off = False
        self.rank = world.rank
        """This rank."""
        self.size = world.size
        """How many there are."""

    def share(self, monitor: ZeusMonitor) -> list[int]:
        """The GPUs this rank counts: those that no rank before it measures too.

        Raises:
            WorldError: A rank failed, or did not answer in time.
        """
        uuids = {gpu.uuid: index for index, gpu in monitor.gpus.items()}
        before = self.gather(lambda: list(uuids))[: self.rank]
        others = {uuid for rank in before for uuid in rank}
        return [index for uuid, index in uuids.items() if uuid not in others]

    def of_first(self, value: Any) -> Any:
        """The first rank's value.

        Raises:
            WorldError: A rank failed, or did not answer in time.
        """
        return self.gather(lambda: value)[0]

    def combine(self, account: Callable[[], Account]) -> Account:
        """What all ranks have taken.

        Raises:
            WorldError: A rank failed, or did not answer in time.
        """
        if self.size == 1:
            return account()
        return Account.of_ranks(map(Account.from_json, self.gather(lambda: account().to_json())))

    def gather(self, tell: Callable[[], Any]) -> list[Any]:
        """What each rank has to tell, by rank.

        Raises:
            WorldError: A rank failed, or did not answer in time.
        """
        if self._is_cut_off:
            raise WorldError("a rank did not answer before")
        answers = self._exchange(tell)
        faults = [f"rank {rank}: {answer['fault']}" for rank, answer in enumerate(answers) if "fault" in answer]
        if faults:
            raise WorldError("; ".join(faults))
        return [answer["value"] for answer in answers]

    def _exchange(self, tell: Callable[[], Any]) -> list[dict[str, Any]]:
        try:
            answer = {"value": tell()}
        except Exception as error:
            answer = {"fault": str(error)}
        try:
            return self._world.gather(answer)
        except Exception:
            self._is_cut_off = True
            raise
