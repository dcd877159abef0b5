"""The frontier walk: all breakpoints of the lowest energy over iteration time, from the slow end to the fast one.

**Problem.** Events are joined by arcs; an arc has a duration, and its cost falls with the duration, piecewise linearly
and convexly. For an iteration time T the durations of lowest total cost solve a linear program: the project time-cost
trade-off of critical-path planning (Kelley, "Critical-Path Planning and Scheduling: Mathematical Basis", Operations
Research 9(3), 1961). Fulkerson ("A Network Flow Computation for Project Cost Curves", Management Science 7(2), 1961)
solves its dual, a flow from the start of the iteration to its end, for all T in one pass. Phillips and Dessouky
("Solving the Project Time/Cost Tradeoff Problem Using the Minimal Cut Concept", Management Science 24(4), 1977) shorten
the critical arcs along a minimum cut. Perseus (SOSP'24) applies the latter to training pipelines, one time unit a step.
Here T jumps from breakpoint to breakpoint.

**State.** Event times and a flow, both optimal for the present T. Corners are the durations between which cost is
linear; the slope of a piece is the cost saved per time. An arc at a corner may carry any flow between the slopes on its
two sides; an arc between two corners carries exactly the slope of the piece. So each of the two ends of an arc has a
`room` (the flow that can be sent from there until the slope changes) and a `length` (the duration the arc must have for
it, negative at the head). An end at event u with room leads to event v at the distance
`time[v] - time[u] - length`.

**Invariant.** Distances of ends with room are at least 0, and the flow is conserved: this is complementary slackness,
so times and flow are optimal.

**Move.** `_search` finds D(v), the shortest distance from the start to each event v nearer than the end of the
iteration. Let `fall` be the end's D, or less if the target is nearer. Each event v moves later by
m(v) = max(0, fall - D(v)): the start by `fall`, the end not at all, so T falls by `fall`. A distance w from u to v
becomes w + m(v) - m(u). It stays at least 0, as D(v) <= D(u) + w gives m(u) <= m(v) + w. The flow F = -dE/dT did not
change, so this is one straight piece of the frontier.

If `fall` is the end's D, paths of distance 0 now lead to the end, and `_raise` adds flow along them. That gives room
only to ends against these paths, at the same corner and so at distance 0, and, if a flow reaches a slope, to the end of
the next corner, at a distance of at least 0. So the invariant survives. A path without a limit consists of arcs at
their shortest durations: T is the shortest there is.

**Blocking flow.** `_raise` is a depth-first search backward from the end with one current end for each event (Dinic's
blocking flow), limited to ends that lead from an event settled earlier to one settled later: that order is acyclic. So
it can leave a path of distance 0 that runs against the order. The next search finds that path with D = 0, moves no
event, and orders the events anew. The shortest path itself runs along the order, so F rises each time.

**Complexity.** For n events and m arcs, a move costs one search, O(m log m), and one blocking flow, O(n m) in the worst
case, far less on pipelines. The number of breakpoints has no polynomial bound for networks in general;
`benchmarks/pipeline_frontier.py` measures how the time grows with the microbatches.

**Whole numbers.** All times and slopes are integers (see `_network.py`), so comparisons are exact and F rises by at
least 1: the walk ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline.planner.dependencies import Indices
from zeus_core.pipeline.planner.frontier._network import NetworkArrays
from zeus_core.pipeline.planner.loops import call_compiled

FASTEST = -1
"""A target below every iteration time: `advance` then goes to the shortest there is."""

# Bounds, with M a little above 2^60, the scale of `_network.py`. Event times lie in [0, M]; the lengths along a path
# add up to at least -M; a flow, at most the sum of the steepest slopes, is at most M. The key of a reached event is its
# distance, at least 0, less its time: at least -M. It is also minus the start's time and the lengths of a path: at most
# M. So nothing overflows 64 bits, and the sentinels lie outside.
_NO_LIMIT = 2**62  # the room of an arc at its shortest duration: above any flow
_FAR = 2**61  # the key of an event that no path has reached: above any key
_CLOSED = -(2**62)  # the length of an end without room: even from the lowest key it leads to one above _FAR
_SOURCE, _SINK = 0, 1
_UNSEEN, _TOUCHED = -1, -2  # in `order`, of events that are not settled: not reached; reached, not yet in the heap


class WalkState(NamedTuple):
    """The state of a walk. `advance` changes it in place.

    Attributes:
        time: Time of each event, in quanta. [events]
        flow: Flow on each arc. [arcs]
        corner: The corner whose lower slope is at or just below the flow, of each arc. [arcs]
        room: Flow that each end of an arc can send towards its other event. [2 arcs]
        length: Duration its arc must have for that, negative at heads; `_CLOSED` without room. [2 arcs]
        total: The flow from start to end. [1]
    """

    time: Indices
    flow: Indices
    corner: Indices
    room: Indices
    length: Indices
    total: Indices


def begin_walk(network: NetworkArrays) -> WalkState:
    """Return the slow end: every instruction at its cheapest, every event as early as possible, no flow."""
    arcs, events = len(network.tail), len(network.first_end) - 1
    return _state(network, np.zeros(events, np.int64), np.zeros(arcs, np.int64), 0, True)


def resume_walk(network: NetworkArrays, time: Indices, flow: Indices, total: int) -> WalkState:
    """Return the state that had these times and flows."""
    return _state(network, time.copy(), flow.copy(), total, False)


def advance(network: NetworkArrays, state: WalkState, target: int, times: Indices, totals: Indices) -> int:
    """Walk until the iteration time is `target`, or the shortest there is, or `times` is full.

    Args:
        network: The network of `state`.
        state: The state to begin at; changed in place.
        target: An iteration time in quanta.
        times: Filled with the iteration time after each piece. [pieces]
        totals: Filled with the flow during each piece. [pieces]

    Returns:
        The number of pieces n; -n - 1 if the iteration time is the shortest there is.
    """
    events, arcs = len(state.time), len(state.flow)
    scratch = _Scratch(
        key=np.empty(events, np.int64),
        order=np.empty(events, np.int64),
        stack=np.empty(events, np.int64),
        touched=np.empty(events, np.int64),
        settled=np.empty(events, np.int64),
        heap_distance=np.empty(2 * arcs + 1, np.int64),
        heap_event=np.empty(2 * arcs + 1, np.int64),
        current=np.empty(events, np.int64),
        path=np.empty(events, np.int64),
    )
    return int(call_compiled(_advance, network, state, scratch, target, times, totals))


def _state(network: NetworkArrays, time: Indices, flow: Indices, total: int, is_beginning: bool) -> WalkState:
    arcs = len(network.tail)
    state = WalkState(
        time=time,
        flow=flow,
        corner=network.first_corner[1:].astype(np.int64) - 1,
        room=np.zeros(2 * arcs, np.int64),
        length=np.zeros(2 * arcs, np.int64),
        total=np.array([total], np.int64),
    )
    call_compiled(_prepare, network, state, is_beginning, np.zeros_like(time), np.zeros_like(time))
    return state


class _Scratch(NamedTuple):
    """Memory of `_search` and `_raise`.

    Attributes:
        key: Distance from the start less the event's time, of each event reached; else `_FAR`. [events]
        order: Place among the settled events, or `_UNSEEN` or `_TOUCHED`. [events]
        stack: Events to settle next, at the distance of the last. [events]
        touched: Events reached by an end of some distance since the stack was last empty. [events]
        settled: The settled events in their order. [events]
        heap_distance: A binary heap of distances. [2 arcs + 1]
        heap_event: The event of each. [2 arcs + 1]
        current: The end of each event that `_raise` tries next. [events]
        path: The ends of the path that `_raise` is on, from the end of the iteration. [events]
    """

    key: Indices
    order: Indices
    stack: Indices
    touched: Indices
    settled: Indices
    heap_distance: Indices
    heap_event: Indices
    current: Indices
    path: Indices


def _advance(net: Any, state: Any, scratch: Any, target: int, times: Any, totals: Any) -> int:
    pieces = 0
    while pieces < len(times):
        now = state.time[_SINK] - state.time[_SOURCE]
        if now <= target:
            return pieces
        settled = _search(net, state, scratch)
        distance = scratch.key[_SINK] + state.time[_SINK]
        fall = min(distance, now - target)
        if fall > 0:
            for position in range(settled):
                event = scratch.settled[position]
                # time + (fall - distance), if that is later
                state.time[event] = max(state.time[event], fall - scratch.key[event])
            times[pieces] = now - fall
            totals[pieces] = state.total[0]
            pieces += 1
        if fall == distance and _raise(net, state, scratch):
            return -pieces - 1
    return pieces


def _search(net: Any, state: Any, scratch: Any) -> int:
    """Settle events in order of their distance from the start, up to the end; return their number (Dijkstra).

    Most events form a few clusters without distances inside. Among events of equal distance the one reached last comes
    first: depth-first along the arcs that leave, the search finds the end before it has looked at the whole cluster.

    Keys (distance less the event's time) are compared, not distances: that needs no time of the other event. The key of
    a settled event cannot fall, as no distance is negative.
    """
    key, order, stack, touched = scratch.key, scratch.order, scratch.stack, scratch.touched
    for event in range(len(key)):
        key[event] = _FAR
        order[event] = _UNSEEN
    key[_SOURCE] = -state.time[_SOURCE]
    stack[0] = _SOURCE
    stacked, touches, waiting, settled = 1, 0, 0, 0
    while True:
        if stacked > 0:
            stacked -= 1
            event = stack[stacked]
        else:
            # Most touched events were settled meanwhile at a shorter distance: only the rest goes into the heap.
            for place in range(touches):
                event = touched[place]
                if order[event] == _TOUCHED:
                    order[event] = _UNSEEN
                    distance = key[event] + state.time[event]
                    waiting = _push(scratch.heap_distance, scratch.heap_event, waiting, distance, event)
            touches = 0
            event = scratch.heap_event[0]
            waiting = _pop(scratch.heap_distance, scratch.heap_event, waiting)
            if order[event] >= 0:
                continue
        order[event] = settled
        scratch.settled[settled] = event
        settled += 1
        if event == _SINK:
            return settled
        here = key[event]
        reached = here + state.time[event]
        for end in range(net.first_end[event], net.first_end[event + 1]):
            found = here - state.length[end]
            other = net.end_event[end]
            if found < key[other]:
                distance = found + state.time[other]
                if distance == reached:
                    key[other] = found
                    stack[stacked] = other
                    stacked += 1
                elif distance <= key[_SINK] + state.time[_SINK]:
                    key[other] = found
                    if order[other] == _UNSEEN:
                        order[other] = _TOUCHED
                        touched[touches] = other
                        touches += 1


def _raise(net: Any, state: Any, scratch: Any) -> bool:
    """Add a blocking flow along paths of distance 0, backward from the end; return whether one has no limit."""
    order, current, path = scratch.order, scratch.current, scratch.path
    for event in range(len(order)):
        current[event] = net.first_end[event]
    steps, event = 0, _SINK
    while True:
        if event == _SOURCE:
            limit = _NO_LIMIT
            for step in range(steps):
                limit = min(limit, state.room[path[step]])
            if limit == _NO_LIMIT:
                return True
            state.total[0] += limit
            keep = steps
            for step in range(steps - 1, -1, -1):
                end = path[step]
                if state.room[end] == limit:
                    keep = step
                _add_flow(net, state, end, limit)
            steps = keep  # go on from where the path has lost its room nearest to the end of the iteration
            event = net.end_event[path[keep]]
            continue
        found = False
        while current[event] < net.first_end[event + 1]:
            other, end = net.end_event[current[event]], net.end_mate[current[event]]
            if (
                order[other] >= 0
                and order[other] < order[event]
                and state.time[event] - state.time[other] == state.length[end]
            ):
                found = True
                break
            current[event] += 1
        if found:
            path[steps] = end
            steps += 1
            event = other
        elif event == _SINK:
            return False
        else:
            steps -= 1
            event = net.end_event[path[steps]]
            current[event] += 1


def _add_flow(net: Any, state: Any, end: int, amount: int) -> None:
    arc = net.end_arc[end]
    if net.end_at_tail[arc] == end:
        state.flow[arc] += amount
    else:
        state.flow[arc] -= amount
    _set_rooms(net, state, arc)


def _set_rooms(net: Any, state: Any, arc: int) -> None:
    """Find the corner of the flow; set the rooms and lengths of both ends of the arc."""
    flow, corner = state.flow[arc], state.corner[arc]
    first, last = net.first_corner[arc], net.first_corner[arc + 1] - 1
    while corner > first and flow >= net.corner_slope[corner - 1]:
        corner -= 1
    while flow < net.corner_slope[corner]:
        corner += 1
    state.corner[arc] = corner
    at_tail, at_head = net.end_at_tail[arc], net.end_at_head[arc]
    state.length[at_tail] = net.corner_time[corner]
    state.room[at_tail] = net.corner_slope[corner - 1] - flow if corner > first else _NO_LIMIT
    if flow > net.corner_slope[corner]:
        state.length[at_head] = -net.corner_time[corner]
        state.room[at_head] = flow - net.corner_slope[corner]
    elif corner < last:
        state.length[at_head] = -net.corner_time[corner + 1]
        state.room[at_head] = flow - net.corner_slope[corner + 1]
    else:
        state.length[at_head] = _CLOSED
        state.room[at_head] = 0


def _prepare(net: Any, state: Any, is_beginning: bool, missing: Any, ready: Any) -> None:
    """Set rooms and lengths from the flows and, at the beginning, each time to its earliest.

    `missing` and `ready` are memory: zeros, and anything. [events]
    """
    for arc in range(len(net.tail)):
        _set_rooms(net, state, arc)
    if is_beginning:
        _set_earliest_times(net, state, missing, ready)


def _set_earliest_times(net: Any, state: Any, missing: Any, ready: Any) -> None:
    for arc in range(len(net.tail)):
        missing[net.head[arc]] += 1
    ready[0], size = _SOURCE, 1
    while size > 0:
        size -= 1
        event = ready[size]
        for end in range(net.first_end[event], net.first_end[event + 1]):
            arc = net.end_arc[end]
            if net.end_at_tail[arc] == end:
                head = net.end_event[end]
                state.time[head] = max(state.time[head], state.time[event] + net.corner_time[state.corner[arc]])
                missing[head] -= 1
                if missing[head] == 0:
                    ready[size] = head
                    size += 1


def _push(keys: Any, events: Any, size: int, key: int, event: int) -> int:
    """Put a key into a binary heap; return its new size."""
    place = size
    while place > 0 and keys[(place - 1) // 2] > key:
        keys[place], events[place] = keys[(place - 1) // 2], events[(place - 1) // 2]
        place = (place - 1) // 2
    keys[place], events[place] = key, event
    return size + 1


def _pop(keys: Any, events: Any, size: int) -> int:
    """Take the lowest key, which is the first, out of a binary heap; return its new size."""
    size -= 1
    key, event = keys[size], events[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if keys[child] >= key:
            break
        keys[place], events[place] = keys[child], events[child]
        place = child
    keys[place], events[place] = key, event
    return size
