"""Work that takes another time than before, such as that of longer sequences: noticed after a few iterations. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

__all__ = ["WorkWatch", "is_other_work"]

# Iterations in a row that must show the change: a stall of the machine in one or two of them is none.
_PATIENCE_STEPS = 3

# Iterations before them whose median is taken as the usual time.
_USUAL_STEPS = 12

# Factor between the times from which on the work is taken for another one; machines slow down by less, which the
# comparisons every `check_steps` notice.
_MIN_CHANGE_FACTOR = 1.2


class WorkWatch:
    """The time that the computations of one rank take in an iteration, compared with what they took before."""

    def __init__(self) -> None:
        self._usual_seconds: deque[float] = deque(maxlen=_USUAL_STEPS)
        self._recent_seconds: deque[float] = deque(maxlen=_PATIENCE_STEPS)

    def add(self, seconds: float) -> None:
        """Add an iteration."""
        if len(self._recent_seconds) == _PATIENCE_STEPS:
            self._usual_seconds.append(self._recent_seconds[0])
        self._recent_seconds.append(seconds)

    @property
    def change_factor(self) -> float:
        """By what factor all of the recent iterations differ from the usual ones at least; 1.0 if that is not known."""
        usual_seconds = median(self._usual_seconds or [0.0])
        if usual_seconds <= 0:
            return 1.0
        shortest, longest = min(self._recent_seconds), max(self._recent_seconds)
        return shortest / usual_seconds if shortest > usual_seconds else min(longest / usual_seconds, 1.0)


def is_other_work(change_factors: Sequence[float]) -> bool:
    """Return whether the work has changed on all ranks; on some of them only, these have become slower or faster."""
    return min(change_factors) >= _MIN_CHANGE_FACTOR or max(change_factors) <= 1 / _MIN_CHANGE_FACTOR
