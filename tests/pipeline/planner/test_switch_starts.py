"""Clocks to begin the search with, of profiles that lack clocks."""

import numpy as np

from zeus_core.pipeline import Frontier, PipelineProfile
from zeus_core.pipeline.planner.clock_options import MeasuredOption
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.pipeline_profile import InstructionProfile
from zeus_core.pipeline.planner.pipeline_schedule import Instruction, Schedule
from zeus_core.pipeline.planner.switching._switch_bound import find_bound
from zeus_core.pipeline.planner.switching._switch_starts import starts_by_prices
from zeus_core.pipeline.planner.switching._switch_task import NumberedProblem, RunState, run

OPTIONS = tuple(MeasuredOption(1410 - 50 * step, 0.1 + 0.01 * step, 30.0 - 3.0 * step) for step in range(4))


def task_of(kinds, forward=OPTIONS, **price):
    profile = PipelineProfile(
        [
            InstructionProfile(0, "forward", forward),
            InstructionProfile(0, "backward", OPTIONS),
            InstructionProfile(0, "all-reduce", (MeasuredOption(None, 0.02, 1.0),)),
        ],
        80.0,
    )
    schedule = Schedule("own", (tuple(Instruction(kind, 0, number) for number in range(6) for kind in kinds),))
    frontier = Frontier.from_profile(profile, schedule)
    numbered = NumberedProblem.from_problem(frontier.problem)
    task = numbered.priced(10.0, False, SwitchPrice(**price))
    return task, find_bound(numbered, task, frontier.at(10.0), effort=0.0)


def test_an_unsupported_clock_is_not_set_where_time_costs_nothing():
    task, bound = task_of(("forward", "backward"), forward=OPTIONS[1:], seconds=0.005)
    for chosen in starts_by_prices(task, bound._replace(price_watts=np.zeros(len(task.kind)))):
        assert np.isfinite(run(task, chosen, RunState.for_task(task))[2])
