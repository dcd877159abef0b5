"""The exchanges of a training run: who counts which GPU, and the account of all ranks."""

from __future__ import annotations

from collections.abc import Callable

from zeus_core._codec import decode, encode
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports._exchange import Exchange
from zeus_core.training._account import Account

__all__ = ["Ranks"]


class Ranks(Exchange):
    """The ranks of a run. All methods are collective, and raise as `gather` does."""

    gpu_count: int = 0
    """GPUs of the job, each counted once; known after `share`."""

    def share(self, monitor: ZeusMonitor) -> list[int]:
        """Return the indices of the GPUs this rank counts: those that no rank before it measures too."""
        uuids = {gpu.uuid: index for index, gpu in monitor.gpus.items()}
        ranks = self.gather(lambda: list(uuids))
        self.gpu_count = len({uuid for rank in ranks for uuid in rank})
        others = {uuid for rank in ranks[: self.rank] for uuid in rank}
        return [index for uuid, index in uuids.items() if uuid not in others]

    def combine(self, account: Callable[[], Account]) -> Account:
        """Add up the accounts of all ranks."""
        if self.size == 1:
            return account()
        return Account.from_ranks(decode(Account, fields) for fields in self.gather(lambda: encode(account())))
