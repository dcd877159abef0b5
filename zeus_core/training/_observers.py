"""Those who receive the events of a training: its optimizer, its trace, observers of a user's own, and its account."""

from __future__ import annotations

import logging
from dataclasses import replace

from zeus_core.adapters.contained import log_fault
from zeus_core.events import (
    INTERFERENCE,
    MOST_OWN,
    Activity,
    EpochEnd,
    Event,
    Observer,
    PassBegin,
    Pause,
    StepBegin,
    TrainBegin,
    own_activities,
)
from zeus_core.training._run_recorder import RunRecorder

_OF_AN_ACTIVITY = (Pause, PassBegin)

_logger = logging.getLogger(__name__)


class Observers:
    """Sends each event to all observers, and at last to the account, which judges the time between two steps first.

    Args:
        optimizer: The first observer; None for none.
        trace: The second one; None for none.
        recorder: The account.
    """

    def __init__(self, optimizer: Observer | None, trace: Observer | None, recorder: RunRecorder) -> None:
        self._observers = [observer for observer in (optimizer, trace) if observer is not None]
        self._recorder = recorder
        self._own_activities: dict[Activity, None] = {}  # of this training
        self._has_other = False

    def add(self, observer: Observer, training: TrainBegin | None) -> None:
        """Add an observer of a user's own, which receives the beginning of the training under way first."""
        guest = _Guest(observer)
        self._observers.append(guest)
        if training is not None:
            guest.receive(training)

    def remove(self, observer: Observer) -> None:
        """Remove the optimizer, before any training."""
        self._observers.remove(observer)

    def send(self, event: Event) -> None:
        """Send an event to all."""
        kind = type(event)
        if isinstance(event, _OF_AN_ACTIVITY):
            event = replace(event, activity=self._counted(event.activity))
        if kind is TrainBegin:
            self._own_activities.clear()
        elif kind is Pause or kind is EpochEnd:
            self._end_gap(ends_steps=kind is EpochEnd)
        try:
            if kind is StepBegin:  # with the verdict of the account on the gap before it
                event = self._recorder.begin_step()
        finally:
            for observer in self._observers:
                observer.receive(event)
        if kind is not StepBegin:
            self._recorder.receive(event)

    def leave_out_excess(self) -> None:
        """Send interference, where the step under way took longer than usual: that time belongs to no step."""
        if self._recorder.leaves_out_excess():
            self._send_to_observers(INTERFERENCE)

    def _end_gap(self, ends_steps: bool = False) -> None:
        """Report work that nothing announced since the latest step, before a pause or the end of an epoch."""
        if self._recorder.ends_unusual_gap(ends_steps=ends_steps):
            self._send_to_observers(INTERFERENCE)

    def _send_to_observers(self, event: Event) -> None:
        for observer in self._observers:
            observer.receive(event)

    def _counted(self, activity: Activity | str) -> Activity:
        """Return the activity that one is counted as: beyond `MOST_OWN` names of a user's own in a run, the other."""
        activity = Activity(activity)
        if not activity.is_own:
            return activity
        if activity not in own_activities([*self._own_activities, activity]):
            if not self._has_other:
                self._has_other = True
                _logger.warning("after %d names of your own, activities are counted as other: %s", MOST_OWN, activity)
            return Activity.OTHER
        self._own_activities[activity] = None
        return activity


class _Guest:
    """An observer of the user's: a fault of it costs the others nothing."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def receive(self, event: Event) -> None:
        try:
            self._observer.receive(event)
        except Exception as error:
            log_fault(self, f"{type(self._observer).__name__}.receive failed", error)
