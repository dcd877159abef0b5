"""How far a model of the power is off over some time, as seen over blocks of intervals. Pure."""

from __future__ import annotations

import math

__all__ = ["ModelError"]

_BLOCK_LENGTHS = 8  # up to 128 intervals
_MIN_BLOCKS = 3  # fewer tell nothing


class _Blocks:
    """The errors over blocks of one length."""

    def __init__(self) -> None:
        self.squares = self.seconds = 0.0
        self.count = 0
        self.waiting = (0.0, 0.0)  # the error and length of the first half of a block that is twice as long


class ModelError:
    """The errors over blocks of 1, 2, 4 and more intervals: those of neighbours add up, or cancel."""

    def __init__(self) -> None:
        self._lengths = [_Blocks() for _ in range(_BLOCK_LENGTHS)]

    def add(self, error_joules: float, seconds: float) -> None:
        """Note how far the model was off in the next interval."""
        for blocks in self._lengths:
            blocks.squares += error_joules * error_joules
            blocks.seconds += seconds
            blocks.count += 1
            if blocks.count % 2 == 1:
                blocks.waiting = (error_joules, seconds)
                return
            error_joules, seconds = error_joules + blocks.waiting[0], seconds + blocks.waiting[1]

    def stderr_joules(self, seconds: float) -> float | None:
        """Return the root mean square error over some time; None if it is not known."""
        known = [blocks for blocks in self._lengths if blocks.count >= _MIN_BLOCKS]
        if not known:
            return None
        for blocks in known:
            length = blocks.seconds / blocks.count
            if length >= seconds:
                return math.sqrt(blocks.squares / blocks.count * seconds / length)
        blocks = known[-1]
        return math.sqrt(blocks.squares / blocks.count) * seconds * blocks.count / blocks.seconds
