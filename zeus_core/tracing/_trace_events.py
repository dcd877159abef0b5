"""The events of Chrome's trace format: what a trace consists of, and what an event may look like. Pure.

The format: "Trace Event Format" of the Chromium project. `ph` is the kind of an event: X has a duration, C is a
counter, i is a mark, M names a process or a thread. `ts` and `dur` are in microseconds, from `baseTimeNanoseconds` on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zeus_core.errors import UsageError
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
