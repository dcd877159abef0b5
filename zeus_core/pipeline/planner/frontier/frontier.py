"""The time-energy frontier of a pipeline: the lowest energy for each iteration time, exactly.

Or, where a precision is given, of coarse hulls just below those of the options, which takes much less time, and is a
lower bound. The slopes of a coarse hull are multiples of one unit, so the flow of the frontier walk rises by at least
that unit, and there are few breakpoints: some thousands where all measured slopes make a hundred thousand. Between its
corners a coarse hull is the highest of the lines with these slopes that are nowhere above the hull.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline.planner.frontier._frontier_walk import FASTEST, WalkState, advance, begin_walk, resume_walk
from zeus_core.pipeline.planner.frontier._network import Network, make_network
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.planner.pipeline_profile import PipelineProfile
from zeus_core.pipeline.planner.pipeline_schedule import Schedule
from zeus_core.validate import checked_number

_MAX_SNAPSHOTS = 32  # states to resume from: more make `at` quicker and take more memory
_PIECES_PER_CALL = 64  # pieces between two chances for a snapshot: fewer cost calls, more make `at` slower


@dataclass(frozen=True)
class FrontierPoint:
    """One point of a frontier, before real clocks are chosen.

    Attributes:
        time_seconds: Iteration time.
        energy_joules: Energy of all GPUs over it; no clocks take less in this time.
        start_seconds: Start of each instruction of the schedule, in the order of `PipelineProblem.graph`.
            [instructions]
        duration_seconds: Duration of each; between two measured durations it is a mixture of both clocks.
            [instructions]
        deadline_seconds: Latest end of each for the others to start as here. [instructions]
        price_watts: Energy that one more second would save for each, per second. [instructions]
        arc_price_watts: The same for a second between two instructions, on each arc of `PipelineProblem.graph`.
            [graph arcs]
    """

    time_seconds: float
    energy_joules: float
    start_seconds: Numbers
    duration_seconds: Numbers
    deadline_seconds: Numbers
    price_watts: Numbers
    arc_price_watts: Numbers


@dataclass(frozen=True)
class _Snapshot:
    time: int
    total: int
    times: Indices
    flow: Indices


@dataclass(frozen=True)
class Frontier:
    """All breakpoints of the lowest energy over iteration time, exact to the rounding of 64-bit floats if not coarse.

    The frontier ends at the iteration time of the lowest energy. Beyond it more time costs more energy, unless that
    time passes anyway, as in a pipeline that waits for a slower one: see `energy_joules`.

    Memory: some 1.5 kB for each instruction (32 states to resume from), and 16 bytes for each breakpoint.
    """

    problem: PipelineProblem
    _network: Network = field(repr=False)
    _times: Numbers = field(repr=False)  # seconds of all breakpoints, falling
    _costs: Numbers = field(repr=False)
    _snapshots: Sequence[_Snapshot] = field(repr=False)

    @classmethod
    def from_profile(
        cls,
        profile: PipelineProfile,
        schedule: Schedule,
        on_progress: Callable[[float], object] = lambda _: None,
        precision: float = 0.0,
    ) -> Frontier:
        """Compute the frontier of a pipeline.

        The time grows linearly with the microbatches, and about with the cube of the stages: on one core some 0.1 s for
        8 stages and 96 microbatches, and a minute and a half for 64 stages and 128 microbatches. With a precision of
        0.005 the walk takes few steps, each of them linear in the instructions: some 1.5 s for the latter.

        Args:
            profile: Time and energy of the instructions.
            schedule: Their order.
            on_progress: Called many times with how far the walk from the slow end is, from 0 to 1. An error that it
                raises ends the walk.
            precision: By how much the energies of the frontier may be too low, over that at the highest clocks. They
                are never too high, so bounds remain bounds; the shortest time stays exact.

        Raises:
            UsageError: Profile and schedule do not fit, see `PipelineProblem`; `on_progress` cannot be called; or the
                precision is out of its range.
            Exception: `on_progress` raised it.
        """
        precision = checked_number("precision", precision, 0.0, 1.0, "0 for the exact frontier, up to 1, such as 0.002")
        problem = PipelineProblem(profile, schedule)
        hulls: Sequence[Sequence[CostedOption]] = problem.hulls
        unit_watts = 0.0
        if precision:
            error_joules = precision * problem.highest_clock_point[1]
            hulls, unit_watts = _coarse_hulls(hulls, np.bincount(problem.kind_of), error_joules)
        network = make_network(problem.graph, hulls, problem.kind_of, problem.arc_delay_seconds, unit_watts)
        times, totals, snapshots = _walk(network, problem.shortest_seconds, on_progress)
        falls = -np.diff(times) * network.time_quantum_seconds
        slowest = np.array([hull[-1].cost_joules for hull in problem.hulls])
        start_cost = float(slowest @ np.bincount(problem.kind_of))
        rises = falls * (totals[1:] * network.slope_quantum_watts)
        costs = start_cost + np.concatenate([[0.0], np.cumsum(rises)])
        seconds = times * network.time_quantum_seconds
        # The ends as sums of floats, to equal the times of plans.
        seconds[0], seconds[-1] = problem.slowest_seconds, problem.shortest_seconds
        # Sums that differ by rounding alone make pieces without length.
        is_kept = np.append(falls > ROUNDING * seconds[-1], True)
        return cls(problem, network, seconds[is_kept], costs[is_kept], snapshots)

    @property
    def shortest_seconds(self) -> float:
        """The shortest iteration time: every instruction at its fastest option as measured."""
        return self.problem.shortest_seconds

    @cached_property
    def least_energy_seconds(self) -> float:
        """The iteration time of the lowest energy, T*: the slow end of the frontier."""
        return float(self.times_seconds[-1])

    @property
    def slowest_seconds(self) -> float:
        """The iteration time with every instruction at its lowest effective cost; more time saves nothing."""
        return self.problem.slowest_seconds

    @property
    def highest_clock_point(self) -> tuple[float, float]:
        """Seconds and joules of an iteration with all instructions at their highest clocks."""
        return self.problem.highest_clock_point

    @cached_property
    def times_seconds(self) -> Numbers:
        """Iteration times of the breakpoints, rising from the shortest one to that of least energy."""
        times: Numbers = self._times[self._first :][::-1].copy()
        return times

    @cached_property
    def energies_joules(self) -> Numbers:
        """Energies of the breakpoints, falling."""
        energies: Numbers = self._all_energies[self._first :][::-1].copy()
        return energies

    @cached_property
    def _all_energies(self) -> Numbers:
        joules: Numbers = self._costs + self.problem.transfer_joules + self.problem.blocking_power_watts * self._times
        return joules

    @cached_property
    def _first(self) -> int:
        return int(np.argmin(self._all_energies))

    def energy_joules(self, time_seconds: ArrayLike, until_seconds: ArrayLike | None = None) -> Numbers:
        """Return the lowest energy of an iteration that may take a given time, in joules.

        Args:
            time_seconds: One or more iteration times; beyond that of least energy the iteration ends there.
            until_seconds: End of the time over which energy counts, if the GPUs then wait, such as for another
                pipeline; a longer iteration can then save energy. The end of the iteration if None.

        Raises:
            UsageError: A time is below the shortest one, or not a number.
        """
        asked = np.asarray(time_seconds, np.float64)
        for value in np.ravel(asked).tolist():
            self.check_time(value)
        last = self.least_energy_seconds if until_seconds is None else self.slowest_seconds
        times = np.minimum(asked, last)
        costs = np.interp(times, self._times[::-1], self._costs[::-1])
        until = times if until_seconds is None else np.asarray(until_seconds, np.float64)
        if not np.all((until >= times) & np.isfinite(until)):  # NaN is neither
            raise UsageError(
                f"until_seconds is {until_seconds!r}; it must be finite, at or after the end of the iteration"
            )
        joules: Numbers = costs + self.problem.transfer_joules + self.problem.blocking_power_watts * until
        return joules

    def check_time(self, time_seconds: float) -> float:
        """Return an iteration time that is possible, in seconds.

        Raises:
            UsageError: It is below the shortest one, or not a number.
        """
        if not isinstance(time_seconds, int | float) or math.isnan(time_seconds):
            raise UsageError(f"time_seconds is {time_seconds!r}; give a number of seconds")
        if time_seconds < self.shortest_seconds * (1 - ROUNDING):
            raise UsageError(
                f"time_seconds is {time_seconds!r}, but no clocks make an iteration shorter than "
                f"{self.shortest_seconds!r} s"
            )
        return max(float(time_seconds), self.shortest_seconds)

    def at(self, time_seconds: float, is_waiting: bool = False) -> FrontierPoint:
        """Return the point of the frontier at an iteration time, or that of least energy if it is earlier.

        Args:
            time_seconds: Iteration time.
            is_waiting: Whether the GPUs wait until then anyway; then times up to `slowest_seconds` can save energy.

        Raises:
            UsageError: The time is below the shortest one, or not a number.
        """
        seconds = min(self.check_time(time_seconds), self.slowest_seconds if is_waiting else self.least_energy_seconds)
        target = int(min(seconds / self._network.time_quantum_seconds, self._snapshots[0].time))
        snapshot = min((each for each in self._snapshots if each.time >= target), key=lambda each: each.time)
        state = resume_walk(self._network.arrays, snapshot.times, snapshot.flow, snapshot.total)
        while advance(self._network.arrays, state, target, *_piece_buffers()) == _PIECES_PER_CALL:
            pass
        since_start = (state.time - state.time[0]) * self._network.time_quantum_seconds
        starts, deadlines = since_start[self._network.start_event], since_start[self._network.end_event]
        longest = self.problem.durations_of([hull[-1] for hull in self.problem.hulls])
        shortest = self.problem.durations_of([hull[0] for hull in self.problem.hulls])
        energy = float(self.energy_joules(seconds, until_seconds=seconds))
        durations = np.clip(deadlines - starts, shortest, longest)
        prices = np.multiply(state.flow, self._network.slope_quantum_watts, dtype=np.float64)
        of_instructions, of_arcs = prices[: len(starts)], prices[self._network.arc_of_graph_arc]
        return FrontierPoint(seconds, energy, starts, durations, deadlines, of_instructions, of_arcs)


def _walk(
    network: Network, shortest_seconds: float, on_progress: Callable[[float], object]
) -> tuple[Indices, Indices, list[_Snapshot]]:
    """Return times and flows of all breakpoints, the slow end first, and states at even distances among them."""
    state = begin_walk(network.arrays)
    times, totals = [np.array([_iteration_time(state)])], [np.zeros(1, np.int64)]
    snapshots, stride = [_snapshot(state)], 1
    calls, is_over = 0, False
    slowest, shortest = _iteration_time(state), shortest_seconds / network.time_quantum_seconds
    while not is_over:
        piece_times, piece_totals = _piece_buffers()
        count = advance(network.arrays, state, FASTEST, piece_times, piece_totals)
        is_over = count < 0
        count = -count - 1 if is_over else count
        times.append(piece_times[:count])
        totals.append(piece_totals[:count])
        calls += 1
        on_progress((slowest - _iteration_time(state)) / max(slowest - shortest, 1.0))
        if calls % stride == 0:
            snapshots.append(_snapshot(state))
        if len(snapshots) > _MAX_SNAPSHOTS:
            snapshots, stride = snapshots[::2], 2 * stride
    return np.concatenate(times), np.concatenate(totals), snapshots


def _piece_buffers() -> tuple[Indices, Indices]:
    return np.empty(_PIECES_PER_CALL, np.int64), np.empty(_PIECES_PER_CALL, np.int64)


def _snapshot(state: WalkState) -> _Snapshot:
    return _Snapshot(_iteration_time(state), int(state.total[0]), state.time.copy(), state.flow.copy())


def _iteration_time(state: WalkState) -> int:
    return int(state.time[1] - state.time[0])


_NOISE = 1e-10  # of a time: corners that are closer are one
_LEAST_UNIT = 1e-9  # of the steepest slope: finer units save nothing
_EXACT_LEVELS = 8  # multiples of the unit up to twice this are all slopes; above, one in 2, 4, 8 ... of them


def _coarse_hulls(
    hulls: Sequence[Sequence[CostedOption]], counts: Indices, error_joules: float
) -> tuple[list[tuple[CostedOption, ...]], float]:
    """Return hulls from the first to the last time of each, at most so far below all together, and their unit in watts.

    Args:
        hulls: The lower hull of each kind. [kinds]
        counts: The number of instructions of each kind. [kinds]
        error_joules: The largest sum of the differences of all instructions, wherever on its hull each is.
    """
    steepest = max((_slopes(hull).max(initial=0.0) for hull in hulls), default=0.0)
    # A power of two, so that sums of its multiples are exact.
    unit_watts = 2.0 ** math.ceil(math.log2(steepest)) if steepest > 0.0 else 0.0
    while unit_watts > _LEAST_UNIT * steepest:
        found = [_coarse(hull, _levels(unit_watts, steepest)) for hull in hulls]
        if counts @ np.array([_difference(*pair) for pair in zip(hulls, found, strict=True)]) <= error_joules:
            return found, unit_watts
        unit_watts /= 2
    return [tuple(hull) for hull in hulls], 0.0


def _levels(unit_watts: float, steepest: float) -> Numbers:
    """Return the slopes, falling to 0; the first is at least the steepest of the hulls."""
    multiples, step = [0], 1
    while multiples[-1] * unit_watts < steepest:
        step *= 2 if multiples[-1] >= 2 * _EXACT_LEVELS * step else 1
        multiples.append(multiples[-1] + step)
    return unit_watts * np.array(multiples[::-1], np.float64)


def _coarse(hull: Sequence[CostedOption], levels: Numbers) -> tuple[CostedOption, ...]:
    times, costs = _corners(hull)
    slopes = _slopes(hull)
    touched = np.searchsorted(-slopes, -levels, side="right")  # the corner at which a line of each slope touches
    at_zero = costs[touched] + levels * times[touched]
    # Where each line meets the next; lines that touch the same corner meet there.
    meets = np.diff(at_zero) / np.diff(levels)
    is_corner = (meets > times[0]) & (meets < times[-1]) & (np.diff(meets, append=np.inf) > _NOISE * times[-1])
    corners = meets[is_corner], (at_zero[:-1] - levels[:-1] * meets)[is_corner]
    inner = [CostedOption(None, *pair) for pair in zip(*(of.tolist() for of in corners), strict=True)]
    return (hull[0], *inner, hull[-1]) if len(hull) > 1 else tuple(hull)


def _difference(hull: Sequence[CostedOption], coarse: Sequence[CostedOption]) -> float:
    """Return the most that a coarse hull is below a hull: that is at one of its own corners."""
    times, costs = _corners(coarse)
    return float((np.interp(times, *_corners(hull)) - costs).max())


def _corners(hull: Sequence[CostedOption]) -> tuple[Numbers, Numbers]:
    return np.array([corner.time_seconds for corner in hull]), np.array([corner.cost_joules for corner in hull])


def _slopes(hull: Sequence[CostedOption]) -> Numbers:
    """Return the cost saved per time from each corner to the next, falling."""
    times, costs = _corners(hull)
    slopes: Numbers = -np.diff(costs) / np.diff(times)
    return slopes
