"""The record of one GPU: its energy, its limit, its clock, its temperature."""

from __future__ import annotations

import math
from collections.abc import Callable

from zeus_core.attribution.updates import Knot
from zeus_core.device import Gpu
from zeus_core.device.gpu import read_temperature_celsius
from zeus_core.errors import DeviceError
from zeus_core.tracing._bounded import Ring, Thinned
from zeus_core.tracing._rank_events import Counters
from zeus_core.tracing.facts import DeviceFacts, Update, Updates

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
        self._temperature = Thinned(_POINTS, LOOK_SECONDS)
        self._last: tuple[float | None, ...] = None, None, None

    def add(self, begin: float, knot: Knot, is_counted: bool) -> None:
        """Add a moment at which the energy is known.

        Args:
            begin: The beginning of the trace, by the time source.
            knot: The moment.
            is_counted: Whether a counter showed it; else the powers were added up.
        """
        self._is_counted = is_counted
        update = Update(knot.at - begin, knot.half_width_seconds, knot.energy_joules)
        self.updates.add(update)
        self._earlier.add(update.at, update.energy_joules)

    def look(self, at: float) -> None:
        """Read the limit, the clock and the temperature, in the background."""
        gpu = self._gpu
        now = _answer(gpu.read_power_limit_watts), _answer(gpu.read_sm_clock_mhz), read_temperature_celsius(gpu)
        adds = self._add_limit, self._clock.add, self._temperature.add
        for value, before, add in zip(now, self._last, adds, strict=True):
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
        clock, temperature = (list(track.before(math.inf)) for track in (self._clock, self._temperature))
        return Counters(self.index, energy, self._limit.items(), clock, temperature)


def _answer(read: Callable[[], float]) -> float | None:
    try:
        return read()
    except DeviceError:
        return None
