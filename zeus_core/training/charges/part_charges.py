"""Emissions and cost of the energy of one part of a run, CPUs included. Imported only where electricity is given."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from zeus_core.electricity import Electricity
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.counted_energy import rapl_energy
from zeus_core.monitor.reading import RaplReading, Reading
from zeus_core.ports.time_source import clock_seconds
from zeus_core.training.account import Account
from zeus_core.training.activities.activity_split import ActivitySplit
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


class _Moment(NamedTuple):
    at: float
    counter: RaplReading


class HostEnergy:
    """The energy of the CPU packages of a monitor, and of their memory, from one reading on.

    Their counters go on while they cannot be read: a reading that fails costs nothing once another one succeeds. The
    time since a counter stands still is lost.

    Args:
        monitor: Measures them.
        cpu_indices: The packages to count: those that no other rank counts.
        first: The reading at the beginning.
    """

    def __init__(self, monitor: ZeusMonitor, cpu_indices: Collection[int], first: Reading) -> None:
        self._begin = first.at
        self._counters = [
            _Counter(number, part, first.at)
            for number, (index, cpu) in enumerate(monitor.cpus.items())
            if index in cpu_indices
            for part in (("package", "dram") if cpu.has_dram else ("package",))
        ]
        self.until(first)

    def until(self, reading: Reading) -> Tally:
        """Return the time and energy from the beginning to a reading. Its time is 0 if there is no counter."""
        if not self._counters:
            return Tally()
        tallies = [counter.until(reading) for counter in self._counters]
        energy = sum((tally.measured for tally in tallies), DeviceEnergy())
        return Tally(reading.at - self._begin, energy, max(tally.lost_seconds for tally in tallies))


class _Counter:
    """The counter of a package or of its memory."""

    def __init__(self, number: int, part: str, begin: float) -> None:
        self._number = number
        self._part = part
        self._begin = begin
        self._first: _Moment | None = None
        self._last: _Moment | None = None

    def until(self, reading: Reading) -> Tally:
        counter = getattr(reading.cpus[self._number], self._part)
        if counter is not None and not counter.stands_still:
            self._last = _Moment(reading.at, counter)
            self._first = self._first or self._last
        if self._first is None or self._last is None or self._first is self._last:
            return Tally(lost_seconds=reading.at - self._begin)
        seconds = self._last.at - self._first.at
        energy = rapl_energy(self._first.counter, self._last.counter, None, seconds)
        if energy.energy_joules is None:
            return Tally(lost_seconds=reading.at - self._begin)
        return Tally(seconds, energy, reading.at - self._begin - seconds)
