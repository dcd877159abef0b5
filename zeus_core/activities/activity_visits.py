"""The activities of a training on one rank: which of them is under way, and what was measured of their visits."""

from __future__ import annotations

from typing import NamedTuple

from zeus_core.activities.activities_search import MIN_VISIT_LATENCIES
from zeus_core.activities.activity_limiter import ActivityLimiter
from zeus_core.activities.visits_of_ranks import VisitsPart
from zeus_core.events import (
    Activity,
    Event,
    Interference,
    PassBegin,
    PassEnd,
    Pause,
    Resume,
    StepBegin,
    StepEnd,
    TrainEnd,
)
from zeus_core.optimizer.global_setting.measuring import TrialRecorder

WAITING = Activity.WAITING.value
"""The activity in which a rank waits for a server. It is measured, and has the setting of the steps."""

FOLLOWS = -1
"""The order for an activity that has the setting of the steps."""

MOST_ACTIVITIES = 32
"""Activities with a setting of their own; those beyond have that of the steps."""

_MAX_LATE_SHARE = 0.1  # of a visit at the setting before; one that was later says little of its own
_MAX_DEPTH = 64  # of activities within activities
_MAX_BLOCK_VISITS = 4096  # that are measured: the readings of more would fill the memory

# They have no setting of their own: the GPU computes nothing, or something that nobody has announced.
_OTHERS = frozenset({"steps", "idle", "between_steps", "checkpoint"})


class _Level(NamedTuple):
    """An activity under way: its visits, if it has a setting of its own, and what its time and energy belong to."""

    visits: ActivityVisits | None
    recorder: TrialRecorder | None


class RankActivities:
    """The activity under way, and the visits of all of them, on this rank.

    Args:
        steps: Measures the steps.
    """

    def __init__(self, steps: TrialRecorder) -> None:
        self._steps = steps
        self._limiter: ActivityLimiter | None = None
        self._under_way: list[_Level] = []
        self._is_in_step = False
        self.activities: dict[str, ActivityVisits] = {}
        """The activities that were visited, by name, in this order."""
        self.waiting: ActivityVisits | None = None
        """Waits for a server; None without any."""
        self.late_seconds: float = 0.0
        """How much longer steps and visits took by the settings before, since `take_late_seconds`."""
        self.all_late_seconds: float = 0.0
        """The same of the whole training."""

    def begin(self, limiter: ActivityLimiter) -> None:
        """Begin a training."""
        self._limiter, self._under_way, self.activities, self.late_seconds = limiter, [], {}, 0.0
        self.waiting = None
        self.all_late_seconds, self._is_in_step = 0.0, False

    def resume(self, limiter: ActivityLimiter, name: str, visits: int, seconds: float) -> None:
        """Continue an activity of an earlier part of the run, with so many visits that took so long."""
        known = self._visits_of(name, limiter)
        if known is not None:
            known.visits = visits
            known.recorder.begin_run(seconds)

    def receive(self, event: Event) -> None:
        """Follow an event: activities begin and end."""
        limiter = self._limiter
        if limiter is not None and not limiter.is_over:
            self._follow(limiter, event)
        if type(event) is TrainEnd:
            for visits in [*self.activities.values(), *filter(None, [self.waiting])]:
                visits.recorder.drop_trial()  # it samples clocks in between

    def _follow(self, limiter: ActivityLimiter, event: Event) -> None:
        match event:
            case Pause() | PassBegin():
                self._enter(limiter, event.activity, isinstance(event, PassBegin))
            case Resume() | PassEnd():
                if self._under_way:
                    self._leave(limiter)
            case Interference():  # what happens within a visit belongs to it
                pass
            case _:
                while self._under_way:
                    self._leave(limiter)
                if type(event) is StepEnd:
                    self._leave_out(limiter, self._steps, is_last=False)
                self._is_in_step = type(event) is StepBegin

    def take_late_seconds(self) -> float:
        """Return `late_seconds`, and begin to count anew."""
        seconds, self.late_seconds = self.late_seconds, 0.0
        return seconds

    def _enter(self, limiter: ActivityLimiter, activity: Activity, is_pass: bool) -> None:
        name = str(getattr(activity, "value", activity))
        is_part = name in _OTHERS or (is_pass and (self._under_way or not self._is_in_step))
        visits = None if is_part or len(self._under_way) >= _MAX_DEPTH else self._visits_of(name, limiter)
        if any(visits is level.visits for level in self._under_way):  # within itself
            visits = None
        outer = self._timed
        if visits is not None:
            recorder: TrialRecorder | None = visits.recorder
        else:  # what is within a visit belongs to it, and so does a pass within a step
            recorder = outer if is_pass or self._innermost is not None else None
        if recorder is not outer:
            self._steps.synchronize()
            if visits is not None:
                self._leave_out(limiter, outer, is_last=True)
            if outer is not None:
                outer.interrupt()
        self._under_way.append(_Level(visits, recorder))
        if visits is not None:
            is_at_order = limiter.begin_stay(visits.order)
            visits.begin(limiter.requested, is_at_order)

    def _leave(self, limiter: ActivityLimiter) -> None:
        visits, recorder = self._under_way.pop()
        if visits is not None:
            self._steps.synchronize()
            late_seconds = self._leave_out(limiter, recorder, is_last=True)
            visits.end(late_seconds)
            if not visits.is_ordered:
                visits.follow_if_short(MIN_VISIT_LATENCIES * limiter.latency_seconds)
        outer = self._timed
        if outer is not None and outer is not recorder:
            outer.resume()
        if visits is not None:
            innermost = self._innermost
            limiter.begin_stay(None if innermost is None else innermost.order)

    @property
    def _timed(self) -> TrialRecorder | None:
        """The recorder of the time and energy of now; None if now is neither a step nor a visit."""
        return self._under_way[-1].recorder if self._under_way else self._steps

    @property
    def _innermost(self) -> ActivityVisits | None:
        """The innermost activity under way that has a setting of its own; None for the steps."""
        return next((level.visits for level in reversed(self._under_way) if level.visits is not None), None)

    def _leave_out(self, limiter: ActivityLimiter, recorder: TrialRecorder | None, is_last: bool) -> float:
        """Charge the time at the setting before to no step or visit, as far as it made it longer. Returns that time."""
        late_seconds = limiter.late_seconds(is_last=is_last)
        if late_seconds > 0 and recorder is not None:
            excess = limiter.excess_seconds(late_seconds)
            recorder.leave_out(excess)
            self.late_seconds += excess
            self.all_late_seconds += excess
        return late_seconds

    def _visits_of(self, name: str, limiter: ActivityLimiter) -> ActivityVisits | None:
        if name == WAITING:
            self.waiting = self.waiting or ActivityVisits(self._steps.beside(), limiter.settings[0])
            self.waiting.order = None
            return self.waiting
        visits = self.activities.get(name)
        if visits is None and len(self.activities) < MOST_ACTIVITIES:
            visits = self.activities[name] = ActivityVisits(self._steps.beside(), limiter.settings[0])
        return visits


class ActivityVisits:
    """The visits of one activity on this rank.

    Args:
        recorder: Measures them.
        original: The original setting, at which it is measured first.
    """

    def __init__(self, recorder: TrialRecorder, original: int) -> None:
        self.recorder: TrialRecorder = recorder
        """Measures them."""
        self.order: int | None = original
        """The setting of the visits to come; None for that of the steps."""
        self.is_ordered: bool = False
        """Whether rank 0 has ordered it."""
        self.visits: int = 0
        """All visits of the run so far."""
        self.measured: int = 0
        """The visits of the block under way."""
        self._is_measured = False  # the visit under way
        self._setting = original
        self._begin_block()

    def _begin_block(self) -> None:
        self.measured, self._block_began = 0, self.recorder.run_seconds
        self.recorder.begin_trial(1)

    def begin(self, setting: int, is_at_order: bool) -> None:
        """Begin a visit at a setting, which is that of the order, if it could be requested."""
        if self.order is None and setting != self._setting:
            self._setting = setting
            self._begin_block()
        self._is_measured = is_at_order and self.measured < _MAX_BLOCK_VISITS
        self.recorder.begin_step()
        if self._is_measured:
            self.recorder.open_segment()

    def end(self, late_seconds: float) -> None:
        """End it."""
        recorder = self.recorder
        self.visits += 1
        before = recorder.run_seconds
        if not self._is_measured:
            recorder.end_step()
        else:
            recorder.end_measured_step()
            if late_seconds <= _MAX_LATE_SHARE * (recorder.run_seconds - before):
                recorder.close_segment()
                self.measured += 1
            else:
                recorder.drop_segment()
        recorder.pause()

    def follow_if_short(self, seconds: float) -> None:
        """Take the setting of the steps, until there is an order, if a visit is shorter than that."""
        if self.recorder.run_seconds < seconds * self.visits:
            self.order = None

    @property
    def block_seconds(self) -> float:
        """The time of the visits since the block began, also of those that were not measured."""
        return self.recorder.run_seconds - self._block_began

    def take_order(self, setting: int) -> None:
        """Follow an order from the next visit on."""
        self.is_ordered = True
        order = None if setting == FOLLOWS else setting
        if order != self.order:
            self.order = order
            self._begin_block()
        if order is not None:
            self._setting = order

    def take_part(self) -> VisitsPart | None:
        """Return what was measured since the last time; None without a whole visit."""
        if not self.measured:
            return None
        part = self.recorder.finish_trial()
        self._begin_block()
        return VisitsPart(self._setting, part, self.visits) if part.measurement is not None else None
