"""The energy of GPUs by activity, from reads of their counters in the background."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from zeus_core._step_gaps import StepGaps
from zeus_core.adapters import contained
from zeus_core.attribution.amount import Amount, whole_quanta
from zeus_core.attribution.divided_energy import DividedEnergy, Division
from zeus_core.attribution.power_sum import PowerSum
from zeus_core.attribution.sensor_comparison import SensorComparison
from zeus_core.attribution.timeline import Timeline
from zeus_core.attribution.updates import CounterUpdates
from zeus_core.device import Gpu
from zeus_core.errors import DeviceError
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy, Method
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.meter import PossiblePower
from zeus_core.monitor.reading import GpuEdge, Reading
from zeus_core.process.lock import ProcessLock
from zeus_core.training.activities._repeated_call import MIN_WAIT_SECONDS, RepeatedCall
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import EnergyPoint, PowerSeries
from zeus_core.units import duration_text

if TYPE_CHECKING:
    from zeus_core.tracing.recorder import TraceRecorder

_logger = logging.getLogger(__name__)

BEFORE = "before"
"""The class of the time before the run."""

_SETTLE_SECONDS = 0.4
"""Between two rounds of dividing what has become known, in the background."""

_STEADY_SECONDS = 2.0  # of one activity, after which a log needs no round of its own: all before it was divided

_READS_PER_SECOND = 15.0  # of all GPUs together: enough for each update of a counter, and cheap (docs/measurement.md)
# Of each GPU, to compare its power with its counter: ten in ten seconds, fewer where many GPUs share the calls. At 0.8
# the intervals around a gain of 1.3 were wider than 1.1 times that (2026-11-26, test_sensor_difference.py).
_SAMPLES_PER_SECOND, _FEWEST_PER_SECOND = 1.0, 0.25
_STALE_SECONDS = 0.3  # without a read in the background for so long, hooks read


class _Counted(NamedTuple):
    """A GPU, its name for people, where its reading is found, and its energy."""

    label: str
    number: int
    gpu: Gpu
    read_power: Callable[[], float]
    most_watts: float
    comparison: SensorComparison | None
    energy: DividedEnergy
    power: PowerSeries

    def next_read_at(self, now: float) -> float:
        """Return when to read its counter or its power next."""
        at = self.energy.next_read_at(now)
        return at if self.comparison is None else min(at, self.comparison.next_at)

    def remarks(self, fault: str | None) -> dict[str, str]:
        """Return remarks on its numbers for people, by their kind.

        Args:
            fault: Why it could not be read the last time that it could not.
        """
        remarks, lost_seconds = {}, self.energy.lost_seconds
        if lost_seconds > 0:
            because = f": {fault}" if fault else ""
            remarks["lost"] = f"its energy is lost for {duration_text(lost_seconds)}{because}"
        differences = {} if self.comparison is None else self.comparison.differences
        if differences:
            powers = (
                f"{watts[0]:.0f} W and {watts[1]:.0f} W in {Activity(str(key)).words}"
                for key, watts in differences.items()
            )
            remarks["differs"] = (
                f"its energy counter and its power sensor differ ({', '.join(powers)}), and nobody knows which to "
                "believe: the intervals hold both"
            )
        return {kind: f"{self.label}: {remark}" for kind, remark in remarks.items()}


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
            self._counted(number, index, gpu, reading.gpus[number], most_watts, len(counted))
            for (number, index, gpu), most_watts in zip(counted, peaks, strict=True)
        ]
        self._faults: dict[int, str] = {}  # the latest of each GPU
        self._remarked: set[tuple[int, str]] = set()  # the GPUs and kinds of the remarks that were logged
        self.max_watts = max(peaks, default=math.inf)
        """The most that one of these GPUs can draw."""
        self._divisions: list[Division] = []  # of the GPUs
        self._next_read_at = reading.at  # in the background
        self._is_reading = False
        self._background = RepeatedCall(self._time_source, weakref.WeakMethod(self._read_due))
        weakref.finalize(self, self._background.stop)
        self.feed(reading)

    def _counted(self, number: int, index: int, gpu: Gpu, edge: GpuEdge, most_watts: float, gpu_count: int) -> _Counted:
        reads_per_second = _READS_PER_SECOND / gpu_count
        spare = PowerSum(gpu.power_average_seconds, reads_per_second)
        has_counter = edge.counter_joules is not None or edge.fault is not None
        source = CounterUpdates(gpu.energy_counter_period_seconds, reads_per_second) if has_counter else spare
        record = None if self._trace is None else self._trace.follow(index, gpu, most_watts)
        is_sparse = gpu.energy_counter_period_seconds * reads_per_second < 1  # then reads near edges need the calls
        samples_per_second = max(_SAMPLES_PER_SECOND / (1.25 if is_sparse else 1) / gpu_count, _FEWEST_PER_SECOND)
        comparison = (
            SensorComparison(self._timeline, gpu.power_average_seconds, samples_per_second) if has_counter else None
        )
        energy = DividedEnergy(source, most_watts, self._timeline, BEFORE, spare, comparison, record)
        read_power = PossiblePower(gpu, most_watts).read_watts
        return _Counted(f"GPU {index}", number, gpu, read_power, most_watts, comparison, energy, PowerSeries())

    def __len__(self) -> int:
        return len(self._gpus)

    def start(self) -> None:
        """Begin to read in the background."""
        if self._gpus:
            self._background.start()

    def stop(self) -> None:
        """Stop reading in the background."""
        self._background.stop()

    def is_stale(self, now: float) -> bool:
        """Whether the background has not read for a while, and does not wait for a driver now."""
        return bool(self._gpus) and now - self._next_read_at > _STALE_SECONDS and not self._is_reading

    def follow_change(self, now: float) -> None:
        """Have the background read near a change of the activity; read here if it has not for a while."""
        if self.is_stale(now):
            self.feed(self._monitor.read(sync_execution=False))
        self._background.wake()

    def feed(self, reading: Reading) -> None:
        """Note a reading of all devices, which has just ended."""
        end = self._time_source.now()
        self._next_read_at = max(self._next_read_at, end)
        with self._lock:
            for gpu in self._gpus:
                edge = reading.gpus[gpu.number]
                power_watts = edge.power_watts if edge.fault is None else None  # else it may be of an earlier moment
                if edge.fault is not None:
                    self._faults[gpu.number] = edge.fault
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
        is_steady = now - self._timeline.changed_at > _STEADY_SECONDS and now - self._settled_at <= _SETTLE_SECONDS
        with self._lock:
            if is_last or not is_steady:
                self._settle(now, is_last)
            self._divisions = [gpu.energy.division(now, is_last) for gpu in self._gpus]
        self._log_remarks()

    def have_answered(self, now: float) -> bool:
        """Whether each GPU was read so recently that its power now is known."""
        return all(gpu.energy.has_answered(now) for gpu in self._gpus)

    def report_more(self, powers: Iterable[tuple[Sequence[float], float]]) -> list[tuple[float, float]]:
        """Report the energy since the latest update by the power of each GPU: none of it is taken back.

        Args:
            powers: The watts of each GPU in an activity, and its seconds.

        Returns:
            The energy of each activity and how far it can be off, in joules.
        """
        of_gpus, reported = [0.0] * len(self._gpus), []
        for watts, seconds in powers:
            joules = off_joules = 0.0
            for number, (gpu, gpu_watts) in enumerate(zip(self._gpus, watts, strict=True)):
                more_joules = whole_quanta(gpu_watts * seconds)
                of_gpus[number] += more_joules
                joules += more_joules
                off_joules += max(gpu_watts, gpu.most_watts - gpu_watts) * seconds
            reported.append((joules, off_joules))
        for gpu, more_joules in zip(self._gpus, of_gpus, strict=True):
            gpu.energy.report_more(more_joules)
        return reported

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
            if gpu.comparison is not None and gpu.comparison.next_at <= now:
                begin, sampled_watts = self._time_source.now(), self._answer(gpu.number, gpu.gpu.read_power_watts)
                with self._lock:
                    gpu.comparison.add_sample((begin + self._time_source.now()) / 2, sampled_watts)
            if gpu.energy.next_read_at(now) <= now:
                begin, counter_joules, power_watts, calls = self._time_source.now(), None, None, 0
                if not gpu.energy.source.is_of_power:
                    counter_joules, calls = self._answer(gpu.number, gpu.gpu.read_energy_counter_joules), 1
                if gpu.energy.needs_power(begin, counter_joules):
                    power_watts, calls = self._answer(gpu.number, gpu.read_power), calls + 1
                end = self._time_source.now()
                with self._lock:
                    gpu.energy.add_edge(begin, end, counter_joules, power_watts)
                    gpu.energy.plan_read(end, calls)
        self._is_reading = False
        now = self._time_source.now()
        if now - self._settled_at > _SETTLE_SECONDS:
            with self._lock:
                self._settle(now)
            self._log_remarks()
        self._next_read_at = min(gpu.next_read_at(now) for gpu in self._gpus)
        return max(self._next_read_at - now, MIN_WAIT_SECONDS)

    def _answer(self, number: int, read: Callable[[], float]) -> float | None:
        """Return what a GPU answers; None if it fails: what is missing shows as a gap."""
        try:
            return read()
        except DeviceError as error:
            self._faults[number] = str(error)
            return None

    @property
    def remarks(self) -> list[str]:
        """Remarks on the numbers by the latest update, for people."""
        return [remark for gpu in self._gpus for remark in gpu.remarks(self._faults.get(gpu.number)).values()]

    def _log_remarks(self) -> None:
        """Log each kind of remark on each GPU once."""
        for gpu in self._gpus:
            for kind, remark in gpu.remarks(self._faults.get(gpu.number)).items():
                if (gpu.number, kind) not in self._remarked:
                    self._remarked.add((gpu.number, kind))
                    _logger.warning("%s", remark)

    def _settle(self, now: float, is_last: bool = False) -> None:
        self._settled_at = now
        unusual_since = self._gaps.unusual_since(now)
        if unusual_since is not None:
            self._begin_after_step(unusual_since, Activity.BETWEEN_STEPS)
        if not is_last and (unusual_since is None or self._gaps.since is None):
            now = min(now, self._gaps.open_since(now))
        for gpu in self._gpus:
            gpu.energy.settle(now, is_last)
            known_seconds = gpu.energy.settled_until - self._first - gpu.energy.lost_seconds
            gpu.power.add(known_seconds, gpu.energy.settled_joules)  # what is lost is no time at 0 W
        self._timeline.forget_before(min((gpu.energy.settled_until for gpu in self._gpus), default=now))


def _method(source: CounterUpdates | PowerSum, amount: Amount) -> Method:
    if amount.is_estimated:
        return "estimated"
    return "integrated" if source.is_of_power else "counted"
