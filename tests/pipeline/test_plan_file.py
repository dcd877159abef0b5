"""Plan files: what is written is read back, and nothing else is."""

import json
import math

import pytest

from tests.pipeline.instances import SPLIT, smooth_profile
from zeus_core.errors import UsageError
from zeus_core.pipeline import Frontier, make_plan, plan_from_json, plan_to_json, read_plan, schedules, write_plan


@pytest.fixture
def plan():
    frontier = Frontier.of(smooth_profile(4, clocks=5, kinds=SPLIT), schedules.zbv(2, 3))
    return make_plan(frontier, slowdown_factor=1.0, effort=0.01)


def test_a_plan_comes_back(plan, tmp_path):
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda it: it.update(format="x"), "this is not a plan"),
        (lambda it: it.update(version=9), "version 9"),
        (lambda it: it.pop("ranks"), "ranks"),
        (lambda it: it["ranks"][0].pop(), "the schedule has no"),
        (lambda it: it["ranks"][0].__setitem__(0, ["forward", 0, 0]), r"an instruction is \[kind"),
        (lambda it: it["ranks"][0][0].__setitem__(3, "1410; import os"), "is not a clock"),
        (lambda it: it["ranks"][0][0].__setitem__(3, math.nan), "is not a clock"),
        (lambda it: it.update(time_seconds=math.nan), "time_seconds of the plan is nan"),
        (lambda it: it.update(energy_joules="much"), "energy_joules of the plan is 'much'"),
        (lambda it: it.update(switches=1.5), "switches of the plan is 1.5"),
        (lambda it: it.update(name=None), "name of the plan is None"),
    ],
)
def test_a_damaged_plan_is_refused(plan, tmp_path, damage, message):
    fields = plan_to_json(plan)
    damage(fields)
    (tmp_path / "plan.json").write_text(json.dumps(fields))
    with pytest.raises(UsageError, match=message):
        read_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 100_000])
def test_no_plan_at_all_is_refused(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json"):
        read_plan(tmp_path / "plan.json")
    with pytest.raises(UsageError, match=r"none\.json"):
        read_plan(tmp_path / "none.json")
    with pytest.raises(UsageError):
        plan_from_json([])


def test_a_number_too_large_for_a_float_is_refused(plan):
    with pytest.raises(UsageError, match="the plan cannot be read"):
        plan_from_json({**plan_to_json(plan), "time_seconds": 10**400})
