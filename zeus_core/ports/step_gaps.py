"""The time between two steps: whether it is training, with loading of data and logging, or other work.

A gap lasts from the end of a step, or something else that the loop reports after it, until the next step begins or the
loop reports something. It is *unusual* if it lasts longer than the latest step, and

    g > 2 max(s, q)

where s is the median duration of the latest 40 steps, and q is such that one in eight of the latest 40 gaps, or fewer,
lasted longer: stalls that come as often belong to the loop.

A loop that reports where steps end, and nothing else, has no gaps: its steps last from one end to the next. Such a step
of t seconds is unusual by the same rule, with the times of the latest steps in place of the gaps and their mean in
place of s, since a program that runs ahead of its GPU waits for many steps at once, if it lasts 0.1 s longer than
median(t). Then all but its last median(t) seconds belong to no step.
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
_MIN_STEPS = 5  # fewer have no median
# Counters are updated no more often than each 20 to 100 ms: a shorter excess is noise of a program.
_MIN_EXCESS_SECONDS = 0.1
_MAX_LAG_SECONDS = 30.0  # of a GPU behind the program: its queue holds a thousand kernels


class StepGaps:
    """Finds unusual gaps. One thread reports; another one may ask `unusual_since`.

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
        self._unended: deque[float] = deque(maxlen=_LATEST)  # steps, from one to the next, whose end was not reported
        self._has_stepped = False
        self._has_gaps = True  # and not steps alone, each from one end to the next

    def begin_step(self, now: float) -> float | None:
        """Begin a step."""
        if self._step_began is not None and self._is_timed:
            self._unended.append(now - self._step_began)
        self._step_began, self._is_timed = now, True
        return self.report(now)

    def end_step(self, now: float) -> None:
        """End the step, and begin a gap; in a loop that does not report where steps begin, the next step."""
        self.since, self._event, self._has_stepped = now, None, True
        if self._step_began is not None:
            self._event = torch_event()
            seconds, self._step_began = now - self._step_began, None
            if self._is_timed:
                self._steps.append(seconds)
                if len(self._steps) >= _MIN_STEPS:
                    self._short_seconds = seconds

    def excess(self, now: float) -> tuple[float, float]:
        """Return for how long the step under way, in a loop that reports ends of steps alone, was none; and the rest.

        It waits for the GPU as `report` does. The first is 0 of a step that is usual, or not the whole time since the
        latest one.
        """
        self._has_gaps = False
        if self._step_began is None or not self._is_timed:
            return 0.0, 0.0
        seconds = now - self._step_began
        usual = self._usual_step(seconds)
        if usual is not None and seconds <= _MAX_LAG_SECONDS:
            after_step = seconds_after(self._event)
            seconds = seconds if after_step is None else min(seconds, after_step)
            usual = self._usual_step(seconds)
        return (0.0, seconds) if usual is None else (seconds - usual, usual)

    def begin(self, now: float) -> None:
        """Begin a gap, unless a step is under way or there was none."""
        self.since = now if self._step_began is None and self._has_stepped else None

    def last(self, now: float) -> tuple[float, bool]:
        """Return how long the gap has lasted that is under way, and that no step follows; and whether it is unusual.

        Without a gap, it is the time for which the step under way has lasted longer than those before it, whose ends
        were not reported; 0 if it is no longer than two of them. In a loop that reports ends of steps alone, no step is
        under way, and all of it is other work, such as a test or a checkpoint.
        """
        if not self._has_gaps and self._step_began is not None:
            return now - self._step_began, True
        if self.since is not None:
            after_step = seconds_after(self._event)
            seconds = now - self.since if after_step is None else min(after_step, now - self.since)
            return seconds, self._is_unusual(seconds)
        if self._step_began is None or not self._unended:
            return 0.0, False
        usual, seconds = sorted(self._unended)[len(self._unended) // 2], now - self._step_began
        return (seconds - usual if seconds > _FACTOR * usual else 0.0), False

    def open_since(self, now: float) -> float:
        """Return the moment from which it is not known yet whether the time belongs to a step; now if all is known."""
        is_open = self.since is not None or self._unended or not self._has_gaps
        since = (self._step_began if self.since is None else self.since) if is_open else None
        if since is not None and not self._has_gaps and now - since > _MAX_LAG_SECONDS:
            return max(now - (self._usual_step(now - since) or 0.0), since)
        return now if since is None or (self.since is None and now - since > _MAX_LAG_SECONDS) else since

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

    def unusual_since(self, now: float) -> float | None:
        """Return the moment since which all time is in none of the latest steps, as is certain already; else None."""
        since = self.since if self._has_gaps else self._step_began
        if since is None or now - since <= _MAX_LAG_SECONDS:
            return None
        is_unusual = self._is_unusual(now - since) if self._has_gaps else self._usual_step(now - since) is not None
        return since if is_unusual else None

    def _usual_step(self, seconds: float) -> float | None:
        """Return the usual time of a step if one of so many seconds is unusual; None if it is not."""
        if len(self._steps) < _MIN_STEPS:
            return None
        steps = sorted(self._steps)
        longest = max(math.fsum(steps) / len(steps), steps[int(_RARE * len(steps))])
        usual = steps[len(steps) // 2]
        return usual if seconds > max(_FACTOR * longest, usual + _MIN_EXCESS_SECONDS) else None

    def _is_unusual(self, seconds: float) -> bool:
        if seconds <= self._short_seconds:
            return False
        steps, gaps = sorted(self._steps), sorted(self._gaps)
        usual = max(steps[len(steps) // 2], gaps[int(_RARE * len(gaps))] if gaps else 0.0)
        return seconds > _FACTOR * usual
