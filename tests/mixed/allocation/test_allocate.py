"""Allocations: the best of all plans for few devices, near a true bound for many, and never worse for having more."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mixed.allocation.highs import highs_plan
from tests.mixed.allocation.instances import FAST, SLOW, all_plans, devices, many
from zeus_core.errors import UsageError
from zeus_core.mixed.allocation import allocate
from zeus_core.mixed.allocation.allocating import even_plan, proportional_plan
from zeus_core.mixed.allocation.device_options import DeviceOption, DeviceOptions
from zeus_core.optimizer.power_limit import Energy, EnergyWithin, MaxSlowdownConstraint, Objective, Time, ZeusCost

OBJECTIVES = [
    Energy(),
    Time(),
    ZeusCost(0.5),
    ZeusCost(0.0),
    ZeusCost(0.9, max_power_watts=200),
    MaxSlowdownConstraint(1.2),
    EnergyWithin(1.2),
]
OF_WHATEVER_BASELINE = [Energy(), Time(), ZeusCost(0.5, max_power_watts=250)]


def cost(plan, objective, devices, shortest_seconds):
    """What an objective says of a plan, written down a second time."""
    if isinstance(objective, ZeusCost) and objective.eta_knob:
        watts = sum(objective.max_power_watts or device.options[0].setting for device in devices)
        return objective.eta_knob * plan.energy_joules + (1 - objective.eta_knob) * watts * plan.step_seconds
    if isinstance(objective, Energy):
        return plan.energy_joules
    if isinstance(objective, MaxSlowdownConstraint | EnergyWithin):
        bound = objective.bound_factor * shortest_seconds * (1 + 1e-9)
        return plan.energy_joules if plan.step_seconds <= bound else float("inf")
    return plan.step_seconds


@settings(max_examples=60, deadline=None)
@given(
    devices(),
    st.integers(1, 7),
    st.sampled_from(OBJECTIVES),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([0.0, 0.5]),
)
def test_no_plan_is_better(devices, units, objective, multiple_of, min_batch, reduce_seconds):
    arguments = {"multiple_of": multiple_of, "min_batch": min_batch, "reduce_seconds": reduce_seconds}
    plans = list(all_plans(devices, units * multiple_of, **arguments))
    if not plans:
        with pytest.raises(UsageError):
            allocate(devices, units * multiple_of, objective, **arguments)
        return
    plan = allocate(devices, units * multiple_of, objective, **arguments)
    shortest = min(other.step_seconds for other in plans)
    best = min(cost(other, objective, devices, shortest) for other in plans)
    assert plan.cost == pytest.approx(cost(plan, objective, devices, shortest), rel=1e-9)
    assert plan.cost <= best * (1 + 1e-6) + 1e-9
    assert plan.bound_cost <= best * (1 + 1e-9) + 1e-9
    assert plan.cost - plan.bound_cost <= 1e-6 * plan.cost + 1e-9
    assert plan.batches in {other.batches for other in plans}


@settings(max_examples=15, deadline=None)
@given(devices(), devices(most=1), st.integers(1, 8), st.sampled_from(OF_WHATEVER_BASELINE), st.data())
def test_more_room_or_more_settings_are_never_dearer(devices, further, batch, objective, data):
    try:
        less = allocate(devices, batch, objective)
    except UsageError:
        return
    device = data.draw(st.sampled_from(devices))
    others = [one for one in devices if one is not device]
    roomy = replace(device, max_batch=20)
    option = replace(further[0].options[0], setting=777)
    for more in (roomy, replace(device, options=(*device.options, option))):
        plan = allocate([*others, more], batch, objective)
        assert plan.cost <= less.cost * (1 + 1e-6) + 1e-9


@settings(max_examples=15, deadline=None)
@given(devices(), devices(most=1), st.integers(1, 8), st.sampled_from(OF_WHATEVER_BASELINE))
def test_another_device_that_takes_no_power_to_wait_is_never_dearer(devices, further, batch, objective):
    objective = objective if not isinstance(objective, ZeusCost) else Energy()  # its weight of time grows with devices
    try:
        less = allocate(devices, batch, objective)
    except UsageError:
        return
    plan = allocate([*devices, replace(further[0], blocking_power_watts=0.0)], batch, objective)
    assert plan.cost <= less.cost * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("objective", [ZeusCost(0.5), Time(), MaxSlowdownConstraint(1.05)], ids=repr)
@pytest.mark.parametrize("ranks", [8, 64, 300])
def test_many_devices_are_near_the_bound_and_better_than_the_baselines(ranks, objective):
    gpus = many([FAST, SLOW], ranks, spread=0.08)
    batch = 61 * ranks + 5
    plan = allocate(gpus, batch, objective)
    assert plan.global_batch == batch
    assert plan.gap_fraction < (1e-6 if ranks <= 32 else 0.001)
    shortest = allocate(gpus, batch, Time()).step_seconds
    for other in (even_plan(gpus, batch), proportional_plan(gpus, batch)):
        assert plan.bound_cost <= plan.cost <= cost(other, objective, gpus, shortest)


@pytest.mark.parametrize("ranks", [2, 3])
def test_highs_finds_nothing_better(ranks):
    gpus = many([FAST, SLOW], ranks, spread=0.08)
    batch = 40 * ranks + 3
    watts = sum(device.max_power_watts for device in gpus)
    plan, found = allocate(gpus, batch, ZeusCost(0.5)), highs_plan(gpus, batch, 0.5, 0.5 * watts, 10.0)
    other = cost(found.plan, ZeusCost(0.5), gpus, 0.0)
    assert found.plan.global_batch == batch
    assert plan.bound_cost <= other * (1 + 1e-6)
    assert plan.cost <= other * (1 + 1e-6)
    assert plan.cost >= found.bound * (1 - 1e-6)


@pytest.mark.parametrize("ranks", [3, 64])
def test_small_batches_that_draw_less_power_are_counted_as_such(ranks):
    """In the fixed part of a step GPUs draw a fifth; plans are as near to their bound as ever."""
    gpus = many([replace(model, options=drawing_less(model)) for model in (FAST, SLOW)], ranks, spread=0.08)
    plan = allocate(gpus, 30 * ranks + 1)
    for device, share in zip(gpus, plan.ranks, strict=True):
        option = device.option(share.setting)
        busy_joules = option.power_watts * share.busy_seconds + (option.fixed_joules if share.batch else 0.0)
        waiting_joules = device.blocking_power_watts * (plan.step_seconds - share.busy_seconds)
        assert share.energy_joules == pytest.approx(busy_joules + waiting_joules, rel=1e-12)
    assert plan.gap_fraction < (1e-6 if ranks <= 32 else 0.001)
    if ranks == 3:
        watts = sum(device.max_power_watts for device in gpus)
        found = highs_plan(gpus, 30 * ranks + 1, 0.5, 0.5 * watts, 10.0)
        assert plan.cost == pytest.approx(cost(found.plan, ZeusCost(0.5), gpus, 0.0), rel=1e-4)


def drawing_less(model):
    return [replace(option, fixed_joules=-0.8 * option.power_watts * option.fixed_seconds) for option in model.options]


def test_a_quick_device_gets_more_work_and_less_waits():
    gpus = [FAST, SLOW]
    plan, even = allocate(gpus, 120), even_plan(gpus, 120)
    assert plan.batches[0] > plan.batches[1]
    assert plan.energy_joules < even.energy_joules
    assert plan.step_seconds < even.step_seconds
    assert max(map(plan.waiting_seconds, (0, 1))) < 0.1 * max(map(even.waiting_seconds, (0, 1)))


def test_the_shortest_steps_take_the_least_energy_among_them():
    plan = allocate([FAST, replace(FAST, max_batch=10)], 110, Time())
    assert plan.batches == (100, 10)
    assert [share.setting for share in plan.ranks] == [300, 150]


def test_a_device_that_is_not_worth_its_power_gets_no_samples():
    hungry = DeviceOptions("hungry", (DeviceOption(300, 0.5, 0.05, 300.0), DeviceOption(200, 0.6, 0.06, 200.0)), 20.0)
    plan = allocate([FAST, hungry], 16, Energy())
    assert plan.batches == (16, 0)
    assert plan.ranks[1].setting == 200  # the lowest: it only waits
    assert allocate([FAST, hungry], 16, Energy(), min_batch=1).batches == (15, 1)


def test_fewer_samples_than_ranks_leave_some_without():
    plan = allocate([FAST] * 4, 3)
    assert sorted(plan.batches) == [0, 1, 1, 1]


def test_batches_are_multiples_within_memory():
    gpus = [replace(FAST, max_batch=50), SLOW]
    plan = allocate(gpus, 128, multiple_of=16)
    assert plan.batches == (48, 80)


def test_nothing_is_planned_beyond_what_was_measured_unless_asked_for():
    measured = DeviceOptions(
        "measured", tuple(replace(option, measured_batches=(8, 64)) for option in FAST.options), 70.0
    )
    within = allocate([measured, SLOW], 400)
    assert within.batches[0] == 64
    beyond = allocate([replace(measured, max_batch=300), SLOW], 400)
    assert beyond.batches[0] > 64
    assert [share.is_extrapolated for share in beyond.ranks] == [True, False]


def test_the_setting_may_be_a_clock():
    clocked = replace(FAST, knob="SM clock")
    plan = allocate([clocked, SLOW], 120)
    assert [share.knob for share in plan.ranks] == ["SM clock", "power limit"]


def test_large_batches_are_shared_too():
    plan = allocate(many([FAST, SLOW], 4, spread=0.08), 1_000_003)
    assert plan.global_batch == 1_000_003
    assert plan.gap_fraction < 0.001


class MyCost(Objective):
    def cost(self, measurement, baseline):
        return measurement.energy * measurement.time


class Own(Energy):
    def select(self, measurements):
        return measurements[0].power_limit


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: allocate([], 8), r"devices is \[\]"),
        (lambda: allocate([FAST], 0), "global_batch is 0; it must be a whole number of samples"),
        (lambda: allocate([FAST], 1e308), r"global_batch is 1e\+308"),
        (lambda: allocate([FAST], 10, multiple_of=4), "with multiple_of=4 it must be a multiple of that"),
        (
            lambda: allocate([FAST] * 4, 3, min_batch=1),
            "global_batch is 3, too small for min_batch=1 on each of 4 ranks",
        ),
        (lambda: allocate([replace(FAST, max_batch=8)] * 2, 17), r"hold 16 together \(8 on fast, 8 on fast\)"),
        (lambda: allocate([replace(FAST, max_batch=3), SLOW], 17, min_batch=4), r"rank 0 \(fast\) holds a batch of 3"),
        (
            lambda: allocate([FAST], 8, MyCost()),
            r"objective is MyCost\(\); it must be an Objective whose cost is a weighted sum",
        ),
        (
            lambda: allocate([FAST], 8, Own()),
            r"objective is Own\(\); it must be an Objective whose cost is a weighted sum",
        ),
        (lambda: allocate([FAST], 8, reduce_seconds=float("nan")), "reduce_seconds is nan"),
        (
            lambda: even_plan([FAST, replace(SLOW, max_batch=3)], 8),
            r"rank 1 \(slow\) has a batch of 4 in the",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(UsageError, match=message):
        call()


def test_baselines_share_all():
    gpus = many([FAST, SLOW], 7, spread=0.1)
    for plan in (even_plan(gpus, 100), proportional_plan(gpus, 100)):
        assert plan.global_batch == 100
    assert max(even_plan(gpus, 100).batches) == 15
    proportional = proportional_plan([FAST, SLOW], 128, multiple_of=8)
    assert np.all(np.array(proportional.batches) % 8 == 0)
