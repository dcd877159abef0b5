"""The energy of one GPU by activity: its reads, by the counter or the power, and remarks on its numbers."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from zeus_core.attribution.amount import Amount
from zeus_core.attribution.divided_energy import DividedEnergy
from zeus_core.attribution.power_sum import PowerSum
from zeus_core.attribution.sensor_comparison import SensorComparison
from zeus_core.attribution.timeline import ClassTimeline
from zeus_core.attribution.updates import CounterUpdates
from zeus_core.device import Gpu
from zeus_core.device.sharing import Sharing
from zeus_core.errors import DeviceError
from zeus_core.events import Activity
from zeus_core.kinds import POWER_LIMIT
from zeus_core.measurement import Method
from zeus_core.monitor.meter import PossiblePower
from zeus_core.monitor.reading import GpuEdge
from zeus_core.monitor.selection import local_rank_of
from zeus_core.ports import TimeSource
from zeus_core.process.lock import ProcessLock
from zeus_core.settings.restoring import read_surely
from zeus_core.training.record.power_series import PowerSeries
from zeus_core.units import duration_text

if TYPE_CHECKING:
    from zeus_core.training.traced import Record

_logger = logging.getLogger(__name__)

_READS_PER_SECOND = 15.0  # of all GPUs together: enough for each update of a counter, and cheap (docs/measurement.md)
# Of each GPU, to compare its power with its counter: ten in ten seconds, fewer where many GPUs share the calls. At 0.8
# the intervals around a gain of 1.3 were wider than 1.1 times that (2026-11-26, test_sensor_difference.py).
_SAMPLES_PER_SECOND, _FEWEST_PER_SECOND = 1.0, 0.25
# Between two looks at its limits, which take the driver milliseconds.
_LOOK_SECONDS = 10.0


class CountedGpu:
    """Divides the energy of one GPU by a timeline of activities. Its lock is held by callers, but for `read_if_due`.

    Args:
        index: Its index in the monitor.
        gpu: The GPU.
        first: Its reading at the beginning.
        most_watts: The most that it can draw.
        gpu_count: How many share the reads.
        timeline: The activities in time.
        time_source: Times the reads.
        trace: Records the energy in time; nothing does if None.
    """

    def __init__(
        self,
        index: int,
        gpu: Gpu,
        first: GpuEdge,
        most_watts: float,
        gpu_count: int,
        timeline: ClassTimeline,
        time_source: TimeSource,
        trace: Record | None,
    ) -> None:
        self.gpu: Gpu = gpu
        self.most_watts: float = most_watts
        """The most that it can draw."""
        self.power: PowerSeries = PowerSeries()
        """Its energy over time."""
        self._label = f"GPU {index}"
        self._now = time_source.now
        self._read_power = PossiblePower(gpu, most_watts).read_watts
        self._fault: str | None = None  # why it could not be read the last time that it could not
        self._remarked: set[str] = set()  # the kinds of the remarks that were logged
        self._sharing = Sharing(gpu, is_rank=local_rank_of(os.environ)[1] > 1)
        self._limit_look_at = -math.inf
        # The lowest limit in force that lay below the one requested, and that one.
        self._held_down: tuple[float, float] | None = None
        reads_per_second = _READS_PER_SECOND / gpu_count
        spare = PowerSum(gpu.power_average_seconds, reads_per_second)
        has_counter = first.counter_joules is not None or first.fault is not None
        source = CounterUpdates(gpu.energy_counter_period_seconds, reads_per_second) if has_counter else spare
        self._comparison: SensorComparison | None = None
        if has_counter:
            is_sparse = gpu.energy_counter_period_seconds * reads_per_second < 1  # then reads near edges need the calls
            samples_per_second = max(_SAMPLES_PER_SECOND / (1.25 if is_sparse else 1) / gpu_count, _FEWEST_PER_SECOND)
            self._comparison = SensorComparison(timeline, gpu.power_average_seconds, samples_per_second)
        record = None if trace is None else trace.follow(index, gpu)
        self.energy: DividedEnergy = DividedEnergy(source, most_watts, timeline, spare, self._comparison, record)
        """Its energy by activity."""

    def next_read_at(self, now: float) -> float:
        """Return when to read its counter or its power next."""
        at = self.energy.next_read_at(now)
        return at if self._comparison is None else min(at, self._comparison.next_at)

    def add(self, edge: GpuEdge, end: float) -> None:
        """Add a reading that has ended at a moment."""
        power_watts = edge.power_watts if edge.fault is None else None  # else it may be of an earlier moment
        self._fault = edge.fault or self._fault
        self.energy.add_edge(edge.at, end, edge.counter_joules, power_watts)

    def read_if_due(self, now: float, lock: ProcessLock) -> None:
        """Read its counter and its power, as far as that is due. The lock is held while nothing is waited for."""
        self._sharing.look(now)
        if self._limit_look_at <= now:
            self._limit_look_at = now + _LOOK_SECONDS
            found = read_surely(self._find_held_down, lambda watts: watts is None)  # we may set the limit in between
            self._held_down = min(filter(None, (self._held_down, found)), default=None)
        comparison, energy = self._comparison, self.energy
        if comparison is not None and comparison.next_at <= now:
            begin, sampled_watts = self._now(), self._answer(self.gpu.read_power_watts)
            with lock:
                comparison.add_sample((begin + self._now()) / 2, sampled_watts)
        if energy.next_read_at(now) <= now:
            begin, counter_joules, power_watts, calls = self._now(), None, None, 0
            if not energy.source.is_of_power:
                counter_joules, calls = self._answer(self.gpu.read_energy_counter_joules), 1
            if energy.needs_power(begin, counter_joules):
                power_watts, calls = self._answer(self._read_power), calls + 1
            end = self._now()
            with lock:
                energy.add_edge(begin, end, counter_joules, power_watts)
                energy.plan_read(end, calls)

    def _find_held_down(self) -> tuple[float, float] | None:
        """Read the limit that the board enforces and the one requested; None if it keeps to that, or nobody knows."""
        try:
            enforced_watts, requested_watts = POWER_LIMIT.read_enforced(self.gpu), POWER_LIMIT.read(self.gpu)
        except DeviceError:
            return None
        if enforced_watts is None or POWER_LIMIT.is_enforced(requested_watts, enforced_watts):
            return None
        return enforced_watts, requested_watts

    def _answer(self, read: Callable[[], float]) -> float | None:
        """Return the answer of the GPU; None if it fails: what is missing shows as a gap."""
        try:
            return read()
        except DeviceError as error:
            self._fault = str(error)
            return None

    def settle(self, now: float, first: float, is_last: bool) -> None:
        """Divide the energy up to a moment, since the first one; once more, by what is known now, if it is the last."""
        self.energy.settle(now, is_last)
        known_seconds = self.energy.settled_until - first - self.energy.lost_seconds
        self.power.add(known_seconds, self.energy.settled_joules)  # what is lost is no time at 0 W

    def method(self, amount: Amount) -> Method:
        """Return how an amount of its energy was obtained."""
        if amount.is_estimated:
            return "estimated"
        return "integrated" if self.energy.source.is_of_power else "counted"

    @property
    def remarks(self) -> list[str]:
        """Remarks on its numbers for people."""
        return list(self._remarks().values())

    def log_remarks(self) -> None:
        """Log each kind of remark once."""
        for kind, remark in self._remarks().items():
            if kind not in self._remarked:
                self._remarked.add(kind)
                _logger.warning("%s", remark)

    def _remarks(self) -> dict[str, str]:
        remarks, lost_seconds = {}, self.energy.lost_seconds
        if lost_seconds > 0:
            because = f": {self._fault}" if self._fault else ""
            remarks["lost"] = f"its energy is lost for {duration_text(lost_seconds)}{because}"
        if self._sharing.remark is not None:
            remarks["shared"] = self._sharing.remark
        if self._held_down is not None:
            enforced, requested = map(POWER_LIMIT.text, self._held_down)
            remarks["held down"] = (
                f"its board enforced {enforced} of the {requested} that were set: firmware or another limiter"
            )
        differences = {} if self._comparison is None else self._comparison.differences
        if differences:
            powers = (
                f"{watts[0]:.0f} W and {watts[1]:.0f} W in {Activity(str(key)).words}"
                for key, watts in differences.items()
            )
            remarks["differs"] = (
                f"its energy counter and its power sensor differ ({', '.join(powers)}), and nobody knows which to "
                "believe: the intervals hold both"
            )
        return {kind: f"{self._label}: {remark}" for kind, remark in remarks.items()}
