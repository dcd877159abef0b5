"""Plans with few clocks: the baselines, from which the planner with a price of switches also begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from zeus_core.errors import UsageError
from zeus_core.pipeline._dependencies import ROUNDING
from zeus_core.pipeline._options import CostedOption
from zeus_core.pipeline._problem import Problem

__all__ = ["one_clock_options", "simple_plans", "stage_clocks_options"]

_MAX_PACES = 300  # for 8 stages of 40 clocks all of them; those of 64 would take some seconds
_STEPS = (1, 2, 3)  # by how many clocks one stage is lowered: noise may make a single one look worse


def simple_plans(problem: Problem, time_seconds: float) -> Iterator[list[CostedOption]]:
    """Yield the plans of the baselines that keep an iteration time if switches take none."""
    highest = list(problem.highest_clock_options)
    if _predicted(problem, highest)[0] <= time_seconds:
        yield _of_instructions(problem, highest)
    for make in (one_clock_options, stage_clocks_options):
        with contextlib.suppress(UsageError):  # no clock in common, or none keeps the time
            yield make(problem, time_seconds)


def one_clock_options(problem: Problem, time_seconds: float) -> list[CostedOption]:
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


def stage_clocks_options(problem: Problem, time_seconds: float) -> list[CostedOption]:
    """Return the options of the lowest energy found with one clock per stage, within an iteration time.

    Three starts: the highest clocks; one clock for all; and the best pace, at which each stage has the clock of the
    lowest energy at which its work takes no longer. From each a greedy descent: lower the clock of the stage that leads
    to the lowest energy within the time, as long as one does.

    Raises:
        UsageError: A stage has no clock that all its instructions were measured at, or none of the starts keeps the
            time.
    """
    clocks = [
        _clocks_in_common(problem, [number for number, kind in enumerate(problem.kinds) if kind[0] == stage])
        for stage in range(problem.profile.stages)
    ]
    if not all(clocks):
        raise UsageError(
            f"stage {clocks.index([])} has no clock in common for all its instructions; measure them alike"
        )
    starts = [[0] * len(clocks), *_same_clocks(clocks), *_paces(problem, clocks)]
    found = {tuple(places): _energy(problem, clocks, places) for places in starts}
    in_time = [list(places) for places, (seconds, _) in found.items() if seconds <= time_seconds]
    if not in_time:
        shortest = min(seconds for seconds, _ in found.values())
        raise UsageError(f"time_seconds is {time_seconds!r}, but one clock per stage takes at least {shortest!r} s")
    best = sorted(in_time, key=lambda places: found[tuple(places)][1])[:3]
    lowered = [_lowered(problem, clocks, places, time_seconds) for places in [*best, in_time[0]]]
    places = min(lowered, key=lambda places: _energy(problem, clocks, places)[1])
    return _of_instructions(problem, _at_places(problem, clocks, places))


def _lowered(problem: Problem, clocks: list[list[int]], places: list[int], time_seconds: float) -> list[int]:
    """Lower one stage after the other, as long as that saves energy within the time.

    A place of a stage that was too late once is not tried again, as the others only become slower. The rest is tried in
    the order of its energy at the present time, as long as that is not above the best.
    """
    _, work_joules = _work(problem, clocks)
    best, joules = places, _energy(problem, clocks, places)[1]
    late: set[tuple[int, int]] = set()
    while True:
        steps = [
            (joules + work_joules[stage][place + step] - work_joules[stage][place], stage, place + step)
            for stage, place in enumerate(best)
            for step in _STEPS
            if place + step < len(clocks[stage]) and (stage, place + step) not in late
        ]
        found = None
        for least, stage, place in sorted(steps):
            if least >= (found[1] if found else joules):
                break
            neighbour = [*best[:stage], place, *best[stage + 1 :]]
            predicted = (*_energy(problem, clocks, neighbour), neighbour)
            if predicted[0] > time_seconds:
                late.add((stage, place))
            elif predicted[1] < (found[1] if found else joules):
                found = predicted
        if found is None:
            return best
        _, joules, best = found


def _same_clocks(clocks: list[list[int]]) -> list[list[int]]:
    common = sorted(set.intersection(*map(set, clocks)), reverse=True)
    return [[of_stage.index(clock) for of_stage in clocks] for clock in common]


def _paces(problem: Problem, clocks: list[list[int]]) -> list[list[int]]:
    """Return the places of the clocks of lowest energy at each pace: the time that the work of a stage may take."""
    seconds, joules = _work(problem, clocks)
    fastest = max(map(min, seconds))
    paces = sorted({time for of_stage in seconds for time in of_stage if time >= fastest})
    return [
        [
            min(
                (place for place in range(len(of_stage)) if seconds[stage][place] <= pace * (1 + ROUNDING)),
                key=joules[stage].__getitem__,
            )
            for stage, of_stage in enumerate(clocks)
        ]
        for pace in paces[:: max(1, len(paces) // _MAX_PACES)]
    ]


def _work(problem: Problem, clocks: list[list[int]]) -> tuple[list[list[float]], list[list[float]]]:
    """Return the seconds and the effective joules of all instructions of each stage at each of its clocks."""
    counts = np.bincount(problem.kind_of).tolist()
    seconds = [[0.0] * len(of_stage) for of_stage in clocks]
    joules = [[0.0] * len(of_stage) for of_stage in clocks]
    for (stage, kind), options, count in zip(problem.kinds, problem.options, counts, strict=True):
        for place, clock in enumerate(clocks[stage]):
            option = options[0] if len(options) == 1 else problem.option_at(stage, kind, clock)
            seconds[stage][place] += count * option.time_seconds
            joules[stage][place] += count * option.cost_joules
    return seconds, joules


def _energy(problem: Problem, clocks: list[list[int]], places: Sequence[int]) -> tuple[float, float]:
    return _predicted(problem, _at_places(problem, clocks, places))


def _at_places(problem: Problem, clocks: list[list[int]], places: Sequence[int]) -> list[CostedOption]:
    return _at_clocks(problem, [of_stage[place] for of_stage, place in zip(clocks, places, strict=True)])


def _at_clocks(problem: Problem, clock_of_stage: Sequence[int]) -> list[CostedOption]:
    """Return the option of each kind with these clocks; fixed kinds have one option only."""
    return [
        options[0] if len(options) == 1 else problem.option_at(stage, kind, clock_of_stage[stage])
        for (stage, kind), options in zip(problem.kinds, problem.options, strict=True)
    ]


def _predicted(problem: Problem, by_kind: Sequence[CostedOption]) -> tuple[float, float]:
    """Return seconds and joules of an iteration with one option for each kind, without switches."""
    seconds = problem.iteration_seconds(problem.durations_of(by_kind))
    cost = float(np.array([option.cost_joules for option in by_kind]) @ np.bincount(problem.kind_of))
    return seconds, problem.energy_joules(cost, seconds)


def _of_instructions(problem: Problem, by_kind: Sequence[CostedOption]) -> list[CostedOption]:
    return [by_kind[kind] for kind in problem.kind_of.tolist()]


def _clocks_in_common(problem: Problem, kinds: Sequence[int]) -> list[int]:
    """Return the clocks at which all given kinds with several options were measured, the highest first."""
    measured = [
        {option.clock_mhz for option in problem.options[kind] if option.clock_mhz is not None} for kind in kinds
    ]
    several = [clocks for clocks in measured if len(clocks) > 1]
    return sorted(set.intersection(*several), reverse=True) if several else []
