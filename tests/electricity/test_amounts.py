"""What energy emitted and cost."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeus_core.electricity import ConstantSignal, ElectricityAccount, RecordedSignal, Signal
from zeus_core.electricity.electricity_amount import ElectricityAmount
from zeus_core.errors import UsageError
from zeus_core.measurement import DeviceEnergy

HOUR = 3600.0
KILOWATT_HOUR = 3_600_000.0


def intensity(*values: float) -> RecordedSignal:
    return RecordedSignal([HOUR * hour for hour in range(len(values))], values, "g/kWh")


def test_emissions_and_cost_of_the_same_energy() -> None:
    account = ElectricityAccount([ConstantSignal(400, "g/kWh"), ConstantSignal(0.3, "EUR/kWh")], pue=1.5)
    account.add(0.0, 10.0, DeviceEnergy(2 * KILOWATT_HOUR, 0.1 * KILOWATT_HOUR))
    assert account.amounts["g"].amount == pytest.approx(1200)
    assert account.amounts["g"].uncertainty == pytest.approx(60)
    assert account.amounts["EUR"].amount == pytest.approx(0.9)


def test_energy_is_split_where_the_signal_changes() -> None:
    account = ElectricityAccount([intensity(100, 500)])
    account.add(0.75 * HOUR, 1.75 * HOUR, DeviceEnergy(KILOWATT_HOUR, 0.0))
    assert account.amounts["g"].amount == pytest.approx(0.25 * 100 + 0.75 * 500)


@given(st.lists(st.floats(0, 5), min_size=4, max_size=30), st.lists(st.floats(0, 900), min_size=8, max_size=8))
def test_the_truth_is_inside_however_the_energy_was_spread(watts: list[float], values: list[float]) -> None:
    """Short pieces have the true course; the account is told of their sum only."""
    signal, true_grams, joules = intensity(*values), 0.0, 0.0
    seconds = 7 * HOUR / len(watts)
    for number, power_watts in enumerate(watts):
        for part in signal.parts(number * seconds, (number + 1) * seconds):
            joules += power_watts * part.seconds
            true_grams += power_watts * part.seconds / KILOWATT_HOUR * part.value
    account = ElectricityAccount([signal])
    account.add(0.0, 7 * HOUR, DeviceEnergy(joules, 0.0))
    stated = account.amounts["g"]
    assert stated.amount is not None
    assert stated.uncertainty is not None
    assert abs(stated.amount - true_grams) <= stated.uncertainty + 1e-9


def test_many_steps_add_up_to_an_independent_integral() -> None:
    randomness = random.Random(1)
    signal = intensity(*(randomness.uniform(100, 600) for _ in range(24)))
    account, grams, seconds = ElectricityAccount([signal]), 0.0, 0.0
    while seconds < 23 * HOUR:
        length, watts = randomness.uniform(0.1, 60.0), randomness.uniform(100, 700)
        account.add(seconds, seconds + length, DeviceEnergy(watts * length, 0.0))
        for second in range(100):  # a fine sum of rectangles
            middle = seconds + length * (second + 0.5) / 100
            (part,) = signal.parts(middle, middle)
            grams += watts * length / 100 / KILOWATT_HOUR * part.value
        seconds += length
    assert account.amounts["g"].amount == pytest.approx(grams, rel=1e-5)


def test_an_energy_that_was_lost_is_no_emission_of_nothing() -> None:
    account = ElectricityAccount([ConstantSignal(400, "g/kWh")])
    account.add(0.0, 1.0, DeviceEnergy(KILOWATT_HOUR, 0.0))
    account.add(1.0, 2.0, DeviceEnergy.lost("the counter failed"))
    assert account.amounts == {"g": ElectricityAmount(None, None, 0.0)}


def test_the_share_at_the_average_is_told() -> None:
    account = ElectricityAccount([intensity(100, 300)])
    account.add(0.0, HOUR, DeviceEnergy(KILOWATT_HOUR, 0.0))
    account.add(100 * HOUR, 101 * HOUR, DeviceEnergy(3 * KILOWATT_HOUR, 0.0))
    assert account.amounts["g"].stale_fraction == pytest.approx(0.75)


def test_a_clock_that_was_set_back() -> None:
    account = ElectricityAccount([intensity(100, 300)])
    account.add(1.5 * HOUR, 0.5 * HOUR, DeviceEnergy(KILOWATT_HOUR, 0.0))
    assert account.amounts["g"].amount == pytest.approx(300)


@pytest.mark.parametrize(
    ("signals", "pue", "message"),
    [
        ([ConstantSignal(1, "g/kWh")], 0.9, "pue"),
        ([ConstantSignal(1, "g/kWh")], 120, "pue"),
        ([ConstantSignal(1, "g/kWh"), ConstantSignal(1, "kg/MWh")], 1.0, "two of the same unit"),
        ([380], 1.0, "must be a signal"),
    ],
)
def test_bad_input(signals: list[Signal], pue: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ElectricityAccount(signals, pue)
