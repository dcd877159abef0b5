"""Splits time and energy among the activities of a run."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

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
from zeus_core.monitor._counter_phase import CounterPhase
from zeus_core.monitor._divided_energy import Amount, DividedEnergy, Division, EnergySource
from zeus_core.monitor._meter import UNKNOWN_PEAK_WATTS, peak_watts
from zeus_core.monitor._power_sum import PowerSum
from zeus_core.monitor._reading import GpuEdge, Reading
from zeus_core.monitor._timeline import Timeline
from zeus_core.monitor._windows import synchronize
from zeus_core.ports import TimeSource
from zeus_core.training._account import TRAINING
from zeus_core.training._tally import Tally

__all__ = ["ActivitySplit"]

_READS_PER_SECOND = 15.0  # of all GPUs together: enough for each update of a counter, and cheap (docs/measurement.md)
# Between two rounds of dividing what has become known. A round takes a millisecond, 0.2 % of this time.
_SETTLE_SECONDS = 0.5
_STALE_SECONDS = 0.3  # without a read in the background for so long, hooks read
_MIN_WAIT_SECONDS = 0.0005
_BEFORE = "before"  # the class of the time before the run
_UNKNOWN = Amount(lost_seconds=math.inf)


class _Counted(NamedTuple):
    """A GPU, where its reading is found, and its energy."""

    number: int
    gpu: Gpu
    energy: DividedEnergy


class _Interrupted(NamedTuple):
    """An activity that continues when the one that interrupts it has ended."""

    activity: Activity
    evaluation: list[int] | None  # the one that it is part of


class ActivitySplit:
    """Charges all time and energy, from its creation on, to one activity after the other; the first is idle.

    A switch notes the time and the activity. The energy counters are read in the background, at times of their own, and
    the energy between their updates is divided by what each activity draws. What was divided so is logged; at the end,
    all of it is divided once more by what is known then.

    Args:
        monitor: Measures the GPUs.
        gpu_indices: The GPUs of the monitor to count.
    """

    def __init__(self, monitor: ZeusMonitor, gpu_indices: Collection[int]) -> None:
        self._monitor = monitor
        self._time_source = monitor.time_source
        self._lock = ProcessLock()
        self._activity = Activity.IDLE
        self._interrupted: list[_Interrupted] = []
        self._evaluation: list[int] = []  # the spans of the current or latest one
        self._span: int | None = None  # the one under way
        self._latest_span = 0
        self._seconds: dict[Hashable, float] = {}  # of activities and spans
        reading = self._read()
        self._first = self._since = self._settled_at = reading.at
        self._timeline = Timeline(reading.at, _BEFORE, Activity.IDLE, stepping=Activity.STEPS)
        counted = [(number, *item) for number, item in enumerate(monitor.gpus.items()) if item[0] in gpu_indices]
        calls = [functools.partial(peak_watts, gpu) for _, _, gpu in counted]
        peaks = ParallelCalls().call_within(CALL_SECONDS, calls, lambda _number, _reason: UNKNOWN_PEAK_WATTS)
        self._gpus = [
            _Counted(number, gpu, self._divided(gpu, reading.gpus[number], most_watts, len(counted)))
            for (number, _, gpu), most_watts in zip(counted, peaks, strict=True)
        ]
        self.max_watts = max(peaks, default=math.inf)
        """The most that one of these GPUs can draw."""
        self._divisions: list[Division] = []
        self._divided_at = -math.inf
        self._has_switched = False  # since then
        self._next_reads = [reading.at] * len(self._gpus)
        self._is_reading = False
        self._feed(reading)
        self._stop_reading: Callable[[], None] | None = None
        self.start()

    def _divided(self, gpu: Gpu, edge: GpuEdge, most_watts: float, gpu_count: int) -> DividedEnergy:
        reads_per_second = _READS_PER_SECOND / gpu_count
        power = PowerSum(gpu.power_average_seconds, reads_per_second)
        if edge.counter_joules is None and edge.fault is None:
            return DividedEnergy(power, most_watts, self._timeline, _BEFORE)
        counter = CounterPhase(gpu.energy_counter_period_seconds, reads_per_second)
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
        if self._activity is not Activity.STEPS or self._span is not None or self._interrupted:
            self.switch(Activity.STEPS)
        self._timeline.begin_step(self._time_source.now())

    def enter(self, activity: Activity) -> None:
        """Begin an activity, until `leave`."""
        self._interrupted.append(_Interrupted(self._activity, None if self._span is None else self._evaluation))
        if activity in TRAINING and self._activity is not Activity.STEPS:
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
        reading = self._read()
        self._charge_time(reading.at)
        self._feed(reading)
        with self._lock:
            self._settle(reading.at, is_last)
            self._divisions = [gpu.energy.division(reading.at, is_last) for gpu in self._gpus]
        self._divided_at, self._has_switched = reading.at, False

    def extend(self) -> bool:
        """Charge the current activity up to this moment by the mean power it has had, without dividing anything anew.

        Logs may follow each other more quickly than counters are updated, and a division takes a millisecond.

        Returns:
            Whether that was possible; otherwise, call `update`: the latest division is old, another activity has begun
            since, or the mean power is not known.
        """
        now, seconds = self._time_source.now(), self._seconds.get(self._activity, 0.0)
        is_due = now - self._divided_at >= _SETTLE_SECONDS
        if is_due or self._has_switched or self._span is not None or seconds == 0 or not self._divisions:
            return False
        if any(division.amounts.get(self._activity, _UNKNOWN).lost_seconds for division in self._divisions):
            return False
        with self._lock:
            self._divisions = [
                gpu.energy.extended(division, self._activity, seconds, max(now - self._since, 0.0))
                for gpu, division in zip(self._gpus, self._divisions, strict=True)
            ]
        self._charge_time(now)
        return True

    @property
    def tallies(self) -> dict[Activity, Tally]:
        """Time and energy of each activity, up to the latest update; energies add up to the total exactly."""
        return {activity: self._tally(activity) for activity in Activity if activity in self._seconds}

    def total(self, tallies: Mapping[Activity, Tally]) -> Tally:
        """Return the sum of `tallies`, whose energy is more certain than they are one by one."""
        parts = sum(tallies.values(), Tally())
        off = sum(division.total_uncertainty_joules for division in self._divisions)
        seconds = self._since - self._first
        off = self._bounded(off, parts.measured_joules, seconds * len(self._gpus))
        return Tally(seconds, replace(parts.measured, uncertainty_joules=off), parts.lost_seconds)

    @property
    def evaluation(self) -> Tally | None:
        """Time and energy of the current or latest evaluation, up to the latest update; None if there was none."""
        return sum(map(self._tally, self._evaluation), Tally()) if self._evaluation else None

    def _tally(self, key: Hashable) -> Tally:
        amounts = [division.amounts.get(key, Amount()) for division in self._divisions]
        methods = [_method(gpu.energy.source, amount) for gpu, amount in zip(self._gpus, amounts, strict=True)]
        seconds = self._seconds.get(key, 0.0)
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
        if activity is self._activity and span == self._span:
            return
        synchronize(self._monitor)
        now = self._time_source.now()
        self._charge_time(now)
        self._timeline.change(now, activity, span)
        self._activity, self._span, self._has_switched = activity, span, True
        if self._gpus and now - min(self._next_reads) > _STALE_SECONDS and not self._is_reading:
            self._feed(self._monitor.read(sync_execution=False))

    def _charge_time(self, now: float) -> None:
        seconds = max(now - self._since, 0.0)
        self._since += seconds
        keys: list[Hashable] = [self._activity]
        if self._span is not None:
            keys.append(self._span)
        for key in keys:
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def _forget_evaluations(self) -> None:
        """Drop the spans of earlier evaluations."""
        with self._lock:
            for gpu in self._gpus:
                gpu.energy.forget_spans_before(self._latest_span)
        self._seconds = {key: seconds for key, seconds in self._seconds.items() if isinstance(key, Activity)}

    def _read(self) -> Reading:
        reading = self._monitor.read()
        return self._monitor.read(sync_execution=False) if reading.has_fault else reading

    def _feed(self, reading: Reading) -> None:
        end = self._time_source.now()
        with self._lock:
            for number, gpu in enumerate(self._gpus):
                edge = reading.gpus[gpu.number]
                power_watts = edge.power_watts if edge.fault is None else None  # else it may be of an earlier moment
                gpu.energy.add_edge(edge.at, end, edge.counter_joules, power_watts)
                self._next_reads[number] = max(self._next_reads[number], edge.at)

    @contained(default=lambda: _STALE_SECONDS)
    def _read_due(self) -> float:
        """Read the counters that are due, and return the seconds until the next one is."""
        now = self._time_source.now()
        self._is_reading = True
        for number, gpu in enumerate(self._gpus):
            if self._next_reads[number] <= now:
                begin, counter_joules, power_watts = self._time_source.now(), None, None
                if not gpu.energy.source.is_of_power:
                    counter_joules = _answer(gpu.gpu.read_energy_counter_joules)
                if counter_joules is None and gpu.energy.needs_power:
                    power_watts = _answer(gpu.gpu.read_power_watts)
                end = self._time_source.now()
                with self._lock:
                    gpu.energy.add_edge(begin, end, counter_joules, power_watts)
                    self._next_reads[number] = gpu.energy.next_read_at(end)
        self._is_reading = False
        now = self._time_source.now()
        if now - self._settled_at > _SETTLE_SECONDS:
            with self._lock:
                self._settle(now)
        return max(min(self._next_reads) - now, _MIN_WAIT_SECONDS)

    def _settle(self, now: float, is_last: bool = False) -> None:
        self._settled_at = now
        for gpu in self._gpus:
            gpu.energy.settle(now, is_last)
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
        stops.pop()()
        wait_seconds = call()
        if wait_seconds < math.inf:
            stops.append(time_source.repeatedly(act, wait_seconds))

    stops.append(time_source.repeatedly(act, _MIN_WAIT_SECONDS))

    def stop() -> None:
        if stops:
            stops.pop()()

    return stop
