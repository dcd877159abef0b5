"""The events of one rank: tracks of activities, steps and instructions, counters of GPUs, marks of settings. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zeus_core.tracing._trace_events import Event, complete, counter, mark, named, sorted_at
from zeus_core.tracing.facts import RankFacts

_ACTIVITIES, _STEPS, _INSTRUCTIONS, _SETTINGS = range(1, 5)
_TRACKS = {_ACTIVITIES: "activities", _STEPS: "steps", _INSTRUCTIONS: "pipeline", _SETTINGS: "settings"}


class Span(NamedTuple):
    """Something that took time, in seconds of the trace."""

    name: str
    begin: float
    end: float
    arguments: Mapping[str, Any] = {}


@dataclass(frozen=True)
class Counters:
    """The counter tracks of a GPU: moments, in seconds of the trace, and values.

    Attributes:
        index: The index of the GPU.
        energy: Joules, from any beginning.
        limit: Power limits in watts.
        clock: SM clocks in MHz.
        temperature: Temperatures of the chip in degrees Celsius.
    """

    index: int
    energy: Sequence[tuple[float, float]]
    limit: Sequence[tuple[float, float]] = ()
    clock: Sequence[tuple[float, float]] = ()
    temperature: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class RankRecord:
    """The training of one rank."""

    activities: Sequence[Span]
    steps: Sequence[Span]
    instructions: Sequence[Span]
    marks: Sequence[tuple[float, str, str]]
    counters: Sequence[Counters] = field(default_factory=tuple)

    def events(self, facts: RankFacts) -> list[Event]:
        """Return the events, sorted."""
        pid = facts.rank
        events = process_events(facts)
        for tid, spans in ((_ACTIVITIES, self.activities), (_STEPS, self.steps), (_INSTRUCTIONS, self.instructions)):
            if spans:
                events += _track(pid, tid)
            events += [complete(pid, tid, span.name, span.begin, span.end, span.arguments) for span in spans]
        if self.marks:
            events += _track(pid, _SETTINGS)
        events += [mark(pid, _SETTINGS, setting, at, {"why": why}) for at, setting, why in self.marks]
        for counters in self.counters:
            events += counter_events(pid, counters)
        return sorted(events, key=sorted_at)


def process_events(facts: RankFacts) -> list[Event]:
    """Return the events that name a rank."""
    labels = ", ".join(f"GPU {device.index}: {device.name}" for device in facts.devices)
    return [
        named("process_name", facts.rank, 0, f"rank {facts.rank} on {facts.host}"),
        named("process_labels", facts.rank, 0, labels),
        named("process_sort_index", facts.rank, 0, facts.rank),
    ]


def _track(pid: int, tid: int) -> list[Event]:
    return [named("thread_name", pid, tid, _TRACKS[tid]), named("thread_sort_index", pid, tid, tid)]


def counter_events(pid: int | str, counters: Counters) -> Iterator[Event]:
    """Return the tracks of power, energy, limit, clock and temperature of a GPU."""
    label = f"GPU {counters.index}"
    energy = counters.energy
    for (at, joules), (end, later) in itertools.pairwise(energy):
        if end > at and later >= joules:
            yield counter(pid, f"{label} power", at, "W", round((later - joules) / (end - at), 1))
    for at, joules in energy:
        yield counter(pid, f"{label} energy", at, "J", round(joules - energy[0][1], 3))
    for at, watts in counters.limit:
        yield counter(pid, f"{label} power limit", at, "W", round(watts, 1))
    for at, clock_mhz in counters.clock:
        yield counter(pid, f"{label} SM clock", at, "MHz", clock_mhz)
    for at, celsius in counters.temperature:
        yield counter(pid, f"{label} temperature", at, "degrees C", celsius)
