"""Baselines: simpler ways to choose clocks, predicted by the same means.

EnvPipe's heuristic keeps the envelope of the pipeline fast and slows down the rest (USENIX ATC'23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from zeus_core.pipeline.planner.clock_options import CostedOption
from zeus_core.pipeline.planner.clock_plan import Plan
from zeus_core.pipeline.planner.dependencies import ROUNDING, Numbers
from zeus_core.pipeline.planner.pipeline_problem import PipelineProblem
from zeus_core.pipeline.planner.pipeline_schedule import Instruction
from zeus_core.pipeline.planner.simple_plans import one_clock_options, stage_clocks_options
from zeus_core.validate import checked_number

__all__ = ["envpipe_plan", "global_clock_plan", "highest_clocks_plan", "stage_clocks_plan"]


def highest_clocks_plan(problem: PipelineProblem) -> Plan:
    """Return the plan with every instruction at its highest clock: the meaning of "no slowdown"."""
    options = problem.highest_clock_options
    return Plan.from_options("highest clocks", problem, [options[kind] for kind in problem.kind_of.tolist()])


def global_clock_plan(problem: PipelineProblem, time_seconds: float) -> Plan:
    """Return the plan of the lowest energy with one clock for all instructions, within an iteration time.

    Raises:
        UsageError: No clock was measured for all instructions, or none keeps the time.
    """
    time_seconds = checked_number("time_seconds", time_seconds, 0.0, math.inf, "a finite number of seconds")
    return Plan.from_options("one clock", problem, one_clock_options(problem, time_seconds))


def stage_clocks_plan(problem: PipelineProblem, time_seconds: float) -> Plan:
    """Return a plan with one clock per stage, within an iteration time. It never takes more energy than one clock.

    Raises:
        UsageError: A stage has no clock that all its instructions were measured at, or the highest ones do not keep
            the time.
    """
    time_seconds = checked_number("time_seconds", time_seconds, 0.0, math.inf, "a finite number of seconds")
    return Plan.from_options("one clock per stage", problem, stage_clocks_options(problem, time_seconds))


_STEP_MHZ = 30  # our choice: two steps of 15 MHz, NVIDIA's; more reaches the highest clocks sooner


def envpipe_plan(problem: PipelineProblem) -> Plan:
    """Return the plan of EnvPipe, as its paper describes it.

    The envelope is the first forward pass of each stage, the last backward pass of each, and the whole last stage; it
    runs at the highest clocks. All else begins at its clock of lowest energy. While a longest path contains other
    instructions that can be faster, all of these are raised by 30 MHz.
    """
    numbers = {instruction: number for number, instruction in enumerate(problem.graph.instructions)}
    envelope = {
        numbers[instruction]
        for order in problem.schedule.ranks
        for instruction in _envelope(order, problem.profile.stages)
    }
    options = [problem.options[kind] for kind in problem.kind_of.tolist()]
    cheapest = [_place_of_lowest_energy(problem, kind) for kind in range(len(problem.kinds))]
    place = [0 if number in envelope else cheapest[kind] for number, kind in enumerate(problem.kind_of.tolist())]
    durations = np.array([of[at].time_seconds for of, at in zip(options, place, strict=True)])
    while True:
        path = _longest_path(problem, durations, envelope)
        raised = [number for number in path if number not in envelope and place[number] > 0]
        if not raised:
            break
        for number in raised:
            place[number] = _raised(options[number], place[number])
            durations[number] = options[number][place[number]].time_seconds
    return Plan.from_options("EnvPipe", problem, [of[at] for of, at in zip(options, place, strict=True)])


def _envelope(order: Sequence[Instruction], stages: int) -> list[Instruction]:
    """Return the first forward passes, the last backward passes, and the last stage of a rank."""
    firsts = {each.stage: each for each in reversed(order) if each.kind == "forward"}
    lasts = {each.stage: each for each in order if each.kind.startswith("backward")}
    ends = {*firsts.values(), *lasts.values()}
    return [each for each in order if each in ends or each.stage == stages - 1]


def _place_of_lowest_energy(problem: PipelineProblem, kind: int) -> int:
    stage = problem.kinds[kind][0]
    blocking_watts = problem.profile.gpus[stage] * problem.profile.blocking_power_watts[stage]
    energies = [option.cost_joules + blocking_watts * option.time_seconds for option in problem.options[kind]]
    return energies.index(min(energies))


def _raised(options: tuple[CostedOption, ...], place: int) -> int:
    """Return the place of the lowest clock that is at least a step higher; the highest clock if there is none."""
    clock = options[place].clock_mhz or 0
    higher = [other for other in range(place) if (options[other].clock_mhz or 0) >= clock + _STEP_MHZ]
    return max(higher, default=0)


def _longest_path(problem: PipelineProblem, durations: Numbers, envelope: set[int]) -> list[int]:
    """Return the instructions of a longest path, from its end; among equal ones the path through the envelope."""
    graph, delays = problem.graph, problem.arc_delay_seconds
    ends = problem.start_seconds(durations) + durations
    last = max(range(len(ends)), key=lambda number: (ends[number] * (1 - ROUNDING), number in envelope))
    path = [last]
    while True:
        arcs = range(graph.first_arc[path[-1]], graph.first_arc[path[-1] + 1])
        if not arcs:
            return path
        arrivals = {int(graph.arc_from[arc]): ends[graph.arc_from[arc]] + delays[arc] for arc in arcs}
        latest = max(arrivals.values())
        path.append(max((number for number, at in arrivals.items() if at >= latest - 1e-9), key=envelope.__contains__))
