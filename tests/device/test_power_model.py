"""The physics of the simulated GPUs, for every model and any work."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.device import Work, find_preset
from zeus_core.device.simulated.power_model import OperatingPoint
from zeus_core.device.simulated.presets import PRESETS, GpuPreset
from zeus_core.errors import UsageError

ROUNDING = 1 + 1e-9

presets = st.sampled_from(list(PRESETS.values()))
fractions = st.floats(0.0, 1.0)


def works(compute_bound_fractions=fractions):
    return st.builds(
        Work,
        seconds=st.floats(1e-3, 1e3),
        active_power_watts=st.floats(110.0, 1500.0),  # above the static power of every model
        active_fraction=st.floats(0.01, 1.0),
        compute_bound_fraction=compute_bound_fractions,
    )


@st.composite
def presets_and_two_limits(draw) -> tuple[GpuPreset, float, float]:
    """A GPU model and two limits it accepts, the lower one first."""
    preset = draw(presets)
    limits = st.floats(preset.limit_range_watts.lowest_watts, preset.limit_range_watts.highest_watts)
    lower_watts, higher_watts = sorted((draw(limits), draw(limits)))
    return preset, lower_watts, higher_watts


def lowest_active_power_watts(preset: GpuPreset, work: Work) -> float:
    return preset.physics.power_watts(work, preset.physics.lowest_clock_fraction)


@given(presets_and_two_limits(), works())
def test_a_higher_limit_never_takes_longer(preset_and_limits, work):
    preset, lower_watts, higher_watts = preset_and_limits
    at_lower = preset.physics.operating_point(work, lower_watts)
    at_higher = preset.physics.operating_point(work, higher_watts)
    assert at_higher.seconds <= at_lower.seconds


@given(presets_and_two_limits(), works())
def test_a_higher_limit_never_lowers_clock_or_power(preset_and_limits, work):
    preset, lower_watts, higher_watts = preset_and_limits
    at_lower = preset.physics.operating_point(work, lower_watts)
    at_higher = preset.physics.operating_point(work, higher_watts)
    assert at_higher.clock_fraction >= at_lower.clock_fraction
    assert at_higher.active_power_watts >= at_lower.active_power_watts


@given(presets_and_two_limits(), works(compute_bound_fractions=st.just(0.0)))
def test_memory_bound_work_takes_no_less_energy_at_a_higher_limit(preset_and_limits, work):
    preset, lower_watts, higher_watts = preset_and_limits
    at_lower = preset.physics.operating_point(work, lower_watts)
    at_higher = preset.physics.operating_point(work, higher_watts)
    assert at_lower.seconds == pytest.approx(work.seconds)
    assert at_higher.seconds == pytest.approx(work.seconds)
    assert at_higher.energy_joules >= at_lower.energy_joules


@given(presets_and_two_limits(), works(), fractions)
def test_power_stays_below_the_regulated_limit_unless_the_lowest_clock_exceeds_it(
    preset_and_limits, work, locked_clock_fraction
):
    preset, limit_watts, _ = preset_and_limits
    point = preset.physics.operating_point(work, limit_watts, locked_clock_fraction)
    regulated_watts = preset.physics.regulated_fraction * limit_watts
    assert point.active_power_watts <= max(regulated_watts, lowest_active_power_watts(preset, work))


@given(presets_and_two_limits(), works())
def test_a_limit_that_binds_is_used_to_the_full(preset_and_limits, work):
    preset, limit_watts, _ = preset_and_limits
    point = preset.physics.operating_point(work, limit_watts)
    if preset.physics.lowest_clock_fraction < point.clock_fraction < 1:
        assert point.active_power_watts == pytest.approx(preset.physics.regulated_fraction * limit_watts)


@given(presets_and_two_limits(), works(), fractions)
def test_the_clock_stays_between_the_lowest_and_the_locked_one(preset_and_limits, work, locked_clock_fraction):
    preset, limit_watts, _ = preset_and_limits
    lowest_fraction = preset.physics.lowest_clock_fraction
    point = preset.physics.operating_point(work, limit_watts, locked_clock_fraction)
    assert lowest_fraction <= point.clock_fraction <= max(locked_clock_fraction, lowest_fraction)


@given(presets, works(), fractions, fractions)
def test_a_lower_locked_clock_is_never_faster_and_never_draws_more(preset, work, first_fraction, second_fraction):
    lower_fraction, higher_fraction = sorted((first_fraction, second_fraction))
    at_lower = preset.physics.operating_point(work, preset.default_limit_watts, lower_fraction)
    at_higher = preset.physics.operating_point(work, preset.default_limit_watts, higher_fraction)
    assert at_lower.seconds >= at_higher.seconds
    assert at_lower.active_power_watts <= at_higher.active_power_watts


@given(presets_and_two_limits(), works())
def test_the_waiting_share_neither_stretches_nor_changes_its_power(preset_and_limits, work):
    preset, limit_watts, _ = preset_and_limits
    point = preset.physics.operating_point(work, limit_watts)
    assert point.blocking_seconds == pytest.approx(work.seconds * (1 - work.active_fraction))
    assert point.blocking_power_watts == preset.physics.blocking_power_watts
    assert point.active_seconds * ROUNDING >= work.seconds * work.active_fraction


@given(presets, works())
def test_without_a_binding_limit_the_work_runs_as_described(preset, work):
    point = preset.physics.operating_point(work, limit_watts=10_000.0)
    assert point.clock_fraction == 1
    assert point.seconds == pytest.approx(work.seconds)
    assert point.active_power_watts == pytest.approx(work.active_power_watts)


def test_an_operating_point_matches_one_worked_out_by_hand():
    # A100 at half the clock: voltage max(0.7422, 1 - 0.9148 / 2) = 0.7422, dynamic power 0.5 * 0.7422^2 = 0.27543.
    work = Work(seconds=2.0, active_power_watts=450.0, active_fraction=0.75, compute_bound_fraction=0.8)
    point = find_preset("A100").physics.operating_point(work, limit_watts=400.0, locked_clock_fraction=0.5)
    assert point.clock_fraction == 0.5
    assert point.active_power_watts == pytest.approx(82.4691 + (450 - 82.4691) * 0.275430, rel=1e-5)
    assert point.active_seconds == pytest.approx(2.0 * 0.75 * (0.2 + 0.8 / 0.5))
    assert point.blocking_seconds == pytest.approx(0.5)


def test_an_operating_points_seconds_and_joules_are_sums_of_its_parts():
    point = OperatingPoint(
        clock_fraction=1.0,
        active_power_watts=300.0,
        active_seconds=2.0,
        blocking_seconds=3.0,
        blocking_power_watts=100.0,
    )
    assert point.seconds == 5.0
    assert point.energy_joules == 900.0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *((argument, value) for argument in ("seconds", "active_power_watts") for value in (0.0, -1.0, math.inf)),
        *(("active_fraction", value) for value in (0.0, -0.1, 1.1)),
        *(("compute_bound_fraction", value) for value in (-0.1, 1.1, math.inf)),
        *(
            (argument, math.nan)
            for argument in ("seconds", "active_power_watts", "active_fraction", "compute_bound_fraction")
        ),
    ],
)
def test_work_out_of_range_is_a_usage_error_with_an_example(argument, value):
    arguments = {"seconds": 1.0, "active_power_watts": 300.0, argument: value}
    with pytest.raises(UsageError, match=rf"Work\.{argument} is {value!r}; it must be .*[0-9.]+"):
        Work(**arguments)
