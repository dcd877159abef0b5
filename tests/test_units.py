"""Conversions at the driver edge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.units import (
    joules_from_microjoules,
    joules_from_millijoules,
    milliwatts_from_watts,
    watts_from_milliwatts,
)

driver_values = st.integers(0, 2**40)


@given(driver_values)
def test_milliwatts_survive_the_way_to_watts_and_back(power_milliwatts):
    assert milliwatts_from_watts(watts_from_milliwatts(power_milliwatts)) == power_milliwatts


@given(st.floats(0.0, 1e6))
def test_watts_survive_the_way_to_milliwatts_and_back_within_half_a_milliwatt(power_watts):
    assert watts_from_milliwatts(milliwatts_from_watts(power_watts)) == pytest.approx(power_watts, abs=0.5001e-3)


@given(st.integers(0, 10_000))
def test_whole_watts_are_whole_thousands_of_milliwatts(power_watts):
    assert milliwatts_from_watts(float(power_watts)) == power_watts * 1000
    assert watts_from_milliwatts(power_watts * 1000) == power_watts


@given(driver_values)
def test_millijoules_and_microjoules_of_the_same_energy_are_the_same_joules(energy_millijoules):
    assert joules_from_millijoules(energy_millijoules) == joules_from_microjoules(energy_millijoules * 1000)


@given(driver_values, driver_values)
def test_more_in_the_drivers_unit_is_never_less_in_ours(first, second):
    lower, higher = sorted((first, second))
    for convert in (watts_from_milliwatts, joules_from_millijoules, joules_from_microjoules):
        assert convert(lower) <= convert(higher)


def test_factors_are_a_thousand_and_a_million():
    assert watts_from_milliwatts(1_500) == 1.5
    assert milliwatts_from_watts(1.5) == 1_500
    assert joules_from_millijoules(1_500) == 1.5
    assert joules_from_microjoules(1_500_000) == 1.5


def test_milliwatts_are_whole_for_the_driver():
    assert isinstance(milliwatts_from_watts(299.9999), int)
    assert milliwatts_from_watts(299.9999) == 300_000
