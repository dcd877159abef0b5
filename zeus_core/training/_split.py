"""Splits time and energy among the activities of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._reading import Reading
from zeus_core.training._account import TRAINING
from zeus_core.training._tally import Tally

__all__ = ["ActivitySplit"]

# Readings are refined from later updates of the energy counter, which come every 0.1 s; a few of them suffice.
_ALIGNED_AFTER_SECONDS = 0.5


class _Segment(NamedTuple):
    """An uninterrupted time of one activity."""

    activity: Activity
    begin: Reading
    end: Reading


class _Interrupted(NamedTuple):
    """An activity that continues when the one that interrupts it has ended."""

    activity: Activity
    evaluation: tuple[Reading, Reading] | None  # the one that it is part of


class ActivitySplit:
    """Charges all time and energy, from its creation on, to one activity after the other; the first is idle.

    A switch takes one reading, which ends one activity and begins the other: nothing falls in between. Readings become
    more certain within a moment, so the energy of a segment is settled that much later.

    Args:
        monitor: Measures the GPUs.
        gpu_indices: The GPUs of the monitor to count.
    """

    def __init__(self, monitor: ZeusMonitor, gpu_indices: Collection[int]) -> None:
        self._monitor = monitor
        self._gpu_indices = gpu_indices
        self._activity = Activity.IDLE
        self._interrupted: list[_Interrupted] = []
        self._settled: dict[Activity, Tally] = {}
        self._segments: list[_Segment] = []
        self._first = self._begin = self._now = self._read(align=True)
        self._evaluation: tuple[Reading, Reading] | None = None

    def switch(self, activity: Activity) -> None:
        """Begin an activity, and forget the ones it interrupts."""
        self._interrupted.clear()
        if activity is not self._activity:
            self._begin_segment(activity)

    def enter(self, activity: Activity) -> None:
        """Begin an activity, until `leave`."""
        self._interrupted.append(_Interrupted(self._activity, self._evaluation))
        if activity in TRAINING and self._activity is not Activity.STEPS:
            return  # text generated in an evaluation is part of it
        self._begin_segment(activity)
        if activity is Activity.EVALUATION:
            self._evaluation = (self._begin, self._begin)

    def leave(self) -> None:
        """Continue with the activity that was interrupted last."""
        if not self._interrupted:
            return
        activity, evaluation = self._interrupted.pop()
        ended = self._activity
        self._begin_segment(activity)
        if activity is Activity.EVALUATION:
            self._evaluation = evaluation  # the one that has ended was part of it
        elif ended is Activity.EVALUATION and self._evaluation is not None:
            self._evaluation = (self._evaluation[0], self._begin)

    def update(self) -> None:
        """Charge the current activity up to this moment."""
        self._now = self._read()
        if self._begin.has_fault:
            self._begin_segment(self._activity)  # measures at least the time that follows
        if self._activity is Activity.EVALUATION and self._evaluation is not None:
            self._evaluation = (self._evaluation[0], self._now)

    @property
    def tallies(self) -> dict[Activity, Tally]:
        """Time and energy of each activity, up to the latest switch or update."""
        tallies = dict(self._settled)
        for segment in [*self._segments, _Segment(self._activity, self._begin, self._now)]:
            self._charge(tallies, segment)
        return tallies

    @property
    def total(self) -> Tally:
        """All time and energy, measured from end to end, and so more certain than the sum of the activities."""
        whole = self._between(self._first, self._now)
        return whole if whole.lost_seconds == 0 else sum(self.tallies.values(), Tally())

    @property
    def evaluation(self) -> Tally | None:
        """Time and energy of the current or latest evaluation, up to the latest update; None if there was none."""
        return self._between(*self._evaluation) if self._evaluation is not None else None

    def _begin_segment(self, activity: Activity) -> None:
        # The passes within a step come too often to be aligned, and their errors cancel: each begins where one ends.
        align = not (activity in TRAINING and self._activity in TRAINING)
        begin, self._begin = self._begin, self._read(align)
        self._segments.append(_Segment(self._activity, begin, self._begin))
        self._activity, self._now = activity, self._begin
        while self._segments[0].end.at < self._now.at - _ALIGNED_AFTER_SECONDS:
            self._charge(self._settled, self._segments.pop(0))

    def _charge(self, tallies: dict[Activity, Tally], segment: _Segment) -> None:
        tally = self._between(segment.begin, segment.end)
        tallies[segment.activity] = tallies.get(segment.activity, Tally()) + tally

    def _between(self, begin: Reading, end: Reading) -> Tally:
        return Tally.from_measurement(self._monitor.between(begin, end), self._gpu_indices)

    def _read(self, align: bool = False) -> Reading:
        reading = self._monitor.read(align=align)
        return self._monitor.read(sync_execution=False, align=align) if reading.has_fault else reading
