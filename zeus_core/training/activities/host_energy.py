"""The energy of CPU packages and their memory during a training run."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.counted_energy import rapl_energy
from zeus_core.monitor.reading import RaplReading, Reading
from zeus_core.training.activities.tally import Tally


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

    @property
    def is_measured(self) -> bool:
        """Whether there is a counter at all."""
        return bool(self._counters)

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
