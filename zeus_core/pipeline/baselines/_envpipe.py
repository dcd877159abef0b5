"""EnvPipe's heuristic: keep the envelope of the pipeline fast, and slow down what lies inside it (USENIX ATC'23)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zeus_core.pipeline._dependencies import Numbers
from zeus_core.pipeline._hull import CostedOption
from zeus_core.pipeline._plan import Plan
from zeus_core.pipeline._problem import Problem
from zeus_core.pipeline._schedule import Instruction

__all__ = ["envpipe_plan"]

_STEP_MHZ = 30


def envpipe_plan(problem: Problem) -> Plan:
    """The plan EnvPipe would make, as its paper describes it.

    The envelope is the first forward pass of each stage, the last backward pass of each, and all of the last stage; it
    runs at the highest clocks. All else begins at the clock of least energy. As long as a longest path has other
    instructions that can be faster, all of those are raised by 30 MHz.
    """
    numbers = {it: number for number, it in enumerate(problem.graph.instructions)}
    envelope = {numbers[it] for order in problem.schedule.ranks for it in _envelope(order, problem.profile.stages)}
    choices = [problem.all_choices[kind] for kind in problem.kind_of.tolist()]
    cheapest = [_place_of_least_energy(problem, kind) for kind in range(len(problem.kinds))]
    place = np.array([0 if it in envelope else cheapest[kind] for it, kind in enumerate(problem.kind_of.tolist())])
    durations = np.array([of[it].time_seconds for of, it in zip(choices, place.tolist(), strict=True)])
    while True:
        raised = [it for it in _longest_path(problem, durations, envelope) if it not in envelope and place[it] > 0]
        if not raised:
            break
        for it in raised:
            place[it] = _raised(choices[it], int(place[it]))
            durations[it] = choices[it][place[it]].time_seconds
    return Plan.of("EnvPipe", problem, [of[it] for of, it in zip(choices, place.tolist(), strict=True)])


def _envelope(order: Sequence[Instruction], stages: int) -> list[Instruction]:
    """The first forward passes, the last backward passes, and the last stage."""
    firsts = {it.stage: it for it in reversed(order) if it.kind == "forward"}
    lasts = {it.stage: it for it in order if it.kind.startswith("backward")}
    on_it = {*firsts.values(), *lasts.values()}
    return [it for it in order if it in on_it or it.stage == stages - 1]


def _place_of_least_energy(problem: Problem, kind: int) -> int:
    energies = [_energy(problem, kind, choice) for choice in problem.all_choices[kind]]
    return energies.index(min(energies))


def _energy(problem: Problem, kind: int, choice: CostedOption) -> float:
    stage = problem.kinds[kind][0]
    return choice.cost_joules + problem.profile.gpus[stage] * problem.profile.blocking_power_watts[stage] * (
        choice.time_seconds
    )


def _raised(choices: tuple[CostedOption, ...], place: int) -> int:
    """The place of the lowest clock that is at least a step higher; the highest clock if there is none."""
    clock = choices[place].clock_mhz or 0
    higher = [it for it in range(place) if (choices[it].clock_mhz or 0) >= clock + _STEP_MHZ]
    return max(higher, default=0)


def _longest_path(problem: Problem, durations: Numbers, envelope: set[int]) -> list[int]:
    """The instructions of a longest path, from its end; through the envelope where there is a choice."""
    graph, delays = problem.graph, problem.arc_delay_seconds
    ends = problem.start_seconds(durations) + durations
    it = int(max(range(len(ends)), key=lambda it: (ends[it] * (1 - 1e-12), it in envelope)))
    path = [it]
    while True:
        arcs = range(graph.first_arc[it], graph.first_arc[it + 1])
        if not arcs:
            return path
        arrivals = {int(graph.arc_from[arc]): ends[graph.arc_from[arc]] + delays[arc] for arc in arcs}
        latest = max(arrivals.values())
        it = max((before for before, at in arrivals.items() if at >= latest - 1e-9), key=lambda it: it in envelope)
        path.append(it)
