"""Reads and writes the files of traces: JSON as Chrome and Perfetto open it, with the facts of the ranks beside it."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_core._documents import JsonFormat, parse_json
from zeus_core.codec import decode, encode
from zeus_core.errors import UsageError
from zeus_core.files import is_special, write_atomically
from zeus_core.tracing._trace_events import Event, check_event
from zeus_core.tracing.facts import RankFacts

_FORMAT = JsonFormat("zeus-core trace", 3)
_FACTS = "zeus_core"
_COMPRESSION = 6  # level 9 takes three times as long for 2 % less
_EVENTS_AT_ONCE = 1_000


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
    """The part of a document that is ours."""

    ranks: tuple[RankFacts, ...]
    skew_seconds: float | None


def trace_path(folder: Path, rank: int) -> Path:
    """Return the file of a rank's trace in a folder."""
    return folder / f"trace-{rank}.json.gz"


def write_trace(path: Path, trace: Trace) -> int:
    """Replace a file by a trace, gzipped if its name ends in ".gz". Return its size in bytes.

    Raises:
        OSError: It cannot be written.
    """
    only = trace.ranks[0] if len(trace.ranks) == 1 else None
    document: dict[str, Any] = {"displayTimeUnit": "ms", "baseTimeNanoseconds": trace.base_nanoseconds}
    if only is not None:
        document["distributedInfo"] = {"rank": only.rank, "world_size": only.world_size}
    document[_FACTS] = _FORMAT.document(encode(_Facts(tuple(trace.ranks), trace.skew_seconds)))
    return write_document(path, document, trace.events)


def read_trace(path: Path) -> Trace:
    """Read a trace that `write_trace` wrote.

    Raises:
        UsageError: It cannot be read, is damaged, or is no trace of zeus-core; the message names the file.
    """
    document = read_document(path)
    if _FACTS not in document:
        raise UsageError(
            f"{path} is no energy trace: train with trace=True, and give a trace-0.json.gz of the folder zeus-energy"
        )
    try:
        facts = decode(_Facts, _FORMAT.fields(document[_FACTS]), _FACTS)
    except UsageError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return Trace(base_of(document), facts.ranks, document["traceEvents"], facts.skew_seconds)


def base_of(document: dict[str, Any]) -> int:
    """Return the moment that the events of a document are relative to; 0 if they are since 1970."""
    base = document.get("baseTimeNanoseconds", 0)
    return base if isinstance(base, int) and not isinstance(base, bool) else 0


def write_document(path: Path, document: Mapping[str, Any], events: Iterable[Event]) -> int:
    """Replace a file by a document of the format, gzipped if its name ends in ".gz". Return its size in bytes.

    Only the compressed events are held in memory, of which a job of many ranks has millions.

    Args:
        path: The file.
        document: All but the events.
        events: The events.

    Raises:
        OSError: It cannot be written.
        ValueError: A number is not finite.
    """
    is_compressed = path.suffix == ".gz"
    # 16 more than the window is gzip's header.
    compressor = zlib.compressobj(_COMPRESSION if is_compressed else 0, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    pieces = (piece.encode() for piece in _pieces(document, events))
    data = b"".join([*map(compressor.compress, pieces), compressor.flush()]) if is_compressed else b"".join(pieces)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
    return len(data)


def _pieces(document: Mapping[str, Any], events: Iterable[Event]) -> Iterator[str]:
    head = _text(dict(document))
    yield f'{head[:-1]}{"," if document else ""}"traceEvents":['
    separator = ""
    remaining = iter(events)
    while some := list(itertools.islice(remaining, _EVENTS_AT_ONCE)):
        yield separator + _text(some)[1:-1]
        separator = ",\n"
    yield "]}"


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def read_document(path: Path) -> dict[str, Any]:
    """Read a document of the format, gzipped or not, and check every event.

    Raises:
        UsageError: It cannot be read, or is something else; the message names the file.
    """
    try:
        if is_special(path):
            raise UsageError("it is a folder or a device, not a file")
        data = path.read_bytes()
        text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        document = parse_json(text.decode())
    except EOFError:
        raise UsageError(f"{path} cannot be read: it is cut off") from None
    except (OSError, zlib.error, UsageError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if isinstance(document, list):  # the format allows the events alone
        document = {"traceEvents": document}
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise UsageError(f'{path} is no trace: it has no list "traceEvents"')
    _check_events(path, events)
    return {**document}


def _check_events(path: Path, events: Iterable[object]) -> None:
    for event in events:
        try:
            check_event(event)
        except UsageError as error:
            raise UsageError(f"{path} is damaged: {error}") from None
