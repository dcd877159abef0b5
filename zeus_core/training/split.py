"""Splitting time and energy among the activities of a run."""

from __future__ import annotations

from collections.abc import Collection

from zeus_core.events import Activity
from zeus_core.monitor import Reading, ZeusMonitor
from zeus_core.training.account import TRAINING
from zeus_core.training.tally import Tally, tally_of

__all__ = ["ActivitySplit"]


class ActivitySplit:
    """Charges all time and energy, from when it is made, to one activity after the other; idleness comes first.

    A switch takes one reading, which ends the one activity and begins the other: nothing falls in between.

    Args:
        monitor: Measures.
        gpu_indices: Those of its GPUs to count.
    """

    def __init__(self, monitor: ZeusMonitor, gpu_indices: Collection[int]) -> None:
        self._monitor = monitor
        self._gpu_indices = gpu_indices
        self._activity = Activity.IDLE
        self._interrupted: list[Activity] = []
        self._evaluation = self._evaluation_begin = Tally()
        self._first = self._latest = self._read()
        self.tallies: dict[Activity, Tally] = {}
        """What each activity has taken up to the latest switch or update."""

    def switch(self, activity: Activity) -> None:
        """From now on do something else, and forget what it interrupts."""
        self._interrupted.clear()
        self._switch(activity)

    def enter(self, activity: Activity) -> None:
        """From now on do something else, until `leave`."""
        self._interrupted.append(self._activity)
        if activity in TRAINING and self._activity is not Activity.STEPS:
            return  # text generated in an evaluation is part of the evaluation
        self._switch(activity)
        if activity is Activity.EVALUATION:
            self._evaluation_begin = self._tally(activity)

    def leave(self) -> None:
        """Go on with what was interrupted last."""
        if self._interrupted:
            self._evaluation = self.evaluation()
            self._switch(self._interrupted.pop())

    def update(self) -> None:
        """Charge the present activity up to this moment."""
        now = self._read()
        elapsed = tally_of(self._monitor.between(self._latest, now), self._gpu_indices)
        self.tallies[self._activity] = self._tally(self._activity) + elapsed
        self._latest = now

    def evaluation(self) -> Tally:
        """What the present evaluation has taken up to this moment, or the latest one."""
        if self._activity is not Activity.EVALUATION:
            return self._evaluation
        self.update()
        return self._tally(Activity.EVALUATION) - self._evaluation_begin

    @property
    def total(self) -> Tally:
        """All of it, up to the latest switch or update. Surer than the sum: measured from end to end."""
        whole = tally_of(self._monitor.between(self._first, self._latest), self._gpu_indices)
        return whole if whole.lost_seconds == 0 else sum(self.tallies.values(), Tally())

    def _switch(self, activity: Activity) -> None:
        if activity is not self._activity:
            self.update()
            self._activity = activity

    def _tally(self, activity: Activity) -> Tally:
        return self.tallies.get(activity, Tally())

    def _read(self) -> Reading:
        reading = self._monitor.read()
        return self._monitor.read(sync_execution=False) if reading.has_fault else reading
