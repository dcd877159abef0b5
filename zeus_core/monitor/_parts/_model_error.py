"""How far the power of some time is off that of the times next to it, as seen over blocks of intervals. Pure."""

from __future__ import annotations

import math

__all__ = ["ModelError", "UnlikeParts"]

_BLOCK_LENGTHS = 8  # up to 128 intervals
_MIN_BLOCKS = 3  # fewer tell nothing


class _Blocks:
    """The errors over blocks of one length."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.count = 0
        self.squares = [0.0, 0.0]  # of the differences from the block before, and from the mean of both sides
        self.compared = [0, 0]
        self.restart()

    def restart(self) -> None:
        self.latest: list[float] = []  # watts of the latest two
        self.waiting: tuple[float, float] | None = None  # the error and length of the first half of one twice as long

    def add(self, watts: float, seconds: float) -> None:
        self.seconds += seconds
        self.count += 1
        differences = [watts - self.latest[-1]] if self.latest else []
        if len(self.latest) == 2:
            differences.append(self.latest[1] - (self.latest[0] + watts) / 2)
        for side, difference in enumerate(differences):
            self.squares[side] += difference**2
            self.compared[side] += 1
        self.latest = [*self.latest[-1:], watts]


class UnlikeParts:
    """How far the power of one part of a class is off that of the one before it, where parts may have their own."""

    def __init__(self) -> None:
        self._joules = self._seconds = 0.0  # of the part that goes on
        self._latest_watts: float | None = None
        self.squares = 0.0
        """The sum of those of all differences, in watts."""
        self.compared = 0

    def stderr_watts(self, expected_watts: float) -> float:
        """Return the root mean square difference, where one is expected that counts as much as one that was seen."""
        return math.sqrt((self.squares + expected_watts**2) / (self.compared + 1))

    def add(self, error_joules: float, seconds: float) -> None:
        """Note how far the model was off in the next interval within the part."""
        self._joules += error_joules
        self._seconds += seconds

    def see_edge(self) -> None:
        """Note that the part has ended."""
        if self._seconds == 0:
            return
        watts = self._joules / self._seconds
        if self._latest_watts is not None:
            self.squares += (watts - self._latest_watts) ** 2
            self.compared += 1
        self._latest_watts, self._joules, self._seconds = watts, 0.0, 0.0


class ModelError:
    """Compares blocks of 1, 2, 4 and more intervals with those next to them.

    An error that a model makes all the time does not count: what was seen around a gap tells what hides in it.
    """

    def __init__(self) -> None:
        self._lengths = [_Blocks() for _ in range(_BLOCK_LENGTHS)]

    def add(self, error_joules: float, seconds: float) -> None:
        """Note how far the model was off in the next interval."""
        for blocks in self._lengths:
            blocks.add(error_joules / seconds, seconds)
            if blocks.waiting is None:
                blocks.waiting = (error_joules, seconds)
                return
            error_joules, seconds = error_joules + blocks.waiting[0], seconds + blocks.waiting[1]
            blocks.waiting = None

    def restart(self) -> None:
        """Compare what follows with nothing before."""
        for blocks in self._lengths:
            blocks.restart()

    def stderr_joules(self, seconds: float, has_both_sides: bool = True) -> float | None:
        """Return the root mean square error over some time; None if it is not known.

        Args:
            seconds: How long.
            has_both_sides: Whether the times before and after are known.
        """
        known = [blocks for blocks in self._lengths if blocks.compared[has_both_sides] >= _MIN_BLOCKS]
        watts = 0.0
        for blocks in known:
            length = blocks.seconds / blocks.count
            watts = math.sqrt(blocks.squares[has_both_sides] / blocks.compared[has_both_sides])
            if length >= seconds:
                return watts * math.sqrt(length * seconds)
        return watts * seconds if known else None
