"""The measurement of one trial, in as many windows as pauses of training make of it, on each of the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from zeus_core.monitor import Measurement, ZeusMonitor
from zeus_core.search import Trial
from zeus_core.search._comparison import standard_deviation

__all__ = ["TrialPart", "TrialRecorder", "trial_from_parts"]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class TrialPart:
    """The part of one rank in a trial.

    Attributes:
        steps: The steps it measured.
        measurement: Their time, and the energy of its GPUs; None without steps.
        step_seconds_deviation: Standard deviation of the duration of one step, in seconds.
        is_spoiled: Whether the part holds work that is not training.
    """

    steps: int
    measurement: Measurement | None
    step_seconds_deviation: float
    is_spoiled: bool


class TrialRecorder:
    """Collects the segments of one trial after another.

    A segment is an unbroken run of training steps, measured in one window of the monitor, which other windows may
    overlap.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._window = f"__zeus_core_power_limit_trial_{next(_numbers)}"
        self._segments: list[Measurement] = []
        self._is_catching_up = False
        self._is_spoiled = False
        self._step_seconds: list[float] = []
        self._step_ends: list[float] = []
        self.skips_next_step = False
        """Whether a segment that is opened now leaves out its first step: other ranks may be behind, and delay it."""

    def open_segment(self) -> None:
        """Open the window of a segment."""
        self._is_catching_up = self.skips_next_step
        if not self._is_catching_up:
            self._begin_window()

    def mark_step(self) -> None:
        """Note the end of a step of the open segment."""
        if self._is_catching_up:
            self._is_catching_up = False
            self._begin_window()
        else:
            self._step_ends.append(self._monitor.time_source.now())

    def close_segment(self) -> None:
        """Close the window and keep it, if it holds any steps."""
        if len(self._step_ends) > 1:
            self._segments.append(self._monitor.end_window(self._window))
            self._step_seconds += [end - begin for begin, end in itertools.pairwise(self._step_ends)]
        self.drop_segment()

    def drop_segment(self) -> None:
        """Close the window, if it is open, and forget it."""
        self._monitor.cancel(self._window)
        self._step_ends = []

    def spoil_trial(self) -> None:
        """Note that the trial holds work that is not training."""
        self._is_spoiled = True

    def drop_trial(self) -> None:
        """Forget the trial so far."""
        self.drop_segment()
        self._segments, self._step_seconds, self._is_spoiled = [], [], False

    def finish_trial(self) -> TrialPart:
        """Return this rank's part in the trial since the last one."""
        self.close_segment()
        segments, step_seconds = self._segments, self._step_seconds
        part = TrialPart(
            len(step_seconds),
            sum(segments[1:], start=segments[0]) if segments else None,
            standard_deviation(step_seconds) if len(step_seconds) > 1 else 0.0,
            self._is_spoiled,
        )
        self.drop_trial()
        return part

    def _begin_window(self) -> None:
        self._monitor.begin_window(self._window, restart=True)
        self._step_ends = [self._monitor.time_source.now()]


def trial_from_parts(setting: int, parts: Sequence[TrialPart]) -> Trial | None:
    """Return the trial that all ranks had a part in; None if energy was lost, or ranks measured different steps.

    It lasted as long as on the slowest rank. Its energy is that of all GPUs, each counted once.
    """
    steps = parts[0].steps
    measurements = [part.measurement for part in parts if part.measurement is not None]
    if not measurements or any(part.steps != steps or part.is_spoiled for part in parts):
        return None
    measurement = Measurement.from_ranks(measurements)
    if measurement.total_energy is None:
        return None
    return Trial(setting, steps, measurement, max(part.step_seconds_deviation for part in parts))
