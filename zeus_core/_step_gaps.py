"""The time between two steps: whether it is training, with loading of data and logging, or other work.

A gap lasts from the end of a step, or something else that the loop reports after it, until the next step begins or the
loop reports something. It is *unusual* if it lasts longer than the latest step, and

    g > 2 max(s, q)

where s is the median duration of the latest 40 steps, and q is such that one in eight of the latest 40 gaps, or fewer,
lasted longer: stalls that come as often belong to the loop.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from zeus_core.ports.accelerator import seconds_after, torch_event

# As for the steps of a trial: ragged batches differ by less. An evaluation of less than two steps is not worth a word.
_FACTOR = 2.0
_RARE = 7 / 8  # a loader of up to 7 processes that is too slow stalls more often, and evaluations come more rarely
_LATEST = 40
_MIN_STEPS = 5  # fewer tell no median
_MAX_LAG_SECONDS = 30.0  # of a GPU behind the program: its queue holds a thousand kernels


class StepGaps:
    """Finds unusual gaps. One thread reports; another one may ask `is_decided`.

    Where torch uses a GPU, a gap begins when that has finished the step: a program that runs ahead of it may wait for
    many steps at once. Moments are those of one clock, in seconds. `begin_step` and `report` return how long the gap
    lasted that they end if it is unusual, else None. `since` of an unusual gap stays as it is until `begin` or `stop`.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        """When the gap under way began; None if there is none."""
        self._event: Any = None  # the end of the step in the queue of the GPU
        self._step_began: float | None = None  # of a step under way
        self._is_timed = False  # nothing has interrupted it
        self._steps: deque[float] = deque(maxlen=_LATEST)
        self._gaps: deque[float] = deque(maxlen=_LATEST)
        self._short_seconds = math.inf  # shorter gaps are usual after any others

    def begin_step(self, now: float) -> float | None:
        """Begin a step."""
        self._step_began, self._is_timed = now, True
        return self.report(now)

    def end_step(self, now: float) -> None:
        """End the step, and begin a gap; nothing in a loop that does not report where steps begin."""
        if self._step_began is not None:
            seconds, self._step_began = now - self._step_began, None
            if self._is_timed:
                self._steps.append(seconds)
                if len(self._steps) >= _MIN_STEPS:
                    self._short_seconds = seconds
            self.since, self._event = now, torch_event()

    def begin(self, now: float) -> None:
        """Begin a gap, unless a step is under way or there was none."""
        self.since = now if self._step_began is None and self._steps else None

    def stop(self, *, is_training: bool = False) -> None:
        """Begin something else than a gap or a step. A step under way is not timed, unless that is training too."""
        self.since = None
        self._is_timed = self._is_timed and is_training

    def report(self, now: float) -> float | None:
        """End the gap under way, if there is one, and begin another unless a step is under way.

        It waits for the GPU if the gap looks unusual, and the GPU has finished the step: for other work only.
        """
        if self.since is None:
            return None
        seconds = now - self.since
        is_unusual = seconds > self._short_seconds and self._is_unusual(seconds)
        if is_unusual and seconds <= _MAX_LAG_SECONDS:
            after_step = seconds_after(self._event)
            seconds = seconds if after_step is None else after_step
            is_unusual = self._is_unusual(seconds)
        self._gaps.append(seconds)
        if is_unusual:
            return seconds
        self.since = now if self._step_began is None else None
        return None

    def is_decided(self, now: float) -> bool:
        """Return whether the gap is unusual, with any that follow."""
        since = self.since
        return since is not None and now - since > _MAX_LAG_SECONDS and self._is_unusual(now - since)

    def _is_unusual(self, seconds: float) -> bool:
        if seconds <= self._short_seconds:
            return False
        steps, gaps = sorted(self._steps), sorted(self._gaps)
        usual = max(steps[len(steps) // 2], gaps[int(_RARE * len(gaps))] if gaps else 0.0)
        return seconds > _FACTOR * usual
