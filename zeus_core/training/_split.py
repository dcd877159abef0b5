"""Splitting time and energy among the activities of a run."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from zeus_core.events import Activity
from zeus_core.monitor import Reading, ZeusMonitor
from zeus_core.training._account import TRAINING
from zeus_core.training._tally import Tally

__all__ = ["ActivitySplit"]

_ALIGNED_AFTER_SECONDS = 0.5


class _Segment(NamedTuple):
    """An unbroken time of one activity."""

    activity: Activity
    begin: Reading
    end: Reading


class _Interrupted(NamedTuple):
    """What goes on once something else is over."""

    activity: Activity
    evaluation: tuple[Reading, Reading] | None  # of which it is part


class ActivitySplit:
    """Charges all time and energy, from when it is made, to one activity after the other; idleness comes first.

    A switch takes one reading, which ends the one activity and begins the other: nothing falls in between. Readings
    become surer within a moment, so that the energy of a segment is settled that much later.

    Args:
        monitor: Measures.
        gpu_indices: Those of its GPUs to count.
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
        """From now on do something else, and forget what it interrupts."""
        self._interrupted.clear()
        if activity is not self._activity:
            self._begin_segment(activity)

    def enter(self, activity: Activity) -> None:
        """From now on do something else, until `leave`."""
        self._interrupted.append(_Interrupted(self._activity, self._evaluation))
        if activity in TRAINING and self._activity is not Activity.STEPS:
            return  # text generated in an evaluation is part of the evaluation
        self._begin_segment(activity)
        if activity is Activity.EVALUATION:
            self._evaluation = (self._begin, self._begin)

    def leave(self) -> None:
        """Go on with what was interrupted last."""
        if not self._interrupted:
            return
        activity, evaluation = self._interrupted.pop()
        ended = self._activity
        self._begin_segment(activity)
        if activity is Activity.EVALUATION:
            self._evaluation = evaluation  # of which the one that has ended was a part
        elif ended is Activity.EVALUATION and self._evaluation is not None:
            self._evaluation = (self._evaluation[0], self._begin)

    def update(self) -> None:
        """Take note of what the present activity has taken up to this moment."""
        self._now = self._read()
        if self._begin.has_fault:
            self._begin_segment(self._activity)  # so that what follows is known at least
        if self._activity is Activity.EVALUATION and self._evaluation is not None:
            self._evaluation = (self._evaluation[0], self._now)

    @property
    def tallies(self) -> dict[Activity, Tally]:
        """What each activity has taken up to the latest switch or update."""
        tallies = dict(self._settled)
        for segment in [*self._segments, _Segment(self._activity, self._begin, self._now)]:
            self._charge(tallies, segment)
        return tallies

    @property
    def total(self) -> Tally:
        """All of it, up to the latest switch or update. Surer than the sum: measured from end to end."""
        whole = self._between(self._first, self._now)
        return whole if whole.lost_seconds == 0 else sum(self.tallies.values(), Tally())

    @property
    def evaluation(self) -> Tally | None:
        """What the present evaluation has taken up to the latest update, or the latest one; None if there was none."""
        return self._between(*self._evaluation) if self._evaluation is not None else None

    def _begin_segment(self, activity: Activity) -> None:
        # The passes within a step come too often to be watched, and their errors cancel: each begins where one ends.
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
