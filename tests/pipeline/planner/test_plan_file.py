"""Plan files: a plan comes back, and nothing else is read."""

import json
import math

import pytest

from tests.pipeline.planner.instances import SPLIT, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, make_plan, schedules, write_plan
from zeus_core.pipeline.planner.clock_plan import read_plan


@pytest.fixture
def plan():
    frontier = Frontier.from_profile(smooth_profile(4, clocks=5, kinds=SPLIT), schedules.zbv(2, 3))
    return make_plan(frontier, slowdown_factor=1.0, effort=0.01)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.json"


def test_a_plan_comes_back(plan, path):
    write_plan(plan, path)
    assert read_plan(path) == plan


def test_a_file_lists_each_instruction_with_its_clock(plan, path):
    write_plan(plan, path)
    instruction, clock = plan.schedule.ranks[0][0], plan.clocks_mhz[0][0]
    assert json.loads(path.read_text())["ranks"][0][0] == [*instruction, clock]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda plan: plan.update(format="x"), "zeus-core pipeline plan"),
        (lambda plan: plan.update(version=9), "version is 9"),
        (lambda plan: plan["ranks"][0].pop(), "the schedule has no"),
        (lambda plan: plan["ranks"][0].__setitem__(0, ["forward", 0, 0]), r"the plan.ranks\[0\]\[0\] is .*array of 4"),
        (lambda plan: plan["ranks"][0][0].__setitem__(3, "1410; import os"), "must be a whole number"),
        (lambda plan: plan["ranks"][0][0].__setitem__(3, 1_410_000), "must end with a clock in whole MHz"),
        (lambda plan: plan.update(time_seconds=math.nan), "the plan.time_seconds is nan"),
        (lambda plan: plan.update(energy_joules=10**400), "the plan.energy_joules is 1000"),
        (lambda plan: plan.update(switches=-1), "switches is -1"),
    ],
)
def test_a_damaged_plan_is_refused(plan, path, damage, message):
    write_plan(plan, path)
    fields = json.loads(path.read_text())
    damage(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(UsageError, match=message):
        read_plan(path)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000])
def test_a_file_without_a_plan_is_refused_by_name(path, text):
    path.write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json"):
        read_plan(path)


def test_a_missing_file_is_named(path):
    with pytest.raises(UsageError, match=r"plan\.json"):
        read_plan(path)
