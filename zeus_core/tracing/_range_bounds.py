"""The energy of any time, as far as the updates of a counter around it and the peak power prove it. Pure."""

from __future__ import annotations

import bisect
import math

from zeus_core.tracing._facts import DeviceFacts

__all__ = ["Bounds"]


class Bounds:
    """The energy of a device between any two moments, as far as it is certain.

    Args:
        device: The device, with its updates.
    """

    def __init__(self, device: DeviceFacts) -> None:
        self._updates = list(device.updates.unpacked())
        self._moments = [update.at for update in self._updates]
        self._peak_watts = device.peak_watts

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """Return the least and the most joules of a time."""
        (low_begin, high_begin), (low_end, high_end) = self._by(begin), self._by(end)
        most = self._peak_watts * (end - begin)
        return min(max(low_end - high_begin, 0.0), most), max(min(high_end - low_begin, most), 0.0)

    def _by(self, moment: float) -> tuple[float, float]:
        """Return the least and the most that the counter, if it were always up to date, could show at a moment."""
        number = bisect.bisect_right(self._moments, moment)
        low, high = -math.inf, math.inf
        # Two on each side: the nearest one may itself be earlier or later than it seems.
        for before in self._updates[max(number - 2, 0) : number]:
            seconds = moment - before.at
            if seconds >= before.half_width_seconds:
                low = max(low, before.energy_joules)
            high = min(high, before.energy_joules + self._peak_watts * (seconds + before.half_width_seconds))
        for after in self._updates[number : number + 2]:
            seconds = after.at - moment
            if seconds >= after.half_width_seconds:
                high = min(high, after.energy_joules)
            low = max(low, after.energy_joules - self._peak_watts * (seconds + after.half_width_seconds))
        return low, high
