"""Measuring one trial in as many windows as the pauses of training cut it into."""

import itertools
import statistics

from zeus_core.clock import Clock
from zeus_core.monitor import Measurement, ZeusMonitor
from zeus_core.search import Trial

__all__ = ["TrialRecorder"]

_numbers = itertools.count(1)


class TrialRecorder:
    """Collects the segments of one trial after another.

    A segment is an unbroken run of training steps, measured in one window of the monitor, which other windows may
    overlap.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._window = f"__zeus_core_power_limit_trial_{next(_numbers)}"
        self._clock: Clock = monitor.clock
        self._segments: list[Measurement] = []
        self._steps = 0
        self._step_seconds: list[float] = []
        self._step_ends: list[float] = []

    def open_segment(self) -> None:
        """Open the window of a segment."""
        self._monitor.begin_window(self._window, restart=True)
        self._step_ends = [self._clock.now()]

    def mark_step(self) -> None:
        """A step of the open segment has ended."""
        self._step_ends.append(self._clock.now())

    def close_segment(self, steps: int) -> None:
        """Close the window and keep it, if it holds any steps."""
        if steps == 0:
            self.drop_segment()
            return
        self._segments.append(self._monitor.end_window(self._window))
        self._steps += steps
        self._step_seconds += [end - begin for begin, end in itertools.pairwise(self._step_ends)]

    def drop_segment(self) -> None:
        """Close the window, if it is open, and forget it."""
        self._monitor.cancel(self._window)
        self._step_ends = []

    def drop_trial(self) -> None:
        """Forget the trial so far."""
        self.drop_segment()
        self._segments, self._steps, self._step_seconds = [], 0, []

    def finish_trial(self, setting: int) -> Trial | None:
        """The trial of all segments since the last one; None if some of its energy was lost."""
        measurement = self._segments[0]
        for segment in self._segments[1:]:
            measurement += segment
        deviation = statistics.stdev(self._step_seconds) if len(self._step_seconds) > 1 else 0.0
        trial = Trial(setting, self._steps, measurement, deviation)
        self.drop_trial()
        return trial if measurement.total_energy is not None else None
