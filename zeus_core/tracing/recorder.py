"""Records the training of one rank in time, with bounded memory, and makes its trace."""

from __future__ import annotations

import functools
import itertools
import math
import platform
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from zeus_core.adapters import contained
from zeus_core.attribution.updates import Knot
from zeus_core.device import Gpu
from zeus_core.device.gpu import read_or_none
from zeus_core.ports import DeviceEvent, TimeSource
from zeus_core.ports.background import repeatedly
from zeus_core.ports.time_source import MonotonicTime, clock_seconds
from zeus_core.tracing._bounded import Ring, Thinned
from zeus_core.tracing._trace_events import CounterTrack, Mark, TraceSpan, events_of_rank
from zeus_core.tracing.facts import ClockPoint, DeviceFacts, PhaseEnergy, RankFacts
from zeus_core.tracing.trace_file import Trace

_UPDATES = 10_000  # of a counter: at 10 a second, the last quarter of an hour
_POINTS = 1_200  # of each counter track before that
LOOK_SECONDS = 1.0
"""Between two reads of limit and clock, and, at first, between two points of the tracks before the last updates."""


class GpuRecord:
    """One GPU in time.

    Args:
        index: The index by which the framework knows it.
        gpu: The GPU.
    """

    def __init__(self, index: int, gpu: Gpu) -> None:
        self.index = index
        self._gpu = gpu
        self.updates: Ring[tuple[float, float]] = Ring(_UPDATES)
        self._earlier = Thinned(_POINTS, LOOK_SECONDS)
        self._limit: Ring[tuple[float, float]] = Ring(_POINTS)
        self._clock = Thinned(_POINTS, LOOK_SECONDS)
        self._temperature = Thinned(_POINTS, LOOK_SECONDS)
        self._last: tuple[float | None, ...] = None, None, None

    def add(self, begin: float, knot: Knot) -> None:
        """Add a moment at which the energy is known, of a trace with this beginning by the time source."""
        at = knot.at - begin
        self.updates.add((at, knot.energy_joules))
        self._earlier.add(at, knot.energy_joules)

    def look(self, at: float) -> None:
        """Read the limit, the clock and the temperature, in the background."""
        gpu = self._gpu
        now = (
            read_or_none(gpu.read_power_limit_watts),
            read_or_none(gpu.read_sm_clock_mhz),
            read_or_none(gpu.read_temperature_celsius),
        )
        adds = (lambda *point: self._limit.add(point)), self._clock.add, self._temperature.add
        for value, before, add in zip(now, self._last, adds, strict=True):
            if value is not None and value != before:
                add(at, value)
        self._last = now

    def facts(self) -> DeviceFacts:
        """Return the facts of the GPU."""
        return DeviceFacts(self.index, self._gpu.uuid, self._gpu.name)

    def tracks(self) -> list[CounterTrack]:
        """Return its power, energy, limit, clock and temperature over time."""
        updates = self.updates.items()
        energy = [*self._earlier.before(updates[0][0] if updates else math.inf), *updates]
        energy = [point for point in energy if point[0] >= 0]  # readers drop what is before the beginning
        power = [
            (at, round((later - joules) / (end - at), 1))
            for (at, joules), (end, later) in itertools.pairwise(energy)
            if end > at and later >= joules
        ]
        label = f"GPU {self.index}"
        return [
            CounterTrack(f"{label} power", "W", power),
            CounterTrack(f"{label} energy", "J", [(at, round(joules - energy[0][1], 3)) for at, joules in energy]),
            CounterTrack(f"{label} power limit", "W", [(at, round(watts, 1)) for at, watts in self._limit.items()]),
            CounterTrack(f"{label} SM clock", "MHz", self._clock.before(math.inf)),
            CounterTrack(f"{label} temperature", "degrees C", self._temperature.before(math.inf)),
        ]


# The sizes of the rings: with these an hour of 64 ranks takes less than 50 MB (benchmarks/tracing.py).
_STEPS = 2_000
_ACTIVITIES = 4_000
_INSTRUCTIONS = 10_000
_MARKS = 4_000
_PENDING = 2_000  # instructions that the device has not finished: training rarely runs a step ahead of it


class _Instruction(NamedTuple):
    name: str
    begin: DeviceEvent
    end: DeviceEvent
    arguments: Mapping[str, int]


class TraceRecorder:
    """The trace of one rank, up to `end`. Methods of the training thread take microseconds.

    Args:
        time_source: Tells the moments.
        rank: This rank.
        world_size: The number of ranks.
        run: The name of the run.
    """

    def __init__(self, time_source: TimeSource, rank: int = 0, world_size: int = 1, run: str = "") -> None:
        self._time_source = time_source
        self._rank, self._world_size, self._run = rank, world_size, run
        self._begin = time_source.now()
        self._begin_unix = clock_seconds(time_source)
        self._spans: Mapping[str, Ring[TraceSpan]] = {
            "activities": Ring(_ACTIVITIES),
            "steps": Ring(_STEPS),
            "pipeline": Ring(_INSTRUCTIONS),
        }
        self._activity: tuple[float, str] | None = None
        self._step_begin: float | None = None
        self._pending: deque[_Instruction] = deque(maxlen=_PENDING)
        self._marks: Ring[Mark] = Ring(_MARKS)
        self._gpus: list[GpuRecord] = []
        self._stop: Callable[[], None] | None = None
        self._setting: tuple[str, str] | None = None
        self.clock: list[ClockPoint] = []
        """Comparisons with the clock of rank 0."""
        self.steps: int = 0
        """Steps that have ended."""

    def now(self) -> float:
        """Return this moment, in seconds of the trace."""
        return self._time_source.now() - self._begin

    def clock_now(self) -> float:
        """Return this moment in seconds since 1970, by a clock that nobody sets while the trace lasts."""
        return self._begin_unix + self.now()

    def follow(self, index: int, gpu: Gpu) -> Callable[[Knot], None]:
        """Record a GPU from now on: its limit and its clock in the background.

        Args:
            index: The index by which the framework knows it.
            gpu: The GPU.

        Returns:
            A function that records a moment at which its energy is known.
        """
        record = next((record for record in self._gpus if record.index == index), None)
        if record is None:
            record = GpuRecord(index, gpu)
            self._gpus.append(record)
        if self._stop is None:
            self._stop = repeatedly(self._time_source, self._look, LOOK_SECONDS)
        return functools.partial(record.add, self._begin)

    def end(self) -> None:
        """Stop recording."""
        if self._stop is not None:
            self._stop()
            self._stop = None
        self._look()
        self._step_begin = None  # it was interrupted
        self._finish_instructions()
        self.begin_activity(self._time_source.now(), None)

    def begin_activity(self, at: float, name: str | None) -> None:
        """Begin an activity, at a moment of the time source; None ends the latest one. The same one goes on."""
        if self._activity is not None and self._activity[1] == name:
            return  # an evaluation within an evaluation
        at -= self._begin
        if self._activity is not None and at > self._activity[0]:
            self._spans["activities"].add(TraceSpan(self._activity[1], self._activity[0], at))
        self._activity = None if name is None else (at, name)

    def begin_step(self, at: float) -> None:
        """Begin a step, at a moment of the time source."""
        self._step_begin = at - self._begin

    def end_step(self) -> None:
        """End the step."""
        self.steps += 1
        if self._step_begin is not None:
            self._spans["steps"].add(TraceSpan("step", self._step_begin, self.now(), {"step": self.steps}))
            self._step_begin = None
        if self._pending:
            self._finish_instructions()

    def add_instruction(self, name: str, begin: DeviceEvent, end: DeviceEvent, arguments: Mapping[str, int]) -> None:
        """Add an instruction of a pipeline; the device may not have finished it."""
        self._pending.append(_Instruction(name, begin, end, arguments))

    def _finish_instructions(self) -> None:
        """Move the instructions that the device has finished to their track, in order, and let their events go."""
        while self._pending:
            name, begin, end, arguments = self._pending[0]
            begin_seconds, end_seconds = begin.seconds(), end.seconds()
            if begin_seconds is None or end_seconds is None:
                return
            span = TraceSpan(name, begin_seconds - self._begin, end_seconds - self._begin, arguments)
            self._spans["pipeline"].add(span)
            self._pending.popleft()

    def set_to(self, setting: str, why: str) -> None:
        """Mark the setting in force and its reason, if either is another one than before."""
        if (setting, why) != self._setting:
            self._setting = setting, why
            self._marks.add(Mark(self.now(), setting, why))

    @contained
    def _look(self) -> None:
        """Read limits and clocks."""
        for gpu in self._gpus:
            gpu.look(self.now())

    def to_trace(self, phases: Mapping[str, PhaseEnergy], total: PhaseEnergy | None) -> Trace:
        """Return the trace up to this moment. Another thread may call this while the training goes on.

        Args:
            phases: Time and energy by activity.
            total: The same of all of them.
        """
        now = self.now()
        spans = {track: ring.items() for track, ring in self._spans.items()}
        activity = self._activity  # after the spans, so that one that ends meanwhile is not there twice
        if activity is not None:
            spans["activities"].append(TraceSpan(activity[1], activity[0], now))
        rings: dict[str, Ring[Any]] = {**self._spans, "settings": self._marks}
        rings |= {f"updates of GPU {gpu.index}": gpu.updates for gpu in self._gpus}
        facts = RankFacts(
            self._rank,
            self._world_size,
            platform.node(),
            round(self._begin_unix * 1e9),
            now,
            tuple(self.clock),
            tuple(gpu.facts() for gpu in self._gpus),
            dict(phases),
            total,
            self.steps,
            {name: ring.dropped for name, ring in rings.items() if ring.dropped},
            _clock_of(self._time_source),
            round(self._begin * 1e9),
            self._run,
        )
        counters = [track for gpu in self._gpus for track in gpu.tracks()]
        return Trace(facts.base_nanoseconds, [facts], events_of_rank(facts, spans, self._marks.items(), counters))


def _clock_of(time_source: TimeSource) -> str:
    """Name the clock of a time source: a boot of a machine, and the namespace, as containers may shift the clock."""
    if not isinstance(time_source, MonotonicTime):
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/time').readlink()}"
    except OSError:
        return ""
