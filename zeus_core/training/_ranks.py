"""The exchanges of a training run: who counts which GPU, and the account of all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import WholeNumbers
from zeus_core.training.account import Account

_logger = logging.getLogger(__name__)


class Ranks(Exchange):
    """The ranks of a run. All methods are collective, and raise as `gather` does."""

    gpu_count: int = 0
    """GPUs of the job, each counted once; known after `share`."""
    cpu_indices: Sequence[int] = ()
    """The CPU packages that this rank counts: those that no rank before it measures too; known after `share`."""

    units: Sequence[str] = ()
    """The units that some rank charges its energy in; known after `share`."""

    are_traced: bool = False
    """Whether every rank makes a trace, so that they can compare their clocks; known after `share`."""

    def share(self, monitor: ZeusMonitor, units: Sequence[str] = (), is_traced: bool = False) -> list[int]:
        """Return the indices of the GPUs this rank counts: those that no rank before it measures too.

        Args:
            monitor: Measures the devices of this rank.
            units: The units this rank charges its energy in: "g", and a currency.
            is_traced: Whether this rank makes a trace.
        """
        told: list[list[Any]] = self.gather(
            lambda: [[gpu.uuid for gpu in monitor.gpus.values()], _cpu_uuids(monitor), list(units), is_traced]
        )
        gpus, cpus, charged, traced = ([rank[number] for rank in told] for number in range(4))
        self.are_traced = all(traced)
        self.units = list(dict.fromkeys(unit for of_rank in charged for unit in of_rank))
        self.gpu_count = len({uuid for uuids in gpus for uuid in uuids})
        without = [str(rank) for rank, uuids in enumerate(gpus) if not uuids]
        if self.rank == 0 and 0 < len(without) < self.size:
            _logger.warning("no GPU can be measured by rank %s: the totals exclude theirs", ", ".join(without))
        if self.rank == 0 and any(units != charged[0] for units in charged):
            _logger.warning(
                "the ranks were given different electricity (%s): what not all of them charge is left out; give the "
                "same electricity= on each",
                "; ".join(f"rank {rank}: {', '.join(units) or 'none'}" for rank, units in enumerate(charged)),
            )
        self.cpu_indices = self._own(list(monitor.cpus), cpus)
        return self._own(list(monitor.gpus), gpus)

    def _own(self, indices: Sequence[int], uuids: Sequence[Sequence[str]]) -> list[int]:
        """Return the indices of this rank's devices that are none of those of the ranks before it."""
        others = {uuid for others in uuids[: self.rank] for uuid in others}
        return [index for index, uuid in zip(indices, uuids[self.rank], strict=True) if uuid not in others]

    def combine(self, account: Callable[[], Account]) -> Account:
        """Add up the accounts of all ranks."""
        return account() if self.size == 1 else self.combine_all(account)[0]

    def combine_all(self, account: Callable[[], Account]) -> tuple[Account, WholeNumbers]:
        """Add up the accounts of all ranks; return it, and that of the others for `with_others`."""
        own = WholeNumbers()

        def tell() -> WholeNumbers:
            nonlocal own
            own = account().to_numbers(self.units)
            return own

        total = self.reduce(tell)
        others = [of_all - of_own for of_all, of_own in zip(total.sums, own.sums, strict=True)]
        return Account.from_numbers(total, self.units), WholeNumbers(others, total.largest)

    def with_others(self, own: Account, others: WholeNumbers | None) -> Account:
        """Add up a later account of this rank and those of the others by `combine_all`, if there was one."""
        if others is None:
            return own
        return Account.from_numbers(WholeNumbers.of_all([own.to_numbers(self.units), others]), self.units)


def _cpu_uuids(monitor: ZeusMonitor) -> list[str]:
    return [device.uuid for device in monitor.devices if device.kind == "cpu"]
