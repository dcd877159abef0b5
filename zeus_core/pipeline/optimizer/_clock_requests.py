"""When to request the clocks of a plan: one driver latency before the instructions they are for. Pure.

The driver takes some milliseconds to set a clock, while the GPU works on at the one before. The duration of each
computation is known, so a call begins that much before the end of the computation that precedes the change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

__all__ = ["ClockRequest", "Wait", "clocks_in_reach", "clocks_to_follow", "requests_of", "with_waits"]

# Multiple of the driver's latency between two iterations below which the original clock would hardly be in force there:
# one latency to restore it, and one to set the next clock.
_MIN_REST_LATENCIES = 2.0


# Lateness, as a multiple of the driver's latency, that is the scatter of computations and calls.
_MAX_LATENESS_LATENCIES = 0.1


# Fraction of a wait, and multiple of the driver's latency, that the clock is raised before its end: a wait is shorter
# at times, and work at the low clock would delay other ranks.
_WAIT_MARGIN_FRACTION = 0.05
_WAIT_MARGIN_LATENCIES = 0.5


class Wait(NamedTuple):
    """A wait that has a clock of its own.

    Attributes:
        clock_mhz: The clock.
        seconds: How long it lasts by the plan.
    """

    clock_mhz: int
    seconds: float


class ClockRequest(NamedTuple):
    """A clock to request when a computation begins.

    Attributes:
        clock_mhz: The clock; None for the original one.
        delay_seconds: How long after that beginning the driver is called.
    """

    clock_mhz: int | None
    delay_seconds: float


def clocks_to_follow(
    planned_mhz: Sequence[int | None], original_mhz: int, latency_seconds: float, rest_seconds: float | None
) -> list[int | None]:
    """Return the clock of each computation, and that after the last one; None for the original clock.

    Args:
        planned_mhz: The clocks by the plan; None where the clock stays as it is.
        original_mhz: The clock that a GPU runs at if none is set, which needs no call of the driver.
        latency_seconds: How long the driver takes to set a clock.
        rest_seconds: The time between the last computation of an iteration and the next iteration; None if unknown.
    """
    clocks: list[int | None] = []
    for planned in planned_mhz:
        before = clocks[-1] if clocks else None
        clocks.append(before if planned is None else None if planned == original_mhz else planned)
    is_rest_short = rest_seconds is not None and rest_seconds < _MIN_REST_LATENCIES * latency_seconds
    return [*clocks, clocks[0] if is_rest_short else None]


def with_waits(
    clocks_mhz: Sequence[int | None],
    seconds: Sequence[float],
    waits: Sequence[Wait | None],
    waited_seconds: Sequence[float | None],
    latency_seconds: float,
) -> tuple[list[int | None], list[float], list[tuple[int, float]]]:
    """Return clocks and durations in which waits with a clock of their own count as computations.

    Args:
        clocks_mhz: The clock of each computation, and that after the last one; None for the original clock.
        seconds: The duration of each computation.
        waits: The waits before each computation, and after the last one.
        waited_seconds: How long they have lasted; None where that is not known.
        latency_seconds: How long the driver takes to set a clock.

    Returns:
        The clocks, the durations, and where each begins: the number of a computation, -1 for the beginning of the step,
        and the seconds since then.
    """
    clocks: list[int | None] = []
    durations: list[float] = []
    begins: list[tuple[int, float]] = []
    for place, wait in enumerate(waits):
        if wait is not None:
            waited = waited_seconds[place]
            lasts = wait.seconds if waited is None else min(waited, wait.seconds)
            lasts -= _WAIT_MARGIN_FRACTION * lasts + _WAIT_MARGIN_LATENCIES * latency_seconds
            if lasts > latency_seconds:
                clocks.append(wait.clock_mhz)
                durations.append(lasts)
                begins.append((place - 1, seconds[place - 1] if place else 0.0))
        clocks.append(clocks_mhz[place])
        if place < len(seconds):
            durations.append(seconds[place])
            begins.append((place, 0.0))
    return clocks, durations, begins


def clocks_in_reach(
    clocks_mhz: Sequence[int | None], seconds: Sequence[float], latency_seconds: float
) -> list[int | None]:
    """Leave out each lower clock that would make the driver late for the higher one that follows.

    The computations that follow would run at the lower clock for a while, and an iteration would take longer.

    Args:
        clocks_mhz: The clock of each computation, and that after the last one; None for the original clock.
        seconds: The duration of each computation.
        latency_seconds: How long the driver takes to set a clock.
    """
    heights = [math.inf if clock_mhz is None else clock_mhz for clock_mhz in clocks_mhz]
    changes = [number for number in range(1, len(heights)) if heights[number] != heights[number - 1]]
    begins = [0.0, *accumulate(seconds)]
    kept = list(clocks_mhz)
    free_seconds = 0.0  # when the driver is done with the calls so far
    for change, following in pairwise(changes):
        done_seconds = max(free_seconds, begins[change] - latency_seconds) + latency_seconds
        lateness_seconds = done_seconds + latency_seconds - begins[following]
        is_lower = heights[change] < min(heights[change - 1], heights[following])
        if is_lower and lateness_seconds > _MAX_LATENESS_LATENCIES * latency_seconds:
            kept[change:following] = [kept[change - 1]] * (following - change)
            heights[change:following] = [heights[change - 1]] * (following - change)
        else:
            free_seconds = done_seconds
    return kept


def requests_of(
    clocks_mhz: Sequence[int | None], seconds: Sequence[float], latency_seconds: float
) -> list[list[ClockRequest]]:
    """Return what to request at the beginning of each computation, so that the next ones begin at their clocks.

    Args:
        clocks_mhz: The clock of each computation, and that after the last one; None for the original clock.
        seconds: The duration of each computation.
        latency_seconds: How long the driver takes to set a clock.
    """
    requests: list[list[ClockRequest]] = [[] for _ in seconds]
    for number in range(1, len(clocks_mhz)):
        if clocks_mhz[number] == clocks_mhz[number - 1]:
            continue
        earlier, left_seconds = number - 1, seconds[number - 1]
        while left_seconds < latency_seconds and earlier > 0 and clocks_mhz[earlier - 1] == clocks_mhz[earlier]:
            earlier -= 1
            left_seconds += seconds[earlier]
        requests[earlier].append(ClockRequest(clocks_mhz[number], max(left_seconds - latency_seconds, 0.0)))
    return requests
