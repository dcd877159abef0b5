"""The sweep: all breakpoints of least energy over iteration time, from the slow end to the fast one.

For a given iteration time T, choosing durations is a linear program. Its dual is a flow from the start of the iteration
to its end, with event times as potentials. The sweep keeps an optimal pair while T falls:

- An arc whose duration is at a corner may carry any flow between the slopes on the two sides of that corner, and one
  between two corners exactly the slope there. So an end of an arc has a room (how much flow can be added, or taken
  away, until the slope changes) and a length (the corner the duration must be at for that). The distance still to
  go, `time[head] - time[tail] - length`, is never negative where there is room: this is the invariant.
- The search finds the shortest path from start to end over the distances, D. If D is above 0, T falls by D: each event
  moves by what is left of D when the search gets to it. In between, the flow F = -dE/dT stays, so this is one straight
  piece of the frontier, and its end a breakpoint.
- The raise then adds flow along all paths of distance 0 that run in the order in which the search settled their
  events, until there is none left. If a path has no limit, every path is at its fastest: this is the least T.

All numbers are whole, so every comparison is exact and the sweep ends. The method is the parametric form of the
primal-dual algorithm for least-cost flows; the problem is Perseus' (SOSP'24), which walks it in unit steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from zeus_core.pipeline._compiled import kernels
from zeus_core.pipeline._dependencies import Indices
from zeus_core.pipeline._network import NetworkArrays

__all__ = ["FASTEST", "SweepState", "advance", "begin_sweep", "resume_sweep"]

FASTEST = -1
"""A target below every iteration time: `advance` then goes to the least there is."""

_NO_LIMIT = 2**62
_FAR = 2**61
_CLOSED = -(2**62)  # the length of an end without room: farther than any path
_SOURCE, _SINK = 0, 1
_UNSEEN, _TOUCHED = -1, -2


class SweepState(NamedTuple):
    """Where the sweep is. Changed in place by `advance`.

    Attributes:
        time: When each event happens. [events]
        flow: Flow on each arc. [arcs]
        corner: The corner whose lower slope is at or just below the flow, of each arc. [arcs]
        room: How much flow each end of an arc can send towards its other event. [2 arcs]
        length: The duration its arc must have for that, negative at heads; far below 0 without room. [2 arcs]
        total: The flow from start to end. [1]
    """

    time: Indices
    flow: Indices
    corner: Indices
    room: Indices
    length: Indices
    total: Indices


def begin_sweep(network: NetworkArrays) -> SweepState:
    """The slow end: every instruction at its cheapest, every event as early as can be, no flow."""
    arcs, events = len(network.tail), len(network.first_end) - 1
    return _state(network, np.zeros(events, np.int64), np.zeros(arcs, np.int64), 0, True)


def resume_sweep(network: NetworkArrays, time: Indices, flow: Indices, total: int) -> SweepState:
    """A state as it was when its times and flows were copied."""
    return _state(network, time.copy(), flow.copy(), total, False)


def advance(network: NetworkArrays, state: SweepState, target: int, times: Indices, totals: Indices) -> int:
    """Go on until the iteration time is `target`, or the least there is, or `times` is full.

    Args:
        network: What `state` belongs to.
        state: Where to begin; afterwards, where the sweep is.
        target: An iteration time in quanta.
        times: Filled with the iteration time after each piece.
        totals: Filled with the flow during each piece.

    Returns:
        The number of pieces; their two's complement (below 0) if this is the least iteration time.
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
    return int(_KERNELS.call(_advance, network, state, scratch, target, times, totals))


def _state(network: NetworkArrays, time: Indices, flow: Indices, total: int, is_beginning: bool) -> SweepState:
    arcs = len(network.tail)
    state = SweepState(
        time=time,
        flow=flow,
        corner=network.first_corner[1:].astype(np.int64) - 1,
        room=np.zeros(2 * arcs, np.int64),
        length=np.zeros(2 * arcs, np.int64),
        total=np.array([total], np.int64),
    )
    _KERNELS.call(_prepare, network, state, is_beginning)
    return state


class _Scratch(NamedTuple):
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
                state.time[event] = max(state.time[event], fall - scratch.key[event])
            times[pieces] = now - fall
            totals[pieces] = state.total[0]
            pieces += 1
        if fall == distance and _raise(net, state, scratch):
            return -pieces - 1
    return pieces


def _search(net: Any, state: Any, scratch: Any) -> int:
    """Settle events in order of their distance from the start, up to the end; of equal distance, the last found first.

    Most events hang together in a few clusters without distances in between, and going deep first, along the arcs that
    leave, finds the end before the rest of its cluster has been looked at.

    `key` is the distance less the event's time: comparing keys takes the times of one side only. Of a settled event it
    cannot get lower, as distances to go are never negative.
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
            # Most of what was touched has been settled since by a way of no distance: only the rest goes to the heap.
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
    """Add flow along every path of distance 0, backward from the end; whether one has no limit."""
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
            steps = keep
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
    """Find the corner the flow belongs to, and from it the rooms and lengths of both ends."""
    flow, corner = state.flow[arc], state.corner[arc]
    first, last = np.int64(net.first_corner[arc]), np.int64(net.first_corner[arc + 1]) - 1
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


def _prepare(net: Any, state: Any, is_beginning: bool) -> None:
    """Set rooms and lengths from the flows and, at the beginning, each time to the earliest there is."""
    for arc in range(len(net.tail)):
        _set_rooms(net, state, arc)
    if is_beginning:
        _set_earliest_times(net, state)


def _set_earliest_times(net: Any, state: Any) -> None:
    missing = [0 for _ in range(len(state.time))]
    for arc in range(len(net.tail)):
        missing[net.head[arc]] += 1
    ready = [_SOURCE]
    while len(ready) > 0:
        event = ready.pop()
        for end in range(net.first_end[event], net.first_end[event + 1]):
            arc = net.end_arc[end]
            if net.end_at_tail[arc] == end:
                head = net.end_event[end]
                state.time[head] = max(state.time[head], state.time[event] + net.corner_time[state.corner[arc]])
                missing[head] -= 1
                if missing[head] == 0:
                    ready.append(head)


def _push(keys: Any, events: Any, size: int, key: int, event: int) -> int:
    """Put a key into a binary heap; its new size."""
    place = size
    while place > 0 and keys[(place - 1) // 2] > key:
        keys[place], events[place] = keys[(place - 1) // 2], events[(place - 1) // 2]
        place = (place - 1) // 2
    keys[place], events[place] = key, event
    return size + 1


def _pop(keys: Any, events: Any, size: int) -> int:
    """Take the least key, which is the first, out of a binary heap; its new size."""
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


_KERNELS = kernels(_push, _pop, _set_rooms, _add_flow, _search, _raise, _advance, _set_earliest_times, _prepare)
