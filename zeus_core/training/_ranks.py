"""The exchanges of a training run: who counts which GPU, and the account of all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable

from zeus_core._codec import decode, encode
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports._exchange import Exchange
from zeus_core.training._account import Account

__all__ = ["Ranks"]

_logger = logging.getLogger(__name__)


class Ranks(Exchange):
    """The ranks of a run. All methods are collective, and raise as `gather` does."""

    gpu_count: int = 0
    """GPUs of the job, each counted once; known after `share`."""

    def share(self, monitor: ZeusMonitor) -> list[int]:
        """Return the indices of the GPUs this rank counts: those that no rank before it measures too."""
        told = self.gather(lambda: [gpu.uuid for gpu in monitor.gpus.values()])
        self.gpu_count = len({uuid for uuids in told for uuid in uuids})
        without = [str(rank) for rank, uuids in enumerate(told) if not uuids]
        if self.rank == 0 and 0 < len(without) < self.size:
            _logger.warning("no GPU can be measured by rank %s: the totals exclude theirs", ", ".join(without))
        others = {uuid for uuids in told[: self.rank] for uuid in uuids}
        return [index for index, uuid in zip(monitor.gpus, told[self.rank], strict=True) if uuid not in others]

    def combine(self, account: Callable[[], Account]) -> Account:
        """Add up the accounts of all ranks."""
        if self.size == 1:
            return account()
        return Account.from_ranks(decode(Account, fields) for fields in self.gather(lambda: encode(account())))
