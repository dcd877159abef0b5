"""Levelling: for given batches, the settings that are enough for them."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mixed.allocation.instances import FAST, SLOW, device, devices, many
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation import allocate, level
from zeus_core.mixed.allocation.allocating import even_plan
from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.optimizer.power_limit import Energy, MaxSlowdownConstraint, Time, ZeusCost


def at_highest(devices, batches):
    highest = [device.options[0].setting for device in devices]
    return AllocationPlan.from_shares("highest", devices, batches, highest)


def every_plan(devices, batches, budget_watts):
    menus = [
        [option.setting for option in device.options if batch <= device.largest_batch(option)]
        for device, batch in zip(devices, batches, strict=True)
    ]
    for chosen in itertools.product(*menus):
        if sum(chosen) <= budget_watts:
            yield AllocationPlan.from_shares("any", devices, batches, chosen)


def test_devices_that_wait_take_less_and_the_step_is_not_longer():
    batches = [60, 60]
    plan, before = level([FAST, SLOW], batches), at_highest([FAST, SLOW], batches)
    assert plan.step_seconds == before.step_seconds
    assert plan.energy_joules < 0.95 * before.energy_joules
    assert plan.ranks[1].setting == before.ranks[1].setting
    assert plan.ranks[0].setting < before.ranks[0].setting
    assert plan.batches == (60, 60)
    assert plan.gap_fraction == 0.0


@settings(max_examples=60, deadline=None)
@given(devices(), st.sampled_from([Energy(), Time(), ZeusCost(0.5), MaxSlowdownConstraint(1.1)]), st.data())
def test_no_settings_are_better(devices, objective, data):
    batches = [data.draw(st.integers(0, 6)) for _ in devices]
    budget = data.draw(st.sampled_from([1e9, 150.0 * len(devices)]))
    plans = list(every_plan(devices, batches, budget))
    if not plans or not any(batches):
        with pytest.raises(UsageError):
            level(devices, batches, objective, budget_watts=budget)
        return
    plan = level(devices, batches, objective, budget_watts=budget)
    assert sum(share.setting for share in plan.ranks) <= budget
    shortest = min(other.step_seconds for other in plans)
    if isinstance(objective, Time | MaxSlowdownConstraint):
        assert plan.step_seconds <= shortest * (1.1 if isinstance(objective, MaxSlowdownConstraint) else 1) * (1 + 1e-9)
    watts = sum(device.options[0].setting for device in devices)
    of_plan = {
        Time: lambda one: one.step_seconds,
        ZeusCost: lambda one: 0.5 * one.energy_joules + 0.5 * watts * one.step_seconds,
        Energy: lambda one: one.energy_joules,
        MaxSlowdownConstraint: lambda one: one.energy_joules if one.step_seconds <= 1.1 * shortest else float("inf"),
    }[type(objective)]
    best = min(map(of_plan, plans))
    assert plan.bound_cost <= best * (1 + 1e-9) + 1e-9
    if budget == 1e9:
        assert of_plan(plan) <= best * (1 + 1e-6) + 1e-9


def test_a_budget_is_shared_so_that_all_are_equally_fast():
    gpus = many([device("fine", range(150, 301, 5), 0.001, 290, 70.0)], 8, spread=0.08)
    batches = [64] * 8
    alike = AllocationPlan.from_shares("alike", gpus, batches, [225] * 8)
    plan = level(gpus, batches, budget_watts=8 * 225)
    assert sum(share.setting for share in plan.ranks) <= 8 * 225
    assert plan.step_seconds < alike.step_seconds
    waits = [plan.waiting_seconds(rank) for rank in range(8)]
    assert max(waits) < max(alike.waiting_seconds(rank) for rank in range(8))


def test_clocks_within_a_budget_are_counted_by_the_power_at_them():
    clocked = replace(FAST, knob="SM clock")
    plan = level([clocked, clocked], [8, 8], budget_watts=400.0)
    drawn = [clocked.option(share.setting).power_watts for share in plan.ranks]
    assert sum(drawn) <= 400.0 < 2 * max(option.power_watts for option in clocked.options)


def test_a_free_split_is_never_worse_than_levelled_even_batches():
    gpus = [FAST, SLOW, FAST]
    even = even_plan(gpus, 150)
    for objective in (ZeusCost(0.5), Energy(), Time()):
        assert allocate(gpus, 150, objective).cost <= level(gpus, even.batches, objective).cost * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: level([FAST], [1, 2]), "batches has 2 entries, 3 samples; there are 1 devices"),
        (lambda: level([FAST], [0]), "batches has 1 entries, 0 samples"),
        (lambda: level([FAST], [-1]), r"batches\[0\] is -1"),
        (lambda: level([FAST], [8], budget_watts=100), "budget_watts is 100; the lowest settings together take 150 W"),
        (lambda: level([FAST], [8], budget_watts=float("nan")), "budget_watts is nan"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_many_devices_are_levelled():
    gpus = many([FAST, SLOW], 300, spread=0.08)
    plan = level(gpus, [40] * 300, ZeusCost(0.5), budget_watts=60_000)
    assert plan.gap_fraction < 0.001
