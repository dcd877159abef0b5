"""Emissions and cost of the energy of one part of a run. Imported only where the electricity is given."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from zeus_core.electricity import Electricity
from zeus_core.monitor import ZeusMonitor
from zeus_core.ports.time_source import clock_seconds
from zeus_core.training.account import Account
from zeus_core.training.activities.activity_split import ActivitySplit
from zeus_core.training.activities.host_energy import HostEnergy
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charging

_logger = logging.getLogger(__name__)

# A charge takes up to 3 ms. Where the power changes more often than this, it is not repeated each time.
_CLOSE_SECONDS = 0.2


class PartCharges:
    """Charges all energy of a part of a run: that of its GPUs, and of CPUs and memory where they are measured.

    Args:
        electricity: Its signals.
        monitor: Measures the devices.
        cpu_indices: The CPU packages to count.
        split: The energy of the GPUs, from the beginning of the part on.
    """

    def __init__(
        self, electricity: Electricity, monitor: ZeusMonitor, cpu_indices: Collection[int], split: ActivitySplit
    ) -> None:
        self._charging = Charging(electricity)
        self._host = HostEnergy(monitor, cpu_indices, split.reading)
        self._split = split
        self._time_source = monitor.time_source
        self._plan()

    def is_due(self, is_power_changing: bool = False) -> bool:
        """Whether to charge now: a signal or the power is about to change, or the latest charge is long ago."""
        now = self._time_source.now()
        return now >= self._due_at or (is_power_changing and now >= self._charged_at + _CLOSE_SECONDS)

    def added_to(self, account: Account) -> Account:
        """Charge what came since the latest call, and return the account of this rank with all charges of the part.

        Args:
            account: As of the latest `ActivitySplit.update` or `extend`. The counters of CPUs were read at the former:
                what they have counted since then is part of the next charge.
        """
        host, total = self._host.until(self._split.reading), account.total
        energy, lost_seconds = total.measured + host.measured, total.lost_seconds + host.lost_seconds
        self._charging.charge(Tally(total.seconds, energy, lost_seconds), clock_seconds(self._time_source))
        self._plan()
        return replace(account, host=host, charges=self._charging.charges)

    def _plan(self) -> None:
        self._charged_at = self._time_source.now()
        self._due_at = self._charged_at + self._charging.due_after_seconds


def warn_of_other_units(earlier: Account, electricity: Electricity) -> None:
    """Warn where the earlier parts of a run were not charged in the same units: there is no sum then."""
    if earlier.total.seconds == 0:
        return
    given = {signal.facts.amount_unit for signal in electricity.signals}
    known = {unit for unit, charge in earlier.charges.items() if charge.missed_seconds == 0}
    if given != known:
        _logger.warning(
            "electricity= charges in %s, and the earlier parts of this run were charged in %s: an amount that some of "
            "the run lacks is left out, and the result shows what is known of it",
            *(", ".join(sorted(given)), ", ".join(sorted(known)) or "nothing"),
        )
