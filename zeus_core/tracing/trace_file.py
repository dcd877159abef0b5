"""Reads and writes the files of traces: JSON as Chrome and Perfetto open it, with the facts of the ranks beside it."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_core.documents import Document, parse_json
from zeus_core.errors import UsageError
from zeus_core.files import is_special, write_atomically
from zeus_core.tracing._trace_events import Event
from zeus_core.tracing.facts import RankFacts
from zeus_core.validate import shown

_FACTS = "zeus_core"
_COMPRESSION = 6  # level 9 takes three times as long for 2 % less
_EVENTS_AT_ONCE = 1_000
_MOST_MICROSECONDS = 1e15  # 31 years
_MEMBERS = {
    "X": {"pid", "tid", "name", "ts", "dur"},
    "C": {"pid", "name", "ts"},
    "i": {"pid", "name", "ts"},
    "M": {"pid"},
}


@dataclass(frozen=True)
class Trace:
    """A trace of some ranks.

    Attributes:
        base_nanoseconds: The moment that all events are relative to: nanoseconds since 1970.
        ranks: The facts of each rank.
        events: The events.
        skew_seconds: How far the clocks of the ranks can be apart; None if that is not known, or of one rank.
    """

    base_nanoseconds: int
    ranks: Sequence[RankFacts]
    events: Iterable[Event]
    skew_seconds: float | None = None


@dataclass(frozen=True)
class _Facts:
    """The part of a file that only zeus-core reads."""

    base_nanoseconds: int
    ranks: tuple[RankFacts, ...]
    skew_seconds: float | None


_DOCUMENT = Document("zeus-core trace", 3, _Facts, _FACTS)


def trace_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's trace in a folder."""
    return folder / f"trace-{rank}.json.gz"


def write_trace(path: Path, trace: Trace) -> int:
    """Replace a file by a trace, gzipped if its name ends in ".gz". Return its size in bytes.

    Only the compressed events are held in memory, of which a job of many ranks has millions.

    Raises:
        OSError: It cannot be written.
    """
    pieces = (piece.encode() for piece in _pieces(trace))
    if path.suffix == ".gz":
        # 16 more than the window is gzip's header.
        compressor = zlib.compressobj(_COMPRESSION, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        data = b"".join([*map(compressor.compress, pieces), compressor.flush()])
    else:
        data = b"".join(pieces)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return len(data)


def _pieces(trace: Trace) -> Iterator[str]:
    facts = _Facts(trace.base_nanoseconds, tuple(trace.ranks), trace.skew_seconds)
    head = {"displayTimeUnit": "ms", "baseTimeNanoseconds": trace.base_nanoseconds}
    yield f'{_text({**head, _FACTS: _DOCUMENT.to_json(facts)})[:-1]},"traceEvents":['
    separator = ""
    remaining = iter(trace.events)
    while some := list(itertools.islice(remaining, _EVENTS_AT_ONCE)):
        yield separator + _text(some)[1:-1]
        separator = ",\n"
    yield "]}"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def read_trace(path: Path) -> Trace:
    """Read a trace that `write_trace` wrote.

    Raises:
        UsageError: It cannot be read, is damaged, or is not a trace of zeus-core; the message names the file.
    """
    try:
        if is_special(path):
            raise UsageError("it is a folder or a device, not a file")
        data = path.read_bytes()
        document = parse_json((gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode())
        if not isinstance(document, dict) or _FACTS not in document:
            raise UsageError("it is not a trace of zeus-core: train with trace=True, and give its trace-0.json.gz")
        facts = _DOCUMENT.from_json(document[_FACTS])
        events = document.get("traceEvents")
        if not isinstance(events, list) or not facts.ranks:
            raise UsageError("it has no events, or is of no rank")
        for event in events:
            if not _is_event(event):
                raise UsageError(f"it is damaged: {shown(event)} is not an event of a trace")
    except EOFError:
        raise UsageError(f"{path} cannot be read: it is cut off") from None
    except (OSError, zlib.error, UsageError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return Trace(facts.base_nanoseconds, facts.ranks, events, facts.skew_seconds)


def _is_event(event: Any) -> bool:
    """Return whether an event has what merging and drawing need."""
    members = _MEMBERS.get(event["ph"]) if isinstance(event, dict) and isinstance(event.get("ph"), str) else None
    if members is None or not members <= event.keys() or not isinstance(event.get("args", {}), dict):
        return False
    times = event.get("ts", 0), event.get("dur", 0)
    return all(isinstance(time, int | float) and abs(time) <= _MOST_MICROSECONDS for time in times)
