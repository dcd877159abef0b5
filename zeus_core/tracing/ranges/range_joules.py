"""Adds the joules of an energy trace to a trace of torch.profiler: to its ranges, and as counter tracks."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zeus_core._documents import JsonFormat
from zeus_core.attribution.timeline import Estimate
from zeus_core.errors import UsageError
from zeus_core.tracing._rank_events import Counters, counter_events
from zeus_core.tracing._trace_events import Event
from zeus_core.tracing.facts import DeviceFacts, RankFacts
from zeus_core.tracing.ranges._profiler_ranges import Range, Ranges, ranges_of
from zeus_core.tracing.ranges._range_columns import Key, Stretch
from zeus_core.tracing.ranges._range_power import ClassPower
from zeus_core.tracing.trace_file import base_of


class Bounds:
    """The energy of a device between any two moments, as far as it is certain.

    Args:
        device: The device, with its updates.
    """

    def __init__(self, device: DeviceFacts) -> None:
        self._updates = list(device.updates.unpacked())
        self._moments = [update.at for update in self._updates]
        self._peak_watts = device.peak_watts

    def between(self, begin: float, end: float) -> tuple[float, float]:
        """Return the least and the most joules of a time."""
        (low_begin, high_begin), (low_end, high_end) = self._by(begin), self._by(end)
        most = self._peak_watts * (end - begin)
        return min(max(low_end - high_begin, 0.0), most), max(min(high_end - low_begin, most), 0.0)

    def _by(self, moment: float) -> tuple[float, float]:
        """Return the least and the most that the counter, if it were always up to date, could show at a moment."""
        number = bisect.bisect_right(self._moments, moment)
        low, high = -math.inf, math.inf
        # Two on each side: the nearest one may itself be earlier or later than it seems.
        for before in self._updates[max(number - 2, 0) : number]:
            seconds = moment - before.at
            if seconds >= before.half_width_seconds:
                low = max(low, before.energy_joules)
            high = min(high, before.energy_joules + self._peak_watts * (seconds + before.half_width_seconds))
        for after in self._updates[number : number + 2]:
            seconds = after.at - moment
            if seconds >= after.half_width_seconds:
                high = min(high, after.energy_joules)
            low = max(low, after.energy_joules - self._peak_watts * (seconds + after.half_width_seconds))
        return low, high


RANGES = "zeus_core_ranges"
"""The member of a profiler's document that holds the table of ranges."""

_FORMAT = JsonFormat("zeus-core ranges", 1)
_MARGIN_SECONDS = 1.0  # of counter tracks around the ranges
_CLOCK_SECONDS = 0.05  # by which a machine's clock may be slewed in a training; a larger change was set


@dataclass(frozen=True)
class RangeRow:
    """The ranges of one name.

    Attributes:
        name: The name.
        count: How many there are.
        seconds: The time in which at least one of them was under way.
        energy_joules: The energy of that time.
        uncertainty_joules: How far it can be off.
    """

    name: str
    count: int
    seconds: float
    energy_joules: float
    uncertainty_joules: float


@dataclass(frozen=True)
class Added:
    """A profiler's document with joules.

    Attributes:
        document: All but the events.
        events: The events.
        rows: The ranges by name, in the order of their energies.
        notes: Sentences about what is uncertain.
    """

    document: Mapping[str, Any]
    events: Sequence[Event]
    rows: Sequence[RangeRow]
    notes: Sequence[str]


def rank_of(ranks: Sequence[RankFacts], document: Mapping[str, Any], rank: int | None = None) -> RankFacts:
    """Return the facts of the rank that was profiled.

    Args:
        ranks: The ranks of the energy trace.
        document: The profiler's document, which has its rank in a job of several.
        rank: The rank, if the user has named one.

    Raises:
        UsageError: It is not known, or the energy trace has not this rank.
    """
    told = document.get("distributedInfo")
    number = rank if rank is not None else told.get("rank") if isinstance(told, Mapping) else None
    if number is None and len(ranks) == 1:
        return ranks[0]
    if number is None:
        raise UsageError("the profiler's trace does not say its rank: give --rank, or the energy trace of one rank")
    found = [one for one in ranks if one.rank == number]
    if not found:
        here = ", ".join(str(one.rank) for one in ranks)
        raise UsageError(f"the profiler's trace is of rank {number}; the energy trace is of rank {here}")
    return found[0]


def add_energy(rank: RankFacts, document: Mapping[str, Any]) -> Added:
    """Add the joules of a rank to its profiler's document.

    Raises:
        UsageError: They are of other times or clocks, or there are no ranges, or no GPU was measured.
    """
    notes: list[str] = []
    events: list[Event] = document["traceEvents"]
    clock = _clock(rank, base_of(dict(document)), notes)
    ranges = ranges_of(events, clock.to_seconds)
    notes += ranges.notes
    _check_overlap(rank, ranges, notes)
    measured = [_Measured(device, ranges) for device in rank.devices]
    energies = {id(one.event): _event_energy(one, measured) for one in ranges.ranges}
    added = [{**event, "args": {**event.get("args", {}), **energies.get(id(event), {})}} for event in events]
    pid = ranges.ranges[0].event["pid"]
    tracks = [event for device in rank.devices for event in _tracks(device, ranges, clock, pid)]
    rows = sorted(_rows(ranges, measured), key=lambda row: -row.energy_joules)
    table = _FORMAT.document({"rows": [asdict(row) for row in rows], "notes": list(notes)})
    head = {name: value for name, value in document.items() if name != "traceEvents"}
    return Added({**head, RANGES: table}, [*added, *tracks], rows, notes)


@dataclass(frozen=True)
class _Clock:
    """The clock of a profiler's `ts` against the seconds of an energy trace."""

    to_seconds: Callable[[float], float]
    to_ts: Callable[[float], float]


def _clock(rank: RankFacts, base_nanoseconds: int, notes: list[str]) -> _Clock:
    begin_us = (base_nanoseconds - rank.base_nanoseconds) / 1000
    at, unix = rank.unix_points[-1] if rank.unix_points else (0.0, 0.0)
    if abs(at - unix) > _CLOCK_SECONDS:
        notes.append(
            f"The clock of the machine was set by {unix - at:+.2f} s during training: ranges may be displaced."
        )
    pace = at / unix if unix > 0 and at > 0 and abs(at - unix) <= _CLOCK_SECONDS else 1.0
    return _Clock(lambda ts: (ts + begin_us) * pace / 1e6, lambda seconds: round(seconds * 1e6 / pace - begin_us, 3))


def _check_overlap(rank: RankFacts, ranges: Ranges, notes: list[str]) -> None:
    moments = [update.at for device in rank.devices for update in device.updates.unpacked()]
    if not moments:
        raise UsageError("the energy trace holds no updates of a counter: no GPU was measured")
    begin, end = ranges.ranges[0].begin, ranges.end
    first, last = min(moments), max(moments)
    covered = max(min(end, last) - max(begin, first), 0.0)
    if covered == 0:
        raise UsageError(
            f"the profiler's ranges lie from {begin:.1f} to {end:.1f} s after the beginning of the energy trace, which "
            f"holds the counter from {first:.1f} to {last:.1f} s: they are of other trainings, of machines with other "
            "clocks, or the trace dropped that time (it keeps the last quarter of an hour in detail)"
        )
    if covered < 0.98 * (end - begin):
        notes.append(
            f"The counter is known in {covered:.1f} of the {end - begin:.1f} s of ranges: the others are taken to draw "
            "the same."
        )


class _Measured:
    """A GPU, with the power of the classes of time."""

    def __init__(self, device: DeviceFacts, ranges: Ranges) -> None:
        self.peak_watts = device.peak_watts
        self.pooled = ranges.pooled()
        self.bounds = Bounds(device)
        stretches = [Stretch(stretch.begin, self.pooled[stretch.key]) for stretch in ranges.stretches]
        self.power = ClassPower(list(device.updates.unpacked()), stretches, ranges.end, device.peak_watts)
        self._begins = [stretch.begin for stretch in stretches]
        self._watts = [self.power.watts(stretch.key) for stretch in stretches]
        ends = [*self._begins[1:], ranges.end]
        parts = [watts * (end - begin) for watts, begin, end in zip(self._watts, self._begins, ends, strict=True)]
        self._sums = [0.0, *itertools.accumulate(parts)]

    def between(self, begin: float, end: float) -> float:
        """Return the likely energy of a time."""
        return self._by(end) - self._by(begin)

    def _by(self, moment: float) -> float:
        number = max(bisect.bisect_right(self._begins, moment) - 1, 0)
        return self._sums[number] + self._watts[number] * (moment - self._begins[number])


def _event_energy(one: Range, measured: Sequence[_Measured]) -> dict[str, float]:
    """Return the arguments of one range: it may be far shorter than the time between two updates."""
    energy = uncertainty = 0.0
    for device in measured:
        low, high = device.bounds.between(one.begin, one.end)
        likely = min(max(device.between(one.begin, one.end), low), high)
        energy += likely
        uncertainty += max(high - likely, likely - low)
    return {"energy_j": round(energy, 6), "energy_uncertainty_j": round(uncertainty, 6)}


def _rows(ranges: Ranges, measured: Sequence[_Measured]) -> list[RangeRow]:
    counts: dict[str, int] = {}
    for one in ranges.ranges:
        counts[one.name] = counts.get(one.name, 0) + 1
    rows = []
    for name, count in counts.items():
        seconds = {key: some for key, some in ranges.seconds.items() if name in key}
        estimates = [_energy(device, seconds, ranges.seconds) for device in measured]
        rows.append(
            RangeRow(
                name,
                count,
                sum(seconds.values()),
                sum(estimate.energy_joules for estimate in estimates),
                sum(estimate.uncertainty_joules for estimate in estimates),
            )
        )
    return rows


def _energy(device: _Measured, seconds: Mapping[Key, float], of_all: Mapping[Key, float]) -> Estimate:
    """Return the energy of classes, of which those too short to be distinguished have the power around them."""
    pooled: dict[Key, float] = {}
    for key, some in seconds.items():
        pooled[device.pooled[key]] = pooled.get(device.pooled[key], 0.0) + some
    whole: dict[Key, float] = {}
    for key, some in of_all.items():
        whole[device.pooled[key]] = whole.get(device.pooled[key], 0.0) + some
    joules, off = device.power.energy(pooled)
    for key, some in seconds.items():
        at = device.pooled[key]
        if at != key and pooled[at] < whole[at]:  # it shares that power with others, and may draw any other
            watts = device.power.watts(at)
            off += max(watts, device.peak_watts - watts) * some
    return Estimate(joules, off)


def _tracks(device: DeviceFacts, ranges: Ranges, clock: _Clock, pid: int | str) -> list[Event]:
    begin, end = ranges.ranges[0].begin - _MARGIN_SECONDS, ranges.end + _MARGIN_SECONDS
    energy = [(update.at, update.energy_joules) for update in device.updates.unpacked() if begin <= update.at <= end]
    events = counter_events(pid, Counters(device.index, energy))
    return [{**event, "ts": clock.to_ts(event["ts"] / 1e6)} for event in events]
