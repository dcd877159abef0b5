"""Splits time and energy among the activities of a run."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from zeus_core.attribution.timeline import ClassTimeline
from zeus_core.events import Activity
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.reading import Reading
from zeus_core.monitor.windows import synchronize
from zeus_core.ports.step_gaps import StepGaps
from zeus_core.ports.time_source import MonotonicTime
from zeus_core.training.account import TRAINING
from zeus_core.training.activities._counted_gpus import CountedGpus
from zeus_core.training.activities._pace import ActivityPower
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import EnergyPoint
from zeus_core.units import duration_text

if TYPE_CHECKING:
    from zeus_core.training.traced import Record

_MEASURED_EACH = (Activity.EVALUATION, Activity.PREDICTION)  # the energy of the latest one is known by itself
_BEFORE = "before"  # the class of the time before the run
_STEPS = Activity.STEPS  # to look it up in the enumeration takes 0.1 µs, and this is each step

_logger = logging.getLogger(__name__)


class _Interrupted(NamedTuple):
    """An activity that continues when the one that interrupts it has ended."""

    activity: Activity
    evaluation: list[int] | None  # the one that it is part of


class ActivitySplit:
    """Charges all time and energy, from its creation on, to one activity after the other; the first is idle.

    A switch notes the time and the activity. The energy counters are read in the background, at other times, and
    the energy between their updates is divided by what each activity draws. This is logged; at the end,
    all of it is divided once more by what is known then. An unusual gap between two steps, which is known at its end
    only, is charged to an activity of its own.

    Args:
        monitor: Measures the GPUs.
        gpu_indices: The GPUs of the monitor to count.
        trace: Records the activities, the steps and the energy in time; nothing does if None.
        says_how: Say once, at the first unusual gap between two steps, how an evaluation is announced.

    Attributes:
        tallies: Time and energy of each activity, up to the latest `update` or `extend`. The energies add up to that of
            the total exactly.
        total: Time and energy of all activities together, whose uncertainty is smaller than the sum of theirs.
        activity: The current one.
        reading: The latest one of all devices, by the creation or an `update`. An `update` makes none where the
            background has read the GPUs just before, and there are no CPUs: a hook would wait for it.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        gpu_indices: Collection[int],
        trace: Record | None = None,
        says_how: bool = True,
    ) -> None:
        self._monitor = monitor
        self._says_how = says_how
        self._trace = trace
        self._time_source = monitor.time_source
        self._is_in_real_time = isinstance(monitor.time_source, MonotonicTime)
        self.activity: Activity = Activity.IDLE
        self.visits: dict[Activity, int] = {}
        """How often each activity was begun, of those that were announced: one within itself is not begun again."""
        self._interrupted: list[_Interrupted] = []
        self._evaluation: list[int] = []  # the spans of the current or latest one
        self._span: int | None = None  # the one under way
        self._latest_span = 0
        self._seconds: dict[Activity, float] = {}
        self._span_seconds: dict[int, float] = {}
        reading = self._read()
        self.reading: Reading = reading
        self._first = self._since = reading.at
        self._timeline = ClassTimeline(reading.at, _BEFORE, Activity.IDLE, stepping=Activity.STEPS)
        self._gaps = StepGaps()
        self._gap_seconds = 0.0  # the unusual gaps since the latest step
        self._gpus = CountedGpus(monitor, gpu_indices, reading, self._timeline, self._gaps, trace)
        if trace is not None:
            trace.begin_activity(reading.at, self.activity.value)
        self.max_watts: float = self._gpus.max_watts
        """The most that one of these GPUs can draw."""
        self.tallies: dict[Activity, Tally] = {}
        self.total: Tally = Tally()
        self._pace: ActivityPower | None = None  # as long as no other activity begins
        self.start()

    def start(self) -> None:
        """Begin to read in the background."""
        self._gpus.start()

    def stop(self) -> None:
        """Stop reading in the background."""
        self._gpus.stop()

    def switch(self, activity: Activity) -> None:
        """Begin an activity, and forget the ones it interrupts."""
        self._interrupted.clear()
        self._begin(activity, is_evaluating=False)

    def begin_step(self) -> float:
        """Begin a step: it likely draws in each of its phases what the steps before it did.

        Returns:
            The time since the latest step that is charged to no step, as it was an unusual gap, in seconds.
        """
        if self.activity is not _STEPS or self._span is not None or self._interrupted:
            self.switch(_STEPS)
        now = self._time_source.now()
        gap_seconds = self._gaps.begin_step(now)
        if gap_seconds is not None:
            now = self._leave_out(gap_seconds)
        self._timeline.begin_step(now)
        if self._trace is not None:
            self._trace.begin_step(now)
        gap_seconds, self._gap_seconds = self._gap_seconds, 0.0
        return gap_seconds

    def leaves_out_excess(self) -> bool:
        """Charge the time that the step under way took longer than usual to none, in a loop that reports ends alone.

        Returns:
            Whether it took longer.
        """
        if self.activity is not _STEPS or self._interrupted:
            return False
        seconds, usual_seconds = self._gaps.excess(self._time_source.now())
        if seconds > 0:
            self._leave_out(seconds, usual_seconds=usual_seconds)
            self._gap_seconds = 0.0  # it belongs to the step that ends
        return seconds > 0

    def ends_unusual_gap(self) -> bool:
        """End the gap between two steps, if there is one. Return whether time since the latest step is charged to none.

        A log may have ended the gap before.
        """
        self._end_gap()
        return self._gap_seconds > 0.0

    def end_steps(self) -> bool:
        """End the steps: no other follows. Return whether time since the latest one is charged to none, as unusual.

        All other time since is idle. Where the loop does not report where steps end, the last one takes as long as
        those before it.
        """
        if self.activity is _STEPS and not self._interrupted:
            seconds, is_unusual = self._gaps.last(self._time_source.now())
            if seconds > 0:
                self._leave_out(seconds, Activity.BETWEEN_STEPS if is_unusual else Activity.IDLE)
            self.switch(Activity.IDLE)
        return self._gap_seconds > 0.0

    def end_step(self) -> None:
        """End the step."""
        self._timeline.end_step()
        self._gaps.end_step(self._time_source.now())

    def enter(self, activity: Activity) -> None:
        """Begin an activity, until `leave`."""
        self._interrupted.append(_Interrupted(self.activity, None if self._span is None else self._evaluation))
        if activity in TRAINING and self.activity not in (Activity.STEPS, Activity.IDLE):
            return  # text generated in an evaluation is part of it
        if activity in _MEASURED_EACH:
            self._latest_span += 1
            if self._span is None:
                self._forget_evaluations()
            self._evaluation = [self._latest_span]
        if activity != self.activity:
            self.visits[activity] = self.visits.get(activity, 0) + 1
        self._begin(activity, self._span is not None or activity in _MEASURED_EACH)

    def leave(self) -> None:
        """Continue with the activity that was interrupted last."""
        if not self._interrupted:
            return
        activity, evaluation = self._interrupted.pop()
        if evaluation is not None and evaluation is not self._evaluation:
            evaluation += self._evaluation  # the one that has ended was part of it
            self._evaluation = evaluation
        self._begin(activity, evaluation is not None)
        if self.activity is _STEPS:
            self._gaps.begin(self._time_source.now())

    def update(self, is_last: bool = False) -> None:
        """Charge the current activity up to this moment.

        Args:
            is_last: Divide all energy once more, by what is known now.
        """
        self._end_gap()
        now = self._time_source.now()
        has_just_read = self._is_in_real_time and not self._monitor.cpus and not self._gpus.is_stale(now)
        if is_last or not has_just_read:  # a reading would hold up the training on a machine that is busy
            self.reading = reading = self._read()
            self._gpus.feed(reading)
            now = self._time_source.now() if is_last else reading.at  # the last reading is the end of what is reported
        self._charge_time(now)
        if self._gaps.since is not None:
            self._gaps.begin(now)
        self._gpus.update(now, is_last)
        self.tallies = {activity: self._gpus.tally(activity, seconds) for activity, seconds in self._seconds.items()}
        self.total = self._total()
        known = self.tallies if self._span is None else {}  # an evaluation is logged as it is known at its end
        self._pace = ActivityPower.after(self._pace, now, self.activity, known, self.total, self._gpus)

    def extend(self) -> bool:
        """Charge the current activity up to this moment by the power it has had, without dividing anything anew.

        Logs may follow each other more quickly than counters are updated.

        Returns:
            Whether that was possible; otherwise, call `update`: the latest one is too long ago, another activity has
            begun since, or the power is not known, as of a GPU that has not answered for some updates.
        """
        now = self._end_gap()
        pace = self._pace
        if pace is None or now >= pace.ends or not self._gpus.have_answered(now):
            return False
        self._charge_time(now)
        extended = pace.extended(self._seconds, self._gpus)
        if extended is not None:
            self.tallies, self.total = extended
        return extended is not None

    def _total(self) -> Tally:
        parts = sum(self.tallies.values(), Tally())
        seconds = self._since - self._first
        off = self._gpus.bounded(self._gpus.total_uncertainty_joules, parts.measured_joules, seconds * len(self._gpus))
        return Tally(seconds, replace(parts.measured, uncertainty_joules=off), parts.lost_seconds)

    def devices(self) -> dict[str, tuple[Tally, tuple[EnergyPoint, ...]]]:
        """Return time and energy of each GPU up to the latest `update`, and its energy over time, by UUID."""
        return self._gpus.devices(list(self._seconds), self._since - self._first)

    @property
    def remarks(self) -> list[str]:
        """Remarks on these numbers for people."""
        return self._gpus.remarks

    @property
    def evaluation(self) -> Tally | None:
        """Time and energy of the current or latest evaluation, up to the latest update; None if there was none."""
        if not self._evaluation:
            return None
        return sum((self._gpus.tally(span, self._span_seconds.get(span, 0.0)) for span in self._evaluation), Tally())

    def _begin(self, activity: Activity, is_evaluating: bool) -> None:
        span = self._evaluation[0] if is_evaluating else None
        if activity == self.activity and span == self._span:
            return
        self._end_gap()
        self._gaps.stop(is_training=activity in TRAINING)
        synchronize(self._monitor)
        now = self._time_source.now()
        self._charge_time(now)
        self._timeline.change(now, activity, span)
        self.activity, self._span, self._pace = activity, span, None
        if self._trace is not None:
            self._trace.begin_activity(now, activity.value)
        self._gpus.follow_change(now)

    def _end_gap(self) -> float:
        """End the gap between two steps, if there is one: the loop reports something. Return this moment."""
        now = self._time_source.now()
        seconds = self._gaps.report(now)
        return now if seconds is None else self._leave_out(seconds)

    def _leave_out(self, seconds: float, other: Activity = Activity.BETWEEN_STEPS, usual_seconds: float = 0.0) -> float:
        """Charge so many seconds, in which steps were the activity, to another one. Return the moment they end.

        They end now, or where the usual time of a step that has just ended began. The GPU was waited for in between.
        """
        now = self._time_source.now() - usual_seconds
        begin = max(now - seconds, self._since)
        if self._says_how and other is Activity.BETWEEN_STEPS and other not in self._seconds:
            _logger.warning(
                "%s between two steps, in which nothing was reported, are charged to no step. If it was an "
                "evaluation, announce it: with energy.during(Activity.EVALUATION): evaluate()",
                duration_text(now - begin),
            )
        self._gap_seconds += (now - begin) * (other is Activity.BETWEEN_STEPS)
        self._gpus.leave_out(begin, now, other)
        for at, activity in ((begin, other), (now, _STEPS)):
            self._charge_time(at)
            self.activity = activity
            if self._trace is not None:
                self._trace.begin_activity(at, activity.value)
        return now

    def _charge_time(self, now: float) -> None:
        seconds = max(now - self._since, 0.0)
        self._since += seconds
        self._seconds[self.activity] = self._seconds.get(self.activity, 0.0) + seconds
        if self._span is not None:
            self._span_seconds[self._span] = self._span_seconds.get(self._span, 0.0) + seconds

    def _forget_evaluations(self) -> None:
        """Drop the spans of earlier evaluations."""
        self._gpus.forget_spans_before(self._latest_span)
        self._span_seconds.clear()

    def _read(self) -> Reading:
        reading = self._monitor.read()
        return self._monitor.read(sync_execution=False) if reading.has_fault else reading
