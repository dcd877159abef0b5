"""Plans with few clocks: the baselines, from which the planner with a price of switches also begins."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.dependencies import ROUNDING, Indices, Numbers
from zeus_core.pipeline.planner.frontier.frontier import FrontierPoint
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem

_MAX_PACES = 300  # for 8 stages of 40 clocks all of them; those of 64 would take some seconds
_STEPS = 3  # by up to how many clocks one stage is lowered: noise may make a single one look worse


def simple_plans(
    problem: PipelineProblem, time_seconds: float, with_stage_clocks: bool = True
) -> Iterator[list[CostedOption]]:
    """Yield the plans of the baselines that keep an iteration time if switches take none."""
    highest = list(problem.highest_clock_options)
    if _predicted(problem, highest)[0] <= time_seconds:
        yield _of_instructions(problem, highest)
    for make in (one_clock_options, stage_clocks_options)[: 2 if with_stage_clocks else 1]:
        with contextlib.suppress(UsageError):  # no clock in common, or none keeps the time
            yield make(problem, time_seconds)


def one_clock_options(problem: PipelineProblem, time_seconds: float) -> list[CostedOption]:
    """Return the options of the lowest energy with one clock for all instructions, within an iteration time.

    Raises:
        UsageError: No clock was measured for all instructions, or none keeps the time.
    """
    clocks = _clocks_in_common(problem, range(len(problem.kinds)))
    if not clocks:
        raise UsageError("no clock was measured for all instructions; measure the stages at the same clocks")
    plans = [_at_clocks(problem, [clock] * problem.profile.stages) for clock in clocks]
    seconds, joules = zip(*(_predicted(problem, plan) for plan in plans), strict=True)
    in_time = [place for place in range(len(plans)) if seconds[place] <= time_seconds]
    if not in_time:
        raise UsageError(f"time_seconds is {time_seconds!r}, but one clock for all takes at least {min(seconds)!r} s")
    return _of_instructions(problem, plans[min(in_time, key=joules.__getitem__)])


def stage_clocks_options(problem: PipelineProblem, time_seconds: float) -> list[CostedOption]:
    """Return the options of the lowest energy found with one clock per stage, within an iteration time.

    Three starts: the highest clocks; one clock for all; and the best pace, at which each stage has the clock of the
    lowest energy at which its work takes no longer. From each a greedy descent: lower the clock of the stage that leads
    to the lowest energy within the time, as long as one does.

    Raises:
        UsageError: A stage has no clock that all its instructions were measured at, or none of the starts keeps the
            time.
    """
    clocks = _stage_clocks_in_common(problem)
    if not all(clocks):
        raise UsageError(
            f"stage {clocks.index([])} has no clock in common for all its instructions; measure them alike"
        )
    stages = _StageClocks.from_problem(problem, clocks)
    starts = [[0] * len(clocks), *_same_clocks(clocks), *_paces(stages)]
    found = {tuple(places): stages.predicted(places) for places in starts}
    in_time = [list(places) for places, (seconds, _) in found.items() if seconds <= time_seconds]
    if not in_time:
        shortest = min(seconds for seconds, _ in found.values())
        raise UsageError(f"time_seconds is {time_seconds!r}, but one clock per stage takes at least {shortest!r} s")
    best = sorted(in_time, key=lambda places: found[tuple(places)][1])[:3]
    lowered = [_lowered(stages, places, time_seconds) for places in [*best, in_time[0]]]
    places = min(lowered, key=lambda places: stages.predicted(places)[1])
    return _of_instructions(
        problem, _at_clocks(problem, [of_stage[place] for of_stage, place in zip(clocks, places, strict=True)])
    )


def stage_clocks_bound(problem: PipelineProblem, point: FrontierPoint, time_watts: float) -> float:
    """Return joules that no plan with one clock per stage is below, within the iteration time of a point.

    Lagrangian: each stage has the clock of the lowest energy where an instruction pays its time at its price at the
    point, less the price of the iteration time; see `switching/_switch_bound.py`. Infinite if there is no such plan.

    Args:
        problem: The instructions.
        point: A point of the frontier.
        time_watts: The power that the iteration time costs: that of waiting, or 0 if ranks wait anyway.
    """
    clocks = _stage_clocks_in_common(problem)
    if not all(clocks):
        return math.inf
    stages = _StageClocks.from_problem(problem, clocks)
    price_watts = np.bincount(problem.kind_of, weights=point.price_watts, minlength=len(problem.kinds))
    priced = stages.joules.copy()
    is_measured = np.isfinite(stages.kind_seconds)
    np.add.at(priced, stages.stage, price_watts[:, None] * np.where(is_measured, stages.kind_seconds, 0.0))
    limit_watts = float(point.price_watts[np.diff(problem.graph.first_arc) == 0].sum())
    delays = float(point.arc_price_watts @ problem.arc_delay_seconds)
    rest = min(0.0, time_watts - limit_watts) * point.time_seconds + problem.transfer_joules
    return float(priced.min(axis=1).sum()) + delays + rest


class _StageClocks(NamedTuple):
    """A problem in which each stage has one of its clocks, by its place: 0 is the highest.

    Attributes:
        problem: The problem.
        clocks_mhz: The clocks of each stage.
        stage: The stage of each kind. [kinds]
        kind_seconds: Seconds of each kind at each place; infinite beyond the last. [kinds, places]
        seconds: The sum of all instructions of each stage at each place. [stages, places]
        joules: The same of the effective costs.
    """

    problem: PipelineProblem
    clocks_mhz: list[list[int]]
    stage: Indices
    kind_seconds: Numbers
    seconds: Numbers
    joules: Numbers

    @classmethod
    def from_problem(cls, problem: PipelineProblem, clocks_mhz: list[list[int]]) -> _StageClocks:
        """Return the arrays of a problem."""
        stage = np.array([stage for stage, _ in problem.kinds], np.int64)
        kind_seconds = np.full((len(stage), max(map(len, clocks_mhz))), np.inf)
        kind_joules = np.full_like(kind_seconds, np.inf)
        for number, ((of_stage, kind), options) in enumerate(zip(problem.kinds, problem.options, strict=True)):
            for place, clock in enumerate(clocks_mhz[of_stage]):
                option = options[0] if len(options) == 1 else problem.option_at(of_stage, kind, clock)
                kind_seconds[number, place], kind_joules[number, place] = option.time_seconds, option.cost_joules
        counts = np.bincount(problem.kind_of)[:, None]
        seconds, joules = np.zeros((2, len(clocks_mhz), kind_seconds.shape[1]))
        np.add.at(seconds, stage, counts * kind_seconds)
        np.add.at(joules, stage, counts * kind_joules)
        return cls(problem, clocks_mhz, stage, kind_seconds, seconds, joules)

    def predicted(self, places: Sequence[int]) -> tuple[float, float]:
        """Return seconds and joules of an iteration, without switches."""
        chosen = np.asarray(places)
        by_kind = self.kind_seconds[np.arange(len(self.stage)), chosen[self.stage]]
        seconds = self.problem.iteration_seconds(by_kind[self.problem.kind_of])
        cost = float(self.joules[np.arange(len(chosen)), chosen].sum())
        return seconds, self.problem.energy_joules(cost, seconds)


def _lowered(stages: _StageClocks, places: list[int], time_seconds: float) -> list[int]:
    """Lower one stage after the other, as long as that saves energy within the time.

    Steps are tried in the order of the lowest energy they can lead to, as long as that is below the best. As stages
    only become slower, a place of a stage takes at least as long as when it was tried before.
    """
    best, (seconds, joules) = places, stages.predicted(places)
    least_seconds: dict[tuple[int, int], float] = {}
    watts = stages.problem.blocking_power_watts
    while True:
        steps = []
        for stage, place in enumerate(best):
            for lower in range(place + 1, min(place + 1 + _STEPS, len(stages.clocks_mhz[stage]))):
                later = max(0.0, least_seconds.get((stage, lower), seconds) - seconds)
                if seconds + later <= time_seconds:
                    work = float(stages.joules[stage, lower] - stages.joules[stage, place])
                    steps.append((joules + work + watts * later, stage, lower))
        found = None
        for least, stage, place in sorted(steps):
            if least >= (found[1] if found else joules):
                break
            neighbour = [*best[:stage], place, *best[stage + 1 :]]
            predicted = (*stages.predicted(neighbour), neighbour)
            least_seconds[stage, place] = predicted[0]
            if predicted[0] <= time_seconds and predicted[1] < (found[1] if found else joules):
                found = predicted
        if found is None:
            return best
        seconds, joules, best = found


def _same_clocks(clocks: list[list[int]]) -> list[list[int]]:
    common = sorted(set.intersection(*map(set, clocks)), reverse=True)
    return [[of_stage.index(clock) for of_stage in clocks] for clock in common]


def _paces(stages: _StageClocks) -> list[list[int]]:
    """Return the places of the clocks of lowest energy at each pace: the time that the work of a stage may take."""
    fastest = stages.seconds.min(axis=1).max()
    paces = np.unique(stages.seconds[np.isfinite(stages.seconds) & (stages.seconds >= fastest)])
    return [
        np.where(stages.seconds <= pace * (1 + ROUNDING), stages.joules, np.inf).argmin(axis=1).tolist()
        for pace in paces[:: max(1, len(paces) // _MAX_PACES)].tolist()
    ]


def _at_clocks(problem: PipelineProblem, clock_of_stage: Sequence[int]) -> list[CostedOption]:
    """Return the option of each kind with these clocks; fixed kinds have one option only."""
    return [
        options[0] if len(options) == 1 else problem.option_at(stage, kind, clock_of_stage[stage])
        for (stage, kind), options in zip(problem.kinds, problem.options, strict=True)
    ]


def _predicted(problem: PipelineProblem, by_kind: Sequence[CostedOption]) -> tuple[float, float]:
    """Return seconds and joules of an iteration with one option for each kind, without switches."""
    seconds = problem.iteration_seconds(problem.durations_of(by_kind))
    cost = float(np.array([option.cost_joules for option in by_kind]) @ np.bincount(problem.kind_of))
    return seconds, problem.energy_joules(cost, seconds)


def _of_instructions(problem: PipelineProblem, by_kind: Sequence[CostedOption]) -> list[CostedOption]:
    return [by_kind[kind] for kind in problem.kind_of.tolist()]


def _clocks_in_common(problem: PipelineProblem, kinds: Sequence[int]) -> list[int]:
    """Return the clocks at which all given kinds with several options were measured, the highest first."""
    measured = [
        {option.clock_mhz for option in problem.options[kind] if option.clock_mhz is not None} for kind in kinds
    ]
    several = [clocks for clocks in measured if len(clocks) > 1]
    return sorted(set.intersection(*several), reverse=True) if several else []


def _stage_clocks_in_common(problem: PipelineProblem) -> list[list[int]]:
    return [
        _clocks_in_common(problem, [number for number, kind in enumerate(problem.kinds) if kind[0] == stage])
        for stage in range(problem.profile.stages)
    ]
