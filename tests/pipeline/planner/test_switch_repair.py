"""Clocks that keep limit and dwell, made from clocks that do not; and starts of profiles that lack clocks."""

import numpy as np
import pytest

from zeus_core.pipeline import Frontier, Instruction, InstructionProfile, MeasuredOption, PipelineProfile, Schedule
from zeus_core.pipeline.planner.execution import SwitchPrice
from zeus_core.pipeline.planner.switching._switch_repair import mend
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
    numbered = NumberedProblem.from_problem(Frontier.from_profile(profile, schedule).problem)
    return numbered.priced(10.0, False, SwitchPrice(**price))


@pytest.mark.parametrize("kinds", [("forward", "backward"), ("forward", "backward", "all-reduce")])
def test_a_short_run_gets_longer_also_next_to_an_instruction_without_a_clock(kinds):
    task = task_of(kinds, seconds=0.005, dwell_seconds=0.35)
    chosen, state = np.full(len(task.kind), 2, np.int64), RunState.for_task(task)
    chosen[np.flatnonzero(~task.is_kept[task.kind])[4:6]] = 0  # a run of 0.2 s
    task = task._replace(limit_seconds=run(task, chosen, state)[0])
    mend(task, chosen, state, 1000.0)
    seconds, dwell, _ = run(task, chosen, state)
    assert seconds <= task.limit_seconds
    assert dwell >= 0.35
    assert len(set(chosen[~task.is_kept[task.kind]].tolist())) == 2, "the switches are still there"


def test_a_clock_that_one_kind_lacks_is_left_alone_where_time_costs_nothing():
    task = task_of(("forward", "backward"), forward=OPTIONS[1:], seconds=0.005)
    for chosen in starts_by_prices(task, np.zeros(len(task.kind))):
        assert np.isfinite(run(task, chosen, RunState.for_task(task))[2])
