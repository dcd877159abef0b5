"""The energy of a device over time, in a bounded number of points. Pure."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

# A picture is 800 points wide at most, of which half as many are left after halving. 64 GPUs take 0.4 MB in a run file.
_MAX_POINTS = 240
_FIRST_SPACING_SECONDS = 1.0  # ten updates of a counter: the mean power between two points is then within some percent


class EnergyPoint(NamedTuple):
    """The energy of a device until a moment.

    Attributes:
        seconds: Since the beginning.
        joules: Since then; the mean power between two points is exact, as the energy is.
    """

    seconds: float
    joules: float


class PowerSeries:
    """Keeps points at even spacings, which double whenever there are too many."""

    def __init__(self) -> None:
        self._points = [EnergyPoint(0.0, 0.0)]
        self._latest = self._points[0]
        self._spacing_seconds = _FIRST_SPACING_SECONDS

    @property
    def points(self) -> tuple[EnergyPoint, ...]:
        """The points, with the latest one."""
        return tuple(self._points if self._latest is self._points[-1] else [*self._points, self._latest])

    def add(self, seconds: float, joules: float) -> None:
        """Add the energy until a moment after the latest one; an earlier one, or less, is left out."""
        if seconds <= self._latest.seconds or joules < self._latest.joules:
            return
        self._latest = EnergyPoint(round(seconds, 3), round(joules, 3))
        if seconds - self._points[-1].seconds >= self._spacing_seconds:
            self._points.append(self._latest)
        if len(self._points) > _MAX_POINTS:
            self._points = self._points[::2]
            self._spacing_seconds *= 2


def joules_at(points: Sequence[EnergyPoint], seconds: float) -> float:
    """Return the energy until a moment, at the mean power between the points around it."""
    after = bisect.bisect_left(points, (seconds, -math.inf))
    if after == 0:
        return points[0].joules
    if after == len(points):
        return points[-1].joules
    a, b = points[after - 1], points[after]
    return a.joules + (b.joules - a.joules) * (seconds - a.seconds) / (b.seconds - a.seconds)
