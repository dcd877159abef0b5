"""The events of Chrome's trace format: what a trace consists of, and what an event may look like. Pure.

The format: "Trace Event Format" of the Chromium project. `ph` is the kind of an event: X has a duration, C is a
counter, i is a mark, M names a process or a thread. `ts` and `dur` are in microseconds, from `baseTimeNanoseconds` on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zeus_core.errors import UsageError
from zeus_core.tracing.facts import RankFacts
from zeus_core.validate import shown

Event = dict[str, Any]

_NAMES = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def microseconds(seconds: float) -> float:
    """Return microseconds, to a nanosecond."""
    return round(seconds * 1e6, 3)


def complete(pid: int, tid: int, name: str, begin: float, end: float, arguments: Mapping[str, Any]) -> Event:
    """Return an event that lasts from one moment to another, in seconds."""
    ts = microseconds(begin)
    event: Event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts}
    event["dur"] = round(max(microseconds(end) - ts, 0.0), 3)
    return {**event, "args": dict(arguments)} if arguments else event


def counter(pid: int | str, name: str, at: float, unit: str, value: float) -> Event:
    """Return the value of a counter track from a moment on."""
    return {"ph": "C", "pid": pid, "name": name, "ts": microseconds(at), "args": {unit: value}}


def mark(pid: int, tid: int, name: str, at: float, arguments: Mapping[str, Any]) -> Event:
    """Return a mark at one moment, across the tracks of its process."""
    return {
        "ph": "i",
        "s": "p",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": microseconds(at),
        "args": dict(arguments),
    }


def named(kind: str, pid: int, tid: int, value: str | int) -> Event:
    """Return the name or the place of a process or a thread: `kind` is one such as "thread_name"."""
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "ts": 0, "args": {_NAMES[kind]: value}}


def sorted_at(event: Event) -> tuple[bool, float]:
    """Return the key that sorts events: names first, then by time."""
    return event["ph"] != "M", event["ts"]


def check_event(event: object) -> None:
    """Check that an event is one that readers of the format accept.

    Raises:
        UsageError: It is not; the message shows it.
    """
    problem = _problem(event)
    if problem is not None:
        raise UsageError(f"{shown(event)} is no event of a trace: {problem}")


def _problem(event: object) -> str | None:
    if not isinstance(event, Mapping):
        return "it is no object"
    kind = event.get("ph")
    if not isinstance(kind, str) or len(kind) != 1:
        return '"ph" is no kind'
    if not isinstance(event.get("name", ""), str):
        return '"name" is no text'
    if not isinstance(event.get("args", {}), Mapping):
        return '"args" is no object'
    if kind == "M":
        member = _NAMES.get(event.get("name", ""))
        return None if member is None or member in event.get("args", {}) else f'"args" lacks {member!r}'
    if not _is_number(event.get("ts")):
        return '"ts" is no number'
    if kind == "X" and not (_is_number(event.get("dur")) and event["dur"] >= 0):
        return '"dur" is no duration'
    if kind == "C" and not all(_is_number(value) for value in event.get("args", {None: None}).values()):
        return "a counter holds something other than numbers"
    if kind in "XCi" and not all(isinstance(event.get(name), int | str) for name in _places(kind)):
        return "its process or thread is missing"
    return None


def _places(kind: str) -> tuple[str, ...]:
    return ("pid",) if kind == "C" else ("pid", "tid")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


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
