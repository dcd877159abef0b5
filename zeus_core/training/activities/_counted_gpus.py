"""The energy of GPUs by activity, from reads of their counters in the background."""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING

from zeus_core.adapters import contained
from zeus_core.attribution.amount import Amount, whole_quanta
from zeus_core.attribution.divided_energy import Division
from zeus_core.attribution.timeline import ClassTimeline
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.monitor import ZeusMonitor
from zeus_core.monitor.reading import Reading
from zeus_core.ports.step_gaps import StepGaps
from zeus_core.process.lock import ProcessLock
from zeus_core.training.activities._counted_gpu import CountedGpu
from zeus_core.training.activities._repeated_call import MIN_WAIT_SECONDS, RepeatedCall
from zeus_core.training.activities.tally import Tally
from zeus_core.training.record.power_series import EnergyPoint

if TYPE_CHECKING:
    from zeus_core.training.traced import Record

_SETTLE_SECONDS = 0.4
"""Between two rounds of dividing what has become known, in the background."""

_STEADY_SECONDS = 2.0  # of one activity, after which a log needs no round of its own: all before it was divided

_STALE_SECONDS = 0.3  # without a read in the background for so long, hooks read


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
        timeline: ClassTimeline,
        gaps: StepGaps,
        trace: Record | None,
    ) -> None:
        self._monitor = monitor
        self._time_source = monitor.time_source
        self._timeline = timeline
        self._gaps = gaps
        self._lock = ProcessLock()
        self._first = self._settled_at = reading.at
        counted = [(number, *item) for number, item in enumerate(monitor.gpus.items()) if item[0] in gpu_indices]
        peaks = [monitor.peak_watts[index] for _, index, _ in counted]
        self._numbers = [number for number, _, _ in counted]  # where their readings are found
        self._gpus = [
            CountedGpu(index, gpu, reading.gpus[number], watts, len(counted), timeline, monitor.time_source, trace)
            for (number, index, gpu), watts in zip(counted, peaks, strict=True)
        ]
        self.max_watts = max(peaks, default=math.inf)
        """The most that one of these GPUs can draw."""
        self._divisions: list[Division] = []  # of the GPUs
        self._next_read_at = reading.at  # in the background
        self._is_reading = False
        self._background = RepeatedCall(self._time_source, weakref.WeakMethod(self._read_due))
        weakref.finalize(self, self._background.stop)
        self.feed(reading)

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
            for number, gpu in zip(self._numbers, self._gpus, strict=True):
                gpu.add(reading.gpus[number], end)

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
        methods = [gpu.method(amount) for gpu, amount in zip(self._gpus, amounts, strict=True)]
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
            energy = sum((DeviceEnergy(0.0, 0.0, gpu.method(amount)) for amount in amounts), DeviceEnergy(joules, off))
            lost_seconds = sum(amount.lost_seconds for amount in amounts)
            devices[gpu.gpu.uuid] = Tally(seconds, energy, lost_seconds), gpu.power.points
        return devices

    @contained(default=lambda: _STALE_SECONDS)
    def _read_due(self) -> float:
        """Read the counters that are due, and return the seconds until the next one is."""
        now = self._time_source.now()
        self._is_reading = True
        for gpu in self._gpus:
            gpu.read_if_due(now, self._lock)
        self._is_reading = False
        now = self._time_source.now()
        if now - self._settled_at > _SETTLE_SECONDS:
            with self._lock:
                self._settle(now)
            self._log_remarks()
        self._next_read_at = min(gpu.next_read_at(now) for gpu in self._gpus)
        return max(self._next_read_at - now, MIN_WAIT_SECONDS)

    @property
    def remarks(self) -> list[str]:
        """Remarks on the numbers by the latest update, for people."""
        return [remark for gpu in self._gpus for remark in gpu.remarks]

    def _log_remarks(self) -> None:
        for gpu in self._gpus:
            gpu.log_remarks()

    def _settle(self, now: float, is_last: bool = False) -> None:
        self._settled_at = now
        unusual_since = self._gaps.unusual_since(now)
        if unusual_since is not None:
            self._begin_after_step(unusual_since, Activity.BETWEEN_STEPS)
        if not is_last and (unusual_since is None or self._gaps.since is None):
            now = min(now, self._gaps.open_since(now))
        for gpu in self._gpus:
            gpu.settle(now, self._first, is_last)
        self._timeline.forget_before(min((gpu.energy.settled_until for gpu in self._gpus), default=now))
