"""Splits time and energy among the activities of a run."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from zeus_core._process.deadline import CALL_SECONDS
from zeus_core._process.lock import ProcessLock
from zeus_core._process.parallel import ParallelCalls
from zeus_core._process.sampler import Sampler
from zeus_core.adapters import contained
from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy, Method
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor._meter import UNKNOWN_PEAK_WATTS, peak_watts
from zeus_core.monitor._parts._amount import Amount, whole_quanta
from zeus_core.monitor._parts._counter_phase import CounterPhase
from zeus_core.monitor._parts._divided_energy import DividedEnergy, Division
from zeus_core.monitor._parts._energy_source import EnergySource
from zeus_core.monitor._parts._power_sum import PowerSum
from zeus_core.monitor._parts._timeline import Timeline
from zeus_core.monitor._reading import GpuEdge, Reading
from zeus_core.monitor._windows import synchronize
from zeus_core.ports import TimeSource
from zeus_core.training._account import TRAINING
from zeus_core.training._power_series import EnergyPoint, PowerSeries
from zeus_core.training._tally import Tally

if TYPE_CHECKING:
    from zeus_core.tracing._recorder import TraceRecorder

__all__ = ["ActivitySplit"]

_READS_PER_SECOND = 15.0  # of all GPUs together: enough for each update of a counter, and cheap (docs/measurement.md)
# Between two rounds of dividing what has become known. A round takes a millisecond, 0.2 % of this time.
_SETTLE_SECONDS = 0.5
# A log divides all energy anew if the latest division is older: that takes 1 to 3 ms, 0.3 % of this time.
_PACE_SECONDS = 1.0
_RECENT_SECONDS = 0.3  # which tell the power of an activity better than all its time does: three updates of a counter
_STALE_SECONDS = 0.3  # without a read in the background for so long, hooks read
_MIN_WAIT_SECONDS = 0.0005
_STEPS = Activity.STEPS  # to look it up in the enumeration takes 0.1 µs, and this is each step
_BEFORE = "before"  # the class of the time before the run


class _Counted(NamedTuple):
    """A GPU, where its reading is found, and its energy."""

    number: int
    gpu: Gpu
    most_watts: float
    energy: DividedEnergy
    power: PowerSeries


class _Interrupted(NamedTuple):
    """An activity that continues when the one that interrupts it has ended."""

    activity: Activity
    evaluation: list[int] | None  # the one that it is part of


class _Pace(NamedTuple):
    """The power of the current activity up to an update, for logs that follow it quickly."""

    at: float
    ends: float
    """When the next log is to divide all energy anew."""
    tally: Tally
    total: Tally
    joules: list[float]
    """The power of the activity, for each GPU."""
    watts: list[float]
    """Since the update before, or of all its time if that is not long enough."""


class ActivitySplit:
    """Charges all time and energy, from its creation on, to one activity after the other; the first is idle.

    A switch notes the time and the activity. The energy counters are read in the background, at other times, and
    the energy between their updates is divided by what each activity draws. This is logged; at the end,
    all of it is divided once more by what is known then.

    Args:
        monitor: Measures the GPUs.
        gpu_indices: The GPUs of the monitor to count.
        trace: Records the activities, the steps and the energy in time; nothing does if None.

    Attributes:
        tallies: Time and energy of each activity, up to the latest `update` or `extend`. The energies add up to that of
            the total exactly.
        total: Time and energy of all activities together, whose uncertainty is smaller than the sum of theirs.
        activity: The current one.
        reading: The latest one of all devices, by the creation or an `update`.
    """

    def __init__(self, monitor: ZeusMonitor, gpu_indices: Collection[int], trace: TraceRecorder | None = None) -> None:
        self._monitor = monitor
        self._trace = trace
        self._time_source = monitor.time_source
        self._lock = ProcessLock()
        self.activity = Activity.IDLE
        self._interrupted: list[_Interrupted] = []
        self._evaluation: list[int] = []  # the spans of the current or latest one
        self._span: int | None = None  # the one under way
        self._latest_span = 0
        self._seconds: dict[Activity, float] = {}
        self._span_seconds: dict[int, float] = {}
        self.reading = reading = self._read()
        self._first = self._since = self._settled_at = reading.at
        self._timeline = Timeline(reading.at, _BEFORE, Activity.IDLE, stepping=Activity.STEPS)
        counted = [(number, *item) for number, item in enumerate(monitor.gpus.items()) if item[0] in gpu_indices]
        calls = [functools.partial(peak_watts, gpu) for _, _, gpu in counted]
        peaks = ParallelCalls().call_within(CALL_SECONDS, calls, lambda _number, _reason: UNKNOWN_PEAK_WATTS)
        self._gpus = [
            _Counted(
                *(number, gpu, most_watts, self._divided(index, gpu, reading.gpus[number], most_watts, len(counted))),
                PowerSeries(),
            )
            for (number, index, gpu), most_watts in zip(counted, peaks, strict=True)
        ]
        if trace is not None:
            trace.begin_activity(reading.at, self.activity.value)
        self.max_watts = max(peaks, default=math.inf)
        """The most that one of these GPUs can draw."""
        self.tallies: dict[Activity, Tally] = {}
        self.total: Tally = Tally()
        self._divisions: list[Division] = []  # of the GPUs
        self._pace: _Pace | None = None  # as long as no other activity begins
        self._next_look_at = reading.at  # in the background
        self._is_reading = False
        self._feed(reading)
        self._stop_reading: Callable[[], None] | None = None
        self.start()

    def _divided(self, index: int, gpu: Gpu, edge: GpuEdge, most_watts: float, gpu_count: int) -> DividedEnergy:
        reads_per_second = _READS_PER_SECOND / gpu_count
        power: EnergySource = PowerSum(gpu.power_average_seconds, reads_per_second)
        counter: EnergySource = CounterPhase(gpu.energy_counter_period_seconds, reads_per_second)
        if self._trace is not None:
            power, counter = (self._trace.follow(index, gpu, most_watts, source) for source in (power, counter))
        if edge.counter_joules is None and edge.fault is None:
            return DividedEnergy(power, most_watts, self._timeline, _BEFORE)
        return DividedEnergy(counter, most_watts, self._timeline, _BEFORE, spare=power)

    def start(self) -> None:
        """Begin to read in the background."""
        if self._stop_reading is None and self._gpus:
            self._stop_reading = _repeatedly(self._time_source, weakref.WeakMethod(self._read_due))
            weakref.finalize(self, self._stop_reading)

    def stop(self) -> None:
        """Stop reading in the background."""
        if self._stop_reading is not None:
            self._stop_reading()
            self._stop_reading = None

    def switch(self, activity: Activity) -> None:
        """Begin an activity, and forget the ones it interrupts."""
        self._interrupted.clear()
        self._begin(activity, is_evaluating=False)

    def begin_step(self) -> None:
        """Begin a step: it likely draws in each of its phases what the steps before it did."""
        if self.activity is not _STEPS or self._span is not None or self._interrupted:
            self.switch(_STEPS)
        now = self._time_source.now()
        self._timeline.begin_step(now)
        if self._trace is not None:
            self._trace.begin_step(now)

    def enter(self, activity: Activity) -> None:
        """Begin an activity, until `leave`."""
        self._interrupted.append(_Interrupted(self.activity, None if self._span is None else self._evaluation))
        if activity in TRAINING and self.activity is not Activity.STEPS:
            return  # text generated in an evaluation is part of it
        if activity is Activity.EVALUATION:
            self._latest_span += 1
            if self._span is None:
                self._forget_evaluations()
            self._evaluation = [self._latest_span]
        self._begin(activity, self._span is not None or activity is Activity.EVALUATION)

    def leave(self) -> None:
        """Continue with the activity that was interrupted last."""
        if not self._interrupted:
            return
        activity, evaluation = self._interrupted.pop()
        if evaluation is not None and evaluation is not self._evaluation:
            evaluation += self._evaluation  # the one that has ended was part of it
            self._evaluation = evaluation
        self._begin(activity, evaluation is not None)

    def update(self, is_last: bool = False) -> None:
        """Charge the current activity up to this moment.

        Args:
            is_last: Divide all energy once more, by what is known now.
        """
        self.reading = reading = self._read()
        self._charge_time(reading.at)
        self._feed(reading)
        with self._lock:
            self._settle(reading.at, is_last)
            self._divisions = [gpu.energy.division(reading.at, is_last) for gpu in self._gpus]
        self.tallies = {activity: self._tally(activity, seconds) for activity, seconds in self._seconds.items()}
        self.total = self._total()
        self._pace = self._new_pace(reading.at)

    def extend(self) -> bool:
        """Charge the current activity up to this moment by the power it has had, without dividing anything anew.

        Logs may follow each other more quickly than counters are updated.

        Returns:
            Whether that was possible; otherwise, call `update`: the latest one is too long ago, another activity has
            begun since, or the power is not known.
        """
        pace, now = self._pace, self._time_source.now()
        if pace is None or now >= pace.ends:
            return False
        self._charge_time(now)
        seconds, joules, off_joules = max(now - pace.at, 0.0), 0.0, 0.0
        for gpu, watts in zip(self._gpus, pace.watts, strict=True):
            more_joules = whole_quanta(watts * seconds)
            gpu.energy.tell_more(more_joules)
            joules += more_joules
            off_joules += max(watts, gpu.most_watts - watts) * seconds
        more = Tally(seconds, DeviceEnergy(joules, off_joules, pace.tally.measured.method))
        self.tallies = {**self.tallies, self.activity: pace.tally + more}
        self.total = pace.total + more
        return True

    def _new_pace(self, at: float) -> _Pace | None:
        """Return the pace of the current activity at the moment of an update; None if it is not known."""
        tally = self.tallies[self.activity]
        if tally.seconds == 0 or tally.lost_seconds > 0 or self._span is not None:
            return None
        joules = [division.amounts.get(self.activity, Amount()).energy_joules for division in self._divisions]
        seconds, before, ends = tally.seconds, [0.0] * len(joules), at + _SETTLE_SECONDS
        last = self._pace
        if last is not None and tally.seconds - last.tally.seconds >= _RECENT_SECONDS:
            seconds, before, ends = tally.seconds - last.tally.seconds, last.joules, at + _PACE_SECONDS
        watts = [
            min(max(after - earlier, 0.0) / seconds, gpu.most_watts)
            for gpu, after, earlier in zip(self._gpus, joules, before, strict=True)
        ]
        return _Pace(at, ends, tally, self.total, joules, watts)

    def _total(self) -> Tally:
        parts = sum(self.tallies.values(), Tally())
        off = sum(division.total_uncertainty_joules for division in self._divisions)
        seconds = self._since - self._first
        off = self._bounded(off, parts.measured_joules, seconds * len(self._gpus))
        return Tally(seconds, replace(parts.measured, uncertainty_joules=off), parts.lost_seconds)

    def devices(self) -> dict[str, tuple[Tally, tuple[EnergyPoint, ...]]]:
        """Return time and energy of each GPU up to the latest `update`, and its energy over time, by UUID."""
        devices = {}
        for gpu, division in zip(self._gpus, self._divisions, strict=True):
            amounts = [division.amounts.get(activity, Amount()) for activity in self._seconds]
            joules = sum(amount.energy_joules for amount in amounts)
            seconds = self._since - self._first
            off = min(division.total_uncertainty_joules, max(joules, gpu.most_watts * seconds - joules))
            methods = [_method(gpu.energy.source, amount) for amount in amounts]
            energy = sum((DeviceEnergy(0.0, 0.0, method) for method in methods), DeviceEnergy(joules, off))
            lost_seconds = sum(amount.lost_seconds for amount in amounts)
            devices[gpu.gpu.uuid] = Tally(seconds, energy, lost_seconds), gpu.power.points
        return devices

    @property
    def evaluation(self) -> Tally | None:
        """Time and energy of the current or latest evaluation, up to the latest update; None if there was none."""
        if not self._evaluation:
            return None
        return sum((self._tally(span, self._span_seconds.get(span, 0.0)) for span in self._evaluation), Tally())

    def _tally(self, key: Hashable, seconds: float) -> Tally:
        amounts = [division.amounts.get(key, Amount()) for division in self._divisions]
        methods = [_method(gpu.energy.source, amount) for gpu, amount in zip(self._gpus, amounts, strict=True)]
        energies = [
            DeviceEnergy(
                joules := amount.energy_joules, self._bounded(amount.uncertainty_joules, joules, seconds), method
            )
            for amount, method in zip(amounts, methods, strict=True)
        ]
        lost_seconds = max((amount.lost_seconds for amount in amounts), default=0.0)
        return Tally(seconds, sum(energies, DeviceEnergy()), lost_seconds)

    def _bounded(self, uncertainty_joules: float, energy_joules: float, seconds: float) -> float:
        """Bound an uncertainty by what a GPU can draw in some time."""
        return min(uncertainty_joules, max(energy_joules, self.max_watts * seconds - energy_joules))

    def _begin(self, activity: Activity, is_evaluating: bool) -> None:
        span = self._evaluation[0] if is_evaluating else None
        if activity is self.activity and span == self._span:
            return
        synchronize(self._monitor)
        now = self._time_source.now()
        self._charge_time(now)
        self._timeline.change(now, activity, span)
        self.activity, self._span, self._pace = activity, span, None
        if self._trace is not None:
            self._trace.begin_activity(now, activity.value)
        if self._gpus and now - self._next_look_at > _STALE_SECONDS and not self._is_reading:
            self._feed(self._monitor.read(sync_execution=False))

    def _charge_time(self, now: float) -> None:
        seconds = max(now - self._since, 0.0)
        self._since += seconds
        self._seconds[self.activity] = self._seconds.get(self.activity, 0.0) + seconds
        if self._span is not None:
            self._span_seconds[self._span] = self._span_seconds.get(self._span, 0.0) + seconds

    def _forget_evaluations(self) -> None:
        """Drop the spans of earlier evaluations."""
        with self._lock:
            for gpu in self._gpus:
                gpu.energy.forget_spans_before(self._latest_span)
        self._span_seconds.clear()

    def _read(self) -> Reading:
        reading = self._monitor.read()
        return self._monitor.read(sync_execution=False) if reading.has_fault else reading

    def _feed(self, reading: Reading) -> None:
        end = self._time_source.now()
        self._next_look_at = max(self._next_look_at, end)
        with self._lock:
            for gpu in self._gpus:
                edge = reading.gpus[gpu.number]
                power_watts = edge.power_watts if edge.fault is None else None  # else it may be of an earlier moment
                gpu.energy.add_edge(edge.at, end, edge.counter_joules, power_watts)

    @contained(default=lambda: _STALE_SECONDS)
    def _read_due(self) -> float:
        """Read the counters that are due, and return the seconds until the next one is."""
        now = self._time_source.now()
        self._is_reading = True
        for gpu in self._gpus:
            if gpu.energy.is_read_due(now):
                begin, counter_joules, power_watts = self._time_source.now(), None, None
                if not gpu.energy.source.is_of_power:
                    counter_joules = _answer(gpu.gpu.read_energy_counter_joules)
                if counter_joules is None and gpu.energy.needs_power:
                    power_watts = _answer(gpu.gpu.read_power_watts)
                end = self._time_source.now()
                with self._lock:
                    gpu.energy.add_edge(begin, end, counter_joules, power_watts)
                    gpu.energy.plan_read(end)
        self._is_reading = False
        now = self._time_source.now()
        if now - self._settled_at > _SETTLE_SECONDS:
            with self._lock:
                self._settle(now)
        self._next_look_at = min(gpu.energy.next_look_at(now) for gpu in self._gpus)
        return max(self._next_look_at - now, _MIN_WAIT_SECONDS)

    def _settle(self, now: float, is_last: bool = False) -> None:
        self._settled_at = now
        for gpu in self._gpus:
            gpu.energy.settle(now, is_last)
            gpu.power.add(gpu.energy.settled_until - self._first, gpu.energy.settled_joules)
        self._timeline.forget_before(min((gpu.energy.settled_until for gpu in self._gpus), default=now))


def _answer(read: Callable[[], float]) -> float | None:
    """Return what a GPU answers; None if it fails: what is missing shows as a gap."""
    try:
        return read()
    except DeviceError:
        return None


def _method(source: EnergySource, amount: Amount) -> Method:
    if amount.is_estimated:
        return "estimated"
    return "integrated" if source.is_of_power else "counted"


def _repeatedly(time_source: TimeSource, method: weakref.WeakMethod[Callable[[], float]]) -> Callable[[], None]:
    """Call a method again and again, after the seconds that it returns, until the returned function is called."""

    def call() -> float:
        bound = method()
        return bound() if bound is not None else math.inf

    if isinstance(time_source, _Repeats):
        return _repeatedly_in(time_source, call)
    wait_seconds = 0.0

    def sample() -> None:
        nonlocal wait_seconds
        wait_seconds = call()
        if wait_seconds == math.inf:
            sampler.stop()

    sampler = Sampler(sample, 0.0, lambda stop, _: stop.wait(min(wait_seconds, 1.0)), "zeus-core counter")
    sampler.start()
    return sampler.stop


@runtime_checkable
class _Repeats(Protocol):
    """A time source that runs repeated actions itself, such as virtual time."""

    def repeatedly(self, action: Callable[[], object], period_seconds: float) -> Callable[[], None]: ...


def _repeatedly_in(time_source: _Repeats, call: Callable[[], float]) -> Callable[[], None]:
    stops: list[Callable[[], None]] = []

    def act() -> None:
        if not stops:  # another thread has stopped it meanwhile
            return
        stops.pop()()
        wait_seconds = call()
        if wait_seconds < math.inf:
            stops.append(time_source.repeatedly(act, wait_seconds))

    stops.append(time_source.repeatedly(act, _MIN_WAIT_SECONDS))

    def stop() -> None:
        if stops:
            stops.pop()()

    return stop
