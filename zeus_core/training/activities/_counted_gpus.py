"""The energy of GPUs by activity, from reads of their counters in the background."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zeus_core._step_gaps import StepGaps
from zeus_core.adapters import contained
from zeus_core.attribution.amount import Amount, whole_quanta
from zeus_core.attribution.divided_energy import DividedEnergy, Division
from zeus_core.attribution.power_sum import PowerSum
from zeus_core.attribution.timeline import Timeline
from zeus_core.attribution.updates import CounterUpdates
from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy, Method
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.reading import GpuEdge, Reading
from zeus_core.process.lock import ProcessLock
from zeus_core.training.activities._repeated_call import MIN_WAIT_SECONDS, RepeatedCall
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import EnergyPoint, PowerSeries

if TYPE_CHECKING:
    from zeus_core.tracing.recorder import TraceRecorder

BEFORE = "before"
"""The class of the time before the run."""

_SETTLE_SECONDS = 1.0
"""Between two rounds of dividing what has become known. A round takes 1 to 2 ms, 0.2 % of this time."""

_READS_PER_SECOND = 15.0  # of all GPUs together: enough for each update of a counter, and cheap (docs/measurement.md)
_STALE_SECONDS = 0.3  # without a read in the background for so long, hooks read


class _Counted(NamedTuple):
    """A GPU, where its reading is found, and its energy."""

    number: int
    gpu: Gpu
    most_watts: float
    energy: DividedEnergy
    power: PowerSeries


class CountedGpus:
    """Divides the energy of some GPUs by a timeline of activities.

    Args:
        monitor: Measures the GPUs.
        gpu_indices: The GPUs of the monitor to count.
        reading: All devices, at the beginning.
        timeline: The activities in time.
        gaps: The time between two steps. None of it is divided before its activity is known.
        trace: Records the energy in time; nothing does if None.
    """

    def __init__(
        self,
        monitor: ZeusMonitor,
        gpu_indices: Collection[int],
        reading: Reading,
        timeline: Timeline,
        gaps: StepGaps,
        trace: TraceRecorder | None,
    ) -> None:
        self._monitor = monitor
        self._trace = trace
        self._time_source = monitor.time_source
        self._timeline = timeline
        self._gaps = gaps
        self._lock = ProcessLock()
        self._first = self._settled_at = reading.at
        counted = [(number, *item) for number, item in enumerate(monitor.gpus.items()) if item[0] in gpu_indices]
        peaks = [monitor.peak_watts[index] for _, index, _ in counted]
        self._gpus = [
            _Counted(
                *(number, gpu, most_watts, self._divided(index, gpu, reading.gpus[number], most_watts, len(counted))),
                PowerSeries(),
            )
            for (number, index, gpu), most_watts in zip(counted, peaks, strict=True)
        ]
        self.max_watts = max(peaks, default=math.inf)
        """The most that one of these GPUs can draw."""
        self._divisions: list[Division] = []  # of the GPUs
        self._next_read_at = reading.at  # in the background
        self._is_reading = False
        self._background: RepeatedCall | None = None
        self.feed(reading)

    def _divided(self, index: int, gpu: Gpu, edge: GpuEdge, most_watts: float, gpu_count: int) -> DividedEnergy:
        reads_per_second = _READS_PER_SECOND / gpu_count
        spare = PowerSum(gpu.power_average_seconds, reads_per_second)
        has_counter = edge.counter_joules is not None or edge.fault is not None
        source = CounterUpdates(gpu.energy_counter_period_seconds, reads_per_second) if has_counter else spare
        record = None if self._trace is None else self._trace.follow(index, gpu, most_watts)
        return DividedEnergy(source, most_watts, self._timeline, BEFORE, spare, record)

    def __len__(self) -> int:
        return len(self._gpus)

    def start(self) -> None:
        """Begin to read in the background."""
        if self._background is None and self._gpus:
            self._background = RepeatedCall(self._time_source, weakref.WeakMethod(self._read_due))
            weakref.finalize(self, self._background.stop)

    def stop(self) -> None:
        """Stop reading in the background."""
        if self._background is not None:
            self._background.stop()
            self._background = None

    def is_stale(self, now: float) -> bool:
        """Whether the background has not read for a while, and does not wait for a driver now."""
        return bool(self._gpus) and now - self._next_read_at > _STALE_SECONDS and not self._is_reading

    def follow_change(self, now: float) -> None:
        """Have the background read near a change of the activity; read here if it has not for a while."""
        if self.is_stale(now):
            self.feed(self._monitor.read(sync_execution=False))
        if self._background is not None:
            self._background.wake()

    def feed(self, reading: Reading) -> None:
        """Take in a reading of all devices, which has just ended."""
        end = self._time_source.now()
        self._next_read_at = max(self._next_read_at, end)
        with self._lock:
            for gpu in self._gpus:
                edge = reading.gpus[gpu.number]
                power_watts = edge.power_watts if edge.fault is None else None  # else it may be of an earlier moment
                gpu.energy.add_edge(edge.at, end, edge.counter_joules, power_watts)

    def leave_out(self, begin: float, end: float, other: Activity) -> None:
        """Note that the time since the latest step, from a moment on, is that of another activity, and steps go on."""
        with self._lock:
            self._begin_after_step(begin, other)
            self._timeline.change(end, Activity.STEPS)
            self._gaps.begin(end)
        self.follow_change(end)

    def _begin_after_step(self, at: float, other: Activity) -> None:
        if self._timeline.changed_at <= at:
            self._timeline.change(at, other)

    def update(self, now: float, is_last: bool) -> None:
        """Divide all energy up to this moment; once more, by what is known now, if it is the last."""
        with self._lock:
            self._settle(now, is_last)
            self._divisions = [gpu.energy.division(now, is_last) for gpu in self._gpus]

    def tell_more(self, watts: Sequence[float], seconds: float) -> tuple[float, float]:
        """Tell the energy since the latest update by the power of each GPU: none of it is taken back.

        Returns:
            The energy and how far it can be off, in joules.
        """
        joules = off_joules = 0.0
        for gpu, gpu_watts in zip(self._gpus, watts, strict=True):
            more_joules = whole_quanta(gpu_watts * seconds)
            gpu.energy.tell_more(more_joules)
            joules += more_joules
            off_joules += max(gpu_watts, gpu.most_watts - gpu_watts) * seconds
        return joules, off_joules

    def forget_spans_before(self, span: int) -> None:
        """Drop the spans with lower numbers."""
        with self._lock:
            for gpu in self._gpus:
                gpu.energy.forget_spans_before(span)

    @property
    def most_watts(self) -> list[float]:
        """The most that each GPU can draw."""
        return [gpu.most_watts for gpu in self._gpus]

    @property
    def total_uncertainty_joules(self) -> float:
        """How far the energy of all activities together can be off, by the latest update."""
        return sum(division.total_uncertainty_joules for division in self._divisions)

    def joules(self, key: Hashable) -> list[float]:
        """Return the energy of an activity for each GPU, by the latest update."""
        return [division.amounts.get(key, Amount()).energy_joules for division in self._divisions]

    def tally(self, key: Hashable, seconds: float) -> Tally:
        """Return the energy of an activity or span of so many seconds, by the latest update."""
        amounts = [division.amounts.get(key, Amount()) for division in self._divisions]
        methods = [_method(gpu.energy.source, amount) for gpu, amount in zip(self._gpus, amounts, strict=True)]
        energies = [
            DeviceEnergy(
                joules := amount.energy_joules, self.bounded(amount.uncertainty_joules, joules, seconds), method
            )
            for amount, method in zip(amounts, methods, strict=True)
        ]
        lost_seconds = max((amount.lost_seconds for amount in amounts), default=0.0)
        return Tally(seconds, sum(energies, DeviceEnergy()), lost_seconds)

    def bounded(self, uncertainty_joules: float, energy_joules: float, seconds: float) -> float:
        """Bound an uncertainty by what a GPU can draw in some time."""
        return min(uncertainty_joules, max(energy_joules, self.max_watts * seconds - energy_joules))

    def devices(
        self, activities: Sequence[Hashable], seconds: float
    ) -> dict[str, tuple[Tally, tuple[EnergyPoint, ...]]]:
        """Return the energy of each GPU in all activities together, and its energy over time, by UUID.

        Args:
            activities: The activities.
            seconds: Their time.
        """
        devices = {}
        for gpu, division in zip(self._gpus, self._divisions, strict=True):
            amounts = [division.amounts.get(activity, Amount()) for activity in activities]
            joules = sum(amount.energy_joules for amount in amounts)
            off = min(division.total_uncertainty_joules, max(joules, gpu.most_watts * seconds - joules))
            methods = [_method(gpu.energy.source, amount) for amount in amounts]
            energy = sum((DeviceEnergy(0.0, 0.0, method) for method in methods), DeviceEnergy(joules, off))
            lost_seconds = sum(amount.lost_seconds for amount in amounts)
            devices[gpu.gpu.uuid] = Tally(seconds, energy, lost_seconds), gpu.power.points
        return devices

    @contained(default=lambda: _STALE_SECONDS)
    def _read_due(self) -> float:
        """Read the counters that are due, and return the seconds until the next one is."""
        now = self._time_source.now()
        self._is_reading = True
        for gpu in self._gpus:
            if gpu.energy.next_read_at(now) <= now:
                begin, counter_joules, power_watts, calls = self._time_source.now(), None, None, 0
                if not gpu.energy.source.is_of_power:
                    counter_joules, calls = _answer(gpu.gpu.read_energy_counter_joules), 1
                if gpu.energy.needs_power(begin, counter_joules):
                    power_watts, calls = _answer(gpu.gpu.read_power_watts), calls + 1
                end = self._time_source.now()
                with self._lock:
                    gpu.energy.add_edge(begin, end, counter_joules, power_watts)
                    gpu.energy.plan_read(end, calls)
        self._is_reading = False
        now = self._time_source.now()
        if now - self._settled_at > _SETTLE_SECONDS:
            with self._lock:
                self._settle(now)
        self._next_read_at = min(gpu.energy.next_read_at(now) for gpu in self._gpus)
        return max(self._next_read_at - now, MIN_WAIT_SECONDS)

    def _settle(self, now: float, is_last: bool = False) -> None:
        self._settled_at = now
        since = self._gaps.since
        if since is not None and self._gaps.is_decided(now):
            self._begin_after_step(since, Activity.BETWEEN_STEPS)
        elif not is_last:
            now = min(now, self._gaps.open_since(now))
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


def _method(source: CounterUpdates | PowerSum, amount: Amount) -> Method:
    if amount.is_estimated:
        return "estimated"
    return "integrated" if source.is_of_power else "counted"
