"""Readings: what devices say at one moment, such as the edge of a window."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core.device.cpu import Cpu
from zeus_core.errors import DeviceError
from zeus_core.ports import TimeSource
from zeus_core.process.lock import ProcessLock

# A RAPL counter without an update for longer stands still. Updates come every millisecond; those that a host emulates
# for a virtual machine may come once a second.
_STILL_SECONDS = 1.1
_RAPL_PERIOD_SECONDS = 0.001  # counters are updated about every millisecond (Intel SDM, volume 3B, 15.10)


class Breaks(NamedTuple):
    """The failures of a counter up to an update, which left energy to be estimated.

    Attributes:
        number: How many there were.
        because: The latest reason.
        excess_joules: How much lower the true energy can be for all of them.
        missing_joules: How much higher it can be.
    """

    number: int = 0
    because: str | None = None
    excess_joules: float = 0.0
    missing_joules: float = 0.0


class CounterUpdate:
    """One update of an energy counter, which counts the energy up to the moment it happened.

    Attributes:
        joules: The energy up to the update. It goes on where a counter was reset: what was used meanwhile is estimated.
        counter_joules: The counter's value.
        after: The update happened after this moment.
        until: And by this one, the end of the first call that showed it.
        breaks: The failures of the counter before.
        next_joules: The energy up to the next update; None until it is seen, and if the counter fails before.
        next_until: When the next update had happened.
        doubtful_since: If the counter may have stopped with it unseen, the earliest moment of that.
        has_stopped: Whether it did: no other update has followed within a period.
    """

    next_joules: float | None = None
    next_until: float = 0.0
    doubtful_since: float | None = None
    has_stopped: bool = False

    def __init__(self, joules: float, counter_joules: float, after: float, until: float, breaks: Breaks) -> None:
        self.joules = joules
        self.counter_joules = counter_joules
        self.after = after
        self.until = until
        self.breaks = breaks


class PowerSums(NamedTuple):
    """Sums over the samples of a GPU's power up to a moment, from which an energy and its uncertainty follow.

    Attributes:
        energy_joules: The integral, by trapezoids.
        change_watts: All changes from one sample to the next, as magnitudes.
        delay_joules: Each change times the time between its two samples.
        squares: The square of the most that each change can be seen too late, in square joules.
        unseen_joules: The energy that the GPU may have drawn more, or less, between two samples.
        dropped: How many samples were impossible, and are bridged.
    """

    energy_joules: float = 0.0
    change_watts: float = 0.0
    delay_joules: float = 0.0
    squares: float = 0.0
    unseen_joules: float = 0.0
    dropped: int = 0


class GpuEdge(NamedTuple):
    """Readings of one GPU at one moment.

    Attributes:
        at: The moment, in seconds of the monitor's time source.
        counter_joules: The energy counter; None if the GPU has none, or it could not be read.
        power_watts: The power at that moment; None if it could not be read.
        fault: Why the energy up to this moment is not known by the counter, or by the power where there is none.
        update: The counter's latest update; None if no counter was read yet.
        seen_at: When the counter was last seen at that update.
        held_joules: The power readings since that update, each times the time until the next.
        sums: The sums over the samples; None if power is not sampled. Those of a counter begin at `still_from`.
        still_from: The latest reading at which the counter was seen to work; None if it still does.
    """

    at: float
    counter_joules: float | None
    power_watts: float | None
    fault: str | None = None
    update: CounterUpdate | None = None
    seen_at: float = 0.0
    held_joules: float = 0.0
    sums: PowerSums | None = None
    still_from: GpuEdge | None = None


class RaplReading(NamedTuple):
    """A RAPL counter at one moment.

    Attributes:
        at: The moment.
        joules: The counter.
        moved_at: When it was first seen at this value.
        still_before: The seconds in which it stood still before that, since it was read first.
        still_seconds: The same up to this moment.
    """

    at: float
    joules: float
    moved_at: float
    still_before: float = 0.0
    still_seconds: float = 0.0

    @property
    def stands_still(self) -> bool:
        """Whether it stands still at this moment."""
        return self.still_seconds > self.still_before

    @property
    def late_seconds(self) -> float:
        """The time since it moved, while that is not standing still."""
        return 0.0 if self.stands_still else self.at - self.moved_at


class CpuEdge(NamedTuple):
    """Readings of one CPU package at one moment; `fault` says why there are none."""

    package: RaplReading | None
    dram: RaplReading | None
    fault: str | None = None


class Reading(NamedTuple):
    """Readings of all devices of a monitor at one moment. Pass two of them to `ZeusMonitor.between`."""

    at: float
    gpus: list[GpuEdge]
    cpus: list[CpuEdge]

    @property
    def has_fault(self) -> bool:
        """Whether a GPU could not be read."""
        return any(edge.fault is not None for edge in self.gpus)

    def is_whole_since(self, begin: Reading) -> bool:
        """Whether all GPUs could be read at both moments, and no counter failed between them."""
        if self.has_fault or begin.has_fault:
            return False
        updates = [(first.update, last.update) for first, last in zip(begin.gpus, self.gpus, strict=True)]
        return all(not first or not last or first.breaks is last.breaks for first, last in updates)


class CpuMeter:
    """Reads the counters of a CPU package, and finds those that stand still. Several threads may use it.

    Args:
        cpu: The package.
        time_source: Source of the times of the readings.
    """

    def __init__(self, cpu: Cpu, time_source: TimeSource) -> None:
        self._cpu = cpu
        self._now = time_source.now
        self.period_seconds: float = getattr(cpu, "energy_counter_period_seconds", _RAPL_PERIOD_SECONDS)
        """The time between two updates of the counters."""
        self._still_seconds = max(_STILL_SECONDS, 2 * self.period_seconds)
        self._latest: CpuEdge | None = None
        self._lock = ProcessLock()

    def read(self) -> CpuEdge:
        """Read the counters. A fault is part of the answer."""
        with self._lock:  # readings of several threads must come in the order of time
            at = self._now()
            try:
                package_joules, dram_joules = self._cpu.read_energy_counters_joules()
            except DeviceError as error:
                return CpuEdge(None, None, str(error))
            before = self._latest or CpuEdge(None, None)
            dram = None if dram_joules is None else _followed(before.dram, at, dram_joules, self._still_seconds)
            edge = self._latest = CpuEdge(_followed(before.package, at, package_joules, self._still_seconds), dram)
            return edge


def _followed(before: RaplReading | None, at: float, joules: float, most_seconds: float) -> RaplReading:
    """Make a reading of one counter, by the one before; it stands still after `most_seconds` without an update."""
    if before is None:
        return RaplReading(at, joules, at)
    if joules != before.joules:
        return RaplReading(at, joules, at, before.still_seconds, before.still_seconds)
    seconds = at - before.moved_at
    still_seconds = before.still_before + seconds if seconds > most_seconds else before.still_before
    return before._replace(at=at, still_seconds=still_seconds)
