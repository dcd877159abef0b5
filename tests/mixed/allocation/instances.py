"""Devices to plan for: random ones, and models that look like measured ones."""

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from zeus_core.mixed.allocation.allocation_plan import AllocationPlan
from zeus_core.mixed.allocation.device_options import DeviceOption, DeviceOptions

PLAUSIBLE = {"allow_nan": False, "allow_infinity": False}


def device(name, settings, seconds_per_sample, watts, blocking, max_batch=None, fixed=0.01, fixed_joules=0.0):
    """A device whose speed rises ever less with its power limit."""
    highest = max(settings)
    options = [
        DeviceOption(
            limit,
            fixed,
            seconds_per_sample * (highest / limit) ** 0.6,
            min(limit, watts) * (0.9 + 0.1 * limit / highest),
            fixed_joules=fixed_joules,
        )
        for limit in settings
    ]
    return DeviceOptions(name, tuple(options), blocking, max_batch)


FAST = device("fast", range(150, 301, 25), 0.0010, 290, 70.0)
SLOW = device("slow", range(100, 251, 25), 0.0018, 240, 50.0)


@st.composite
def options(draw, setting):
    per_sample = draw(st.floats(0.0, 2.0, **PLAUSIBLE))
    floor = draw(st.one_of(st.just(0.0), st.floats(0.1, 5.0, **PLAUSIBLE)))
    fixed = draw(st.floats(-1.0 if floor else 0.1, 2.0, **PLAUSIBLE))
    watts = draw(st.floats(0.0, 300.0, **PLAUSIBLE))
    floor_watts = draw(st.one_of(st.none(), st.floats(0.0, 300.0, **PLAUSIBLE)))
    measured = draw(st.one_of(st.none(), st.just((1, draw(st.integers(4, 9))))))
    saved = draw(st.one_of(st.just(0.0), st.floats(-0.99, 1.0, **PLAUSIBLE)))  # of the energy of the smallest step
    joules = saved * watts * max(floor, fixed + per_sample)
    return DeviceOption(setting, fixed, per_sample, watts, floor, floor_watts, measured, fixed_joules=joules)


@st.composite
def devices(draw, most=3, most_settings=3):
    found = []
    for number in range(draw(st.integers(1, most))):
        settings = range(100, 100 + 50 * draw(st.integers(1, most_settings)), 50)
        found.append(
            DeviceOptions(
                f"gpu {number}",
                tuple(draw(options(setting)) for setting in settings),
                draw(st.floats(0.0, 150.0, **PLAUSIBLE)),
                draw(st.one_of(st.none(), st.integers(0, 12))),
            )
        )
    return found


def all_plans(devices, global_batch, multiple_of=1, min_batch=0, reduce_seconds=0.0):
    """Every plan there is."""
    menus = [
        [
            (batch, option.setting)
            for option in device.options
            for batch in range(0, global_batch + 1, multiple_of)
            if min_batch <= batch <= device.largest_batch(option) and (batch or option is device.options[-1])
        ]
        for device in devices
    ]
    for chosen in itertools.product(*menus):
        batches, settings = zip(*chosen, strict=True)
        if sum(batches) == global_batch:
            yield AllocationPlan.from_shares("any", devices, batches, settings, reduce_seconds)


def many(models, ranks, spread):
    """Devices of these models in turn, each a little faster or slower, and hungrier or not, than the others."""
    random = np.random.default_rng(ranks)
    found = []
    for rank in range(ranks):
        model = models[rank % len(models)]
        slower, hungrier = 1 + spread * random.uniform(-0.5, 0.5, 2)
        found.append(
            replace(
                model,
                options=tuple(
                    replace(
                        option,
                        fixed_seconds=option.fixed_seconds * slower,
                        seconds_per_sample=option.seconds_per_sample * slower,
                        power_watts=option.power_watts * hungrier,
                        fixed_joules=option.fixed_joules * slower * hungrier,
                    )
                    for option in model.options
                ),
            )
        )
    return found
