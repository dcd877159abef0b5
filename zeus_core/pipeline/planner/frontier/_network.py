"""The flow network behind the frontier: events joined by arcs, in whole numbers.

Each instruction is an arc from its start to its end, with the corners of its lower hull; each wait is an arc of one
corner. Event 0 is the start of the iteration, event 1 its end. If an event has a single successor or predecessor
without a delay, the two events are merged.

Precision: times are whole multiples of 2^-60 of L, the sum of all longest durations; slopes are whole multiples of
2^-60 of S, the sum of the steepest slopes of all instructions. Times are off by half a quantum at most, slopes by at
most as many quanta as an arc has corners (see `_strictly_falling`). With at most K corners an arc, the energies of the
frontier are so off by at most K S L 2^-60, plus the rounding of 64-bit floats. That is below the latter unless one
slope outweighs all others by far; `lower_hull` merges times that differ by the noise of floats alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import DependencyGraph, Indices, Numbers

_Places = NDArray[np.uint32]  # half the memory of int64

_SOURCE, _SINK = 0, 1
_SCALE = 2.0**60  # leaves two bits of a 64-bit integer for sums and sentinels; see `_frontier_walk.py`


class NetworkArrays(NamedTuple):
    """The network as the frontier walk reads it.

    Attributes:
        tail: The event each arc leaves. [arcs]
        head: The event it enters. [arcs]
        first_corner: Corners `first_corner[a]` to `first_corner[a + 1]` are those of arc a. [arcs + 1]
        corner_time: Durations, rising within an arc, in time quanta. [corners]
        corner_slope: Cost saved per time from a corner to the next of its arc, falling; 0 at the last. [corners]
        first_end: Ends `first_end[v]` to `first_end[v + 1]` are those at event v. [events + 1]
        end_event: The event at the other end. [2 arcs]
        end_mate: The same arc, seen from there. [2 arcs]
        end_arc: The arc it is an end of. [2 arcs]
        end_at_tail: The end of each arc that is at its tail. [arcs]
        end_at_head: The end of each arc that is at its head. [arcs]
    """

    tail: _Places
    head: _Places
    first_corner: _Places
    corner_time: Indices
    corner_slope: Indices
    first_end: _Places
    end_event: _Places
    end_mate: _Places
    end_arc: _Places
    end_at_tail: _Places
    end_at_head: _Places


@dataclass(frozen=True)
class Network:
    """A network with the units of its whole numbers.

    Attributes:
        arrays: The network.
        time_quantum_seconds: Unit of times.
        slope_quantum_watts: Unit of slopes and flows.
        start_event: The event at which each instruction starts. [instructions]
        end_event: The event at which it ends, or a later one merged with it. [instructions]
        arc_of_graph_arc: The arc with the flow of each arc of the graph; if its events were merged, that of the
            instruction that no other arc leaves, or enters. [graph arcs]
    """

    arrays: NetworkArrays
    time_quantum_seconds: float
    slope_quantum_watts: float
    start_event: Indices
    end_event: Indices
    arc_of_graph_arc: Indices


def make_network(
    graph: DependencyGraph,
    hulls: Sequence[Sequence[CostedOption]],
    kind: Indices,
    arc_delay_seconds: Numbers,
    slope_unit_watts: float = 0.0,
) -> Network:
    """Return the network of a problem.

    Args:
        graph: The dependencies of the instructions.
        hulls: The lower hull of each kind of each stage; several instructions share one. [kinds]
        kind: The number of each instruction's hull. [instructions]
        arc_delay_seconds: The time between the two instructions of each arc of the graph. [graph arcs]
        slope_unit_watts: All slopes are multiples of this power of two but for rounding; 0 if there is none.
    """
    start, end, is_merged, events = _events(graph, arc_delay_seconds)
    tail, head, delay = _waits(graph, start, end, is_merged, arc_delay_seconds)
    n = len(start)
    counts = np.array([len(hull) for hull in hulls], np.int64)[kind]
    tail, head = np.concatenate([start, tail]), np.concatenate([end, head])
    corners = np.concatenate([counts, np.ones(len(delay), np.int64)])
    times, slopes, time_quantum, slope_quantum = _quantized(hulls, kind, delay, slope_unit_watts)
    return Network(
        arrays=_with_ends(tail, head, _offsets(corners), times, slopes, events),
        time_quantum_seconds=time_quantum,
        slope_quantum_watts=slope_quantum,
        start_event=tail[:n].copy(),
        end_event=head[:n].copy(),
        arc_of_graph_arc=_arcs_of_graph_arcs(graph, is_merged),
    )


def _events(graph: DependencyGraph, delay: Numbers) -> tuple[Indices, Indices, np.ndarray, int]:
    """Return the event of each start and end, which graph arcs merged two events, and the number of events."""
    n = len(graph.instructions)
    to = np.repeat(np.arange(n), np.diff(graph.first_arc))
    leaving, entering = np.bincount(graph.arc_from, minlength=n), np.diff(graph.first_arc)
    is_merged = (delay == 0) & ((leaving[graph.arc_from] == 1) | (entering[to] == 1))
    root = np.arange(2 * n)  # starts, then ends
    for first, second in zip((graph.arc_from[is_merged] + n).tolist(), to[is_merged].tolist(), strict=True):
        root[_find(root, first)] = _find(root, second)
    roots = np.array([_find(root, event) for event in range(2 * n)], np.int64)
    distinct, numbers = np.unique(roots, return_inverse=True)
    # Numbered in running order, so that events close in time are close in memory.
    return numbers[:n] + 2, numbers[n:] + 2, is_merged, len(distinct) + 2


def _arcs_of_graph_arcs(graph: DependencyGraph, is_merged: np.ndarray) -> Indices:
    n = len(graph.instructions)
    to = np.repeat(np.arange(n), np.diff(graph.first_arc))
    is_only_one = np.bincount(graph.arc_from, minlength=n)[graph.arc_from] == 1
    kept = n + np.cumsum(~is_merged) - 1
    return np.where(~is_merged, kept, np.where(is_only_one, graph.arc_from, to))


def _find(root: Indices, event: int) -> int:
    while root[event] != event:
        root[event] = root[root[event]]
        event = int(root[event])
    return event


def _waits(
    graph: DependencyGraph, start: Indices, end: Indices, is_merged: np.ndarray, delay: Numbers
) -> tuple[Indices, Indices, Numbers]:
    """Return the arcs of one corner: between instructions, from the start of the iteration, and to its end."""
    n = len(start)
    to = np.repeat(np.arange(n), np.diff(graph.first_arc))
    kept = ~is_merged
    firsts = np.flatnonzero(np.diff(graph.first_arc) == 0)
    lasts = np.flatnonzero(np.bincount(graph.arc_from, minlength=n) == 0)
    tail = [end[graph.arc_from[kept]], np.full(len(firsts), _SOURCE), end[lasts]]
    head = [start[to[kept]], start[firsts], np.full(len(lasts), _SINK)]
    length = [delay[kept], np.zeros(len(firsts) + len(lasts))]
    return np.concatenate(tail), np.concatenate(head), np.concatenate(length)


def _quantized(
    hulls: Sequence[Sequence[CostedOption]], kind: Indices, delay: Numbers, slope_unit_watts: float
) -> tuple[Indices, Indices, float, float]:
    """Return times and slopes of the corners of all arcs, and their quanta."""
    longest = sum(hull[-1].time_seconds * n for hull, n in zip(hulls, np.bincount(kind), strict=False)) + delay.sum()
    slopes = [_slopes(hull, slope_unit_watts) for hull in hulls]
    steepest = sum(slope[0] * n for slope, n in zip(slopes, np.bincount(kind), strict=False))
    time_quantum, slope_quantum = float(longest) / _SCALE, float(steepest) / _SCALE or 1.0
    if slope_unit_watts:  # a power of two too, so that multiples of the unit stay that
        slope_quantum = 2.0 ** math.ceil(math.log2(slope_quantum))
    kind_times = [_whole([corner.time_seconds for corner in hull], time_quantum) for hull in hulls]
    kind_slopes = [_strictly_falling(_whole(slope, slope_quantum)) for slope in slopes]
    times = [kind_times[k] for k in kind.tolist()]
    return (
        np.concatenate([*times, _whole(delay, time_quantum)]),
        np.concatenate([*(kind_slopes[k] for k in kind.tolist()), np.zeros(len(delay), np.int64)]),
        time_quantum,
        slope_quantum,
    )


def _slopes(hull: Sequence[CostedOption], unit_watts: float) -> list[float]:
    falls = [
        (one.cost_joules - other.cost_joules) / (other.time_seconds - one.time_seconds) for one, other in pairwise(hull)
    ]
    if unit_watts:
        falls = [round(fall / unit_watts) * unit_watts for fall in falls]
    return [*falls, 0.0]


def _strictly_falling(slopes: Indices) -> Indices:
    """Raise slopes by as few quanta as set apart those that rounding made equal: at most one for each later corner.

    Between two equal slopes an arc has no room for flow, and the walk would try to add some there for ever.
    """
    from_last = np.arange(len(slopes))[::-1]
    return np.maximum.accumulate((slopes - from_last)[::-1])[::-1] + from_last


def _whole(values: Sequence[float] | Numbers, quantum: float) -> Indices:
    return np.rint(np.asarray(values, np.float64) / quantum).astype(np.int64)


def _with_ends(
    tail: Indices, head: Indices, first_corner: Indices, times: Indices, slopes: Indices, events: int
) -> NetworkArrays:
    at = np.concatenate([head, tail])  # the arcs that leave an event come after those that enter it
    other = np.concatenate([tail, head])
    order = np.argsort(at, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    arcs = len(tail)
    return NetworkArrays(
        tail=_places(tail),
        head=_places(head),
        first_corner=_places(first_corner),
        corner_time=times,
        corner_slope=slopes,
        first_end=_places(_offsets(np.bincount(at, minlength=events))),
        end_event=_places(other[order]),
        end_mate=_places(place[(order + arcs) % (2 * arcs)]),
        end_arc=_places(order % arcs),
        end_at_tail=_places(place[arcs:]),
        end_at_head=_places(place[:arcs]),
    )


def _places(values: Indices) -> _Places:
    return values.astype(np.uint32)


def _offsets(counts: Indices) -> Indices:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
