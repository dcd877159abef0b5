"""The record of one GPU: its energy, its limit, its clock."""

from __future__ import annotations

import math
from collections.abc import Callable

from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.monitor._parts._counter_phase import Knot
from zeus_core.monitor._parts._energy_source import EnergySource
from zeus_core.tracing._bounded import Ring, Thinned
from zeus_core.tracing._facts import DeviceFacts, Update, Updates
from zeus_core.tracing._rank_events import Counters

__all__ = ["LOOK_SECONDS", "GpuRecord", "RecordedSource"]

_UPDATES = 10_000  # of a counter: at 10 a second, the last quarter of an hour
_POINTS = 1_200  # of each counter track before that
LOOK_SECONDS = 1.0
"""Between two reads of limit and clock, and, at first, between two points of the tracks before the last updates."""


class GpuRecord:
    """One GPU in time.

    Args:
        index: The index by which the framework knows it.
        gpu: The GPU.
        peak_watts: The most it can draw.
    """

    def __init__(self, index: int, gpu: Gpu, peak_watts: float) -> None:
        self.index = index
        self._gpu = gpu
        self._peak_watts = peak_watts
        self._is_counted = True
        self.updates: Ring[Update] = Ring(_UPDATES)
        self._earlier = Thinned(_POINTS, LOOK_SECONDS)
        self._limit: Ring[tuple[float, float]] = Ring(_POINTS)
        self._clock = Thinned(_POINTS, LOOK_SECONDS)
        self._last: tuple[float | None, float | None] = None, None

    def add(self, update: Update, is_counted: bool) -> None:
        """Add an update."""
        self._is_counted = is_counted
        self.updates.add(update)
        self._earlier.add(update.at, update.energy_joules)

    def look(self, at: float) -> None:
        """Read the limit and the clock, in the background."""
        now = _answer(self._gpu.read_power_limit_watts), _answer(self._gpu.read_sm_clock_mhz)
        for value, before, add in zip(now, self._last, (self._add_limit, self._clock.add), strict=True):
            if value is not None and value != before:
                add(at, value)
        self._last = now

    def _add_limit(self, at: float, limit_watts: float) -> None:
        self._limit.add((at, limit_watts))

    def facts(self) -> DeviceFacts:
        """Return the facts of the GPU."""
        updates = Updates.from_updates(self.updates.items())
        return DeviceFacts(self.index, self._gpu.uuid, self._gpu.name, self._peak_watts, self._is_counted, updates)

    def counters(self) -> Counters:
        """Return the counter tracks."""
        updates = self.updates.items()
        since = updates[0].at if updates else math.inf
        energy = [*self._earlier.before(since), *((update.at, update.energy_joules) for update in updates)]
        energy = [point for point in energy if point[0] >= 0]  # readers drop what is before the beginning
        return Counters(self.index, energy, self._limit.items(), list(self._clock.before(math.inf)))


class RecordedSource:
    """An `EnergySource` that tells a record each moment at which the energy is known, once it is known well.

    Args:
        source: The source.
        record: Takes the moments.
        begin: The beginning of the trace, by the time source.
    """

    def __init__(self, source: EnergySource, record: GpuRecord, begin: float) -> None:
        self._source = source
        self._record = record
        self._begin = begin
        # Bound methods, so that a read costs no further call.
        self.add = source.add
        self.pending_knots = source.pending_knots
        self.is_read_due = source.is_read_due
        self.stands_still = source.stands_still
        self.plan_read = source.plan_read
        self.next_look_at = source.next_look_at

    @property
    def is_of_power(self) -> bool:
        """Whether it adds up powers."""
        return self._source.is_of_power

    @property
    def is_known(self) -> bool:
        """Whether its moments are known as well as they will be."""
        return self._source.is_known

    @property
    def period_seconds(self) -> float:
        """The time between two of them."""
        return self._source.period_seconds

    @property
    def half_width_seconds(self) -> float:
        """How far all of them can be off together."""
        return self._source.half_width_seconds

    @property
    def uncertainty_joules(self) -> float:
        """How far the energy can be off."""
        return self._source.uncertainty_joules

    def knots_before(self, moment: float) -> list[Knot]:
        """Return the moments, each once."""
        knots = self._source.knots_before(moment)
        for knot in knots:
            update = Update(knot.at - self._begin, knot.half_width_seconds, knot.energy_joules)
            self._record.add(update, not self._source.is_of_power)
        return knots


def _answer(read: Callable[[], float]) -> float | None:
    try:
        return read()
    except DeviceError:
        return None
