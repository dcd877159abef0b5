"""Following the plan of one rank: each clock is requested one driver latency before the instructions it is for.

The driver takes some milliseconds to set a clock, while the GPU works on at the one before. The duration of each
computation is known, so a call begins that much before the end of the computation that precedes the change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median
from typing import NamedTuple

from zeus_core.pipeline.optimizer._clock_setter import ClockSetter
from zeus_core.pipeline.planner.pipeline_schedule import COMPUTE_KINDS, Instruction
from zeus_core.pipeline.profile.step_timeline import RecordedStep
from zeus_core.ports import DeviceEvent

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


class PlanFollower:
    """Requests the clocks of a plan, and notices steps that do not match it.

    Args:
        setter: Sets the clocks.
        order: The computations of an iteration, in order.
        seconds: Durations by stage, kind and clock, as far as they are known.
        latency_seconds: How long the driver took to set a clock while profiling; later calls may take longer.
    """

    def __init__(
        self,
        setter: ClockSetter,
        order: Sequence[Instruction],
        seconds: Mapping[tuple[int, str, int | None], float],
        latency_seconds: float,
    ) -> None:
        self._setter = setter
        self._order = order
        self._known_seconds = seconds
        self._latency_seconds = latency_seconds
        self._planned_mhz: Sequence[int | None] = ()
        self._clocks_mhz: Sequence[int | None] = (None,)
        self._waits: Sequence[Wait | None] = ()
        self._waited_seconds: Sequence[float | None] = (None,) * (len(order) + 1)
        self._first_requests: Sequence[ClockRequest] = ()  # at the beginning of a step, after the first clock
        self._requests: Sequence[Sequence[ClockRequest]] = ()
        self._position = 0
        self.is_changed = False
        """Whether the steps no longer match the plan. The original clock is in force then."""

    def follow(self, planned_mhz: Sequence[int | None], waits: Sequence[Wait | None] = ()) -> None:
        """Follow a plan from the next computation on.

        Each clock is requested at the end of the computation before, where the durations are not known yet.

        Args:
            planned_mhz: The clock of each computation; None where it stays as it is.
            waits: The waits before each computation, and after the last, as far as they have a clock of their own.
        """
        self._planned_mhz, self._waits = planned_mhz, waits
        seconds = [
            self._known_seconds.get((instruction.stage, instruction.kind, clock_mhz))
            for instruction, clock_mhz in zip(self._order, planned_mhz, strict=True)
        ]
        self._plan_requests(None if None in seconds else [one for one in seconds if one is not None], None)

    def learn(self, steps: Sequence[RecordedStep]) -> None:
        """Take the durations of some consecutive steps, as far as the device has finished them, for the next ones."""
        done = [step for step in steps if step.whole is not None]
        timed = [
            [span.seconds for span in step.spans() if isinstance(span.label, Instruction) and _is_timed(span.label)]
            for step in done
        ]
        whole = [seconds for seconds in timed if len(seconds) == len(self._order)]
        if whole:
            rests = [rest for pair in pairwise(done) if (rest := _rest_seconds(*pair)) is not None]
            seconds = [median(values) for values in zip(*whole, strict=True)]
            if any(self._waits):
                waited = [waits for step in done if len(waits := _waits_before(step)) == len(self._order)]
                self._waited_seconds = [*(min(values) for values in zip(*waited, strict=True)), None]
            self._plan_requests(seconds, median(rests) if rests else None)

    def begin_step(self, begin: DeviceEvent) -> None:
        """Request the clock of the first computation."""
        self._position = 0
        self._setter.request(None if self.is_changed else self._clocks_mhz[0], begin)
        if not self.is_changed:
            for clock_mhz, delay_seconds in self._first_requests:
                self._setter.request(clock_mhz, begin, delay_seconds)

    def begin_computation(self, instruction: Instruction, begin: DeviceEvent) -> None:
        """Request clocks that are due during a computation; check that the plan has it."""
        position, order = self._position, self._order
        if self.is_changed or position == len(order) or order[position] != instruction:
            self.is_changed = True
        elif self._requests:
            for clock_mhz, delay_seconds in self._requests[position]:
                self._setter.request(clock_mhz, begin, delay_seconds)

    def end_computation(self, end: DeviceEvent) -> None:
        """Request the clock of the next computation, unless that was done; the original one off the plan."""
        self._position += 1
        if self.is_changed:
            self._setter.request(None, end)
        elif not self._requests:
            self._setter.request(self._clocks_mhz[self._position], end)

    def end_step(self) -> None:
        """Check that the step was complete."""
        self.is_changed = self.is_changed or self._position != len(self._order)

    def _plan_requests(self, seconds: Sequence[float] | None, rest_seconds: float | None) -> None:
        latency_seconds = max(self._latency_seconds, self._setter.latency_seconds)
        highest_mhz = self._setter.clocks_mhz[0]  # the original one: no higher clock is offered
        self._clocks_mhz = clocks_to_follow(self._planned_mhz, highest_mhz, latency_seconds, rest_seconds)
        self._requests, self._first_requests = (), ()
        if seconds is None:
            return
        waits = self._waits or (None,) * (len(seconds) + 1)
        clocks, durations, begins = with_waits(self._clocks_mhz, seconds, waits, self._waited_seconds, latency_seconds)
        self._clocks_mhz = clocks_in_reach(clocks, durations, latency_seconds)
        requests: list[list[ClockRequest]] = [[] for _ in range(len(seconds) + 1)]  # the last at the step's beginning
        of_each = requests_of(self._clocks_mhz, durations, latency_seconds)
        for (number, earlier_seconds), of_one in zip(begins, of_each, strict=True):
            requests[number] += [ClockRequest(clock, earlier_seconds + delay) for clock, delay in of_one]
        *self._requests, self._first_requests = requests


def _is_timed(instruction: Instruction) -> bool:
    return instruction.kind in COMPUTE_KINDS


def _waits_before(step: RecordedStep) -> list[float]:
    """Return how long a rank waited before each computation of a step that the device has finished."""
    spans = [span for span in step.spans() if isinstance(span.label, Instruction) and _is_timed(span.label)]
    begin_seconds = step.begin.seconds()
    if begin_seconds is None:
        return []
    ends = [begin_seconds, *(span.end_seconds for span in spans)]
    return [span.begin_seconds - end for span, end in zip(spans, ends, strict=False)]


def _rest_seconds(step: RecordedStep, following: RecordedStep) -> float | None:
    """Return the time between the work of two consecutive steps."""
    end_seconds = None if step.work_end is None else step.work_end.seconds()
    begin_seconds = following.begin.seconds()
    return None if end_seconds is None or begin_seconds is None else begin_seconds - end_seconds
