"""Measuring one trial in as many windows as the pauses of training cut it into, on each of the ranks."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from zeus_core.monitor import Measurement, ZeusMonitor
from zeus_core.ports import TimeSource
from zeus_core.search import Trial

__all__ = ["TrialRecorder", "trial_of"]

_numbers = itertools.count(1)


class TrialRecorder:
    """Collects the segments of one trial after another.

    A segment is an unbroken run of training steps, measured in one window of the monitor, which other windows may
    overlap.
    """

    def __init__(self, monitor: ZeusMonitor) -> None:
        self._monitor = monitor
        self._window = f"__zeus_core_power_limit_trial_{next(_numbers)}"
        self._time_source: TimeSource = monitor.time_source
        self._segments: list[Measurement] = []
        self._is_catching_up = False
        self._is_spoiled = False
        self._step_seconds: list[float] = []
        self._step_ends: list[float] = []

    def open_segment(self, catches_up: bool = False) -> None:
        """Open the window of a segment; after its first step, if other ranks may be behind and hold that one up."""
        self._is_catching_up = catches_up
        if not catches_up:
            self._monitor.begin_window(self._window, restart=True)
            self._step_ends = [self._time_source.now()]

    def mark_step(self) -> None:
        """A step of the open segment has ended."""
        if self._is_catching_up:
            self.open_segment()
        else:
            self._step_ends.append(self._time_source.now())

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
        """Something that is not training has got into the trial."""
        self._is_spoiled = True

    def drop_trial(self) -> None:
        """Forget the trial so far."""
        self.drop_segment()
        self._segments, self._step_seconds, self._is_spoiled = [], [], False

    def finish_trial(self) -> dict[str, Any]:
        """This rank's part in the trial of all segments since the last one, in JSON's types, for `trial_of`."""
        part = {
            "steps": len(self._step_seconds),
            "measured": sum(self._segments[1:], start=self._segments[0]).to_json() if self._segments else None,
            "deviation_seconds": statistics.stdev(self._step_seconds) if len(self._step_seconds) > 1 else 0.0,
            "is_spoiled": self._is_spoiled,
        }
        self.drop_trial()
        return part


def trial_of(setting: int, parts: Sequence[Mapping[str, Any]]) -> Trial | None:
    """The trial all ranks had a part in; None if some of its energy was lost, or ranks have measured other steps.

    It lasted as long as on the slowest rank, and took what all GPUs took, each counted once.
    """
    steps = parts[0]["steps"]
    if steps == 0 or any(part["steps"] != steps for part in parts):
        return None
    measurement = Measurement.from_ranks(Measurement.from_json(part["measured"]) for part in parts)
    if measurement.total_energy is None:
        return None
    return Trial(setting, steps, measurement, max(part["deviation_seconds"] for part in parts))
