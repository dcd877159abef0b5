"""The ranges of a trace of torch.profiler: those of `record_function`, and modules. Pure.

A profiler with CUDA activities records the same ranges twice: when the CPU was in them, and when the GPU was. The GPU's
are what draws the power; the CPU runs ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zeus_core.errors import UsageError
from zeus_core.tracing._trace_events import Event
from zeus_core.tracing.ranges._range_columns import Key, Stretch

_GPU, _CPU, _PYTHON = "gpu_user_annotation", "user_annotation", "python_function"
_MODULE = "nn.Module: "

# A regression of more classes is less certain of each, and its time grows with the cube of their number.
_MOST_CLASSES = 40
_LEAST_FRACTION = 0.005  # of the time: what is shorter in all has the power of what is around it


@dataclass(frozen=True)
class Range:
    """One range.

    Attributes:
        name: Its name.
        begin: Its beginning, in seconds.
        end: Its end.
        event: The event of the profiler.
    """

    name: str
    begin: float
    end: float
    event: Event


@dataclass(frozen=True)
class Ranges:
    """All ranges, and who is in which at any moment.

    Attributes:
        ranges: The ranges, by their beginning.
        stretches: The classes of time: which ranges are under way, by name, in the order of their beginning.
        end: The end of the last one.
        notes: Sentences about what they are of.
    """

    ranges: Sequence[Range]
    stretches: Sequence[Stretch]
    end: float
    notes: Sequence[str]

    @property
    def seconds(self) -> Mapping[Key, float]:
        """The time of each class."""
        seconds: dict[Key, float] = {}
        ends = [*(stretch.begin for stretch in self.stretches[1:]), self.end]
        for stretch, end in zip(self.stretches, ends, strict=True):
            seconds[stretch.key] = seconds.get(stretch.key, 0.0) + end - stretch.begin
        return seconds

    def pooled(self) -> Mapping[Key, Key]:
        """Return the class whose power each class has: its own, or that around it if its time is too short in all."""
        seconds = self.seconds
        least = _LEAST_FRACTION * sum(seconds.values())
        longest = sorted(seconds, key=lambda key: -seconds[key])[:_MOST_CLASSES]
        kept = {key for key in longest if seconds[key] >= least} | {longest[0]}
        return {key: _around(key, kept, longest[0]) for key in seconds}


def _around(key: Key, kept: set[Key], default: Key) -> Key:
    while key not in kept:
        if not key:
            return default
        key = key[:-1]
    return key


def ranges_of(events: Sequence[Event], to_seconds: Callable[[float], float]) -> Ranges:
    """Return the ranges among the events of a profiler.

    Args:
        events: The events.
        to_seconds: Returns the seconds of a `ts`.

    Raises:
        UsageError: There are none.
    """
    by_kind: dict[str, list[Event]] = {_GPU: [], _CPU: [], _PYTHON: []}
    for event in events:
        kind = str(event.get("cat"))
        is_range = kind in by_kind and event["ph"] == "X" and event.get("dur", 0) > 0
        if is_range and (kind != _PYTHON or str(event.get("name", "")).startswith(_MODULE)):
            by_kind[kind].append(event)
    chosen = by_kind[_GPU] or [*by_kind[_CPU], *by_kind[_PYTHON]]
    if not chosen:
        raise UsageError(
            "the profiler's trace has no ranges: put `with torch.profiler.record_function('forward'):` around parts of "
            "the step, or profile with_stack=True and with_modules=True"
        )
    notes = []
    if not by_kind[_GPU] and any(event.get("cat") == "kernel" for event in events):
        notes.append("The ranges are of the CPU, which runs ahead of the GPU: their joules are of what ran meanwhile.")
    ranges = sorted(
        (
            Range(event["name"], to_seconds(event["ts"]), to_seconds(event["ts"] + event["dur"]), event)
            for event in chosen
        ),
        key=lambda one: (one.begin, -one.end),
    )
    return Ranges(ranges, _stretches(ranges), max(one.end for one in ranges), notes)


def _stretches(ranges: Sequence[Range]) -> list[Stretch]:
    """Sweep over the beginnings and ends of all ranges. Ends come first, the outer ranges begin first."""
    edges = sorted(
        [(one.end, 0, number) for number, one in enumerate(ranges)]
        + [(one.begin, 1, number) for number, one in enumerate(ranges)]
    )
    under_way: dict[int, str] = {}
    stretches: list[Stretch] = []
    for at, is_begin, number in edges:
        if is_begin:
            under_way[number] = ranges[number].name
        else:
            under_way.pop(number, None)
        key = tuple(dict.fromkeys(under_way.values()))
        if stretches and stretches[-1].begin == at:
            stretches.pop()
        if not stretches or stretches[-1].key != key:
            stretches.append(Stretch(at, key))
    return [stretch for stretch in stretches if stretch.begin < edges[-1][0]]
