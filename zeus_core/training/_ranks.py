"""The exchanges of a training run: who counts which GPU, and the account of all ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from zeus_core.device.gpu import uuid_in_job
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.exchange import Exchange
from zeus_core.ports.world import WholeNumbers
from zeus_core.training.account import Account, unusual_activities

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
        own: list[list[str]] = []

        def devices() -> list[Any]:
            own[:] = [uuid_in_job(gpu) for gpu in monitor.gpus.values()], _cpu_uuids(monitor)
            return [*own, list(units), is_traced]

        of_ranks = self.gather_first(devices)
        shared = self.decide(lambda: self._shared(of_ranks or []))
        self.gpu_count, self.units, self.are_traced = shared["gpu_count"], shared["units"], shared["are_traced"]
        gpu_uuids, cpu_uuids = own
        first_ranks_of_gpus, first_ranks_of_cpus = shared["first_ranks"]
        self.cpu_indices = self._own(monitor.cpus, cpu_uuids, first_ranks_of_cpus)
        return self._own(monitor.gpus, gpu_uuids, first_ranks_of_gpus)

    def _own(self, indices: Iterable[int], uuids: Sequence[str], first_ranks: Mapping[str, int]) -> list[int]:
        """Return the indices of this rank's devices that are none of those of the ranks before it."""
        numbered = zip(indices, uuids, strict=True)
        return [index for index, uuid in numbered if first_ranks.get(uuid, self.rank) == self.rank]

    def _shared(self, ranks: Sequence[Sequence[Any]]) -> dict[str, Any]:
        """Return, on the first rank, what all need to know of the devices of all: which have several ranks."""
        gpus, cpus, charged, traced = zip(*ranks, strict=True)
        without = [str(rank) for rank, uuids in enumerate(gpus) if not uuids]
        if 0 < len(without) < self.size:
            _logger.warning("no GPU can be measured by rank %s: the totals exclude theirs", ", ".join(without))
        if any(units != charged[0] for units in charged):
            _logger.warning(
                "the ranks were given different electricity (%s): what not all of them charge is left out; give the "
                "same electricity= on each",
                "; ".join(f"rank {rank}: {', '.join(units) or 'none'}" for rank, units in enumerate(charged)),
            )
        return {
            "gpu_count": len({uuid for uuids in gpus for uuid in uuids}),
            "units": list(dict.fromkeys(unit for units in charged for unit in units)),
            "are_traced": all(traced),
            "first_ranks": [_first_ranks(gpus), _first_ranks(cpus)],
        }

    activities: Sequence[Activity] = ()
    """The `unusual_activities` on which the ranks agree; see `combine_all`."""

    def combine(self, account: Callable[[], Account]) -> Account:
        """Add up the accounts of all ranks."""
        return account() if self.size == 1 else self.combine_all(account)[0]

    def combine_all(self, account: Callable[[], Account]) -> tuple[Account, WholeNumbers]:
        """Add up the accounts of all ranks; return it, and that of the others for `with_others`.

        The sums hold how many activities some rank has that are not agreed on yet. If there are any, all ranks know,
        and exchange the names, and the sums once more.
        """
        known: list[Account] = []

        def first() -> Account:
            known.append(account())
            return known[0]

        total, others = self._sums(first)
        if total.sums[-1] > 0:
            of_ranks = self.gather_first(lambda: list(known[0].activities))
            of_all = self.decide(lambda: self._agreed(map(Activity, chain(*(of_ranks or [])))))
            self.activities = tuple(map(Activity, of_all))
            total, others = self._sums(lambda: known[0])
        return self._account(total), others

    def _sums(self, account: Callable[[], Account]) -> tuple[WholeNumbers, WholeNumbers]:
        """Return the numbers of all ranks, and of the others."""
        own = WholeNumbers()

        def numbers() -> WholeNumbers:
            nonlocal own
            own = self._numbers(account())
            return own

        total = self.reduce(numbers)
        others = [of_all - of_own for of_all, of_own in zip(total.sums, own.sums, strict=True)]
        return total, WholeNumbers(others, total.largest)

    def _numbers(self, account: Account) -> WholeNumbers:
        """Return the numbers of an account; the last sum is how many of its activities are not agreed on."""
        numbers = account.to_numbers(self.units, self.activities)
        unknown = len(self._agreed(account.activities)) - len(self.activities)
        return WholeNumbers((*numbers.sums, unknown), numbers.largest)

    def _agreed(self, activities: Iterable[Activity]) -> tuple[Activity, ...]:
        """Return the activities that are agreed on, with further ones."""
        return unusual_activities([*self.activities, *activities])

    def _account(self, numbers: WholeNumbers) -> Account:
        return Account.from_numbers(WholeNumbers(numbers.sums[:-1], numbers.largest), self.units, self.activities)

    def with_others(self, own: Account, others: WholeNumbers | None) -> Account:
        """Add up a later account of this rank and those of the others by `combine_all`, if there was one."""
        return own if others is None else self._account(WholeNumbers.of_all([self._numbers(own), others]))


def _first_ranks(uuids: Sequence[Sequence[str]]) -> dict[str, int]:
    """Return the first rank of each device that several ranks measure."""
    ranks: dict[str, list[int]] = {}
    for rank, own in enumerate(uuids):
        for uuid in own:
            ranks.setdefault(uuid, []).append(rank)
    return {uuid: several[0] for uuid, several in ranks.items() if len(several) > 1}


def _cpu_uuids(monitor: ZeusMonitor) -> list[str]:
    return [device.uuid for device in monitor.devices if device.kind == "cpu"]
