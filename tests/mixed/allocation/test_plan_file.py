"""Allocation plans: what a step takes, and their files."""

import json
import math

import pytest

from zeus_core.errors import UsageError
from zeus_core.mixed.allocation import write_plan
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan, read_plan
from zeus_core.mixed.allocation.device_options import DeviceOption, DeviceOptions

FAST = DeviceOptions(
    "fast", (DeviceOption(300, 0.01, 0.001, 280.0), DeviceOption(200, 0.01, 0.002, 180.0)), blocking_power_watts=70.0
)
SLOW = DeviceOptions("slow", (DeviceOption(250, 0.0, 0.002, 240.0, measured_batches=(8, 64)),), 50.0, max_batch=128)


@pytest.fixture
def plan():
    return AllocationPlan.from_shares("by hand", [FAST, SLOW], [90, 40], [300, 250], reduce_seconds=0.1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plan.json"


def test_the_step_ends_with_the_slowest_and_waiting_takes_energy(plan):
    assert plan.step_seconds == pytest.approx(0.1 + 0.1)
    assert plan.ranks[0].energy_joules == pytest.approx(280 * 0.1 + 70 * 0.1)
    assert plan.ranks[1].energy_joules == pytest.approx(240 * 0.08 + 50 * 0.12)
    assert plan.energy_joules == pytest.approx(sum(share.energy_joules for share in plan.ranks))
    assert plan.waiting_seconds(1) == pytest.approx(0.12)
    assert plan.global_batch == 130


def test_a_rank_without_samples_only_waits():
    plan = AllocationPlan.from_shares("one", [FAST, SLOW], [90, 0], [300, 250])
    assert plan.ranks[1].busy_seconds == 0.0
    assert plan.ranks[1].energy_joules == pytest.approx(50 * 0.1)


def test_a_batch_outside_those_measured_is_marked(plan):
    assert not plan.ranks[1].is_extrapolated
    beyond = AllocationPlan.from_shares("beyond", [FAST, SLOW], [90, 65], [300, 250])
    assert [share.is_extrapolated for share in beyond.ranks] == [False, True]


def test_power_rises_from_that_of_the_floor():
    option = DeviceOption(250, 0.0, 0.001, 200.0, floor_seconds=0.1, floor_power_watts=40.0)
    assert option.joules(50) == pytest.approx(0.1 * 120)
    assert option.joules(100) == pytest.approx(0.1 * 200)
    assert option.joules(200) == pytest.approx(0.2 * 200)


def test_a_plan_comes_back(plan, path):
    write_plan(plan, path)
    assert read_plan(path) == plan


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda plan: plan.update(format="x"), "zeus-core allocation plan"),
        (lambda plan: plan.update(version=9), "version is 9"),
        (lambda plan: plan["ranks"].clear(), r"ranks is \(\); it must be a list of shares"),
        (lambda plan: plan["ranks"][0].pop("batch"), r"the plan.ranks\[0\]"),
        (lambda plan: plan["ranks"][0].update(batch=-1), "batch is -1"),
        (lambda plan: plan["ranks"][0].update(batch=10**30), "batch"),
        (lambda plan: plan["ranks"][0].update(setting="250; import os"), "must be a whole number"),
        (lambda plan: plan["ranks"][0].update(knob="fan"), "knob is 'fan'"),
        (lambda plan: plan["ranks"][0].update(busy_seconds=1e308), "longer than the step"),
        (lambda plan: plan.update(step_seconds=math.nan), "the plan.step_seconds is nan"),
        (lambda plan: plan.update(energy_joules=10**400), "the plan.energy_joules is 1000"),
        (lambda plan: plan.update(cost=-1.0), "cost is -1"),
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DeviceOption(250, math.nan, 0.001, 200.0), "fixed_seconds is nan"),
        (lambda: DeviceOption(250, 0.1, -0.001, 200.0), "seconds_per_sample is -0.001"),
        (lambda: DeviceOption(250, 0.1, 0.001, 1e308), r"power_watts is 1e\+308"),
        (lambda: DeviceOption(250, -0.1, 0.001, 200.0), "batch of 1 at 250 takes .* raise its floor"),
        (lambda: DeviceOption(250, 0.1, 0.001, 200.0, measured_batches=(8, 4)), r"measured_batches is \(8, 4\)"),
        (lambda: DeviceOptions("x", (), 50.0), "options is"),
        (lambda: DeviceOptions("x", FAST.options * 2, 50.0), "x has a setting twice"),
        (lambda: DeviceOptions("x", FAST.options, 50.0, knob="fan"), "knob is 'fan'"),
        (lambda: AllocationPlan.from_shares("x", [FAST], [1, 2], [300]), "batches has 2 entries, but there are 1 dev"),
        (lambda: AllocationPlan.from_shares("x", [FAST], [1], [250]), "fast has no setting 250; it has 300, 200"),
        (lambda: AllocationPlan.from_shares("x", [], [], []), r"devices is \[\]"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call()
