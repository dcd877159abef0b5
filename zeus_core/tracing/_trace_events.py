"""The events of a trace, in Chrome's format, and those of one rank. Pure.

The format: "Trace Event Format" of the Chromium project. `ph` is the kind of an event: X has a duration, C is a
counter, i is a mark, M names a process or a thread. `ts` and `dur` are in microseconds, from `baseTimeNanoseconds` on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from zeus_core.tracing.facts import RankFacts

Event = dict[str, Any]

_TRACKS = ("activities", "steps", "pipeline", "settings")  # from the top


class TraceSpan(NamedTuple):
    """Something that took time, in seconds of the trace."""

    name: str
    begin: float
    end: float
    arguments: Mapping[str, Any] = {}


class Mark(NamedTuple):
    """A setting that was in force from a moment on, in seconds of the trace, and why."""

    at: float
    setting: str
    why: str


class CounterTrack(NamedTuple):
    """A value over time: its moments, in seconds of the trace, each with the value from then on."""

    name: str
    unit: str
    points: Sequence[tuple[float, float]]


def events_of_rank(
    facts: RankFacts, spans: Mapping[str, Sequence[TraceSpan]], marks: Sequence[Mark], counters: Iterable[CounterTrack]
) -> list[Event]:
    """Return the events of a rank, sorted.

    Args:
        facts: Its facts.
        spans: All that took time, by track: activities, steps, pipeline.
        marks: The settings.
        counters: The values over time.
    """
    pid = facts.rank
    labels = ", ".join(f"GPU {device.index}: {device.name}" for device in facts.devices)
    events = [
        named("process_name", pid, 0, f"rank {facts.rank} on {facts.host}"),
        named("process_labels", pid, 0, labels),
        named("process_sort_index", pid, 0, facts.rank),
    ]
    for tid, track in enumerate(_TRACKS, 1):
        on_track = [complete(pid, tid, *span) for span in spans.get(track, ())]
        if track == "settings":
            on_track = [mark(pid, tid, each.setting, each.at, {"why": each.why}) for each in marks]
        if on_track:
            events += [named("thread_name", pid, tid, track), named("thread_sort_index", pid, tid, tid), *on_track]
    events += [counter(pid, name, at, unit, value) for name, unit, points in counters for at, value in points]
    return sorted(events, key=sorted_at)


def microseconds(seconds: float) -> float:
    """Return microseconds, to a nanosecond."""
    return round(seconds * 1e6, 3)


def complete(pid: int, tid: int, name: str, begin: float, end: float, arguments: Mapping[str, Any]) -> Event:
    """Return an event that lasts from one moment to another, in seconds."""
    ts = microseconds(begin)
    event: Event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": ts}
    event["dur"] = round(max(microseconds(end) - ts, 0.0), 3)
    return {**event, "args": dict(arguments)} if arguments else event


def counter(pid: int, name: str, at: float, unit: str, value: float) -> Event:
    """Return the value of a counter track from a moment on."""
    return {"ph": "C", "pid": pid, "name": name, "ts": microseconds(at), "args": {unit: value}}


def mark(pid: int, tid: int, name: str, at: float, arguments: Mapping[str, Any]) -> Event:
    """Return a mark at one moment, across the tracks of its process."""
    ts = microseconds(at)
    return {"ph": "i", "s": "p", "pid": pid, "tid": tid, "name": name, "ts": ts, "args": dict(arguments)}


def named(kind: str, pid: int, tid: int, value: str | int) -> Event:
    """Return the name or the place of a process or a thread: `kind` is one such as "thread_name"."""
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "ts": 0, "args": {kind.partition("_")[2]: value}}


def sorted_at(event: Event) -> tuple[bool, float]:
    """Return the key that sorts events: names first, then by time."""
    return event["ph"] != "M", event["ts"]
