"""Successive intervals as one."""

import pytest

from zeus_huggingface.accelerate._pending import joined

EARLIER = {
    "energy_j": 100.0,
    "power_w": 50.0,
    "energy_per_token_j": 0.1,
    "total_energy_j": 500.0,
    "power_limit_w": 300.0,
}
LATER = {
    "energy_j": 300.0,
    "power_w": 100.0,
    "energy_per_token_j": 0.3,
    "total_energy_j": 800.0,
    "power_limit_w": 250.0,
}


def test_energies_add_up_and_rates_are_those_of_both():
    assert joined(EARLIER, LATER) == pytest.approx(
        {
            "energy_j": 400.0,
            "power_w": 400.0 / (2.0 + 3.0),
            "energy_per_token_j": 400.0 / (1000.0 + 1000.0),
            "total_energy_j": 800.0,
            "power_limit_w": 250.0,
        }
    )


def test_what_was_lost_in_one_is_lost_in_both():
    lost = {"power_limit_w": 300.0}
    assert joined(lost, LATER) == {"power_limit_w": 250.0}
    assert joined(EARLIER, lost) == {"power_limit_w": 300.0}


def test_a_rate_that_one_has_not_is_left_out():
    without_tokens = {name: value for name, value in EARLIER.items() if name != "energy_per_token_j"}
    assert joined(without_tokens, LATER).keys() == LATER.keys() - {"energy_per_token_j"}


def test_nothing_is_divided_by_nothing():
    assert joined({**EARLIER, "power_w": 0.0, "energy_j": 0.0}, LATER).keys() == {"total_energy_j", "power_limit_w"}
